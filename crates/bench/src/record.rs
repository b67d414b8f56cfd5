// SPDX-License-Identifier: Apache-2.0
//! `agewise bench record`: what recording costs a program, and how accurate the trace is.

use std::collections::HashSet;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::time::{Duration, Instant};

use agewise_trace::{Access, TraceSource};
use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use super::pairs::{self, Pairs};
use super::statistics::{Change, median};
use super::{PAGE_BYTES, RecordArgs};
use crate::exercise::spawned::Spawned;
use crate::exercise::truth::Region;
use agewise_cli::observe;
use agewise_cli::signal::Stop;
use agewise_host::recorder::{self, Recorder};

/// The time over which working sets are compared.
const WINDOW: Duration = Duration::from_secs(1);

/// Time recorded before measuring.
const WARM_UP: Duration = Duration::from_secs(4);

/// The effect of recording, and the accuracy of the recorded working sets.
#[derive(Clone, Debug, Serialize)]
pub struct Recorded {
    /// Time between two looks.
    interval_ms: u64,
    /// Median of the spans without recording.
    alone_ops_per_second: f64,
    /// Median of the spans with recording.
    recorded_ops_per_second: f64,
    /// Pairs of spans.
    pairs: usize,
    /// Change of operations per second.
    #[serde(flatten)]
    change: Change,
    /// Change of operations per second of the exerciser's CPU time.
    cpu: Change,
    /// Number of one-second working sets compared.
    working_sets: usize,
    /// Median of the true working sets of one second.
    working_set_bytes: u64,
    /// Median deviation of the recorded working sets from the true ones.
    working_set_deviation_ratio: f64,
    /// Largest deviation.
    working_set_deviation_max_ratio: f64,
    /// Share of recorded accesses that were inferred.
    inferred_share: f64,
    /// CPU time of looks, as a share of one core.
    cpu_share: f64,
}

/// A true working set: the pages touched between two looks about a second apart.
#[derive(Clone, Copy, Debug)]
struct TrueSet {
    /// Time of the look at its beginning, in ns since the start of the recording.
    from_ns: u64,
    /// Time of the look at its end.
    to_ns: u64,
    pages: u64,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &RecordArgs, stop: &Stop) -> anyhow::Result<Recorded> {
    let (size, rate) = (args.size.to_string(), args.rate.to_string());
    let arguments = ["--size", &size, "--pattern", "uniform", "--rate", &rate];
    let exerciser = Spawned::start(program, arguments, Some(stop))?;
    let dir = tempfile::tempdir().context("a place for the trace")?;
    let path = dir.path().join("trace");
    let mut source = recorder::open_source().context("cannot read page tables")?;
    let out = BufWriter::new(File::create_new(&path)?);
    let mut recorder = Recorder::new(&mut source, &path, out, args.interval, String::new())?;
    recorder.set_max_slowdown(args.max_slowdown);
    recorder.add(exerciser.pid(), false)?;
    // The first look clears all of memory, once and without pacing: do not measure it.
    recorder.interval()?;
    // Nor the warm-up, which finds out whether to clear less often, and how steady use is.
    look_for(&mut recorder, args, WARM_UP, stop)?;
    let mut true_sets = Vec::new();
    let mut recorded_for = WARM_UP;
    let pairs = Pairs::measure(args.pairs, |is_recorded| {
        if !is_recorded {
            let (rates, ()) = pairs::rates(&exerciser, || {
                ensure!(!stop.wait(args.span), "interrupted");
                Ok(())
            })?;
            return Ok(rates);
        }
        // Accesses during the pause must not count as an interval of this span.
        recorder.interval()?;
        let begin = Instant::now();
        let look = || look_for(&mut recorder, args, args.span, stop);
        let (rates, looks) = pairs::rates(&exerciser, look)?;
        recorded_for += begin.elapsed();
        true_sets.extend(true_set(&mut recorder, &exerciser, &looks)?);
        Ok(rates)
    })?;
    let regions = exerciser.truth().regions().to_vec();
    exerciser.finish()?;
    let (totals, _) = recorder.finish()?;
    let deviations = deviations(&path, &true_sets, &regions)?;
    let [change, cpu] = pairs.changes()?;
    let [alone, recorded] = pairs.medians();
    let pages: Vec<f64> = true_sets.iter().map(|set| set.pages as f64).collect();
    Ok(Recorded {
        interval_ms: observe::millis(args.interval),
        alone_ops_per_second: alone,
        recorded_ops_per_second: recorded,
        pairs: args.pairs,
        change,
        cpu,
        working_sets: deviations.len(),
        working_set_bytes: median(&pages) as u64 * PAGE_BYTES,
        working_set_deviation_ratio: median(&deviations),
        working_set_deviation_max_ratio: deviations.iter().copied().fold(0.0, f64::max),
        inferred_share: totals.inferred as f64 / totals.accesses.max(1) as f64,
        cpu_share: totals.cpu_ns as f64 / 1e9 / recorded_for.as_secs_f64().max(1e-9),
    })
}

/// Records for one span; returns the times of its looks.
fn look_for(
    recorder: &mut Recorder<'_, BufWriter<File>>,
    args: &RecordArgs,
    span: Duration,
    stop: &Stop,
) -> anyhow::Result<Vec<u64>> {
    let begin = Instant::now();
    let mut next = begin;
    let mut looks = Vec::new();
    while begin.elapsed() < span {
        next = (next + args.interval).max(Instant::now());
        if stop.wait_until(next) {
            bail!("interrupted");
        }
        recorder.interval()?;
        looks.push(recorder.last_look_ns());
    }
    Ok(looks)
}

/// Makes one more look at a stopped exerciser; returns what it touched in the second before.
fn true_set(
    recorder: &mut Recorder<'_, BufWriter<File>>,
    exerciser: &Spawned,
    looks: &[u64],
) -> anyhow::Result<Option<TrueSet>> {
    let pid = Pid::from_raw(exerciser.pid() as i32).context("a pid is positive")?;
    kill_process(pid, Signal::STOP)?;
    let looked = recorder.interval();
    let to_ns = recorder.last_look_ns();
    let window_ns = WINDOW.as_nanos() as u64;
    let from_ns = looks
        .iter()
        .rev()
        .copied()
        .find(|&look| look + window_ns <= to_ns);
    let truth = exerciser.truth();
    let pages = from_ns.map(|from_ns| {
        let from = recorder.start_ns() + from_ns;
        (0..truth.pages())
            .filter(|&slot| truth.last_access_ns(slot) >= from)
            .count() as u64
    });
    kill_process(pid, Signal::CONT)?;
    looked?;
    Ok(from_ns.zip(pages).map(|(from_ns, pages)| TrueSet {
        from_ns,
        to_ns,
        pages,
    }))
}

/// The deviations of the recorded working sets from the true ones.
fn deviations(path: &Path, sets: &[TrueSet], regions: &[Region]) -> anyhow::Result<Vec<f64>> {
    let mut stream = TraceSource::new(path).open()?;
    let mut found: Vec<HashSet<u64>> = vec![HashSet::new(); sets.len()];
    let mut batch = Vec::<Access>::new();
    while stream.next_batch(&mut batch)? {
        for access in &batch {
            let known = regions.iter().any(|region| {
                let first = region.address / PAGE_BYTES;
                (first..first + region.pages).contains(&access.page)
            });
            if !known {
                continue;
            }
            for (set, pages) in sets.iter().zip(&mut found) {
                if set.from_ns < access.time_ns && access.time_ns <= set.to_ns {
                    pages.insert(access.page);
                }
            }
        }
    }
    Ok(sets
        .iter()
        .zip(&found)
        .map(|(set, pages)| (pages.len() as f64 / set.pages.max(1) as f64 - 1.0).abs())
        .collect())
}
