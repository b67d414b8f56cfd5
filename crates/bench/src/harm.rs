// SPDX-License-Identifier: Apache-2.0
//! `agewise bench harm`: what being observed costs a program.

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::agent::{Agent, AgentConfig, Subject, Targets};
use agewise_host::clear::ClearPolicy;
use agewise_host::root::ProcRoot;
use agewise_policy::sample::Bounds;
use anyhow::{Context, bail};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde::Serialize;

use super::statistics::{Change, median};
use super::{HarmArgs, ages, half_idle};
use crate::exercise::spawned::Spawned;
use agewise_cli::observe;
use agewise_cli::pause;
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

/// Operations per second in one span: of time, and of the exerciser's CPU time.
type Rates = (f64, f64);

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &HarmArgs, stop: &Stop) -> anyhow::Result<Harm> {
    let mut arguments = half_idle(args.size);
    arguments.extend(["--rate".to_owned(), args.rate.to_string()]);
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid())?;
    let mut config = AgentConfig::new("1s,5s,30s,2m,10m".parse()?);
    if !args.pages {
        config.clear = ClearPolicy::exact();
        config.sample = Some(Bounds::default());
    }
    config.scan_interval_ms = Some(observe::millis(args.interval));
    let (mut agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
    // The first scan clears all of memory, once and without pacing: do not measure it.
    agent.tick()?;
    ages::scans(&mut agent, args.interval, ages::SETTLING, stop, |_, _| {
        Ok(())
    })?;
    let mut rng = Pcg64::seed_from_u64(1);
    let (mut by_time, mut by_cpu) = (Vec::new(), Vec::new());
    let (mut alone, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..args.pairs {
        let watched_first: bool = rng.random();
        let mut rates = [(0.0, 0.0); 2];
        for is_watched in [watched_first, !watched_first] {
            let watcher = is_watched.then_some((&mut agent, args.interval));
            rates[usize::from(is_watched)] = span(&exerciser, args.span, watcher, stop)?;
        }
        by_time.push((rates[0].0, rates[1].0));
        by_cpu.push((rates[0].1, rates[1].1));
        alone.push(rates[0].0);
        watched.push(rates[1].0);
    }
    let histogram_error_ratio =
        ages::mean_error_ratio(&mut agent, &exerciser, args.interval, JUDGED, stop)?;
    exerciser.finish()?;
    let change = Change::of_pairs(&by_time).context("at least three pairs are needed")?;
    let cpu = Change::of_pairs(&by_cpu).context("the exerciser's CPU time is not known")?;
    Ok(Harm {
        interval_ms: observe::millis(args.interval),
        alone_ops_per_second: median(&alone),
        watched_ops_per_second: median(&watched),
        pairs: args.pairs,
        change,
        cpu,
        histogram_error_ratio,
    })
}

/// Measures one span, with or without an observer.
fn span(
    exerciser: &Spawned,
    length: Duration,
    mut watcher: Option<(&mut Agent, Duration)>,
    stop: &Stop,
) -> anyhow::Result<Rates> {
    let read = || {
        (
            Instant::now(),
            exerciser.truth().ops(),
            exerciser.cpu_ns().unwrap_or(0),
        )
    };
    let (start, ops, cpu_ns) = read();
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
        if pause::until(agent, stop, next.min(end)) {
            bail!("interrupted");
        }
    }
    let (now, ops_now, cpu_now) = read();
    let done = (ops_now - ops) as f64;
    let cpu = cpu_now.saturating_sub(cpu_ns) as f64 / 1e9;
    Ok((
        done / (now - start).as_secs_f64(),
        if cpu > 0.0 { done / cpu } else { 0.0 },
    ))
}
