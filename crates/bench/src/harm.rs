// SPDX-License-Identifier: Apache-2.0
//! `agewise bench harm`: what being observed costs a program.

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;
use anyhow::bail;
use serde::Serialize;

use super::pairs::{self, Pairs};
use super::statistics::Change;
use super::{HarmArgs, ages};
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// How being observed changes a program; negative means fewer operations.
#[derive(Clone, Debug, Serialize)]
pub struct Harm {
    /// Time between two scans.
    interval_ms: u64,
    /// Median of the spans without agewise.
    alone_ops_per_second: f64,
    /// Median of the spans with agewise.
    watched_ops_per_second: f64,
    /// Pairs of spans.
    pairs: usize,
    /// Change of operations per second.
    #[serde(flatten)]
    change: Change,
    /// Change of operations per second of the exerciser's CPU time; unlike the above it excludes
    /// time taken by other programs.
    cpu: Change,
    /// Share of pages that the histogram has in a wrong bin: the mean of some scans after the
    /// spans.
    histogram_error_ratio: f64,
}

/// Scans in which the histogram is compared with the truth.
const JUDGED: usize = 10;

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &HarmArgs, stop: &Stop) -> anyhow::Result<Harm> {
    let rate = args.rate.to_string();
    let (exerciser, mut agent) = ages::observed(
        program,
        (args.size, &["--rate", &rate]),
        ("1s,5s,30s,2m,10m", args.interval),
        args.pages,
        stop,
    )?;
    // The first scan clears all of memory, once and without pacing: do not measure it.
    agent.tick()?;
    ages::scans(&mut agent, args.interval, ages::SETTLING, stop, |_, _| {
        Ok(())
    })?;
    let pairs = Pairs::measure(args.pairs, |is_watched| {
        let watcher = is_watched.then_some((&mut agent, args.interval));
        let (rates, ()) = pairs::rates(&exerciser, || span(args.span, watcher, stop))?;
        Ok(rates)
    })?;
    let histogram_error_ratio =
        ages::mean_error_ratio(&mut agent, &exerciser, args.interval, JUDGED, stop)?;
    exerciser.finish()?;
    let [change, cpu] = pairs.changes()?;
    let [alone, watched] = pairs.medians();
    Ok(Harm {
        interval_ms: observe::millis(args.interval),
        alone_ops_per_second: alone,
        watched_ops_per_second: watched,
        pairs: args.pairs,
        change,
        cpu,
        histogram_error_ratio,
    })
}

/// Lets one span pass, with or without an observer.
fn span(
    length: Duration,
    mut watcher: Option<(&mut Agent, Duration)>,
    stop: &Stop,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let end = start + length;
    let mut next = start;
    while Instant::now() < end {
        if let Some((agent, interval)) = &mut watcher {
            agent.tick()?;
            next += *interval;
        } else {
            next = end;
        }
        let agent = watcher.as_mut().map(|(agent, ..)| &mut **agent);
        if observe::pause_until(agent, stop, next.min(end)) {
            bail!("interrupted");
        }
    }
    Ok(())
}
