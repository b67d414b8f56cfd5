// SPDX-License-Identifier: Apache-2.0
//! `agewise bench sort`: refaults after sudden pressure, with and without `agewise sort`.
//!
//! Counts refaults per operation (not times) of an exerciser in a memory cgroup whose limit is
//! lowered suddenly. So the result hardly depends on other load on the machine.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{ZramDevice, ZramOptions};
use agewise_lab::reproduce::{Change, Pair};
use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use super::SortArgs;
use super::own_cgroup;
use crate::exercise::spawned::Spawned;
use agewise_cli::children;
use agewise_cli::signal::Stop;

/// Time it may take to end.
const END_MAX: Duration = Duration::from_secs(60);
/// The threshold for cold memory, and the time between looks.
const OLDER_THAN: Duration = Duration::from_secs(3);
const INTERVAL: Duration = Duration::from_secs(1);
/// How long the exerciser runs before pressure, and how long refaults are counted from there.
const SETTLE: Duration = Duration::from_secs(7);
const WINDOW: Duration = Duration::from_secs(3);
/// Attempts per run: one in which the exerciser was OOM-killed says nothing and is repeated.
const TRIES: usize = 4;

/// A load, and the share of its memory that the limit leaves.
struct Load {
    pattern: &'static str,
    scattered: bool,
    /// Operations per second and GiB: hot pages are visited every 0.8 s, or all pages every 1.6 s.
    ops_per_gib: u64,
    limit: f64,
}

const HOT_COLD: Load = Load {
    pattern: "hotcold:0.5",
    scattered: false,
    ops_per_gib: 160_000,
    limit: 0.6,
};

const SCATTERED: Load = Load {
    scattered: true,
    ..HOT_COLD
};

const UNIFORM: Load = Load {
    pattern: "uniform",
    limit: 0.75,
    ..HOT_COLD
};

/// Refaults of one load.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Refaults {
    /// Mean per 1000 operations, without sorting.
    plain_refaults_per_kop: f64,
    sorted_refaults_per_kop: f64,
    /// Relative change; -0.3 is 30 % fewer.
    change_ratio: Option<f64>,
    /// Its 95 % interval.
    change_low_ratio: Option<f64>,
    change_high_ratio: Option<f64>,
}

/// The effect and cost of sorting.
#[derive(Clone, Debug, Serialize)]
pub struct Sort {
    /// Memory of the exerciser.
    size_bytes: u64,
    /// Pairs of runs for each load.
    pairs: u16,
    /// Hot half and cold half.
    hotcold: Refaults,
    /// The same with hot pages scattered singly.
    scattered: Refaults,
    /// All pages touched equally.
    uniform: Refaults,
    /// Share of one core that sorting takes after its start, with hot half and cold half.
    core_ratio: f64,
    /// The same for the other loads.
    scattered_core_ratio: f64,
    uniform_core_ratio: f64,
    /// CPU time of starting, paid once.
    start_cpu_ms: f64,
    /// Runs repeated because the exerciser was OOM-killed, without and with sorting.
    killed_plain: usize,
    killed_sorted: usize,
}

/// The result of all runs of one load.
struct Measured {
    refaults: Refaults,
    core_ratio: f64,
    start_cpu_ms: f64,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &SortArgs, stop: &Stop) -> anyhow::Result<Sort> {
    // Try it first: without privileges nothing else is started.
    drop(own_cgroup("sort")?);
    let device = ZramDevice::create(&ZramOptions::new(args.size.saturating_mul(2)))
        .context("what has to leave goes to a zram device")?;
    let mut bench = Bench {
        program,
        args,
        stop,
        killed: [0; 2],
    };
    let hotcold = bench.load(&HOT_COLD)?;
    let scattered = bench.load(&SCATTERED)?;
    let uniform = bench.load(&UNIFORM)?;
    let killed = bench.killed;
    device.remove()?;
    let start_cpu_ms = [&hotcold, &scattered, &uniform]
        .iter()
        .map(|one| one.start_cpu_ms)
        .fold(0.0, f64::max);
    Ok(Sort {
        size_bytes: args.size,
        pairs: args.pairs,
        hotcold: hotcold.refaults,
        scattered: scattered.refaults,
        uniform: uniform.refaults,
        core_ratio: hotcold.core_ratio,
        scattered_core_ratio: scattered.core_ratio,
        uniform_core_ratio: uniform.core_ratio,
        start_cpu_ms,
        killed_plain: killed[0],
        killed_sorted: killed[1],
    })
}

struct Bench<'a> {
    program: &'a Path,
    args: &'a SortArgs,
    stop: &'a Stop,
    /// Runs in which the exerciser was killed, without and with sorting.
    killed: [usize; 2],
}

impl Bench<'_> {
    /// Makes pairs of runs; plain and sorted runs take turns at being first.
    fn load(&mut self, load: &Load) -> anyhow::Result<Measured> {
        let mut pairs = Vec::new();
        let (mut cpu, mut time, mut start_cpu_ms) = (0.0, 0.0, 0.0f64);
        for pair in 0..self.args.pairs {
            let mut refaults = [0.0; 2];
            for sorts in [pair % 2 == 1, pair % 2 == 0] {
                let run = self.run(load, sorts)?;
                refaults[usize::from(sorts)] = run.refaults_per_kop;
                if let Some(total) = run.sorted {
                    cpu += total.cpu_ms - total.start_cpu_ms;
                    time += total.seconds * 1e3;
                    start_cpu_ms = start_cpu_ms.max(total.start_cpu_ms);
                }
            }
            let [before, after] = refaults;
            pairs.push(Pair { before, after });
        }
        let mean = |of: fn(&Pair) -> f64| pairs.iter().map(of).sum::<f64>() / pairs.len() as f64;
        let change = Change::of_ratios(&pairs);
        Ok(Measured {
            refaults: Refaults {
                plain_refaults_per_kop: mean(|pair| pair.before),
                sorted_refaults_per_kop: mean(|pair| pair.after),
                change_ratio: change.mean,
                change_low_ratio: change.interval.map(|(low, _)| low),
                change_high_ratio: change.interval.map(|(_, high)| high),
            },
            core_ratio: if time > 0.0 { cpu / time } else { 0.0 },
            start_cpu_ms,
        })
    }

    fn run(&mut self, load: &Load, sorts: bool) -> anyhow::Result<Run> {
        for _ in 0..TRIES {
            if let Some(run) = self.try_run(load, sorts)? {
                return Ok(run);
            }
            self.killed[usize::from(sorts)] += 1;
        }
        bail!("the exerciser was killed for lack of memory {TRIES} times in a row")
    }

    /// Makes one run; `None` if the exerciser was killed.
    fn try_run(&self, load: &Load, sorts: bool) -> anyhow::Result<Option<Run>> {
        let memcg = own_cgroup("sort")?;
        let rate = (self.args.size as f64 / f64::from(1 << 30) * load.ops_per_gib as f64) as u64;
        let mut words: Vec<OsString> = vec![
            "--size".into(),
            self.args.size.to_string().into(),
            "--pattern".into(),
            load.pattern.into(),
            "--rate".into(),
            rate.max(1).to_string().into(),
            "--no-final-check".into(),
        ];
        if load.scattered {
            words.push("--scatter".into());
        }
        let entrance = memcg.entrance()?;
        let exerciser = Spawned::start_in(self.program, words, Some(&entrance), Some(self.stop))?;
        let process = Process::open_user(&ProcRoot::default(), exerciser.pid())?;
        let sorter = if sorts {
            Some(Sorter::start(self.program, exerciser.pid())?)
        } else {
            None
        };
        self.wait(SETTLE)?;
        let count = || -> anyhow::Result<(u64, u64)> {
            let stat = memcg.cgroup().stat()?;
            Ok((stat.refaults_anon_pages, exerciser.truth().ops()))
        };
        let (refaults, ops) = count()?;
        let end = Instant::now() + WINDOW;
        let limited = memcg.set_limit((self.args.size as f64 * load.limit) as u64);
        self.wait(end.saturating_duration_since(Instant::now()))?;
        let (refaults_now, ops_now) = count()?;
        let sorted = sorter.map(Sorter::finish).transpose()?;
        if !process.is_alive() || process.kind().is_ok_and(is_over) {
            return Ok(None);
        }
        limited?;
        exerciser.finish()?;
        let ops = ops_now.saturating_sub(ops).max(1);
        Ok(Some(Run {
            refaults_per_kop: refaults_now.saturating_sub(refaults) as f64 * 1e3 / ops as f64,
            sorted,
        }))
    }

    fn wait(&self, duration: Duration) -> anyhow::Result<()> {
        if self.stop.wait(duration) {
            bail!("interrupted");
        }
        Ok(())
    }
}

fn is_over(kind: agewise_host::process::ProcessKind) -> bool {
    kind != agewise_host::process::ProcessKind::User
}

struct Run {
    refaults_per_kop: f64,
    sorted: Option<SortTotal>,
}

/// The last line of `agewise sort --format json`.
#[derive(Debug, Deserialize)]
struct SortTotal {
    seconds: f64,
    cpu_ms: f64,
    start_cpu_ms: f64,
}

/// A running `agewise sort`; ended and waited for when dropped.
struct Sorter {
    child: Child,
}

impl Sorter {
    fn start(program: &Path, pid: u32) -> anyhow::Result<Self> {
        let child = Command::new(program)
            .args(["sort", "--format", "json", "--pid", &pid.to_string()])
            .args(["--older-than", &format!("{}s", OLDER_THAN.as_secs())])
            .args(["--interval", &format!("{}s", INTERVAL.as_secs())])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Self { child })
    }

    fn finish(mut self) -> anyhow::Result<SortTotal> {
        // It has not been waited for yet.
        children::terminate(&self.child);
        let mut said = String::new();
        if let Some(mut out) = self.child.stdout.take() {
            out.read_to_string(&mut said)?;
        }
        let status = self.child.wait()?;
        let last = said.lines().last().unwrap_or_default();
        serde_json::from_str(last).with_context(|| format!("sort ended ({status}) saying: {last}"))
    }
}

impl Drop for Sorter {
    fn drop(&mut self) {
        children::end(&mut self.child, END_MAX);
    }
}
