// SPDX-License-Identifier: Apache-2.0
//! `agewise bench scale`: watching a terabyte of present page-table entries.

pub mod sea;

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_cli::signal::Stop;
use agewise_cli::{observe, units};
use agewise_host::agent::{Agent, AgentConfig, Subject, SubjectReport, Targets};
use agewise_host::clock;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::Intervals;
use anyhow::{Context, bail};
use serde::Serialize;

use super::statistics::median;
use super::{PAGE_BYTES, steady};
use sea::{CHUNK_BYTES, Sea, is_touched};

/// Looks before measuring: the first clears the bits set while memory was mapped.
const WARM_UP: u64 = 3;

/// Bounds of the bins, in looks before the last one.
const LOOKS_BACK: [usize; 4] = [1, 3, 6, 12];

/// What to watch and how.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Memory with present page-table entries; 1/512 of it is needed for page tables.
    #[arg(long, value_name = "SIZE", default_value = "1T", value_parser = units::positive_size)]
    size: u64,
    /// The part of it that is not touched from look to look.
    #[arg(long, value_name = "SHARE", default_value = "90%", value_parser = observe::percent)]
    idle: f64,
    /// Time from look to look.
    #[arg(long, value_name = "DURATION", default_value = "10s")]
    #[arg(value_parser = units::positive_duration)]
    interval: Duration,
    /// Looks that count.
    #[arg(long, value_name = "N", default_value_t = 20)]
    scans: u64,
    /// Blocks that are followed, at most.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().blocks)]
    blocks: u64,
    /// Pages of a block: a power of two up to 512.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().block_pages)]
    block_pages: u64,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: agewise_cli::output::Format,
}

/// Cost and accuracy.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scale {
    /// Memory watched, in bytes.
    watched_bytes: u64,
    page_table_bytes: u64,
    /// The part of it that is followed.
    followed_bytes: u64,
    /// Time between two looks.
    interval_ms: u64,
    /// Looks measured.
    scans: u64,
    /// CPU time of the first look.
    first_scan_cpu_ms: f64,
    /// Mean CPU time of each later look, including everything the agent does.
    scan_cpu_ms: f64,
    /// The parts of it: reading page tables, updating ages, clearing, reports, and mappings and the
    /// rest.
    walk_cpu_ms: f64,
    classify_cpu_ms: f64,
    clear_cpu_ms: f64,
    report_cpu_ms: f64,
    rest_cpu_ms: f64,
    /// Median of the widest interval of a bin, as a share of memory.
    half_width_ratio: f64,
    /// CPU time as a share of one core.
    core_ratio: f64,
    /// Mean share of memory in a wrong bin.
    error_ratio: f64,
    /// Share of bins (all non-empty bins of all looks) whose true size lies within their interval.
    covered_ratio: f64,
    /// Peak resident memory of agewise, including the truth about the watched memory.
    memory_bytes: u64,
}

/// When each chunk was last touched, in ms; 0 for never.
struct Truth {
    touched_ms: Vec<u64>,
    busy: f64,
}

impl Truth {
    fn note(&mut self, look: u64, now_ms: u64) {
        for (chunk, touched_ms) in (0..).zip(&mut self.touched_ms) {
            if is_touched(chunk, look, self.busy) {
                *touched_ms = now_ms;
            }
        }
    }

    /// Bytes in the bins with these upper bounds; chunks never touched are as old as the
    /// observation.
    fn bins(&self, bounds_ms: &[u64], now_ms: u64, observed_ms: u64) -> Vec<u64> {
        let mut bins = vec![0; bounds_ms.len() + 1];
        for touched_ms in &self.touched_ms {
            let age_ms = now_ms.saturating_sub(*touched_ms).min(observed_ms);
            bins[bounds_ms.partition_point(|bound| *bound < age_ms)] += CHUNK_BYTES;
        }
        bins
    }
}

/// Sums over the looks.
#[derive(Default)]
struct Sums {
    cpu: Duration,
    report_cpu: Duration,
    walk_ns: u64,
    classify_ns: u64,
    clear_ns: u64,
    error: f64,
    asked: u64,
    covered: u64,
    half_widths: Vec<f64>,
    followed_bytes: u64,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<Scale> {
    let chunks = args.size / CHUNK_BYTES;
    if chunks == 0 {
        agewise_cli::refuse!("--size {}: give at least 1M", args.size);
    }
    if !args.block_pages.is_power_of_two() || args.block_pages > 512 || args.blocks == 0 {
        agewise_cli::refuse!("--block-pages is a power of two up to 512, --blocks at least 1");
    }
    let bounds = Bounds {
        blocks: args.blocks,
        block_pages: args.block_pages,
        ..Bounds::default()
    };
    let mut sea = Sea::start(program, args.size, &bounds)?;
    let mut truth = Truth {
        touched_ms: vec![0; usize::try_from(chunks)?],
        busy: 1.0 - args.idle / 100.0,
    };
    let mut agent = open_agent(&sea, args, bounds)?;
    let (mut sums, mut first) = (Sums::default(), Duration::ZERO);
    let mut next = Instant::now();
    for look in 0..WARM_UP + args.scans {
        if observe::pause_until(Some(&mut agent), stop, next) {
            bail!("interrupted");
        }
        next = Instant::now().max(next + args.interval);
        sea.touch(look, truth.busy)?;
        truth.note(look, Agent::now_ms());
        let before = clock::process_cpu();
        let tick = agent.tick()?;
        let looked = clock::process_cpu();
        if look == 0 {
            first = looked - before;
        }
        if look < WARM_UP {
            continue;
        }
        let bounds = bounds_now(&agent, sea.pid())?;
        let reports = agent.report_by(|_| bounds.clone());
        let report = reports
            .into_iter()
            .next()
            .context("the program has ended")?;
        sums.cpu += clock::process_cpu() - before;
        sums.report_cpu += clock::process_cpu() - looked;
        sums.walk_ns += tick.walk_ns;
        sums.classify_ns += tick.classify_ns;
        sums.clear_ns += tick.clear_ns;
        anyhow::ensure!(report.troubles.is_empty(), "{}", report.troubles.join("; "));
        sums.judge(&report, &bounds, &truth, agent.last_tick_ms());
    }
    let process = Process::open_user(&ProcRoot::default(), sea.pid())?;
    let page_table_bytes = process.status()?.page_table_bytes;
    drop(sea);
    Ok(sums.finish(args, first, page_table_bytes))
}

fn open_agent(sea: &Sea, args: &Args, bounds: Bounds) -> anyhow::Result<Agent> {
    let interval_ms = observe::millis(args.interval);
    let bounds_ms = LOOKS_BACK.map(|looks| interval_ms * looks as u64);
    let intervals = Intervals::new(bounds_ms.to_vec())?;
    let mut config = AgentConfig::new(intervals).sampled(bounds);
    config.scan_interval_ms = Some(interval_ms);
    let subject = Subject::process(&ProcRoot::default(), sea.pid())?;
    Ok(observe::open_agent(Targets::Listed(vec![subject]), config)?.0)
}

/// Age bounds at the times of earlier looks: a page touched between two looks could be of any time
/// in that interval, so no bin may contain only part of an interval.
fn bounds_now(agent: &Agent, pid: u32) -> anyhow::Result<Intervals> {
    let space = agent.space(pid).context("the program has ended")?;
    let births: Vec<u64> = space
        .map()
        .generations()
        .iter()
        .map(|(_, of)| of.birth_ms)
        .collect();
    let now_ms = agent.last_tick_ms();
    let back = LOOKS_BACK
        .iter()
        .filter_map(|looks| births.iter().rev().nth(*looks));
    let bounds_ms = back
        .map(|birth_ms| now_ms.saturating_sub(*birth_ms))
        .collect();
    Ok(Intervals::new(bounds_ms)?)
}

impl Sums {
    /// Compares a report with the truth.
    fn judge(&mut self, report: &SubjectReport, bounds: &Intervals, truth: &Truth, now_ms: u64) {
        let is = truth.bins(bounds.bounds_ms(), now_ms, report.observed_ms);
        let all = is.iter().sum::<u64>() as f64;
        let mut off = 0;
        for (number, (bin, is)) in report.histogram().bins().iter().zip(&is).enumerate() {
            let [anon, _] = report.interval(number, bin.amounts);
            off += bin.amounts[0].abs_diff(*is);
            if *is > 0 {
                self.asked += 1;
                self.covered += u64::from((anon.low..=anon.high).contains(is));
            }
        }
        self.error += off as f64 / 2.0 / all;
        self.half_widths.push(report.half_width_ratio());
        self.followed_bytes = report.followed_bytes;
    }

    fn finish(self, args: &Args, first: Duration, page_table_bytes: u64) -> Scale {
        let scans = args.scans.max(1) as f64;
        let ms = |cpu: Duration| cpu.as_secs_f64() * 1e3 / scans;
        let of_ns = |ns: u64| ns as f64 / 1e6 / scans;
        let parts = of_ns(self.walk_ns + self.classify_ns + self.clear_ns);
        Scale {
            watched_bytes: args.size / PAGE_BYTES * PAGE_BYTES,
            page_table_bytes,
            followed_bytes: self.followed_bytes,
            interval_ms: observe::millis(args.interval),
            scans: args.scans,
            first_scan_cpu_ms: first.as_secs_f64() * 1e3,
            scan_cpu_ms: ms(self.cpu),
            walk_cpu_ms: of_ns(self.walk_ns),
            classify_cpu_ms: of_ns(self.classify_ns),
            clear_cpu_ms: of_ns(self.clear_ns),
            report_cpu_ms: ms(self.report_cpu),
            rest_cpu_ms: ms(self.cpu) - parts - ms(self.report_cpu),
            half_width_ratio: median(&self.half_widths),
            core_ratio: self.cpu.as_secs_f64() / scans / args.interval.as_secs_f64(),
            error_ratio: self.error / scans,
            covered_ratio: self.covered as f64 / self.asked.max(1) as f64,
            memory_bytes: steady::peak_bytes().unwrap_or(0),
        }
    }
}
