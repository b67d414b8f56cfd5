// SPDX-License-Identifier: Apache-2.0
//! One run: a program in its cgroup with a daemon, and counters before and after.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use agewise_policy::budget::Gain;
use serde::Serialize;
use tempfile::TempDir;

use super::group::Group;
use super::keys::{Choice, Keys, Phase};
use super::program::{Program, Server, keys_in};
use super::{Load, ReclaimArgs, compile};
use crate::PAGE_BYTES;
use crate::installed::is_installed;
use crate::service::{self, Service};
use agewise_cli::signal::Stop;

/// Share of the keys that are never read again.
const COLD_SHARE: f64 = 0.6;
/// The limit, as a share of what the program uses without one.
const LIMIT_SHARE: f64 = 0.55;
/// The budget policy measuring its own gain.
pub const MEASURING: &str = "budget,measure=on";
/// Time between two samples of resident memory.
const SAMPLE: Duration = Duration::from_millis(200);

/// The measurements of one run. The measured phase follows the warm-up; `*_whole` covers both.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    pub load: Load,
    /// The program that held the values; `None` for a compile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<Program>,
    pub policy: String,
    pub round: usize,
    pub operations: u64,
    pub elapsed_ms: u64,
    pub resident_mean_bytes: f64,
    pub resident_peak_bytes: u64,
    /// Including the warm-up, from the start of the daemon.
    pub resident_mean_whole_bytes: f64,
    pub limit_bytes: u64,
    pub program_cpu_us_per_op: f64,
    pub daemon_cpu_us_per_op: f64,
    pub program_cpu_us_per_op_whole: f64,
    pub daemon_cpu_us_per_op_whole: f64,
    pub faults_per_op: f64,
    pub major_faults_per_op: f64,
    /// How often the program hit the limit and had to reclaim directly.
    pub limit_hits_per_op: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub p999_us: f64,
    /// The gain that the daemon measured itself, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Gain>,
}

/// State shared by all runs.
pub struct Bench<'a> {
    program: &'a Path,
    args: &'a ReclaimArgs,
    stop: &'a Stop,
}

/// Checks whether a load can run here.
pub fn is_possible(load: Load, program: Program) -> Result<(), String> {
    match load {
        Load::Compile => is_installed("cc"),
        _ => program.is_installed(),
    }
}

/// CPU time and faults of processes.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    cpu_ns: u64,
    faults: u64,
    major_faults: u64,
}

impl Counters {
    /// `reads_files`: the program reads missing data through descriptors, which causes no faults.
    /// Then all pages read from a device count, including those from swap.
    fn of(pids: &[u32], reads_files: bool) -> Self {
        let read = |&pid: &u32| {
            let process = Process::open(pid).ok()?;
            let stat = process.stat().ok()?;
            let major_faults = match reads_files {
                true => process.read_from_device_bytes().ok()? / PAGE_BYTES,
                false => stat.major_faults,
            };
            Some(Counters {
                cpu_ns: stat.cpu_ns(),
                faults: stat.minor_faults + stat.major_faults,
                major_faults,
            })
        };
        let sum = |a: Counters, b: Counters| Counters {
            cpu_ns: a.cpu_ns + b.cpu_ns,
            faults: a.faults + b.faults,
            major_faults: a.major_faults + b.major_faults,
        };
        pids.iter().filter_map(read).fold(Counters::default(), sum)
    }

    /// The difference to `before`; the counts of a process that has exited are lost.
    fn since(self, before: Self) -> Self {
        Counters {
            cpu_ns: self.cpu_ns.saturating_sub(before.cpu_ns),
            faults: self.faults.saturating_sub(before.faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }
}

fn us_per_op(cpu_ns: u64, operations: u64) -> f64 {
    cpu_ns as f64 / 1e3 / operations.max(1) as f64
}

/// What the measured phase took, and what it took together with the warm-up.
struct Phases {
    whole_began: Instant,
    began: Instant,
    elapsed: Duration,
    phase: Phase,
    limit_hits: u64,
    program: Counters,
    daemon: Counters,
    program_whole: Counters,
    daemon_whole: Counters,
}

/// Zero without a daemon; an error if the daemon has exited.
fn of_daemon(daemon: &mut Option<Daemon>) -> anyhow::Result<Counters> {
    let Some(daemon) = daemon else {
        return Ok(Counters::default());
    };
    daemon.service.check()?;
    Ok(Counters::of(&[daemon.service.pid()], false))
}

/// The daemon of one run; ended when dropped.
struct Daemon {
    service: Service,
    directory: TempDir,
}

impl Daemon {
    fn start(
        program: &Path,
        group: &Group,
        policy: &str,
        reads_files: bool,
    ) -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = group.cgroup().name();
        let text = format!(
            "[observe]\ncgroups = ['{path}']\n[journal]\nfile = '{}'\n[[act]]\ncgroups = \
             ['{path}']\npolicy = '{policy}'\nfiles = {reads_files}\ndry_run = false\n",
            directory.path().join("journal").display()
        );
        std::fs::write(directory.path().join(service::CONFIG), text)?;
        let service = Service::start(program, directory.path())?;
        Ok(Daemon { service, directory })
    }

    /// Its latest measurement of its own gain from holding the budget.
    fn measured(&self) -> Option<Gain> {
        let journal = std::fs::read_to_string(self.directory.path().join("journal")).ok()?;
        let lines = journal.lines().rev();
        lines
            .filter_map(|line| serde_json::from_str(line).ok())
            .next()
    }

    /// Keeps the journal for debugging, if AGEWISE_BENCH_JOURNALS names a directory.
    fn keep_journal(&self, name: &str) {
        if let Some(directory) = std::env::var_os("AGEWISE_BENCH_JOURNALS") {
            let to = PathBuf::from(directory).join(name);
            let _ = std::fs::copy(self.directory.path().join("journal"), to);
        }
    }
}

/// Samples the resident memory of a cgroup's processes while it lives.
struct Sampler<'a> {
    group: &'a Group,
    /// Whether to sample the memory charged to the cgroup instead of what its processes map.
    reads_files: bool,
    end: &'a AtomicBool,
}

impl Sampler<'_> {
    /// Samples of time and bytes, until the end.
    fn run(&self) -> Vec<(Instant, u64)> {
        let mut samples = Vec::new();
        let mut known: BTreeMap<u32, Process> = BTreeMap::new();
        while !self.end.load(Ordering::Relaxed) {
            if self.reads_files {
                samples.push((Instant::now(), self.group.usage_bytes()));
                std::thread::sleep(SAMPLE);
                continue;
            }
            let pids = self.group.cgroup().procs(false).unwrap_or_default();
            known.retain(|pid, _| pids.contains(pid));
            for pid in pids {
                if let std::collections::btree_map::Entry::Vacant(entry) = known.entry(pid)
                    && let Ok(process) = Process::open(pid)
                {
                    entry.insert(process);
                }
            }
            let bytes = known.values().filter_map(|p| p.rss_bytes().ok()).sum();
            samples.push((Instant::now(), bytes));
            std::thread::sleep(SAMPLE);
        }
        samples
    }
}

fn mean_since(samples: &[(Instant, u64)], since: Instant) -> (f64, u64) {
    let of: Vec<u64> = samples
        .iter()
        .filter(|(at, _)| *at >= since)
        .map(|(_, bytes)| *bytes)
        .collect();
    let sum: f64 = of.iter().map(|bytes| *bytes as f64).sum();
    (
        sum / of.len().max(1) as f64,
        of.iter().copied().max().unwrap_or(0),
    )
}

/// The range of the `count` keys that are read, and their distribution.
fn asked(load: Load, count: u64) -> (Range<u64>, Choice) {
    match load {
        Load::Cold => ((count as f64 * COLD_SHARE) as u64..count, Choice::Zipf),
        Load::Uniform => (0..count, Choice::Uniform),
        Load::Budget | Load::Compile => (0..count, Choice::Zipf),
    }
}

impl<'a> Bench<'a> {
    pub fn new(program: &'a Path, args: &'a ReclaimArgs, stop: &'a Stop) -> anyhow::Result<Self> {
        Ok(Bench {
            program,
            args,
            stop,
        })
    }

    pub fn run(&self, load: Load, policy: &str, round: usize) -> anyhow::Result<Run> {
        anyhow::ensure!(self.stop.requested().is_none(), "interrupted");
        let group = Group::create(&format!("{load:?}-{round}").to_lowercase())?;
        match load {
            Load::Compile => self.compile(&group, policy, round),
            _ => self.values(&group, load, policy, round),
        }
    }

    fn values(&self, group: &Group, load: Load, policy: &str, round: usize) -> anyhow::Result<Run> {
        let count = keys_in(self.args.size);
        let program = self.args.program;
        let server = Server::start(program, group, self.args.size)?;
        let mut keys = Keys::connect(&server.socket(), program.dialect(), round as u64)?;
        keys.load(count, self.stop.flag())?;
        let limit_bytes = match load {
            Load::Budget => (group.usage_bytes() as f64 * LIMIT_SHARE) as u64,
            _ => 0,
        };
        let mut daemon = self.limit(group, limit_bytes, policy)?;
        let end = AtomicBool::new(false);
        let reads_files = program.reads_files();
        let sampler = Sampler {
            group,
            reads_files,
            end: &end,
        };
        std::thread::scope(|scope| {
            let samples = scope.spawn(|| sampler.run());
            let done = self.phases(&mut keys, asked(load, count), group, &mut daemon, policy);
            end.store(true, Ordering::Relaxed);
            let samples = samples.join().expect("the sampler does not panic");
            let done = done?;
            if let Some(daemon) = &daemon {
                daemon.keep_journal(&format!("{load:?}-{policy}-{round}").replace(['/', ':'], "_"));
            }
            let (mean, peak) = mean_since(&samples, done.began);
            let operations = done.phase.operations;
            let all = operations + self.args.warm_operations;
            let us = |quantile: f64| done.phase.latency.value_at_quantile(quantile) as f64 / 1e3;
            let per_op = |n: u64| n as f64 / operations as f64;
            Ok(Run {
                load,
                program: Some(program),
                policy: policy.to_owned(),
                round,
                operations,
                elapsed_ms: done.elapsed.as_millis() as u64,
                resident_mean_bytes: mean,
                resident_peak_bytes: peak,
                resident_mean_whole_bytes: mean_since(&samples, done.whole_began).0,
                limit_bytes,
                program_cpu_us_per_op: us_per_op(done.program.cpu_ns, operations),
                daemon_cpu_us_per_op: us_per_op(done.daemon.cpu_ns, operations),
                program_cpu_us_per_op_whole: us_per_op(done.program_whole.cpu_ns, all),
                daemon_cpu_us_per_op_whole: us_per_op(done.daemon_whole.cpu_ns, all),
                faults_per_op: per_op(done.program.faults),
                major_faults_per_op: per_op(done.program.major_faults),
                limit_hits_per_op: per_op(done.limit_hits),
                p50_us: us(0.5),
                p99_us: us(0.99),
                p999_us: us(0.999),
                measured: daemon.and_then(|daemon| daemon.measured()),
            })
        })
    }

    /// Runs the warm-up, then the measured phase.
    fn phases(
        &self,
        keys: &mut Keys,
        (range, choice): (Range<u64>, Choice),
        group: &Group,
        daemon: &mut Option<Daemon>,
        policy: &str,
    ) -> anyhow::Result<Phases> {
        let reads_files = self.args.program.reads_files();
        let mut counters = || {
            let pids = group.cgroup().procs(false).unwrap_or_default();
            anyhow::Ok((Counters::of(&pids, reads_files), of_daemon(daemon)?))
        };
        let stop = self.stop.flag();
        let (whole_began, first) = (Instant::now(), counters()?);
        keys.run(self.args.warm_operations, range.clone(), choice, stop)?;
        let (began, before, hits) = (Instant::now(), counters()?, group.limit_hits());
        let phase = keys.run(self.operations(policy), range, choice, stop)?;
        let limit_hits = group.limit_hits().saturating_sub(hits);
        let after = counters()?;
        Ok(Phases {
            whole_began,
            began,
            elapsed: began.elapsed(),
            phase,
            limit_hits,
            program: after.0.since(before.0),
            daemon: after.1.since(before.1),
            program_whole: after.0.since(first.0),
            daemon_whole: after.1.since(first.1),
        })
    }

    /// Number of operations measured.
    fn operations(&self, policy: &str) -> u64 {
        match policy {
            MEASURING => self.args.self_measured.unwrap_or(0),
            _ => self.args.operations,
        }
    }

    /// Sets a limit if there is one, and starts the daemon if there is a policy.
    fn limit(&self, group: &Group, bytes: u64, policy: &str) -> anyhow::Result<Option<Daemon>> {
        if bytes > 0 {
            group.limit(bytes)?;
        }
        let options = &self.args.budget_options;
        let reads_files = self.args.program.reads_files();
        let start = |spec: &str| Daemon::start(self.program, group, spec, reads_files).map(Some);
        match policy {
            "none" => Ok(None),
            "budget" => start(&format!("budget:{bytes}{options},measure=off")),
            MEASURING => start(&format!("budget:{bytes}{options},measure=on")),
            policy => start(policy),
        }
    }

    fn compile(&self, group: &Group, policy: &str, round: usize) -> anyhow::Result<Run> {
        let mut daemon = self.limit(group, 0, policy)?;
        let files = compile::Files::make(self.args.files)?;
        let operations = self.args.files as u64;
        let end = AtomicBool::new(false);
        let sampler = Sampler {
            group,
            reads_files: false,
            end: &end,
        };
        std::thread::scope(|scope| {
            let samples = scope.spawn(|| sampler.run());
            let before = agewise_cli::children::children_usage();
            let began = Instant::now();
            let done = AtomicU64::new(0);
            let is_stopped = || self.stop.requested().is_some();
            let compiled =
                files.compile(group.cgroup(), compile::JOBS, operations, &done, is_stopped);
            end.store(true, Ordering::Relaxed);
            let samples = samples.join().expect("the sampler does not panic");
            compiled?;
            let elapsed = began.elapsed();
            let cpu = agewise_cli::children::children_usage()
                .cpu
                .saturating_sub(before.cpu);
            let of_daemon = of_daemon(&mut daemon)?;
            let (mean, peak) = mean_since(&samples, began);
            let stat = group.cgroup().stat()?;
            let program_us = cpu.as_secs_f64() * 1e6 / operations as f64;
            let daemon_us = us_per_op(of_daemon.cpu_ns, operations);
            Ok(Run {
                load: Load::Compile,
                program: None,
                policy: policy.to_owned(),
                round,
                operations,
                elapsed_ms: elapsed.as_millis() as u64,
                resident_mean_bytes: mean,
                resident_peak_bytes: peak,
                resident_mean_whole_bytes: mean,
                limit_bytes: 0,
                program_cpu_us_per_op: program_us,
                daemon_cpu_us_per_op: daemon_us,
                program_cpu_us_per_op_whole: program_us,
                daemon_cpu_us_per_op_whole: daemon_us,
                faults_per_op: stat.faults as f64 / operations as f64,
                major_faults_per_op: stat.major_faults as f64 / operations as f64,
                limit_hits_per_op: 0.0,
                p50_us: 0.0,
                p99_us: 0.0,
                p999_us: 0.0,
                measured: None,
            })
        })
    }
}
