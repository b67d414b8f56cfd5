// SPDX-License-Identifier: Apache-2.0
//! Ages of an exerciser's memory: the agent's histogram compared with the truth.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use agewise_host::agent::{Agent, AgentConfig, Space, Subject, Targets, TickReport};
use agewise_host::root::ProcRoot;
use agewise_policy::generations::{Generations, Sizes};
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};
use anyhow::{Context, bail};

use super::{PAGE_BYTES, half_idle};
use crate::exercise::spawned::Spawned;
use crate::exercise::truth::Truth;
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// Scans until an agent reaches its steady state: the first ones measure the cost of clearing.
pub const SETTLING: usize = 3;
/// Scans after a span without any, before the first comparison; by then no age dates from before
/// it.
const RESUMING: usize = 4;

/// Starts an exerciser that uses half of its memory (see [`half_idle`]), and an agent that observes
/// it: a sample of it, or every page.
///
/// # Errors
/// The exerciser does not start, or cannot be observed.
pub fn observed(
    program: &Path,
    (size_bytes, more): (u64, &[&str]),
    (bounds, interval): (&str, Duration),
    every_page: bool,
    stop: &Stop,
) -> anyhow::Result<(Spawned, Agent)> {
    let mut arguments = half_idle(size_bytes);
    arguments.extend(more.iter().map(|word| (*word).to_owned()));
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let subject = Subject::process(&ProcRoot::default(), exerciser.pid())?;
    let mut config = AgentConfig::new(bounds.parse()?);
    if !every_page {
        config = config.sampled(Bounds::default());
    }
    config.scan_interval_ms = Some(observe::millis(interval));
    let (agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
    Ok((exerciser, agent))
}

/// Makes this many scans, `interval` apart, and calls `after` after each.
///
/// # Errors
/// Those of the agent and of `after`, or a signal arrived.
pub fn scans(
    agent: &mut Agent,
    interval: Duration,
    count: usize,
    stop: &Stop,
    mut after: impl FnMut(&Agent, &TickReport) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut next = Instant::now();
    for _ in 0..count {
        next += interval;
        if observe::pause_until(Some(agent), stop, next) {
            bail!("interrupted");
        }
        let report = agent.tick()?;
        after(agent, &report)?;
    }
    Ok(())
}

/// The mean of [`error_ratio`] over this many scans of an agent.
///
/// # Errors
/// As [`scans`], or the exerciser is gone.
pub fn mean_error_ratio(
    agent: &mut Agent,
    exerciser: &Spawned,
    interval: Duration,
    judged: usize,
    stop: &Stop,
) -> anyhow::Result<f64> {
    let bounds = agent.config().intervals.clone();
    let mut sum = 0.0;
    scans(agent, interval, RESUMING, stop, |_, _| Ok(()))?;
    scans(agent, interval, judged, stop, |agent, _| {
        let space = agent.space(exerciser.pid());
        let space = space.context("the exerciser is not observed any more")?;
        sum += error_ratio(space, exerciser.truth(), &bounds, Agent::now_ms());
        Ok(())
    })?;
    Ok(sum / judged as f64)
}

/// The least share of pages that the histogram has in a wrong bin: half the sum of the differences
/// over all bins. For fully present memory in base pages only; `now_ms` is on the clock of both.
pub fn error_ratio(space: &Space, truth: &Truth, bounds: &Intervals, now_ms: u64) -> f64 {
    let within = |pages: Range<u64>| space.sizes_within(pages).sizes;
    error_of(space.map().generations(), within, truth, bounds, now_ms)
}

fn error_of(
    window: &Generations,
    within: impl Fn(Range<u64>) -> Box<Sizes>,
    truth: &Truth,
    bounds: &Intervals,
    now_ms: u64,
) -> f64 {
    let mut estimated = vec![0.0; bounds.bounds_ms().len() + 1];
    for region in truth.regions() {
        let first = region.address / PAGE_BYTES;
        let mut found = Histogram::new(bounds);
        let sizes = within(first..first + region.pages);
        found.add_window(window, &sizes, now_ms, OldestPages::AtLeast);
        let all: u64 = found.total().iter().sum();
        // A sample stands for the whole region.
        let raise = region.pages as f64 / all.max(1) as f64;
        for (estimated, bin) in estimated.iter_mut().zip(found.bins()) {
            *estimated += bin.amounts.iter().sum::<u64>() as f64 * raise;
        }
    }
    // Pages not seen accessed count as old as the observation, which is a true lower bound.
    let since_ms = window.unseen_since_ms().unwrap_or(0);
    let is = true_bins(truth, bounds, since_ms, now_ms);
    let off: f64 = estimated
        .iter()
        .zip(&is)
        .map(|(estimated, is)| (estimated - *is as f64).abs())
        .sum();
    off / (2 * is.iter().sum::<u64>().max(1)) as f64
}

/// Counts pages by true age: up to each bound, and above the last. Accesses before `since_ms` count
/// as made at `since_ms`.
fn true_bins(truth: &Truth, bounds: &Intervals, since_ms: u64, now_ms: u64) -> Vec<u64> {
    let bounds_ms = bounds.bounds_ms();
    let mut bins = vec![0; bounds_ms.len() + 1];
    for slot in 0..truth.pages() {
        let accessed_ms = (truth.last_access_ns(slot) / 1_000_000).max(since_ms);
        let age_ms = now_ms.saturating_sub(accessed_ms);
        bins[bounds_ms.partition_point(|bound| *bound < age_ms)] += 1;
    }
    bins
}

#[cfg(test)]
mod tests {
    use agewise_policy::agemap::{AgeMap, Facts};
    use agewise_policy::table::{PageSet, TableBits};

    use super::*;
    use crate::exercise::truth::{Kind, Region};

    #[test]
    fn a_page_in_a_wrong_bin_counts_once() {
        let region = Region {
            address: 512 * PAGE_BYTES,
            pages: 512,
            kind: Kind::Anon,
            first_slot: 0,
        };
        let truth = Truth::create(None, &[region], PAGE_BYTES).unwrap();
        let bounds: Intervals = "1s,5s".parse().unwrap();
        let mut map = AgeMap::new(0, 10_000);
        let mut look = |young: PageSet, now_ms| {
            let bits = TableBits {
                present: PageSet::ALL,
                young,
                ..TableBits::default()
            };
            let mut looking = map.look();
            looking
                .table(Facts {
                    index: 1,
                    bits: &bits,
                    files: PageSet::NONE,
                    parts: &[],
                })
                .unwrap();
            looking.finish();
            map.advance(now_ms);
        };
        // All are accessed in the first second, and 64 of them in the third.
        look(PageSet::ALL, 1000);
        look(PageSet::NONE, 2000);
        let mut young = PageSet::NONE;
        young[2] = u64::MAX;
        look(young, 3000);
        let stamp = |slots: std::ops::Range<u64>, ms: u64| {
            slots.for_each(|slot| truth.stamp(slot, ms * 1_000_000));
        };
        stamp(0..512, 500);
        stamp(128..192, 2500);
        assert_eq!(
            error_of(
                map.generations(),
                |pages| map.sizes_within(pages).sizes,
                &truth,
                &bounds,
                3000
            ),
            0.0
        );
        // In truth 4 more pages were accessed.
        stamp(0..4, 2600);
        let error = error_of(
            map.generations(),
            |pages| map.sizes_within(pages).sizes,
            &truth,
            &bounds,
            3000,
        );
        assert!((error - 4.0 / 512.0).abs() < 1e-9, "{error}");
    }
}
