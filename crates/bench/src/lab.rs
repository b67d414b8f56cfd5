// SPDX-License-Identifier: Apache-2.0
//! `agewise bench lab`.

use std::time::Duration;

use agewise_lab::experiment::speed::{SpeedCase, SpeedTrace};
use agewise_lab::machine::Policy;
use anyhow::Context;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use agewise_cli::output::Format;

/// Arguments of the measurement.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Policy.
    #[arg(long, value_name = "POLICY", default_value = "mglru:7.2")]
    policy: String,
    /// Pages the process touches; half of them fit.
    #[arg(long, value_name = "N", default_value_t = 16384,
          value_parser = clap::value_parser!(u32).range(1024..=1 << 24))]
    pages: u32,
    /// Accesses per run.
    #[arg(long, value_name = "N", default_value_t = 4_000_000)]
    accesses: usize,
    /// Runs; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// The result; times are CPU time of the single thread.
#[derive(Debug, Serialize)]
pub struct Record {
    policy: String,
    pages: u32,
    accesses: usize,
    zipf_accesses_per_second: f64,
    zipf_ns_per_access: f64,
    zipf_faults_ratio: f64,
    uniform_accesses_per_second: f64,
    uniform_ns_per_access: f64,
    uniform_faults_ratio: f64,
    bytes_per_page: f64,
}

fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Accesses per second, ns per access, share of faults, and bytes per page.
fn time(args: &Args, policy: Policy, order: SpeedTrace) -> anyhow::Result<[f64; 4]> {
    let mut case = SpeedCase::new(policy, order, args.pages, args.accesses.max(1))
        .context("the pages do not fit into an address space")?;
    // The first run brings the lists into the state that the trace leads to.
    let mut faults = case.run();
    let mut seconds: Vec<f64> = (0..args.runs)
        .map(|_| {
            let start = cpu_time();
            faults = case.run();
            (cpu_time() - start).as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2].max(1e-9);
    let touches = case.touches() as f64;
    Ok([
        touches / median,
        median * 1e9 / touches,
        faults as f64 / touches,
        case.bytes_per_page(),
    ])
}

/// Times both traces.
///
/// # Errors
/// Unknown policy.
pub fn measure(args: &Args) -> anyhow::Result<Record> {
    let policy = Policy::parse(&args.policy).map_err(anyhow::Error::msg)?;
    let zipf = time(args, policy, SpeedTrace::Zipf)?;
    let uniform = time(args, policy, SpeedTrace::Uniform)?;
    Ok(Record {
        policy: policy.name(),
        pages: args.pages,
        accesses: args.accesses,
        zipf_accesses_per_second: zipf[0],
        zipf_ns_per_access: zipf[1],
        zipf_faults_ratio: zipf[2],
        uniform_accesses_per_second: uniform[0],
        uniform_ns_per_access: uniform[1],
        uniform_faults_ratio: uniform[2],
        bytes_per_page: zipf[3].max(uniform[3]),
    })
}
