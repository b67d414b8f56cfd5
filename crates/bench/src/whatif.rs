// SPDX-License-Identifier: Apache-2.0
//! `agewise bench whatif`: the predictions of the curve compared with what then happens.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use agewise_cli::output::{self, Format};
use agewise_cli::prices::{Costs, costs};
use agewise_cli::signal::Stop;
use agewise_cli::whatif::{Found, Plan, watch};
use agewise_cli::{observe, units};
use agewise_host::cgroup::FreshStatistics;
use agewise_host::swap::{ZramDevice, ZramOptions};
use agewise_policy::whatif::Decider;
use anyhow::Context;
use serde::Serialize;

use crate::reclaim::group::Group;
use crate::subject::{Load, Subject, wait};

/// Time for a load to settle before it is watched.
const SETTLE: Duration = Duration::from_secs(3);
/// Time after setting a limit, before anything is counted.
const SQUEEZE_SETTLE: Duration = Duration::from_secs(4);
/// Limits, in percent of the usage without a limit.
const LIMITS: [u64; 4] = [90, 75, 60, 50];
/// Allowed error of a prediction: a share of the measured value, or faults per second.
const OFF_RATIO: f64 = 0.15;
const OFF_FAULTS: f64 = 1.0;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Memory of the exerciser, or of the values that a program keeps.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = units::positive_size)]
    size: u64,
    /// What runs, as PATTERN@OPERATIONS per second of the exerciser, PROGRAM@OPERATIONS: redis,
    /// memcached, sqlite, sqlite-file, python or postgres, keys by zipf 0.99, or compile@COMPILERS
    /// at a time. A program that is not installed is skipped.
    #[arg(long, value_name = "LOAD", num_args = 1.., default_values = [
        "zipf:0.99@20000", "zipf:0.7@10000", "uniform@5000", "scan@10000", "hotcold:0.5@20000",
        "shift:5s@5000", "redis@20000", "memcached@20000", "sqlite@10000", "python@10000",
    ])]
    load: Vec<Load>,
    /// How long it is watched before it is squeezed.
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    #[arg(value_parser = units::positive_duration)]
    duration: Duration,
    /// How long faults are counted at each limit.
    #[arg(long, value_name = "DURATION", default_value = "6s")]
    #[arg(value_parser = units::positive_duration)]
    window: Duration,
    /// Count the page cache that no process maps.
    #[arg(long)]
    files: bool,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The columns of CSV.
const COLUMNS: &str = "load,limit_percent,limit_bytes,faults_per_second,faults_low,faults_high,\
    lru_faults_per_second,measured_per_second,error_ratio,is_near,is_within";

/// One load at one limit.
#[derive(Clone, Debug, Serialize)]
struct Row {
    load: String,
    limit_percent: u64,
    limit_bytes: u64,
    /// The prediction and its interval; no upper bound is null.
    faults_per_second: f64,
    faults_low: f64,
    faults_high: f64,
    /// The prediction for an exact LRU.
    lru_faults_per_second: f64,
    /// The measured value.
    measured_per_second: f64,
    error_ratio: f64,
    is_near: bool,
    is_within: bool,
    /// Operations per second before and then: a program that waits does less.
    ops_before: f64,
    ops_then: f64,
    observed_seconds: f64,
    interval_ms: u64,
}

/// The overall result.
#[derive(Clone, Debug, Serialize)]
struct Total {
    record: &'static str,
    points: usize,
    near: usize,
    within: usize,
    median_error_ratio: f64,
    look_cpu_ms: f64,
    simulate_cpu_ms: f64,
}

/// Measures, and prints results as they become known.
pub(super) fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<()> {
    let device = ZramDevice::create(&ZramOptions::new(args.size.saturating_mul(2)))
        .context("what has to leave goes to a zram device")?;
    let costs = costs();
    let mut out = std::io::stdout().lock();
    let mut rows: Vec<Row> = Vec::new();
    let mut cpu_ms = [0.0; 2];
    if args.format == Format::Text {
        writeln!(
            out,
            "{:<20} {:>5} {:>10} {:>22} {:>10} {:>10} {:>8}",
            "load", "limit", "predicted", "between", "lru", "measured", "off"
        )?;
    }
    for load in &args.load {
        if let Err(reason) = load.is_possible() {
            agewise_cli::note!("{load} is skipped: {reason}");
            continue;
        }
        let (of_load, found) = run(program, args, load, stop)?;
        cpu_ms[0] += found.look_cpu_ms;
        cpu_ms[1] += found.simulate_cpu_ms;
        for row in &of_load {
            print_row(&mut out, args.format, row)?;
        }
        rows.extend(of_load);
    }
    device.remove()?;
    print_total(&mut out, args.format, &rows, cpu_ms, &costs)
}

fn run(program: &Path, args: &Args, load: &Load, stop: &Stop) -> anyhow::Result<(Vec<Row>, Found)> {
    let group = Group::create("whatif")?;
    let mut subject = load.start(program, args.size, &group, stop)?;
    wait(stop, SETTLE)?;
    let cgroup = group.cgroup();
    // The kernel that is predicted knows the lengths of its lists.
    let mut fresh = FreshStatistics::default();
    fresh.add(cgroup)?;
    let plan = Plan {
        duration: args.duration,
        interval: None,
        spares_lists: true,
        files: args.files,
    };
    let ops = subject.ops();
    let found = watch(observe::listed(&[], &[cgroup.name()])?, plan, stop)?;
    let before = Before {
        usage_bytes: cgroup.usage_bytes()?.context("it has memory")?,
        ops_per_second: (subject.ops() - ops) as f64 / args.duration.as_secs_f64(),
    };
    let mut rows = Vec::new();
    for percent in LIMITS {
        match squeeze(
            args,
            load,
            (&group, &mut subject),
            (&found, &before),
            percent,
            stop,
        ) {
            Ok(row) => rows.push(row),
            Err(error) if stop.requested().is_some() => return Err(error),
            // Below the steep part of a curve the kernel may find nothing to evict, and refuse the
            // limit or kill: report that and continue.
            Err(error) => {
                agewise_cli::note!("{load} at {percent} %: {}", output::chain(&error));
                break;
            }
        }
    }
    // A squeezed program ends sooner with its memory back.
    group.limit(before.usage_bytes.saturating_mul(2))?;
    if let Err(error) = subject.finish() {
        agewise_cli::note!("{load}: {}", output::chain(&error));
    }
    Ok((rows, found))
}

/// The state before any limit.
struct Before {
    usage_bytes: u64,
    ops_per_second: f64,
}

/// Sets a limit and counts what happens.
fn squeeze(
    args: &Args,
    load: &Load,
    (group, subject): (&Group, &mut Subject),
    (found, before): (&Found, &Before),
    percent: u64,
    stop: &Stop,
) -> anyhow::Result<Row> {
    let limit_bytes = before.usage_bytes / 100 * percent;
    group.limit(limit_bytes)?;
    wait(stop, SQUEEZE_SETTLE)?;
    let refaults = || -> anyhow::Result<u64> {
        let stat = group.cgroup().stat()?;
        Ok(stat.refaults_anon_pages + stat.refaults_file_pages)
    };
    let (began, ops, first) = (Instant::now(), subject.ops(), refaults()?);
    wait(stop, args.window)?;
    let came = refaults()?.saturating_sub(first);
    let ops = subject.ops().saturating_sub(ops);
    anyhow::ensure!(!subject.has_ended(), "it has ended");
    let seconds = began.elapsed().as_secs_f64();
    let measured = came as f64 / seconds;
    let beyond = before.usage_bytes.saturating_sub(found.curves.full_bytes);
    let at = |decider| {
        let memory = limit_bytes.saturating_sub(beyond);
        found.curves.at(decider, memory).faults_per_second()
    };
    let (predicted, lru) = (at(Decider::Kernel), at(Decider::Lru));
    let off = (predicted.likely - measured).abs();
    Ok(Row {
        load: load.to_string(),
        limit_percent: percent,
        limit_bytes,
        faults_per_second: predicted.likely,
        faults_low: predicted.low,
        faults_high: predicted.high,
        lru_faults_per_second: lru.likely,
        measured_per_second: measured,
        error_ratio: (predicted.likely - measured) / measured.max(OFF_FAULTS),
        is_near: off <= (OFF_RATIO * measured).max(OFF_FAULTS),
        is_within: predicted.low - OFF_FAULTS <= measured
            && measured <= predicted.high + OFF_FAULTS,
        ops_before: before.ops_per_second,
        ops_then: ops as f64 / seconds,
        observed_seconds: found.curves.observed_ms as f64 / 1000.0,
        interval_ms: observe::millis(found.interval),
    })
}

fn print_row(out: &mut impl Write, format: Format, row: &Row) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json_line(out, row)?,
        Format::Csv => {}
        Format::Text => {
            let marks = [(row.is_near, "far"), (row.is_within, "outside")];
            let marks: Vec<&str> = marks
                .iter()
                .filter(|(is, _)| !is)
                .map(|(_, no)| *no)
                .collect();
            writeln!(
                out,
                "{:<20} {:>4}% {:>10.1} {:>10.1}..{:>10.1} {:>10.1} {:>10.1} {:>7.1}% {}",
                row.load,
                row.limit_percent,
                row.faults_per_second,
                row.faults_low,
                row.faults_high,
                row.lru_faults_per_second,
                row.measured_per_second,
                row.error_ratio * 100.0,
                marks.join(" ")
            )?;
        }
    }
    Ok(out.flush()?)
}

fn print_total(
    out: &mut impl Write,
    format: Format,
    rows: &[Row],
    cpu_ms: [f64; 2],
    costs: &Costs,
) -> anyhow::Result<()> {
    let mut errors: Vec<f64> = rows.iter().map(|row| row.error_ratio.abs()).collect();
    errors.sort_by(f64::total_cmp);
    let total = Total {
        record: "total",
        points: rows.len(),
        near: rows.iter().filter(|row| row.is_near).count(),
        within: rows.iter().filter(|row| row.is_within).count(),
        median_error_ratio: errors.get(errors.len() / 2).copied().unwrap_or(0.0),
        look_cpu_ms: cpu_ms[0],
        simulate_cpu_ms: cpu_ms[1],
    };
    match format {
        Format::Json => output::json_line(out, &total)?,
        Format::Csv => output::csv(out, COLUMNS, rows)?,
        Format::Text => writeln!(
            out,
            "{} of {} points near, {} within; median error {:.1} %; {}",
            total.near,
            total.points,
            total.within,
            total.median_error_ratio * 100.0,
            costs.text()
        )?,
    }
    Ok(())
}
