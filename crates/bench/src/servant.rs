// SPDX-License-Identifier: Apache-2.0
//! A program at the command of a benchmark: it obeys one order per line of its input, and answers
//! each with a line that is a number, or the reason why it could not.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use agewise_cli::children::Killed;
use agewise_cli::output;
use anyhow::{Context, bail};
use rustix::process::Signal;

/// The program, as the benchmark sees it. It ends with us.
#[derive(Debug)]
pub struct Servant {
    child: Killed,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Servant {
    /// Starts `program bench NAME WORDS`, which calls [`serve`].
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(program: &Path, name: &str, words: &[&OsStr]) -> anyhow::Result<Self> {
        let mut child = Command::new(program)
            .args(["bench", name])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {} bench {name}", program.display()))?;
        let orders = child.stdin.take().context("no pipe to it")?;
        let answers = BufReader::new(child.stdout.take().context("no pipe from it")?);
        Ok(Servant {
            child: Killed(child),
            orders,
            answers,
        })
    }

    /// The pid of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order and waits for the answer.
    ///
    /// # Errors
    /// The program could not obey, or has ended.
    pub fn ask(&mut self, order: &str) -> anyhow::Result<u64> {
        writeln!(self.orders, "{order}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        match line.trim().parse() {
            Ok(number) => Ok(number),
            Err(_) if line.is_empty() => bail!("{order}: the program has ended"),
            Err(_) => bail!("{order}: {}", line.trim()),
        }
    }
}

/// Obeys orders from standard input until it ends.
///
/// # Errors
/// Standard input or output failed.
pub fn serve(mut obey: impl FnMut(&str) -> anyhow::Result<u64>) -> anyhow::Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut answers = std::io::stdout();
    for line in std::io::stdin().lines() {
        let answer = match obey(&line?) {
            Ok(number) => number.to_string(),
            Err(error) => output::chain(&error),
        };
        writeln!(answers, "{answer}")?;
        answers.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}
