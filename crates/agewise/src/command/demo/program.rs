// SPDX-License-Identifier: Apache-2.0
//! A real program to observe beside the exerciser: an interpreter that most machines have, working
//! on a table. It uses a tenth of the table; the sum over the whole table at the end proves that no
//! data was lost.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use agewise_cli::children::Killed;
use anyhow::{Context, bail};
use rustix::process::Signal;

/// Entries of the table.
const ENTRIES: u32 = 400_000;

/// Reads lines from standard input: answers `work` with `ready` once the table is built, then works
/// on a tenth of the table until it reads `end`, and prints the sum of the whole table.
const PYTHON: &str = r#"
import select, sys
n = int(sys.argv[1])
table = {i: ("customer-%07d" % i) * 4 for i in range(n)}
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.05)[0]:
    for i in range(0, n // 10):
        table[i] = table[i][1:] + table[i][0]
print(sum(sum(value.encode()) for value in table.values()), flush=True)
"#;

const PERL: &str = r#"
$| = 1; my $n = shift @ARGV; my %table;
$table{$_} = sprintf("customer-%07d", $_) x 4 for 0 .. $n - 1;
print "ready\n"; my $in = ''; vec($in, fileno(STDIN), 1) = 1;
until (select(my $r = $in, undef, undef, 0.05)) {
    $table{$_} = substr($table{$_}, 1) . substr($table{$_}, 0, 1) for 0 .. $n / 10 - 1;
}
my $sum = 0; $sum += unpack("%32C*", $_) for values %table; print "$sum\n";
"#;

/// A running interpreter.
#[derive(Debug)]
pub struct Program {
    name: &'static str,
    child: Killed,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// Starts the first interpreter this machine has; `None` if it has none.
    ///
    /// # Errors
    /// The interpreter exists but does not become ready.
    pub fn start() -> anyhow::Result<Option<Self>> {
        let known = [("python3", "-c", PYTHON), ("perl", "-e", PERL)];
        let found = known
            .iter()
            .find_map(|&(name, flag, script)| Some((name, find(name)?, flag, script)));
        let Some((name, path, flag, script)) = found else {
            return Ok(None);
        };
        let mut command = Command::new(path);
        command.args([flag, script]).arg(ENTRIES.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().context("no pipe")?);
        let mut program = Self {
            name,
            child: Killed(child),
            input,
            output,
        };
        if program.line()? != "ready" {
            bail!("{name} did not come to work");
        }
        Ok(Some(program))
    }

    /// The name of the interpreter.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The pid of the interpreter.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .with_context(|| format!("{} is gone", self.name))?;
        Ok(line.trim_end().to_owned())
    }

    /// Ends the program; returns whether its table was intact.
    ///
    /// # Errors
    /// The program has already exited.
    pub fn finish(mut self) -> anyhow::Result<bool> {
        if let Some(mut input) = self.input.take() {
            input
                .write_all(b"end\n")
                .with_context(|| format!("{} is gone", self.name))?;
        }
        let sum = self.line()?;
        let status = self.child.wait()?;
        Ok(status.success() && sum == expected_sum().to_string())
    }
}

/// The sum of all bytes of all values. Reversing a value does not change it.
fn expected_sum() -> u64 {
    (0..ENTRIES)
        .map(|entry| {
            format!("customer-{entry:07}")
                .bytes()
                .map(u64::from)
                .sum::<u64>()
                * 4
        })
        .sum()
}

/// Finds `name` in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(name))
        .find(|path| {
            rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok() && path.is_file()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_proves_itself() {
        match Program::start().expect("start") {
            Some(program) => assert!(program.finish().expect("finish"), "the sum is wrong"),
            None => println!("SKIPPED the_program_proves_itself: neither python3 nor perl here"),
        }
    }
}
