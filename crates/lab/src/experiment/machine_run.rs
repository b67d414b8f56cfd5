// SPDX-License-Identifier: Apache-2.0
//! One run: a workload on a machine under one policy with one seed.

mod build;
mod measures;
mod plan;
mod recording;
mod replaying;
mod turns;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_kernel::ids::MemcgId;

use super::damon::Damon;
use super::histogram::Histogram;
use super::task::Task;
use crate::heatmap::{Recorder, Window};
use crate::machine::{FileId, Limits, Machine, ProcessId};
use crate::proactive::{Agent, Truth};
use crate::workload::random::{XorShift64Star, Zipf};
use crate::workload::spec::{StreamOrder, Workload};

use measures::Usage;
use recording::Recording;
use replaying::Replaying;

pub use measures::{MEASURES, Measured, TIER_MEASURES, ZONE_MEASURES};
pub use plan::{MIN_MEMORY_PAGES, Plan, RunError, Subject};

/// One pass through a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Index of the kind of process in the workload.
    pub process: usize,
    /// Index of the task; a restarted process keeps it.
    pub task: usize,
    /// Index of the phase.
    pub phase: usize,
    /// Start time, in ns.
    pub start_ns: u64,
    /// End time, in ns.
    pub end_ns: u64,
}

/// A machine with the processes of a workload on it.
pub struct Run {
    pub machine: Machine,
    /// The cgroup of the workload.
    pub memcg: MemcgId,
    /// The workload; None if a trace runs.
    workload: Option<Arc<Workload>>,
    replay: Option<Box<Replaying>>,
    groups: BTreeMap<String, MemcgId>,
    files: Vec<FileId>,
    tasks: Vec<Task>,
    /// Current phase of each task, and when it began.
    phase_start_ns: Vec<(usize, u64)>,
    laps: Vec<Lap>,
    /// Number of phases each task has ended.
    phases_ended: Vec<usize>,
    ready: BinaryHeap<Reverse<(u64, u64, usize)>>,
    queued: u64,
    cpu_free_ns: Vec<u64>,
    last_on_cpu: Vec<usize>,
    processes: Vec<ProcessId>,
    random: XorShift64Star,
    zipfs: BTreeMap<(StreamOrder, u32, u64), Arc<Zipf>>,
    latency: Histogram,
    accesses: u64,
    end_ns: u64,
    seed: u64,
    agent: Option<Agent>,
    damon: Option<Damon>,
    heat: Option<Box<Recorder>>,
    recording: Option<Box<Recording>>,
    truth: Option<Truth>,
    usage: Usage,
    stop: Option<Arc<AtomicBool>>,
}

impl Run {
    /// Builds the machine and starts the processes.
    ///
    /// # Errors
    /// [`RunError`] if the plan cannot be carried out.
    pub fn new(plan: &Plan) -> Result<Run, RunError> {
        let memory_pages = plan.limit_pages()?;
        let config = plan.machine_config()?;
        let cpus = config.cpus;
        let mut machine = Machine::new(config);
        let limits = Limits {
            max_pages: memory_pages,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "workload", limits);
        let mut run = Run {
            machine,
            memcg,
            workload: None,
            replay: None,
            groups: BTreeMap::new(),
            files: Vec::new(),
            tasks: Vec::new(),
            phase_start_ns: Vec::new(),
            laps: Vec::new(),
            phases_ended: Vec::new(),
            ready: BinaryHeap::new(),
            queued: 0,
            cpu_free_ns: vec![0; cpus],
            last_on_cpu: vec![usize::MAX; cpus],
            processes: Vec::new(),
            random: XorShift64Star::new(plan.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            zipfs: BTreeMap::new(),
            latency: Histogram::default(),
            accesses: 0,
            end_ns: 0,
            seed: plan.seed,
            damon: plan.damon()?,
            heat: None,
            recording: None,
            agent: plan.proactive.as_ref().map(|plan| Agent::new(plan, memcg)),
            truth: plan
                .proactive
                .as_ref()
                .and_then(|plan| plan.truth.then(Truth::default)),
            usage: Usage::default(),
            stop: None,
        };
        match &plan.subject {
            Subject::Workload(workload) => run.start_workload(workload)?,
            Subject::Trace(replay, arrangement) => run.start_replay(replay, *arrangement)?,
        }
        if let Some(damon) = &run.damon {
            damon.start(&mut run.machine, &run.processes, plan.seed)?;
        }
        Ok(run)
    }

    /// Ends turns early once `stop` is set; the measures are meaningless then.
    pub fn stop_on(&mut self, stop: &Arc<AtomicBool>) {
        self.stop = Some(Arc::clone(stop));
    }

    /// Runs until all processes have ended.
    ///
    /// # Errors
    /// [`RunError`] if something cannot be carried out or `stop` was set.
    pub fn run_to_end(&mut self, stop: &Arc<AtomicBool>) -> Result<(), RunError> {
        self.stop_on(stop);
        self.run_until(u64::MAX)?;
        match self.is_stopped() {
            true => Err(RunError::Stopped),
            false => Ok(()),
        }
    }

    /// Whether the run was stopped.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// The cgroup of the workload with this name.
    pub fn group(&self, name: &str) -> Option<MemcgId> {
        self.groups.get(name).copied()
    }

    /// Phases completed so far by the workload's processes, in the order they ended; without those
    /// of forked children and of traces.
    pub fn laps(&self) -> &[Lap] {
        &self.laps
    }

    /// Touches, reads and writes of pages so far.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Whether all processes have ended, or the whole trace was replayed.
    pub fn is_done(&self) -> bool {
        let replay = self.replay.as_ref();
        self.ready.is_empty() && replay.is_none_or(|replay| replay.is_done())
    }

    /// When the last process or the last turn ended, in ns.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The agent that reclaims, if any.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// Starts recording accesses together with DAMON's view of them.
    pub fn record_heat(&mut self) {
        self.machine.keep_damon_snapshots();
        self.heat = Some(Box::default());
    }

    /// The aggregations recorded since [`Run::record_heat`].
    pub fn heat(&self) -> &[Window] {
        self.heat.as_ref().map_or(&[], |heat| heat.windows())
    }
}

/// Runs a plan to its end.
///
/// # Errors
/// [`RunError`] if it cannot be carried out.
pub fn run(plan: &Plan) -> Result<Measured, RunError> {
    run_unless_stopped(plan, &Arc::default())
}

/// Runs a plan to its end, or until `stop` is set.
///
/// # Errors
/// [`RunError`] if it cannot be carried out or was stopped.
pub fn run_unless_stopped(plan: &Plan, stop: &Arc<AtomicBool>) -> Result<Measured, RunError> {
    if stop.load(Ordering::Relaxed) {
        return Err(RunError::Stopped);
    }
    let mut run = Run::new(plan)?;
    run.run_to_end(stop)?;
    Ok(run.measures())
}
