// SPDX-License-Identifier: Apache-2.0
//! `agewise bench daemon`: the cost of the daemon on a machine with many short-lived processes, and
//! what it leaves behind when killed.

mod crowd;
pub mod nest;
pub mod soak;

use std::path::Path;
use std::time::{Duration, Instant};

use agewise_cli::units;
use agewise_host::process::Process;
use anyhow::{Context, ensure};
use crowd::{Crowd, CrowdArgs};
use serde::Serialize;

use super::service::{self, Service};
use super::statistics::median;
use super::{Format, PAGE_BYTES};
use agewise_cli::signal::Stop;

/// Time before measuring: the first looks find everything new.
const WARM_UP: Duration = Duration::from_secs(10);
/// Memory allowed to the daemon besides the part for each page.
const FIXED_BYTES: u64 = 64 << 20;
/// Memory allowed for each mapped page.
const BYTES_PER_PAGE: f64 = 1.1;

/// Options of `bench daemon`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    crowd: CrowdArgs,
    /// How long it is measured.
    #[arg(long, value_name = "DURATION", default_value = "3m")]
    #[arg(value_parser = units::positive_duration)]
    time: Duration,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// The result.
#[derive(Clone, Debug, Serialize)]
pub struct Daemonized {
    /// Processes at a time.
    processes: u64,
    /// Cgroups at a time.
    cgroups: u64,
    /// Memory mapped by all of them, including the program itself.
    mapped_bytes: u64,
    /// Memory touched by all of them.
    touched_bytes: u64,
    /// Duration of the measurement.
    seconds: f64,
    /// Processes replaced per minute.
    processes_per_minute: f64,
    /// Cgroups replaced per minute.
    cgroups_per_minute: f64,
    /// CPU time of the daemon, as a share of one core.
    cpu_ratio: f64,
    /// The share that its configuration allows.
    granted_ratio: f64,
    /// The largest CPU time of a look.
    look_ms_max: f64,
    /// Looks during the measurement.
    looks: u64,
    /// The part of its memory used for ages.
    ages_bytes: u64,
    /// Its resident memory at the end.
    resident_bytes: u64,
    /// Its peak resident memory.
    resident_max_bytes: u64,
    /// The bar: 64 MiB plus 1.1 bytes per mapped page.
    granted_bytes: u64,
    /// Median resident memory in the last quarter of the time minus that in the second quarter.
    growth_bytes: i64,
    /// Time from its restart after a kill to its first look.
    restart_ms: f64,
    /// Mounts, sockets and ledgers still there after its orderly exit.
    left_behind: u64,
}

/// Counts what a daemon must not leave behind.
fn left_behind(directory: &Path) -> u64 {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let files = directory.join("files");
    let is_mounted = mounts
        .lines()
        .any(|line| line.split(' ').nth(4) == files.to_str());
    let has_files = std::fs::read_dir(&files).is_ok_and(|mut entries| entries.next().is_some());
    let others = ["socket", "state/ledger"].map(|name| directory.join(name).exists());
    [is_mounted, has_files]
        .into_iter()
        .chain(others)
        .map(u64::from)
        .sum()
}

/// A daemon with files, metrics and protection for the cgroups below `crowd`.
fn configuration(directory: &Path, crowd: &str, cpu_percent: f64) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    format!(
        "journal.file = '{}'\n[observe]\ncgroups = ['/{1}', '/{1}/*']\ncgroups_max = 8192\n\
         cpu_percent = {2}\n[protect]\ncgroups = ['/{1}/0']\nup_to = 'squeeze'\n\
         [files]\nenabled = true\ndirectory = '{3}'\n[metrics]\nenabled = true\n\
         listen = 'unix:{4}'\n",
        at("journal"),
        crowd,
        cpu_percent,
        at("files"),
        at("socket"),
    )
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<Daemonized> {
    let mut crowd = Crowd::start(program, &args.crowd, stop)?;
    let directory = tempfile::tempdir()?;
    let config = configuration(directory.path(), &crowd.name()?, args.crowd.cpu_percent);
    std::fs::write(directory.path().join(service::CONFIG), config)?;
    let mut daemon = Service::start(program, directory.path())?;
    daemon.wait_for_look(stop)?;
    ensure!(!stop.wait_until(Instant::now() + WARM_UP), "interrupted");

    let process = daemon.process()?;
    let (began, cpu_began_ns) = (Instant::now(), process.stat()?.cpu_ns());
    let looks_before = daemon.snapshot().and_then(|s| s["own"]["ticks"].as_u64());
    let mut resident = Vec::new();
    let mut look_ms_max: f64 = 0.0;
    let mut sampled = began;
    while began.elapsed() < args.time {
        ensure!(stop.requested().is_none(), "interrupted");
        if !crowd.turn(began.elapsed())? {
            std::thread::sleep(Duration::from_millis(2));
        }
        if sampled.elapsed() >= Duration::from_secs(1) {
            sampled = Instant::now();
            resident.push(process.rss_bytes()?);
            let own = daemon.snapshot().map(|s| s["own"]["scan_cpu_ms"].as_f64());
            look_ms_max = look_ms_max.max(own.flatten().unwrap_or(0.0));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let cpu_ns = process.stat()?.cpu_ns().saturating_sub(cpu_began_ns);
    let cpu_ratio = cpu_ns as f64 / 1e9 / seconds;
    let last = daemon.snapshot().context("the daemon does not answer")?;
    let looks_after = last["own"]["ticks"].as_u64();
    let own_mapped = Process::open(crowd.pids[0])?.statm()?.virtual_bytes;
    let quarter = |n: usize| {
        let length = resident.len() / 4;
        let of = resident.iter().skip(n * length).take(length);
        median(&of.map(|bytes| *bytes as f64).collect::<Vec<_>>())
    };
    let growth_bytes = (quarter(3) - quarter(1)) as i64;

    daemon.kill()?;
    let restarted = Instant::now();
    let mut daemon = Service::start(program, directory.path())?;
    daemon.wait_for_look(stop)?;
    let restart_ms = restarted.elapsed().as_secs_f64() * 1e3;
    daemon.end()?;
    let per_minute = |count: u64| count as f64 * 60.0 / seconds;
    let mapped_bytes = own_mapped * args.crowd.processes;
    Ok(Daemonized {
        processes: args.crowd.processes,
        cgroups: args.crowd.cgroups,
        mapped_bytes,
        touched_bytes: crowd.touched * args.crowd.processes,
        seconds,
        processes_per_minute: per_minute(crowd.came),
        cgroups_per_minute: per_minute(crowd.cgroups_came),
        cpu_ratio,
        granted_ratio: args.crowd.cpu_percent / 100.0,
        look_ms_max,
        looks: looks_after.unwrap_or(0) - looks_before.unwrap_or(0),
        ages_bytes: last["own"]["ages_bytes"].as_u64().unwrap_or(0),
        resident_bytes: resident.last().copied().unwrap_or(0),
        resident_max_bytes: resident.iter().copied().max().unwrap_or(0),
        granted_bytes: FIXED_BYTES
            + (mapped_bytes as f64 / PAGE_BYTES as f64 * BYTES_PER_PAGE) as u64,
        growth_bytes,
        restart_ms,
        left_behind: left_behind(directory.path()),
    })
}
