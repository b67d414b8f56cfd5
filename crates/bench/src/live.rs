// SPDX-License-Identifier: Apache-2.0
//! `agewise bench live`: cost and accuracy on a running exerciser.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agewise_host::access::AddressRange;
use agewise_host::agent::{Agent, AgentConfig, Subject, Targets, TickReport};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_policy::sample::Bounds;
use agewise_policy::workingset::Intervals;
use anyhow::{Context, bail};
use serde::Serialize;

use super::judge::Judge;
use super::statistics::median;
use super::{PAGE_BYTES, ages, evict, half_idle, hotcold, proc_files};
use crate::exercise::spawned::Spawned;
use crate::exercise::truth::now_ns;
use agewise_cli::observe;
use agewise_cli::signal::Stop;

/// Scans before measuring if every page is followed: the first ones measure the cost of clearing.
const WARM_UP: usize = 3;

/// Number of times the files in `/proc` are read for comparison.
const PROC_READINGS: usize = 5;

/// Cost and accuracy of watching one exerciser. Costs are CPU time per GiB present.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Watching {
    /// Reading page tables.
    pub walk_ms_per_gib: f64,
    /// Turning accessed bits into ages.
    pub classify_ms_per_gib: f64,
    /// Clearing accessed bits.
    pub clear_ms_per_gib: f64,
    /// Memory of the age map per page it covers.
    pub agemap_bytes_per_page: f64,
    /// Share of accessed pages that were not seen.
    pub missed_ratio: f64,
    /// Share of pages not accessed that were taken for accessed.
    pub false_ratio: f64,
    /// Pages judged in all scans.
    pub judged_pages: u64,
    /// Ratio of the histogram's sum to resident memory.
    pub histogram_ratio: f64,
    /// Mean share of pages that the histogram has in a wrong bin; for memory in base pages.
    pub histogram_error_ratio: f64,
    /// Reading `/proc/PID/smaps`.
    pub smaps_ms_per_gib: f64,
    /// Reading `/proc/PID/pagemap`.
    pub pagemap_ms_per_gib: f64,
}

/// Parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Setup<'a> {
    /// Path of agewise itself.
    pub program: &'a Path,
    /// Size of the exerciser's anonymous memory.
    pub size_bytes: u64,
    /// Size of the exerciser's mapped file; 0 for none.
    pub file_bytes: u64,
    pub file_directory: PathBuf,
    /// Whether to use huge pages.
    pub huge: bool,
    /// Whether to follow a sample, as `report` does, instead of every page.
    pub sampled: bool,
    /// Time between two scans.
    pub interval: Duration,
    /// Scans that are measured.
    pub scans: usize,
}

/// Watches an exerciser that uses half of its memory with zipf 0.99; the other half is cold.
///
/// # Errors
/// Missing privileges, no BPF, or the exerciser failed.
pub fn watch(setup: &Setup<'_>, stop: &Stop) -> anyhow::Result<Watching> {
    let exerciser = start(setup, stop)?;
    let process = Process::open_user(&ProcRoot::default(), exerciser.pid())?;
    let truth = exerciser.truth();
    let bounds: Intervals = "1s,5s,30s,2m,10m".parse()?;
    let ranges: Vec<(u64, u64)> = truth
        .regions()
        .iter()
        .map(|region| (region.address, region.pages))
        .collect();
    let mut agent = open_agent(setup, exerciser.pid(), &bounds, &ranges)?;
    let mut judge = Judge::new(truth);
    let mut parts: Vec<TickReport> = Vec::new();
    let mut totals = Vec::new();
    let mut errors = 0.0;
    // First the timed scans, then the judged ones, then the files of /proc: judging and reading
    // those files evicts CPU caches for what comes after, which would not happen in normal use.
    let mut next = Instant::now();
    let (timed, judged) = (WARM_UP + setup.scans, WARM_UP + 2 * setup.scans);
    for number in 0..=judged {
        if observe::pause_until(Some(&mut agent), stop, next) {
            bail!("interrupted");
        }
        next = Instant::now().max(next + setup.interval);
        if number == WARM_UP {
            agent.count_costs_anew();
        }
        if number >= timed {
            agent.tick_tapped(Some(&mut judge))?;
            let space = agent
                .space(exerciser.pid())
                .context("the exerciser is gone")?;
            errors += ages::error_ratio(space, truth, &bounds, now_ns() / 1_000_000);
            continue;
        }
        let scan = agent.tick()?;
        if number >= WARM_UP {
            let resident = process.rss_bytes()?;
            totals.push((scan.present_pages * PAGE_BYTES) as f64 / resident as f64);
            parts.push(scan);
        }
    }
    let tally = judge.tally();
    let readings = &parts[..parts.len().min(PROC_READINGS)];
    let [smaps_ms_per_gib, pagemap_ms_per_gib] =
        read_proc(setup, process.pid(), &ranges, readings, stop)?;
    let of = |part: fn(&TickReport) -> u64| {
        let parts = parts.iter().map(|scan| ms_per_gib(scan, part(scan)));
        median(&parts.collect::<Vec<_>>())
    };
    let space = agent
        .space(exerciser.pid())
        .context("the exerciser is gone")?;
    let map = space.map();
    let watching = Watching {
        walk_ms_per_gib: of(|scan| scan.walk_ns),
        classify_ms_per_gib: of(|scan| scan.classify_ns),
        clear_ms_per_gib: of(|scan| scan.clear_ns),
        agemap_bytes_per_page: map.memory_bytes() as f64 / map.page_slots().max(1) as f64,
        missed_ratio: tally.missed_ratio(),
        false_ratio: tally.false_ratio(),
        judged_pages: tally.judged(),
        histogram_ratio: median(&totals),
        histogram_error_ratio: errors / (setup.scans + 1) as f64,
        smaps_ms_per_gib,
        pagemap_ms_per_gib,
    };
    exerciser.finish()?;
    Ok(watching)
}

/// Starts the exerciser.
fn start(setup: &Setup<'_>, stop: &Stop) -> anyhow::Result<Spawned> {
    let file = setup
        .file_directory
        .join(format!("agewise-bench-{}", std::process::id()));
    let words = half_idle(setup.size_bytes).into_iter();
    let mut arguments: Vec<std::ffi::OsString> = words.map(Into::into).collect();
    arguments.extend(["--rate".into(), "100000".into()]);
    if setup.huge {
        arguments.push("--thp".into());
    }
    if setup.file_bytes > 0 {
        arguments.extend(["--file".into(), file.into(), "--file-size".into()]);
        arguments.push(setup.file_bytes.to_string().into());
    }
    Spawned::start(setup.program, arguments, Some(stop))
}

/// Reads smaps and pagemap once for each of the scans; returns the median costs per GiB present.
fn read_proc(
    setup: &Setup<'_>,
    pid: u32,
    ranges: &[(u64, u64)],
    scans: &[TickReport],
    stop: &Stop,
) -> anyhow::Result<[f64; 2]> {
    let (mut smaps, mut pagemap) = (Vec::new(), Vec::new());
    for scan in scans {
        // As rarely as the scans, so that CPU caches are equally cold.
        if stop.wait_until(Instant::now() + setup.interval) {
            bail!("interrupted");
        }
        smaps.push(ms_per_gib(scan, proc_files::smaps(pid)?.cpu_ns));
        let reading = proc_files::pagemap(pid, ranges)?;
        pagemap.push(ms_per_gib(scan, reading.cpu_ns));
    }
    Ok([median(&smaps), median(&pagemap)])
}

fn open_agent(
    setup: &Setup<'_>,
    pid: u32,
    bounds: &Intervals,
    ranges: &[(u64, u64)],
) -> anyhow::Result<Agent> {
    let mut config = AgentConfig::new(bounds.clone());
    if setup.sampled {
        config = config.sampled(Bounds::default());
    }
    config.scan_interval_ms = Some(observe::millis(setup.interval));
    if setup.huge {
        // The program itself, its libraries and stacks use base pages whatever the workload uses.
        let range = |(start, pages): &(u64, u64)| AddressRange {
            start: *start,
            end: start + pages * PAGE_BYTES,
        };
        config.within = Some(ranges.iter().map(range).collect());
    }
    let subject = Subject::process(&ProcRoot::default(), pid)?;
    let (agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
    Ok(agent)
}

/// Converts `ns` of a scan to milliseconds per GiB present.
fn ms_per_gib(scan: &TickReport, ns: u64) -> f64 {
    let present_bytes = scan.present_pages.max(1) * PAGE_BYTES;
    ns as f64 / 1e6 / (present_bytes as f64 / (1u64 << 30) as f64)
}

/// The results of `agewise bench live`. Names with `thp_` are those of the mapping in huge pages
/// alone, without the program around it.
#[derive(Clone, Debug, Serialize)]
pub struct Live {
    #[serde(flatten)]
    base: Watching,
    /// Cost of smaps, relative to reading and classifying.
    smaps_ratio: f64,
    /// Cost of pagemap (which says nothing about accesses), relative to reading and classifying.
    pagemap_ratio: f64,
    /// Cost of moving a page to zram.
    evict_us_per_page: f64,
    /// Share of a cold half that reclaim took.
    cold_taken_ratio: f64,
    /// Share of a hot half that reclaim took.
    hot_taken_ratio: f64,
    /// The same for a sample, as `report` and `watch` follow it: cost per GiB present, what it sees
    /// of the pages it follows, and how accurate it is for all.
    sampled_clear_ms_per_gib: f64,
    sampled_classify_ms_per_gib: f64,
    sampled_missed_ratio: f64,
    sampled_false_ratio: f64,
    sampled_histogram_error_ratio: f64,
    thp_walk_ms_per_gib: f64,
    thp_classify_ms_per_gib: f64,
    thp_clear_ms_per_gib: f64,
    thp_agemap_bytes_per_page: f64,
    thp_missed_ratio: f64,
    thp_false_ratio: f64,
    thp_evict_us_per_page: f64,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &super::LiveArgs, stop: &Stop) -> anyhow::Result<Live> {
    let setup = Setup {
        program,
        size_bytes: args.size,
        file_bytes: args.file_size,
        file_directory: args.directory.clone(),
        huge: false,
        sampled: false,
        interval: args.interval,
        scans: args.scans,
    };
    let base = watch(&setup, stop)?;
    let sampled = watch(
        &Setup {
            sampled: true,
            ..setup.clone()
        },
        stop,
    )?;
    let huge = watch(
        &Setup {
            huge: true,
            file_bytes: 0,
            ..setup.clone()
        },
        stop,
    )?;
    let evict_us = |huge: bool| -> anyhow::Result<f64> {
        let report = evict::measure(program, args.size / 2, huge, stop)?;
        Ok(report.cpu_ns_per_page(PAGE_BYTES).unwrap_or(0.0) / 1e3)
    };
    let looking = base.walk_ms_per_gib + base.classify_ms_per_gib;
    let (evict_us_per_page, thp_evict_us_per_page) = (evict_us(false)?, evict_us(true)?);
    let taken = hotcold::measure(program, args.size / 2, stop)?;
    Ok(Live {
        smaps_ratio: base.smaps_ms_per_gib / looking,
        pagemap_ratio: base.pagemap_ms_per_gib / looking,
        evict_us_per_page,
        cold_taken_ratio: taken.cold_ratio,
        hot_taken_ratio: taken.hot_ratio,
        sampled_clear_ms_per_gib: sampled.clear_ms_per_gib,
        sampled_classify_ms_per_gib: sampled.classify_ms_per_gib,
        sampled_missed_ratio: sampled.missed_ratio,
        sampled_false_ratio: sampled.false_ratio,
        sampled_histogram_error_ratio: sampled.histogram_error_ratio,
        thp_walk_ms_per_gib: huge.walk_ms_per_gib,
        thp_classify_ms_per_gib: huge.classify_ms_per_gib,
        thp_clear_ms_per_gib: huge.clear_ms_per_gib,
        thp_agemap_bytes_per_page: huge.agemap_bytes_per_page,
        thp_missed_ratio: huge.missed_ratio,
        thp_false_ratio: huge.false_ratio,
        thp_evict_us_per_page,
        base,
    })
}
