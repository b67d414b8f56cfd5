// SPDX-License-Identifier: Apache-2.0
//! `agewise bench steady`: watching much memory at a slow pace.

use std::path::Path;

use agewise_host::clock;
use anyhow::Context;
use serde::Serialize;

use super::{PAGE_BYTES, SteadyArgs, ages};
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// Scans, after the timed ones, in which the histogram is compared with the truth.
const JUDGED: usize = 3;

/// The cost.
#[derive(Clone, Debug, Serialize)]
pub struct Steady {
    /// Memory watched, in bytes.
    watched_bytes: u64,
    /// Time between two scans.
    interval_ms: u64,
    /// Scans after the first.
    scans: usize,
    /// CPU time of the first scan, which clears all of memory once.
    first_scan_cpu_ms: f64,
    /// Mean CPU time of each later scan, including everything the process does.
    scan_cpu_ms: f64,
    /// The same as a share of one core.
    core_ratio: f64,
    /// Reading page tables, per GiB.
    walk_ms_per_gib: f64,
    /// Turning accessed bits into ages, per GiB.
    classify_ms_per_gib: f64,
    /// Clearing accessed bits, per GiB.
    clear_ms_per_gib: f64,
    /// Share of pages that the histogram has in a wrong bin: the mean of a few more scans.
    histogram_error_ratio: f64,
    /// Peak resident memory of agewise.
    resident_peak_bytes: u64,
    /// The bar for this many pages: 40 MiB plus 1.1 bytes per page.
    resident_bar_bytes: u64,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &SteadyArgs, stop: &Stop) -> anyhow::Result<Steady> {
    let (exerciser, mut agent) = ages::observed(
        program,
        (args.size, &["--no-final-check"]),
        ("10s,1m,5m,30m", args.interval),
        args.pages,
        stop,
    )?;
    let mut cpu_before = clock::process_cpu();
    agent.tick()?;
    let first_scan_cpu = clock::process_cpu() - cpu_before;
    ages::scans(&mut agent, args.interval, ages::SETTLING, stop, |_, _| {
        Ok(())
    })?;
    agent.count_costs_anew();
    cpu_before = clock::process_cpu();
    let mut watched_bytes = 0;
    ages::scans(&mut agent, args.interval, args.scans, stop, |_, tick| {
        watched_bytes = tick.present_pages * PAGE_BYTES;
        Ok(())
    })?;
    let scan_cpu = (clock::process_cpu() - cpu_before) / args.scans.max(1) as u32;
    let cost = agent.cost();
    let resident_peak_bytes = peak_bytes().context("/proc/self/status has no VmHWM")?;
    let histogram_error_ratio =
        ages::mean_error_ratio(&mut agent, &exerciser, args.interval, JUDGED, stop)?;
    exerciser.finish()?;
    Ok(Steady {
        watched_bytes,
        interval_ms: observe::millis(args.interval),
        scans: args.scans,
        first_scan_cpu_ms: first_scan_cpu.as_secs_f64() * 1e3,
        scan_cpu_ms: scan_cpu.as_secs_f64() * 1e3,
        core_ratio: scan_cpu.as_secs_f64() / args.interval.as_secs_f64(),
        walk_ms_per_gib: cost.walk_ms_per_gib,
        classify_ms_per_gib: cost.classify_ms_per_gib,
        clear_ms_per_gib: cost.clear_ms_per_gib,
        histogram_error_ratio,
        resident_peak_bytes,
        resident_bar_bytes: (40 << 20) + (watched_bytes / PAGE_BYTES) * 11 / 10,
    })
}

/// Peak resident memory of this process.
pub(super) fn peak_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(
        line.trim()
            .strip_suffix("kB")?
            .trim()
            .parse::<u64>()
            .ok()?
            .saturating_mul(1024),
    )
}
