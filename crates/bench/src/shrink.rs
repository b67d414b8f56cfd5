// SPDX-License-Identifier: Apache-2.0
//! `agewise bench shrink`: how small `agewise shrink` makes a program compared with the smallest
//! harmless fixed limit, and how long it hurt on the way.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agewise_cli::children;
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_host::cgroup::{Cgroup, FreshStatistics, Mounts};
use agewise_host::pressure::{Psi, Resource};
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramOptions};
use anyhow::{Context, bail, ensure};
use serde::Serialize;

use crate::reclaim::group::Group;
use crate::service;
use crate::subject::{Load, Subject, wait};

/// Time for a load to settle before anything is done to it.
const SETTLE: Duration = Duration::from_secs(3);
/// Time after setting a fixed limit, before waiting is measured.
const FIXED_SETTLE: Duration = Duration::from_secs(4);
/// Time the command may take to end when asked to.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two readings of the kernel's count of waiting.
const SAMPLE: Duration = Duration::from_millis(500);
/// Samples per second; a second counts as too slow by their mean.
const SAMPLES_PER_SECOND: usize = 2;
/// Lower bound of the fixed limits tried, in percent of the usage without a limit.
const LEAST_PERCENT: u64 = 20;
/// Number of fixed limits tried; each halves the remaining range.
const TRIES: u32 = 5;

const UNCOUNTED: &str = "the kernel does not count the waiting of a cgroup: it needs CONFIG_PSI, \
    psi=1, and cgroup2, mounted beside v1 or alone";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Memory of the exerciser, or of the values that a program keeps.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = units::positive_size)]
    size: u64,
    /// What runs, as for `bench whatif`.
    #[arg(long, value_name = "LOAD", num_args = 1.., default_values = [
        "redis@20000", "memcached@20000", "sqlite@10000", "python@10000", "zipf:0.99@10000",
        "hotcold:0.5@20000",
    ])]
    load: Vec<Load>,
    /// Share of the time that waiting for memory may take.
    #[arg(long, value_name = "SHARE", default_value = "0.5%", value_parser = units::share)]
    max_wait: f64,
    /// How long it is watched before it is shrunk.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    #[arg(value_parser = units::positive_duration)]
    duration: Duration,
    /// How long waiting is measured at each fixed limit. It may grow for half a minute.
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    #[arg(value_parser = units::positive_duration)]
    window: Duration,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The columns of CSV.
const COLUMNS: &str =
    "load,usage_bytes,limit_bytes,wait_ratio,over_seconds,best_bytes,saved_ratio,is_met";

/// The result of one load.
#[derive(Clone, Debug, Serialize)]
struct Row {
    record: &'static str,
    load: String,
    /// Usage without a limit, after it was watched.
    usage_bytes: u64,
    /// The final limit; null if nothing was taken.
    limit_bytes: Option<u64>,
    /// Share of time spent waiting at that limit, over --window.
    wait_ratio: f64,
    /// The longest run of seconds in which waiting exceeded the allowed share.
    over_seconds: usize,
    /// The smallest harmless fixed limit, to a 40th of the usage.
    best_bytes: u64,
    /// What was saved, relative to what that limit saves.
    saved_ratio: f64,
    is_met: bool,
}

/// Measures, and prints results as they become known.
pub(super) fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<()> {
    let device = ZramDevice::create(&ZramOptions::new(args.size.saturating_mul(2)))
        .context("what has to leave goes to a zram device")?;
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Text => writeln!(
            out,
            "{:<20} {:>11} {:>11} {:>8} {:>7} {:>11} {:>7}",
            "load", "has", "limit", "waits", "over", "best", "saved"
        )?,
        Format::Csv => writeln!(out, "{COLUMNS}")?,
        Format::Json => {}
    }
    for load in &args.load {
        if let Err(reason) = load.is_possible() {
            agewise_cli::note!("{load} is skipped: {reason}");
            continue;
        }
        let row = run(program, args, load, stop)?;
        print_row(&mut out, args.format, &row)?;
    }
    Ok(device.remove()?)
}

fn run(program: &Path, args: &Args, load: &Load, stop: &Stop) -> anyhow::Result<Row> {
    let scene = Scene::start(program, args, load, stop)?;
    let ended = AtomicBool::new(false);
    let (shrunk, waits) = std::thread::scope(|scope| {
        let waits = scope.spawn(|| scene.waits(&ended));
        let shrunk = shrink(program, args, &scene);
        ended.store(true, Ordering::Relaxed);
        (shrunk, waits.join())
    });
    let (usage_bytes, limit_bytes, wait_ratio) = shrunk?;
    let waits = waits.ok().context("the thread that samples panicked")??;
    scene.end()?;
    let best_bytes = best(program, args, load, usage_bytes, stop)?;
    let saved = |limit: u64| usage_bytes.saturating_sub(limit) as f64;
    let saved_ratio = match saved(best_bytes) {
        0.0 => 1.0,
        most => limit_bytes.map_or(0.0, saved) / most,
    };
    let over_seconds = longest_over(&waits, args.max_wait);
    Ok(Row {
        record: "shrink",
        load: load.to_string(),
        usage_bytes,
        limit_bytes,
        wait_ratio,
        over_seconds,
        best_bytes,
        saved_ratio,
        is_met: over_seconds <= 5 && saved_ratio >= 0.85,
    })
}

/// A program in a cgroup of its own.
struct Scene<'a> {
    group: Group,
    /// Where its waiting is counted.
    counted: Cgroup,
    subject: Subject,
    stop: &'a Stop,
}

impl<'a> Scene<'a> {
    fn start(program: &Path, args: &Args, load: &Load, stop: &'a Stop) -> anyhow::Result<Self> {
        let mut group = Group::create("shrink")?;
        let subject = load.start(program, args.size, &group, stop)?;
        group.enter_unified()?;
        let counted = counted(group.cgroup())?;
        let scene = Scene {
            group,
            counted,
            subject,
            stop,
        };
        wait(stop, SETTLE)?;
        Ok(scene)
    }

    fn usage_bytes(&self) -> anyhow::Result<u64> {
        let usage = self.group.cgroup().usage_bytes()?;
        usage.context("the cgroup has no count of its memory")
    }

    /// The limit set by the command, if any.
    fn limit_bytes(&self) -> anyhow::Result<Option<u64>> {
        let limits = self.group.cgroup().limits()?;
        Ok(limits.high_bytes.or(limits.max_bytes))
    }

    /// Time in which one of its processes waited for memory. The count of the machine would include
    /// others, and dilute this one's waiting by what they do on other processors.
    fn stalled(&self) -> anyhow::Result<Duration> {
        let pressure = Psi::of_cgroup(&self.counted, Resource::Memory)?.context(UNCOUNTED)?;
        Ok(Duration::from_micros(pressure.some.total_us))
    }

    /// The share of waiting in each sample, until `ended`.
    fn waits(&self, ended: &AtomicBool) -> anyhow::Result<Vec<f64>> {
        let mut waits = Vec::new();
        let mut last = (Instant::now(), self.stalled()?);
        while !ended.load(Ordering::Relaxed) {
            std::thread::sleep(SAMPLE);
            let now = (Instant::now(), self.stalled()?);
            let (waited, took) = (now.1.saturating_sub(last.1), now.0 - last.0);
            waits.push(waited.as_secs_f64() / took.as_secs_f64());
            last = now;
        }
        Ok(waits)
    }

    fn wait_ratio(&self, window: Duration) -> anyhow::Result<f64> {
        let (began, before) = (Instant::now(), self.stalled()?);
        wait(self.stop, window)?;
        let waited = self.stalled()?.saturating_sub(before);
        Ok(waited.as_secs_f64() / began.elapsed().as_secs_f64())
    }

    /// Whether waiting at a fixed limit stays within the allowed share. A limit that the kernel
    /// cannot reclaim down to, or at which it kills, is harmful.
    fn is_well_at(&mut self, limit_bytes: u64, args: &Args) -> anyhow::Result<bool> {
        if self.group.limit(limit_bytes).is_err() {
            return Ok(false);
        }
        wait(self.stop, FIXED_SETTLE)?;
        let wait_ratio = self.wait_ratio(args.window)?;
        Ok(!self.subject.has_ended() && wait_ratio <= args.max_wait)
    }

    fn end(mut self) -> anyhow::Result<()> {
        let by_itself = self.subject.has_ended();
        // A squeezed program ends sooner with its memory back.
        self.group.limit(1 << 40)?;
        self.subject.finish()?;
        ensure!(!by_itself, "the program ended by itself");
        Ok(())
    }
}

/// The cgroup with the same processes for which the kernel counts how long they wait.
fn counted(cgroup: &Cgroup) -> anyhow::Result<Cgroup> {
    let proc = ProcRoot::default();
    let unified = Mounts::read(&proc)?.unified().context(UNCOUNTED)?;
    cgroup.counterpart(&unified, &proc)?.context(UNCOUNTED)
}

/// Runs `agewise shrink`; returns the usage before, the final limit, and how much is waited there.
fn shrink(
    program: &Path,
    args: &Args,
    scene: &Scene<'_>,
) -> anyhow::Result<(u64, Option<u64>, f64)> {
    let state = tempfile::tempdir()?;
    let mut command = service::apart(program);
    command.args([
        "shrink", "--to", "auto", "--keep", "--format", "json", "--cgroup",
    ]);
    command.arg(scene.group.cgroup().name());
    command.args(["--max-wait", &format!("{}%", args.max_wait * 100.0)]);
    command.args(["--duration", &format!("{}ms", args.duration.as_millis())]);
    command.env("STATE_DIRECTORY", state.path());
    let usage_bytes = match follow(command, scene)? {
        Some(verdict) => verdict["usage_before_bytes"].as_u64(),
        None => Some(scene.usage_bytes()?),
    };
    let usage_bytes = usage_bytes.context("the verdict has no usage_before_bytes")?;
    // A limit that is kept is hard in v1, and the command no longer keeps the kernel from killing.
    let mut fresh = FreshStatistics::default();
    fresh.add(scene.group.cgroup())?;
    let wait_ratio = scene.wait_ratio(args.window)?;
    Ok((usage_bytes, scene.limit_bytes()?, wait_ratio))
}

/// Runs the command to its end; returns its last record, or nothing if it refused. That it stepped
/// back, and why, is a result, not an error.
fn follow(mut command: Command, scene: &Scene<'_>) -> anyhow::Result<Option<serde_json::Value>> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    while child.try_wait()?.is_none() {
        if let Err(error) = wait(scene.stop, SAMPLE) {
            children::end(&mut child, PATIENCE);
            return Err(error);
        }
    }
    let done = child.wait_with_output()?;
    let lines = String::from_utf8_lossy(&done.stdout);
    let last = lines.lines().last().map(serde_json::from_str);
    let last: Option<serde_json::Value> = last.and_then(Result::ok);
    let said = String::from_utf8_lossy(&done.stderr);
    match last.as_ref().and_then(|line| line["verdict"].as_str()) {
        Some("reached") => {}
        Some(verdict) => agewise_cli::note!("it ended with: {verdict}"),
        None if said.contains("refused") => {
            agewise_cli::note!("{}", said.trim_end());
            return Ok(None);
        }
        None => bail!("{}", said.trim_end()),
    }
    Ok(last)
}

/// Finds the smallest harmless fixed limit. Each is tried on a new program: what an earlier limit
/// had taken would keep coming back for minutes.
fn best(
    program: &Path,
    args: &Args,
    load: &Load,
    usage_bytes: u64,
    stop: &Stop,
) -> anyhow::Result<u64> {
    let (mut hurts, mut well) = (usage_bytes / 100 * LEAST_PERCENT, usage_bytes);
    for _ in 0..TRIES {
        let limit = hurts.midpoint(well);
        let mut scene = Scene::start(program, args, load, stop)?;
        if scene.is_well_at(limit, args)? {
            well = limit;
            scene.end()?;
        } else {
            hurts = limit;
            // The kernel may have killed it.
            let _ = scene.end();
        }
    }
    Ok(well)
}

/// The longest run of seconds in each of which waiting exceeded `max`.
fn longest_over(waits: &[f64], max: f64) -> usize {
    let (mut longest, mut now) = (0, 0);
    for second in waits.chunks(SAMPLES_PER_SECOND) {
        let mean = second.iter().sum::<f64>() / second.len() as f64;
        now = if mean > max { now + 1 } else { 0 };
        longest = longest.max(now);
    }
    longest
}

fn print_row(out: &mut impl Write, format: Format, row: &Row) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json_line(out, row)?,
        Format::Csv => output::csv_row(out, COLUMNS, row)?,
        Format::Text => writeln!(
            out,
            "{:<20} {:>11} {:>11} {:>7.2}% {:>6}s {:>11} {:>6.0}%{}",
            row.load,
            units::bytes_text(row.usage_bytes),
            row.limit_bytes.map_or("-".to_owned(), units::bytes_text),
            row.wait_ratio * 100.0,
            row.over_seconds,
            units::bytes_text(row.best_bytes),
            row.saved_ratio * 100.0,
            if row.is_met { "" } else { " missed" }
        )?,
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_run_of_bad_seconds_counts() {
        let (good, bad) = ([0.0, 0.001], [0.0, 0.2]);
        let waits = [bad, good, bad, bad, bad, good, bad].concat();
        assert_eq!(longest_over(&waits, 0.005), 3);
        assert_eq!(longest_over(&[], 0.005), 0);
        // An incomplete second counts by the samples it has.
        assert_eq!(longest_over(&[bad.as_slice(), &[0.1]].concat(), 0.005), 2);
    }
}
