// SPDX-License-Identifier: Apache-2.0
//! `agewise lab inspect`.

use std::io::{self, Write};
use std::process::ExitCode;

use agewise_cli::usage::WrongArgument;
use agewise_lab::experiment::machine_run::Run;
use agewise_lab::study::setup::parse_policy;
use agewise_trace::suggest::nearest;
use anyhow::anyhow;

use super::setup::Setup;

/// Print the kernel's files as the simulated machine presents them at some moment of a run.
///
/// The file is `/sys/kernel/debug/lru_gen` unless another is named: generations with their ages and
/// sizes, by memory cgroup and node. Anything given by --write (PATH=TEXT) is written just before
/// the file is read, with the kernel's rules and errors.
///
/// Example: agewise lab inspect kv --at 20ms --file /sys/fs/cgroup/workload/memory.stat
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A workload of `agewise lab list`, a TOML file that describes one, or a trace.
    #[arg(value_name = "WORKLOAD|TRACE")]
    pub subject: String,
    /// What to simulate on.
    #[command(flatten)]
    pub setup: Setup,
    /// The policy.
    #[arg(long, value_name = "POLICY", default_value = "mglru:7.2")]
    pub policy: String,
    /// The seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// The moment, in simulated time: a number with ns, us, ms or s. Later than the end of the
    /// workload or trace: its end.
    #[arg(long, value_name = "TIME")]
    pub at: String,
    /// The file; `list` lists them all.
    #[arg(long, value_name = "PATH", default_value = "/sys/kernel/debug/lru_gen")]
    pub file: String,
    /// Write TEXT to a file of the machine first. Can be given several times.
    #[arg(long, value_name = "PATH=TEXT")]
    pub write: Vec<String>,
}

/// Parses a duration into ns.
pub(super) fn parse_time_ns(text: &str) -> anyhow::Result<u64> {
    let number_end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let scale = match unit.trim() {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => agewise_cli::refuse!("`{text}` is not a time; write a number with ns, us, ms or s"),
    };
    let Ok(number) = number.parse::<f64>() else {
        agewise_cli::refuse!("`{text}` is not a time; write a number with ns, us, ms or s");
    };
    let ns = number * scale;
    if !(0.0..=1e18).contains(&ns) {
        agewise_cli::refuse!("`{text}` is not between 0 and 10^9 s");
    }
    Ok(ns as u64)
}

/// Runs up to that moment and prints the file.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop_ns = parse_time_ns(&args.at)?;
    let policy = parse_policy(&args.policy)?;
    let (plan, _) = args.setup.plan(&args.subject, policy, args.seed)?;
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
    fn times_have_units() {
        assert_eq!(parse_time_ns("2s").unwrap(), 2_000_000_000);
        assert_eq!(parse_time_ns("1.5ms").unwrap(), 1_500_000);
        for bad in ["", "2", "s", "-1s", "1h", "1e30s", "9999999999999s"] {
            assert!(parse_time_ns(bad).is_err(), "{bad}");
        }
    }
}
