// SPDX-License-Identifier: Apache-2.0
//! `agewise bench steady`: much memory, watched slowly.

use std::path::Path;

use agewise_host::agent::{AgentConfig, Subject, Targets};
use agewise_host::clear::ClearPolicy;
use agewise_host::clock;
use agewise_host::root::ProcRoot;
use agewise_policy::sample::Bounds;
use anyhow::Context;
use serde::Serialize;

use super::{PAGE_BYTES, SteadyArgs, ages, half_idle};
use crate::exercise::spawned::Spawned;
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// Scans in which the histogram is held against the truth, after those that are timed.
const JUDGED: usize = 3;

/// What it takes.
#[derive(Clone, Debug, Serialize)]
pub struct Steady {
    /// Memory watched, bytes.
    watched_bytes: u64,
    /// Time from scan to scan.
    interval_ms: u64,
    /// Scans after the first.
    scans: usize,
    /// CPU time of the first scan, which clears all of memory once.
    first_scan_cpu_ms: f64,
    /// CPU time of each scan after it, on average; everything the process does is in it.
    scan_cpu_ms: f64,
    /// The same as a share of one core.
    core_ratio: f64,
    /// Reading page tables, for each GiB.
    walk_ms_per_gib: f64,
    /// From bits to ages, for each GiB.
    classify_ms_per_gib: f64,
    /// Clearing, for each GiB.
    clear_ms_per_gib: f64,
    /// Pages that the histogram has in a wrong bin, of all: the mean of a few scans more.
    histogram_error_ratio: f64,
    /// Most resident memory of agewise.
    resident_peak_bytes: u64,
    /// What the bar allows for so many pages: 40 MiB + 1.1 byte a page.
    resident_bar_bytes: u64,
}

/// Measures.
pub(super) fn measure(program: &Path, args: &SteadyArgs, stop: &Stop) -> anyhow::Result<Steady> {
    let mut arguments = half_idle(args.size);
    arguments.push("--no-final-check".to_owned());
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid())?;
    let mut config = AgentConfig::new("10s,1m,5m,30m".parse()?);
    if !args.pages {
        config.clear = ClearPolicy::exact();
        config.sample = Some(Bounds::default());
    }
    config.scan_interval_ms = Some(observe::millis(args.interval));
    let (mut agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
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

/// Most memory of this process that was resident at once.
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
