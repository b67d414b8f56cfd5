// SPDX-License-Identifier: Apache-2.0
//! `agewise bench daemon`: what the daemon takes on a machine with many processes that come and go,
//! and what it leaves when it is killed.

pub mod nest;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agewise_host::cgroup::OwnCgroup;
use agewise_host::process::Process;
use anyhow::{Context, ensure};
use nest::Nest;
use serde::Serialize;

use super::own_cgroup;
use super::service::{self, Service};
use super::statistics::median;
use super::{DaemonArgs, PAGE_BYTES};
use agewise_cli::signal::Stop;

/// Before anything is measured: the first looks find everything new.
const WARM_UP: Duration = Duration::from_secs(10);
/// What the daemon may hold besides a byte a page.
const FIXED_BYTES: u64 = 64 << 20;
/// And for each page that is mapped.
const BYTES_PER_PAGE: f64 = 1.1;

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Daemonized {
    /// Processes at a time.
    processes: u64,
    /// Cgroups at a time.
    cgroups: u64,
    /// Mapped by all of them together, with the program they are of.
    mapped_bytes: u64,
    /// Touched by all of them together.
    touched_bytes: u64,
    /// How long it was measured.
    seconds: f64,
    /// Processes that came and went, a minute.
    processes_per_minute: f64,
    /// Cgroups that came and went, a minute.
    cgroups_per_minute: f64,
    /// CPU time of the daemon, share of one core.
    cpu_ratio: f64,
    /// What its configuration grants it.
    granted_ratio: f64,
    /// CPU time of one look, the largest.
    look_ms_max: f64,
    /// Looks while it was measured.
    looks: u64,
    /// What ages take of its memory.
    ages_bytes: u64,
    /// Its resident memory at the end.
    resident_bytes: u64,
    /// The most it was.
    resident_max_bytes: u64,
    /// 64 MiB and 1.1 bytes a mapped page.
    granted_bytes: u64,
    /// By how much the median of the last quarter of the time is above that of the second.
    growth_bytes: i64,
    /// From its start after it was killed to its first look.
    restart_ms: f64,
    /// Mounts, sockets and ledgers that were there after its orderly end.
    left_behind: u64,
}

/// Processes in cgroups that come and go.
struct Crowd {
    // Its processes end before the cgroups go.
    nest: Nest,
    cgroups: Vec<PathBuf>,
    pids: Vec<u32>,
    mapped: u64,
    touched: u64,
    next: usize,
    came: u64,
    cgroups_came: u64,
    top: OwnCgroup,
}

impl Crowd {
    fn start(program: &Path, args: &DaemonArgs, stop: &Stop) -> anyhow::Result<Self> {
        let top = own_cgroup("daemon")?;
        let mut crowd = Crowd {
            nest: Nest::start(program)?,
            cgroups: Vec::new(),
            pids: Vec::new(),
            mapped: args.mapped / args.processes / PAGE_BYTES * PAGE_BYTES,
            touched: 0,
            next: 0,
            came: 0,
            cgroups_came: 0,
            top,
        };
        crowd.touched = (crowd.mapped as f64 * args.touched) as u64 / PAGE_BYTES * PAGE_BYTES;
        for number in 0..args.cgroups {
            let dir = crowd.top.cgroup().dir().join(number.to_string());
            std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            crowd.cgroups.push(dir);
        }
        for number in 0..args.processes {
            ensure!(stop.requested().is_none(), "interrupted");
            let pid = crowd.spawn(usize::try_from(number)?)?;
            crowd.pids.push(pid);
        }
        crowd.came = 0;
        Ok(crowd)
    }

    /// The processes of a cgroup have every n-th number.
    fn spawn(&mut self, number: usize) -> anyhow::Result<u32> {
        let procs = self.cgroups[number % self.cgroups.len()].join("cgroup.procs");
        self.came += 1;
        self.nest.spawn(&procs, self.mapped, self.touched)
    }

    /// One process ends, and another comes in its place.
    fn replace_process(&mut self) -> anyhow::Result<()> {
        self.next = (self.next + 7) % self.pids.len();
        self.nest.end(self.pids[self.next])?;
        self.pids[self.next] = self.spawn(self.next)?;
        Ok(())
    }

    /// A cgroup goes with its processes, and another comes in its place, under another name or,
    /// every second time, under the same.
    fn replace_cgroup(&mut self) -> anyhow::Result<()> {
        let place = usize::try_from(self.cgroups_came).unwrap_or(0) % self.cgroups.len();
        self.cgroups_came += 1;
        let numbers = (place..self.pids.len()).step_by(self.cgroups.len());
        for number in numbers.clone() {
            self.nest.end(self.pids[number])?;
        }
        let old = &self.cgroups[place];
        std::fs::remove_dir(old).with_context(|| format!("cannot remove {}", old.display()))?;
        if self.cgroups_came.is_multiple_of(2) {
            self.cgroups[place] = self
                .top
                .cgroup()
                .dir()
                .join(format!("again-{}", self.cgroups_came));
        }
        std::fs::create_dir(&self.cgroups[place])?;
        for number in numbers {
            self.pids[number] = self.spawn(number)?;
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for pid in std::mem::take(&mut self.pids) {
            let _ = self.nest.end(pid);
        }
        for dir in &self.cgroups {
            let mut tries = 0..50;
            while let Err(error) = std::fs::remove_dir(dir) {
                if tries.next().is_none() {
                    agewise_cli::note!("cannot remove {}: {error}", dir.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

/// What a daemon must not leave.
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

/// Measures.
pub(super) fn measure(
    program: &Path,
    args: &DaemonArgs,
    stop: &Stop,
) -> anyhow::Result<Daemonized> {
    ensure!(
        args.processes >= args.cgroups,
        "there must be a process for each cgroup"
    );
    let mut crowd = Crowd::start(program, args, stop)?;
    let directory = tempfile::tempdir()?;
    let dir = crowd.top.cgroup().dir();
    let name = dir.file_name().and_then(|name| name.to_str());
    let at = |name: &str| directory.path().join(name).display().to_string();
    let config = format!(
        "journal.file = '{}'\n[observe]\ncgroups = ['/{1}', '/{1}/*']\ncgroups_max = 8192\n\
         cpu_percent = {2}\n[protect]\ncgroups = ['/{1}/0']\nup_to = 'squeeze'\n\
         [files]\nenabled = true\ndirectory = '{3}'\n[metrics]\nenabled = true\n\
         listen = 'unix:{4}'\n",
        at("journal"),
        name.context("a name that is text")?,
        args.cpu_percent,
        at("files"),
        at("socket"),
    );
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
        let passed = began.elapsed().as_secs_f64() / 60.0;
        // Cgroups take their processes with them; those count as well.
        if (crowd.cgroups_came as f64) < passed * args.cgroups_per_minute {
            crowd.replace_cgroup()?;
        } else if (crowd.came as f64) < passed * args.processes_per_minute {
            crowd.replace_process()?;
        } else {
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
    let mapped_bytes = own_mapped * args.processes;
    Ok(Daemonized {
        processes: args.processes,
        cgroups: args.cgroups,
        mapped_bytes,
        touched_bytes: crowd.touched * args.processes,
        seconds,
        processes_per_minute: per_minute(crowd.came),
        cgroups_per_minute: per_minute(crowd.cgroups_came),
        cpu_ratio,
        granted_ratio: args.cpu_percent / 100.0,
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
