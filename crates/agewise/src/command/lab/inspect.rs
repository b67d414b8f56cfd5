// SPDX-License-Identifier: Apache-2.0
//! `agewise lab inspect`.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use agewise_cli::units;
use agewise_cli::usage::WrongArgument;
use agewise_lab::experiment::machine_run::Run;
use agewise_trace::suggest::nearest;
use anyhow::anyhow;

use super::setup::OneRun;

/// Print the kernel's files as the simulated machine presents them at some moment of a run.
///
/// The file is `/sys/kernel/debug/lru_gen` unless another is named: generations with their ages and
/// sizes, by memory cgroup and node. Anything given by --write (PATH=TEXT) is written just before
/// the file is read, with the kernel's rules and errors.
///
/// Example: agewise lab inspect kv --at 20ms --file /sys/fs/cgroup/workload/memory.stat
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to run.
    #[command(flatten)]
    pub run: OneRun,
    /// The moment, in simulated time: a number with its unit, ns to d. Later than the end of the
    /// workload or trace: its end.
    #[arg(long, value_name = "TIME", value_parser = time_ns)]
    pub at: u64,
    /// The file; `list` lists them all.
    #[arg(long, value_name = "PATH", default_value = "/sys/kernel/debug/lru_gen")]
    pub file: String,
    /// Write TEXT to a file of the machine first. Can be given several times.
    #[arg(long, value_name = "PATH=TEXT")]
    pub write: Vec<String>,
}

/// The longest time: sums of it with others have to fit in 64 bits.
const TIME_MAX: Duration = Duration::from_secs(1_000_000_000);

/// Parses a moment or a span of simulated time; returns ns.
pub(super) fn time_ns(text: &str) -> Result<u64, String> {
    match units::duration(text)? {
        time if time <= TIME_MAX => Ok(time.as_nanos() as u64),
        _ => Err(format!("`{text}` is not between 0 and 10^9 s")),
    }
}

/// Runs up to that moment and prints the file.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop_ns = args.at;
    let (plan, _) = args.run.plan()?;
    let mut run = Run::new(&plan)?;
    run.run_until(stop_ns)?;
    let machine = &mut run.machine;
    if machine.now_ns() < stop_ns {
        machine.set_now_ns(stop_ns);
    }
    let mut out = io::stdout().lock();
    for write in &args.write {
        let Some((path, text)) = write.split_once('=') else {
            agewise_cli::refuse!("--write `{write}` is not of the form PATH=TEXT");
        };
        machine
            .write_file(path, text.as_bytes())
            .map_err(|error| anyhow!("{path}: {error}"))?;
    }
    if args.file == "list" {
        for path in machine.file_paths() {
            writeln!(out, "{path}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let text = machine.read_file(&args.file).map_err(|error| {
        let paths = machine.file_paths();
        match nearest(&args.file, paths.iter().map(String::as_str)) {
            Some(near) if near != args.file => {
                WrongArgument(format!("{}: {error}; did you mean {near}?", args.file))
            }
            _ => WrongArgument(format!("{}: {error}", args.file)),
        }
    })?;
    out.write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_an_end() {
        assert_eq!(time_ns("1.5ms"), Ok(1_500_000));
        assert_eq!(time_ns("1000000000s"), Ok(1_000_000_000_000_000_000));
        for bad in ["", "2", "s", "-1s", "9999999999999s", "1000000001s"] {
            assert!(time_ns(bad).is_err(), "{bad}");
        }
    }
}
