// SPDX-License-Identifier: Apache-2.0
//! `agewise bench reclaim`: what the daemon's policies save on real programs, and what that costs.
//!
//! Every run has its own memory cgroup, program and (except for the baseline) daemon; all share one
//! zram device. Runs of the policies alternate. The printed figures are counts per operation, which
//! are reproducible where times are not.

mod beside;
pub mod compile;
pub(crate) mod group;
pub(crate) mod keys;
mod postgres;
pub(crate) mod program;
mod run;
mod self_measured;

use std::io::Write;
use std::path::Path;

use agewise_host::swap::{ZramDevice, ZramOptions};
use anyhow::Context;
use serde::Serialize;

use super::ReclaimArgs;
use super::statistics::{Change, median};
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
pub use beside::Beside;
pub use program::Program;
use run::{Bench, Run};
use self_measured::SelfMeasured;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Load {
    /// A program, of whose keys the first 60 % are never read again; the others by zipf 0.99.
    Cold,
    /// A program, all keys read alike: nothing is cold.
    Uniform,
    /// A parallel compile.
    Compile,
    /// A program by zipf 0.99 under a limit of 55 % of its peak.
    Budget,
}

/// The median over the runs of one load under one policy, compared with the baseline.
#[derive(Clone, Debug, Serialize)]
struct Verdict {
    load: Load,
    #[serde(skip_serializing_if = "Option::is_none")]
    beside: Option<Beside>,
    policy: String,
    runs: usize,
    /// Reduction of mean resident memory, as a share of the baseline.
    saved_ratio: f64,
    /// Reduction of peak resident memory, as a share of the baseline.
    saved_peak_ratio: f64,
    /// Change of the CPU time of program and daemon per operation.
    cpu_per_op_change: f64,
    /// Change of the CPU time of the program alone.
    program_cpu_per_op_change: f64,
    /// Additional faults per operation.
    faults_per_op_more: f64,
    /// Ratio of major faults per operation to the baseline; 0 if the baseline has none.
    major_faults_per_op_ratio: f64,
    /// Change of the 99th percentile of latency.
    p99_change: f64,
    /// The same changes by pairs of runs, with confidence intervals.
    pairs: Pairs,
    /// The verdict by the bars: met, missed, or none.
    verdict: &'static str,
}

/// Changes from the baseline to a policy, by pairs of runs; `None` for fewer than three pairs or if
/// there is nothing to compare.
#[derive(Clone, Copy, Debug, Serialize)]
struct Pairs {
    /// Major faults per operation.
    major_faults: Option<OfPairs>,
    /// CPU time of program and daemon per operation.
    cpu: Option<OfPairs>,
    /// 99th percentile of latency.
    p99: Option<OfPairs>,
}

/// A change, and the number of pairs that show it.
#[derive(Clone, Copy, Debug, Serialize)]
struct OfPairs {
    #[serde(flatten)]
    change: Change,
    pairs: usize,
}

impl Pairs {
    fn of(runs: &[Run], load: Load, policy: &str) -> Self {
        let change = |value: &dyn Fn(&Run) -> f64| {
            let of = |policy: &str, round| {
                let is = |run: &&Run| {
                    (run.load, run.policy.as_str(), run.round) == (load, policy, round)
                };
                runs.iter().find(is).map(value)
            };
            let with = runs
                .iter()
                .filter(|run| run.load == load && run.policy == policy);
            let pairs: Vec<(f64, f64)> = with
                .filter_map(|run| Some((of("none", run.round)?, value(run))))
                .collect();
            let change = Change::of_pairs(&pairs)?;
            let pairs = pairs.len();
            Some(OfPairs { change, pairs })
        };
        Pairs {
            major_faults: change(&|run| run.major_faults_per_op),
            cpu: change(&|run| run.program_cpu_us_per_op + run.daemon_cpu_us_per_op),
            p99: change(&|run| run.p99_us),
        }
    }
}

/// Runs everything and prints each run and the medians.
///
/// # Errors
/// Not root, no zram, no memory cgroups, or a program that failed.
pub(super) fn measure(program: &Path, args: &ReclaimArgs, stop: &Stop) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let device = ZramDevice::create(&ZramOptions::new(args.size.saturating_mul(2)))
        .context("memory is moved to a zram device")?;
    let _company = args.beside.map(Beside::start).transpose()?;
    let bench = Bench::new(program, args, stop)?;
    let mut runs: Vec<Run> = Vec::new();
    for load in &args.load {
        if let Err(reason) = run::is_possible(*load, args.program) {
            let skipped = serde_json::json!({"record": "skipped", "load": load, "reason": reason});
            output::json_line(&mut out, &skipped)?;
            continue;
        }
        let policies = policies_of(args, *load);
        for round in 0..args.repeats {
            for policy in &policies {
                if stop.requested().is_some() {
                    return Ok(());
                }
                let run = match bench.run(*load, policy, round) {
                    // What was measured so far has been printed.
                    Err(_) if stop.requested().is_some() => return Ok(()),
                    run => run?,
                };
                print_run(&mut out, args.format, &run)?;
                runs.push(run);
            }
        }
        for policy in policies.iter().skip(1) {
            let verdict = judge(&runs, *load, policy, args.beside);
            print_verdict(&mut out, args.format, &verdict)?;
            if *load == Load::Budget && args.self_measured.is_some() {
                let run = bench.run(*load, run::MEASURING, 0)?;
                print_run(&mut out, args.format, &run)?;
                let beside = SelfMeasured::of(run.measured, verdict.pairs);
                beside.print(&mut out, args.format)?;
            }
        }
    }
    device.remove()?;
    Ok(())
}

/// `none` comes first: it is the baseline.
fn policies_of(args: &ReclaimArgs, load: Load) -> Vec<String> {
    let wanted = match load {
        Load::Budget => vec!["budget".to_owned()],
        _ => args.policy.clone(),
    };
    std::iter::once("none".to_owned()).chain(wanted).collect()
}

fn print_run(out: &mut impl Write, format: Format, run: &Run) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json_line(
            out,
            &Record {
                record: "reclaim_run",
                fields: run,
            },
        )?,
        _ => writeln!(
            out,
            "{:?} {:<10} {:>9} ops  resident {:.0} MiB mean {:.0} MiB peak  {:.3} us CPU/op + \
             {:.3} daemon  {:.4} faults/op {:.4} major {:.5} limit hits  p50 {:.0} us p99 {:.0} us \
             p99.9 {:.0} us",
            run.load,
            run.policy,
            run.operations,
            run.resident_mean_bytes / f64::from(1 << 20),
            run.resident_peak_bytes as f64 / f64::from(1 << 20),
            run.program_cpu_us_per_op,
            run.daemon_cpu_us_per_op,
            run.faults_per_op,
            run.major_faults_per_op,
            run.limit_hits_per_op,
            run.p50_us,
            run.p99_us,
            run.p999_us,
        )?,
    }
    Ok(out.flush()?)
}

#[derive(Serialize)]
struct Record<'a, T> {
    record: &'static str,
    #[serde(flatten)]
    fields: &'a T,
}

fn print_verdict(out: &mut impl Write, format: Format, verdict: &Verdict) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            let record = Record {
                record: "reclaim",
                fields: verdict,
            };
            output::json_line(out, &record)?;
        }
        _ => writeln!(
            out,
            "== {:?} {}: saved {:.1} % (peak {:.1} %), CPU/op {:+.1} % (program {:+.1} %), \
             faults/op {:+.4}, major faults x{:.2}, p99 {:+.0} %: {}",
            verdict.load,
            verdict.policy,
            verdict.saved_ratio * 100.0,
            verdict.saved_peak_ratio * 100.0,
            verdict.cpu_per_op_change * 100.0,
            verdict.program_cpu_per_op_change * 100.0,
            verdict.faults_per_op_more,
            verdict.major_faults_per_op_ratio,
            verdict.p99_change * 100.0,
            verdict.verdict,
        )?,
    }
    if format != Format::Json {
        let pairs = &verdict.pairs;
        let named = [
            ("major faults", pairs.major_faults),
            ("CPU/op", pairs.cpu),
            ("p99", pairs.p99),
        ];
        for (name, change) in named {
            let Some(OfPairs { change, pairs }) = change else {
                continue;
            };
            writeln!(
                out,
                "   {name}: {:+.1} % ({:+.1} to {:+.1} %, {pairs} pairs)",
                change.change_ratio * 100.0,
                change.change_low_ratio * 100.0,
                change.change_high_ratio * 100.0,
            )?;
        }
    }
    Ok(out.flush()?)
}

fn judge(runs: &[Run], load: Load, policy: &str, beside: Option<Beside>) -> Verdict {
    let of = |policy: &str, value: &dyn Fn(&Run) -> f64| {
        let values: Vec<f64> = runs
            .iter()
            .filter(|run| run.load == load && run.policy == policy)
            .map(value)
            .collect();
        median(&values)
    };
    let change = |value: &dyn Fn(&Run) -> f64| {
        let without = of("none", value);
        if without > 0.0 {
            of(policy, value) / without - 1.0
        } else {
            0.0
        }
    };
    let cpu = |run: &Run| run.program_cpu_us_per_op + run.daemon_cpu_us_per_op;
    let major = of("none", &|run| run.major_faults_per_op);
    let mut verdict = Verdict {
        load,
        beside,
        policy: policy.to_owned(),
        runs: runs
            .iter()
            .filter(|run| run.load == load && run.policy == policy)
            .count(),
        saved_ratio: -change(&|run| run.resident_mean_bytes),
        saved_peak_ratio: -change(&|run| run.resident_peak_bytes as f64),
        cpu_per_op_change: change(&cpu),
        program_cpu_per_op_change: change(&|run| run.program_cpu_us_per_op),
        faults_per_op_more: of(policy, &|run| run.faults_per_op)
            - of("none", &|run| run.faults_per_op),
        major_faults_per_op_ratio: if major > 0.0 {
            of(policy, &|run| run.major_faults_per_op) / major
        } else {
            0.0
        },
        p99_change: change(&|run| run.p99_us),
        pairs: Pairs::of(runs, load, policy),
        verdict: "none",
    };
    let is_met = match (load, policy.split(':').next().unwrap_or("")) {
        (Load::Cold, "cost") => {
            Some(verdict.saved_ratio >= 0.45 && verdict.cpu_per_op_change <= 0.02)
        }
        (Load::Uniform, _) => Some(verdict.faults_per_op_more <= 0.01),
        (Load::Budget, _) => {
            let (faults_max, others_max) = beside.map_or((0.8, 0.0), |_| (1.02, 0.02));
            Some(
                verdict.major_faults_per_op_ratio <= faults_max
                    && verdict.p99_change <= others_max
                    && verdict.cpu_per_op_change <= others_max,
            )
        }
        _ => None,
    };
    verdict.verdict = match is_met {
        Some(true) => "met",
        Some(false) => "missed",
        None => "none",
    };
    verdict
}
