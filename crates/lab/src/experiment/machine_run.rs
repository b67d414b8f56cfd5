// SPDX-License-Identifier: Apache-2.0
//! One run: a workload on a machine under one policy with one seed.

mod replaying;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use agewise_engine::ids::MemcgId;
use thiserror::Error;

use super::damon::{Damon, DamonError};
use super::histogram::Histogram;
use super::replay::{Arrangement, Replay};
use super::settings::{self, SettingError};
use super::task::{Area, Driver, Operation, Phase, Place, Script, Stream, Task, TraceScript};
use crate::heat::{Recorder, Window};
use crate::machine::address_space::{Advice, MapOptions};
use crate::machine::config::ZoneError;
use crate::machine::damon::damon_profile;
use crate::machine::device::DeviceKind;
use crate::machine::{
    Access, FileId, Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig, UNLIMITED,
};
use crate::proactive::{Agent, ProactivePlan, Truth};
use crate::workload::kernel_trace::{Medium, TraceError, TraceGenerator};
use crate::workload::random::{XorShift64Star, Zipf, ZipfError};
use crate::workload::spec::{
    AdviceSpec, AreaSpec, FileSpec, ProcessSpec, StreamOrder, StreamSpec, TraceTable, Workload,
    WorkloadError, zone_index,
};

use replaying::Replaying;

/// Smallest `memory.max`: one charge batch for the process itself and one to work with.
pub const MIN_MEMORY_PAGES: u64 = 128;

/// How long a process runs before another one that is ready on its CPU gets its turn.
const QUANTUM_NS: u64 = 100_000;

/// How often a process that waits for its writes or for others looks, in ns.
const SYNC_POLL_NS: u64 = 2_000_000;

/// A run that cannot be made.
#[derive(Debug, Error)]
pub enum RunError {
    /// The limit leaves no room to work.
    #[error(
        "memory of {pages} pages is less than {MIN_MEMORY_PAGES} (512 KiB): a process cannot run"
    )]
    TooSmall {
        /// Pages asked for.
        pages: u64,
    },
    /// A process needs more address space than there is.
    #[error("process {0} does not fit into an address space")]
    AddressSpace(String),
    /// The machine cannot have the zones given.
    #[error(transparent)]
    Zones(#[from] ZoneError),
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The monitor is wrong.
    #[error(transparent)]
    Damon(#[from] DamonError),
    /// The workload is wrong.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A distribution is wrong.
    #[error(transparent)]
    Zipf(#[from] ZipfError),
}

/// What runs on the machine.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A workload.
    Workload(Arc<Workload>),
    /// A trace, and the order given to accesses whose own is not known.
    Trace(Arc<Replay>, Arrangement),
}

impl Subject {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subject::Workload(workload) => &workload.name,
            Subject::Trace(replay, _) => &replay.name,
        }
    }

    /// What it stands for, in a sentence.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Subject::Workload(workload) => workload.description.clone(),
            Subject::Trace(replay, _) => replay.description(),
        }
    }

    /// `memory.max` unless the plan has another: the workload's own; of a trace, half its pages.
    ///
    /// # Errors
    /// The workload's is no size.
    pub fn memory_pages(&self) -> Result<u64, WorkloadError> {
        match self {
            Subject::Workload(workload) => workload.pages("memory", &workload.memory),
            Subject::Trace(replay, _) => Ok((replay.footprint_pages() / 2).max(MIN_MEMORY_PAGES)),
        }
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What runs.
    pub subject: Subject,
    /// `memory.max`; [`Subject::memory_pages`] unless given.
    pub memory_pages: Option<u64>,
    /// Swap: a device or none; the workload's, or zram for a trace, unless given.
    pub swap: Option<Option<DeviceKind>>,
    /// Settings, `key=value`.
    pub settings: Vec<String>,
    /// DAMON beside the policy, `USE[:KEY=VALUE…]`.
    pub damon: Option<String>,
    /// Policy.
    pub policy: Policy,
    /// Seed.
    pub seed: u64,
    /// An agent that reclaims beside the LRU.
    pub proactive: Option<ProactivePlan>,
}

/// Names and meanings of the measures, in the order in which they are reported.
pub const MEASURES: &[(&str, &str)] = &[
    ("accesses", "touches, reads and writes of pages"),
    ("major_faults", "accesses that read from a device"),
    ("minor_faults", "faults that did not"),
    (
        "refaults_anon",
        "anonymous pages that came back after eviction",
    ),
    ("refaults_file", "file pages that came back after eviction"),
    ("scanned", "pages isolated for reclaim"),
    ("stolen", "pages reclaimed"),
    ("scan_per_steal", "pages isolated for each one reclaimed"),
    (
        "refilled",
        "pages sorted (multi-gen) or deactivated (classic)",
    ),
    ("agings", "generations opened"),
    ("pte_checks", "leaf entries examined"),
    ("rmap_visits", "mappings visited through the reverse map"),
    ("swap_in", "pages read from swap"),
    ("swap_out", "pages written to swap"),
    ("file_in", "pages read from files"),
    ("file_out", "pages written to files"),
    ("direct_reclaims", "allocations that reclaimed themselves"),
    ("oom_kills", "processes killed for lack of memory"),
    (
        "stall_some_ms",
        "time in which a process stalled for memory (PSI some)",
    ),
    ("stall_full_ms", "time in which all of them did (PSI full)"),
    ("policy_cpu_ms", "CPU time of the policies"),
    ("background_cpu_ms", "CPU time of kswapd and the flusher"),
    ("lock_wait_ms", "time waited for the LRU lock"),
    ("p50_ns", "median duration of an access"),
    ("p99_ns", "99th percentile of it"),
    ("p999_ns", "99.9th percentile of it"),
    ("time_ms", "simulated time until the last process ended"),
    (
        "resident_mean_kib",
        "resident memory and page cache, mean over time",
    ),
    ("resident_peak_kib", "its peak"),
    (
        "agent_cpu_ms",
        "CPU time of the agent that reclaims (--proactive)",
    ),
    ("agent_out", "pages it moved out"),
    ("agent_backed_off", "decisions it held back after refaults"),
    (
        "agent_misplaced",
        "bins by which its histogram misplaces a page (earth-mover distance)",
    ),
];

/// Values of the measures, in the order of [`MEASURES`], then those of DAMON.
pub type Measured = Vec<f64>;

/// One time through a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// Which of the workload's kinds of process.
    pub process: usize,
    /// Which task: processes that start anew keep theirs.
    pub task: usize,
    /// Which phase.
    pub phase: usize,
    /// When it began.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
}

impl Plan {
    /// The monitor asked for, by the rules of the policy's kernel.
    ///
    /// # Errors
    /// What that kernel refuses.
    pub fn damon(&self) -> Result<Option<Damon>, DamonError> {
        let profile = damon_profile(self.policy.profile);
        let parse = |text: &String| Damon::parse(text, profile);
        self.damon.as_ref().map(parse).transpose()
    }

    /// Names and meanings of what a run measures.
    ///
    /// # Errors
    /// As [`Plan::damon`].
    pub fn measures(&self) -> Result<Vec<(&'static str, &'static str)>, DamonError> {
        let of_damon = self.damon()?.map(|damon| damon.measures());
        Ok(MEASURES
            .iter()
            .copied()
            .chain(of_damon.unwrap_or_default())
            .collect())
    }
}

/// A machine with the processes of a workload on it.
pub struct Run {
    /// The machine.
    pub machine: Machine,
    /// The cgroup of the workload.
    pub memcg: MemcgId,
    /// Without one, a trace runs.
    workload: Option<Arc<Workload>>,
    replay: Option<Box<Replaying>>,
    groups: BTreeMap<String, MemcgId>,
    files: Vec<FileId>,
    tasks: Vec<Task>,
    /// Which phase each task is in, and since when.
    phase_start_ns: Vec<(usize, u64)>,
    laps: Vec<Lap>,
    /// Phases each task has ended.
    phases_ended: Vec<usize>,
    ready: BinaryHeap<Reverse<(u64, u64, usize)>>,
    queued: u64,
    cpu_free_ns: Vec<u64>,
    last_on_cpu: Vec<usize>,
    processes: Vec<ProcessId>,
    random: XorShift64Star,
    zipfs: BTreeMap<(u32, u64), Arc<Zipf>>,
    latency: Histogram,
    accesses: u64,
    end_ns: u64,
    seed: u64,
    agent: Option<Agent>,
    damon: Option<Damon>,
    heat: Option<Box<Recorder>>,
    truth: Option<Truth>,
    usage: Usage,
}

/// Memory in use over time.
#[derive(Clone, Copy, Debug, Default)]
struct Usage {
    since_ns: u64,
    page_ns: u128,
    peak_pages: u64,
}

impl Usage {
    fn sample(&mut self, now_ns: u64, pages: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        self.page_ns += u128::from(pages) * u128::from(passed_ns);
        self.since_ns = self.since_ns.max(now_ns);
        self.peak_pages = self.peak_pages.max(pages);
    }

    fn mean_pages(&self) -> f64 {
        self.page_ns as f64 / self.since_ns.max(1) as f64
    }
}

impl Run {
    /// Builds the machine and starts the processes.
    ///
    /// # Errors
    /// [`RunError`] when the plan cannot be carried out.
    pub fn new(plan: &Plan) -> Result<Run, RunError> {
        let memory_pages = match plan.memory_pages {
            Some(pages) => pages,
            None => plan.subject.memory_pages()?,
        };
        if memory_pages < MIN_MEMORY_PAGES {
            return Err(RunError::TooSmall {
                pages: memory_pages,
            });
        }
        let config = machine_config(plan, memory_pages)?;
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
            agent: plan.proactive.as_ref().map(|plan| Agent::new(plan, memcg)),
            truth: plan
                .proactive
                .as_ref()
                .and_then(|plan| plan.truth.then(Truth::default)),
            usage: Usage::default(),
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

    /// A cgroup of the workload by its name.
    pub fn group(&self, name: &str) -> Option<MemcgId> {
        self.groups.get(name).copied()
    }

    fn start_workload(&mut self, workload: &Arc<Workload>) -> Result<(), RunError> {
        self.workload = Some(Arc::clone(workload));
        for group in &workload.cgroup {
            let pages = |size: &Option<String>, default| match size {
                Some(size) => workload.pages("cgroup limit", size),
                None => Ok(default),
            };
            let limits = Limits {
                min_pages: pages(&group.min, 0)?,
                low_pages: pages(&group.low, 0)?,
                high_pages: pages(&group.high, UNLIMITED)?,
                max_pages: pages(&group.max, UNLIMITED)?,
                swap_max_pages: pages(&group.swap_max, UNLIMITED)?,
            };
            let id = self.machine.add_memcg(self.memcg, &group.name, limits);
            self.groups.insert(group.name.clone(), id);
        }
        for file in &workload.file {
            let file = add_file(&mut self.machine, workload, file, self.memcg)?;
            self.files.push(file);
        }
        if let Some(trace) = &workload.trace {
            self.start_trace(trace)?;
        }
        for (kind, process) in workload.process.iter().enumerate() {
            for _ in 0..process.count {
                let start_ns = process.start_ms.saturating_mul(1_000_000);
                let repeats = process.repeat.saturating_sub(1);
                self.start_process(workload, kind, start_ns, repeats)?;
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, at_ns: u64, task: usize) {
        self.ready.push(Reverse((at_ns, self.queued, task)));
        self.queued += 1;
    }

    fn add_task(
        &mut self,
        at_ns: u64,
        process: ProcessId,
        driver: Driver,
        kind: Option<usize>,
        repeats_left: u32,
    ) {
        let cpu = self.tasks.len() % self.cpu_free_ns.len();
        self.processes.push(process);
        self.phase_start_ns.push((usize::MAX, 0));
        self.phases_ended.push(0);
        self.tasks.push(Task {
            process,
            driver,
            cpu,
            kind,
            repeats_left,
        });
        self.enqueue(at_ns, self.tasks.len() - 1);
    }

    fn start_process(
        &mut self,
        workload: &Workload,
        kind: usize,
        at_ns: u64,
        repeats: u32,
    ) -> Result<(), RunError> {
        let (process, script) = self.make_process(workload, kind)?;
        let driver = Driver::Script(Box::new(script));
        self.add_task(at_ns, process, driver, Some(kind), repeats);
        Ok(())
    }

    fn make_process(
        &mut self,
        workload: &Workload,
        kind: usize,
    ) -> Result<(ProcessId, Script), RunError> {
        let spec = &workload.process[kind];
        let memcg = spec
            .cgroup
            .as_ref()
            .and_then(|name| self.groups.get(name).copied())
            .unwrap_or(self.memcg);
        let process = self.machine.add_process(memcg);
        if let Some(zone) = spec.highest_zone.as_deref().and_then(zone_index) {
            self.machine.restrict_zone(process, zone);
        }
        let areas = spec
            .area
            .iter()
            .map(|area| self.make_area(workload, process, spec, area))
            .collect::<Result<Vec<Area>, RunError>>()?;
        let mut phases = Vec::new();
        for phase in &spec.phase {
            let populate = phase
                .populate
                .iter()
                .map(|name| workload.area_index(spec, name))
                .collect::<Result<Vec<usize>, WorkloadError>>()?;
            let streams = phase
                .stream
                .iter()
                .map(|stream| self.make_stream(workload, spec, &areas, stream))
                .collect::<Result<Vec<Stream>, RunError>>()?;
            let release = phase
                .release
                .iter()
                .map(|name| workload.area_index(spec, name))
                .collect::<Result<Vec<usize>, WorkloadError>>()?;
            phases.push(Phase::new(phase, populate, streams, release));
        }
        let seed = self.random.draw();
        Ok((process, Script::new(areas, phases, seed, spec.forks)))
    }

    fn make_area(
        &mut self,
        workload: &Workload,
        process: ProcessId,
        spec: &ProcessSpec,
        area: &AreaSpec,
    ) -> Result<Area, RunError> {
        let pages = workload.area_pages(area)?;
        let file = match &area.file {
            Some(name) => {
                let (index, file) = workload.find_file(name)?;
                if area.own {
                    Some(add_file(&mut self.machine, workload, file, self.memcg)?)
                } else {
                    Some(self.files[index])
                }
            }
            None => None,
        };
        let place = match file {
            Some(file) if !area.mmap => Place::Read(file),
            _ => {
                let options = MapOptions {
                    advice: match area.advice {
                        AdviceSpec::Normal => Advice::Normal,
                        AdviceSpec::Random => Advice::Random,
                        AdviceSpec::Sequential => Advice::Sequential,
                    },
                    locked: area.locked,
                    huge: area.huge,
                    ..match file {
                        Some(file) => MapOptions::file(file.number(), pages),
                        None => MapOptions::anon(pages),
                    }
                };
                Place::Mapped {
                    start_vpn: self
                        .machine
                        .map(process, &options)
                        .ok_or_else(|| RunError::AddressSpace(spec.name.clone()))?,
                    anon: file.is_none(),
                }
            }
        };
        Ok(Area {
            place,
            pages: pages as u32,
        })
    }

    fn make_stream(
        &mut self,
        workload: &Workload,
        process: &ProcessSpec,
        areas: &[Area],
        spec: &StreamSpec,
    ) -> Result<Stream, RunError> {
        let area = workload.area_index(process, &spec.area)?;
        let all = f64::from(areas[area].pages);
        let first = (all * spec.from) as u32;
        let end = ((all * spec.to) as u32)
            .max(first + 1)
            .min(areas[area].pages);
        let pages = end.saturating_sub(first).max(1);
        let zipf = match spec.order {
            StreamOrder::Zipf => {
                let key = (pages, spec.theta.to_bits());
                let zipf = match self.zipfs.get(&key) {
                    Some(zipf) => Arc::clone(zipf),
                    None => Arc::new(Zipf::new(pages, spec.theta, self.seed)?),
                };
                self.zipfs.insert(key, Arc::clone(&zipf));
                Some(zipf)
            }
            StreamOrder::Uniform | StreamOrder::Scan => None,
        };
        Ok(Stream {
            area,
            order: spec.order,
            zipf,
            write: spec.write,
            first: first.min(areas[area].pages - pages),
            pages,
            shifts: spec.shifts,
            until: 1.0,
            cursor: 0,
        })
    }

    fn start_trace(&mut self, trace: &TraceTable) -> Result<(), RunError> {
        let generator = TraceGenerator::new(&trace.spec(self.seed))?;
        let medium = generator.pattern().medium;
        let process = self.machine.add_process(self.memcg);
        self.machine.charge_process_objects(process);
        let (anon_pages, file_pages) = match medium {
            Medium::Anon => (trace.pages, 0),
            Medium::Mixed => (trace.hot, trace.pages),
            Medium::File | Medium::Mmap => (0, trace.pages),
        };
        let no_room = || RunError::AddressSpace(trace.pattern.clone());
        let start_vpn = self
            .machine
            .map(process, &MapOptions::anon(anon_pages.into()))
            .ok_or_else(no_room)?;
        let anon = Area {
            place: Place::Mapped {
                start_vpn,
                anon: true,
            },
            pages: anon_pages,
        };
        let file = self
            .machine
            .add_file(file_pages, self.memcg, Advice::Random);
        let place = if medium == Medium::Mmap {
            let options = MapOptions::file(file.number(), file_pages.into());
            Place::Mapped {
                start_vpn: self.machine.map(process, &options).ok_or_else(no_room)?,
                anon: false,
            }
        } else {
            Place::Read(file)
        };
        let file = Area {
            place,
            pages: file_pages,
        };
        let populate = if medium == Medium::Mixed {
            anon_pages
        } else {
            trace.pages
        };
        let script = TraceScript::new(generator, anon, file, populate, trace.touches);
        self.add_task(0, process, Driver::Trace(Box::new(script)), None, 0);
        Ok(())
    }

    /// Runs until all processes have ended, or until the first turn that starts at `stop_ns` or
    /// later.
    ///
    /// # Errors
    /// [`RunError`] when a process that starts anew cannot.
    pub fn run_until(&mut self, stop_ns: u64) -> Result<(), RunError> {
        if let Some(mut replaying) = self.replay.take() {
            self.replay_until(&mut replaying, stop_ns);
            self.replay = Some(replaying);
            return Ok(());
        }
        while let Some(&Reverse((at_ns, _, index))) = self.ready.peek() {
            let cpu = self.tasks[index].cpu;
            let start_ns = at_ns.max(self.cpu_free_ns[cpu]);
            if start_ns >= stop_ns {
                return Ok(());
            }
            if let Some(agent) = self
                .agent
                .as_mut()
                .filter(|agent| agent.due_ns() <= start_ns)
            {
                let due_ns = agent.due_ns();
                let busy_ns = agent.run(&mut self.machine, self.truth.as_ref());
                // It takes the CPU that is free first, and whoever wants that one waits.
                let free_first = self.cpu_free_ns.iter_mut().min_by_key(|at| **at);
                if let Some(free_ns) = free_first {
                    *free_ns = due_ns.max(*free_ns) + busy_ns;
                }
                continue;
            }
            self.ready.pop();
            self.usage
                .sample(start_ns, self.machine.usage_pages(self.memcg));
            self.take_turn(index, start_ns)?;
        }
        Ok(())
    }

    fn take_turn(&mut self, index: usize, start_ns: u64) -> Result<(), RunError> {
        let Task { process, cpu, .. } = self.tasks[index];
        self.machine.set_now_ns(start_ns);
        self.machine.set_cpu(cpu);
        if self.last_on_cpu[cpu] != index {
            self.machine.schedule(process);
            self.last_on_cpu[cpu] = index;
        }
        let waited_ns = self.machine.waited_ns();
        let mut goes_on = self.machine.is_alive(process);
        while goes_on
            && self.machine.waited_ns() == waited_ns
            && self.machine.now_ns() < start_ns + QUANTUM_NS
        {
            let operation = self.tasks[index].driver.next();
            goes_on = match operation {
                Operation::Meet { phase } => {
                    if self.others_are_done(index, phase) {
                        self.tasks[index].driver.set_waited();
                    } else {
                        self.machine.wait_ns(SYNC_POLL_NS);
                    }
                    continue;
                }
                Operation::Begin { phase } => {
                    self.phase_start_ns[index] = (phase, self.machine.now_ns());
                    continue;
                }
                Operation::End { phase, period_ns } => {
                    self.end_phase(index, phase, period_ns);
                    continue;
                }
                Operation::Sync => {
                    if self.machine.sync() {
                        self.tasks[index].driver.set_waited();
                    } else {
                        self.machine.wait_ns(SYNC_POLL_NS);
                    }
                    continue;
                }
                Operation::Release { start_vpn } => {
                    self.machine.discard(process, start_vpn);
                    continue;
                }
                Operation::Fork => {
                    self.end_phase(index, 0, 0);
                    self.fork(index);
                    self.machine.is_alive(process)
                }
                Operation::Exit => {
                    self.machine.exit(process);
                    false
                }
                _ => self.access(process, operation),
            };
            let think_ns = self.tasks[index].driver.think_ns();
            if think_ns > 0 && goes_on {
                self.machine.wait_ns(think_ns);
            }
        }
        let end_ns = self.machine.now_ns();
        let waited_ns = self.machine.waited_ns() - waited_ns;
        self.cpu_free_ns[cpu] = end_ns.saturating_sub(waited_ns).max(start_ns);
        self.end_ns = self.end_ns.max(end_ns);
        if goes_on {
            self.enqueue(end_ns, index);
        } else {
            self.start_anew(index, end_ns)?;
        }
        Ok(())
    }

    /// Whether all processes of the task's kind have ended the phase before `phase`, or themselves.
    fn others_are_done(&self, index: usize, phase: usize) -> bool {
        let kind = self.tasks[index].kind;
        self.tasks.iter().enumerate().all(|(other, task)| {
            task.kind != kind
                || !self.machine.is_alive(task.process)
                || self.phases_ended[other] >= phase
        })
    }

    /// A phase of a task ended, to be repeated `period_ns` after its start if that is later.
    fn end_phase(&mut self, index: usize, phase: usize, period_ns: u64) {
        let (begun, start_ns) = self.phase_start_ns[index];
        let end_ns = self.machine.now_ns();
        if let (Some(process), true) = (self.tasks[index].kind, begun == phase) {
            self.laps.push(Lap {
                process,
                task: index,
                phase,
                start_ns,
                end_ns,
            });
        }
        self.phases_ended[index] = phase + 1;
        let next_ns = start_ns.saturating_add(period_ns);
        self.machine.wait_ns(next_ns.saturating_sub(end_ns));
    }

    /// One access; false when it ended the process.
    #[inline]
    fn access(&mut self, process: ProcessId, operation: Operation) -> bool {
        let before_ns = self.machine.now_ns();
        let access = match operation {
            Operation::Touch { vpn, write } => self.machine.access(process, vpn, write),
            Operation::Io { file, index, write } if write => {
                self.machine.write(process, file, index, 1)
            }
            Operation::Io { file, index, .. } => self.machine.read(process, file, index, 1),
            Operation::Meet { .. }
            | Operation::Begin { .. }
            | Operation::End { .. }
            | Operation::Sync
            | Operation::Release { .. }
            | Operation::Fork
            | Operation::Exit => return true,
        };
        if let Some(heat) = &mut self.heat {
            match operation {
                Operation::Touch { vpn, .. } => heat.touch(&self.machine, process, vpn),
                Operation::Io { file, index, .. } => heat.io(&self.machine, file, index),
                _ => {}
            }
        }
        self.accesses += 1;
        if let (Some(truth), Operation::Touch { vpn, .. }) = (&mut self.truth, operation) {
            truth.note(process, vpn, before_ns);
        }
        self.latency.add(self.machine.now_ns() - before_ns);
        access != Access::Killed && self.machine.is_alive(process)
    }

    fn fork(&mut self, index: usize) {
        let Driver::Script(script) = &self.tasks[index].driver else {
            return;
        };
        let script = script.clone();
        let parent = self.tasks[index].process;
        for _ in 0..script.forks {
            let Some(child) = self.machine.fork(parent) else {
                return;
            };
            let child_script = Box::new(script.child(self.random.draw()));
            let now_ns = self.machine.now_ns();
            self.add_task(now_ns, child, Driver::Script(child_script), None, 0);
        }
    }

    /// A process that ended, or was killed, starts anew if its workload says so.
    fn start_anew(&mut self, index: usize, at_ns: u64) -> Result<(), RunError> {
        let (kind, left) = (self.tasks[index].kind, self.tasks[index].repeats_left);
        if let (Some(kind), Some(left), Some(workload)) =
            (kind, left.checked_sub(1), self.workload.clone())
        {
            let (process, script) = self.make_process(&workload, kind)?;
            self.processes.push(process);
            self.phases_ended[index] = 0;
            let task = &mut self.tasks[index];
            task.process = process;
            task.driver = Driver::Script(Box::new(script));
            task.repeats_left = left;
            self.enqueue(at_ns, index);
        }
        Ok(())
    }

    /// Phases gone through so far by the workload's processes, in the order in which they ended;
    /// not those of forked children and traces.
    pub fn laps(&self) -> &[Lap] {
        &self.laps
    }

    /// Touches, reads and writes of pages so far.
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Whether all processes have ended.
    pub fn is_done(&self) -> bool {
        self.ready.is_empty()
    }

    /// When the last process ended, or the last turn did, in ns.
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The agent that reclaims, if there is one.
    pub fn agent(&self) -> Option<&Agent> {
        self.agent.as_ref()
    }

    /// From now on keeps what is accessed beside what DAMON makes of it.
    pub fn record_heat(&mut self) {
        self.machine.keep_damon_snapshots();
        self.heat = Some(Box::default());
    }

    /// The aggregations since [`Run::record_heat`].
    pub fn heat(&self) -> &[Window] {
        self.heat.as_ref().map_or(&[], |heat| heat.windows())
    }

    /// The measures so far.
    pub fn measures(&self) -> Measured {
        let events = self.machine.memcg_events(MemcgId::ROOT);
        let counters = self.machine.counters();
        let work = self.machine.work();
        let pressure = self.machine.pressure(self.memcg);
        let [policy_ns, background_ns, lock_wait_ns] = self.machine.cpu_ns();
        let (mut major, mut minor) = (0, 0);
        for &process in &self.processes {
            let stats = self.machine.process_stats(process);
            major += stats.major_faults;
            minor += stats.minor_faults;
        }
        // Reads that had to wait for a device are the major faults of a file descriptor.
        let major = major.max(counters.pgpgin + counters.pswpin);
        let count = |value: u64| value as f64;
        let ms = |ns: u64| ns as f64 / 1e6;
        let agent = self.agent.as_ref().map(|agent| *agent.stats());
        let agent = agent.unwrap_or_default();
        let mut values = vec![
            count(self.accesses),
            count(major),
            count(minor),
            count(events.workingset_refault[0]),
            count(events.workingset_refault[1]),
            count(events.scanned()),
            count(events.stolen()),
            count(events.scanned()) / count(events.stolen().max(1)),
            count(events.pgrefill),
            count(work.agings),
            count(work.pte_checks),
            count(work.rmap_visits),
            count(counters.pswpin),
            count(counters.pswpout),
            count(counters.pgpgin),
            count(counters.pgpgout),
            count(counters.allocstall),
            count(counters.oom_kill),
            ms(pressure.some_ns),
            ms(pressure.full_ns),
            ms(policy_ns),
            ms(background_ns),
            ms(lock_wait_ns),
            count(self.latency.quantile(0.5)),
            count(self.latency.quantile(0.99)),
            count(self.latency.quantile(0.999)),
            ms(self.end_ns),
            self.usage.mean_pages() * 4.0,
            count(self.usage.peak_pages * 4),
            ms(agent.cpu_ns),
            count(agent.left_pages[0] + agent.left_pages[1]),
            count(agent.backed_off),
            agent.misplaced_bins / count(agent.compared.max(1)),
        ];
        if let Some(damon) = &self.damon {
            values.extend(damon.measured(self.machine.damon(), self.end_ns));
        }
        values
    }
}

fn add_file(
    machine: &mut Machine,
    workload: &Workload,
    file: &FileSpec,
    memcg: MemcgId,
) -> Result<FileId, RunError> {
    let pages = workload.pages("size", &file.size)? as u32;
    let advice = if file.readahead {
        Advice::Normal
    } else {
        Advice::Random
    };
    Ok(machine.add_file(pages, memcg, advice))
}

fn machine_config(plan: &Plan, memory_pages: u64) -> Result<MachineConfig, RunError> {
    let machine_pages = match &plan.subject {
        Subject::Workload(workload) if workload.machine_memory.is_some() => {
            let size = workload.machine_memory.as_deref().unwrap_or_default();
            workload.pages("machine_memory", size)?
        }
        _ => memory_pages.saturating_mul(4),
    };
    let machine_pages = machine_pages.clamp(1 << 12, 1 << 30) as u32;
    let (cpus, swap, anon_pages) = match &plan.subject {
        Subject::Workload(workload) => (
            workload.cpus as usize,
            workload.swap.parse().ok(),
            anon_pages(workload),
        ),
        Subject::Trace(replay, _) => (1, Some(DeviceKind::Zram), replay.anon_pages()),
    };
    let kind = plan.swap.unwrap_or(swap);
    let swap_pages = anon_pages.saturating_add(1024).min(1 << 30) as u32;
    let mut config = MachineConfig {
        policy: plan.policy,
        cpus,
        swap: kind.map(|kind| SwapConfig::new(kind, swap_pages)),
        zones: match &plan.subject {
            Subject::Workload(workload) => match &workload.zones {
                Some(zones) => Some(zones.pages(workload)?),
                None => None,
            },
            Subject::Trace(..) => None,
        },
        seed: plan.seed,
        ..MachineConfig::new(machine_pages)
    };
    // Nobody knows when the statistics timer fires first: that is part of what a seed draws.
    let mut random = XorShift64Star::new(plan.seed ^ 0x5DEE_CE66_D1CE_4E5B);
    config.stat_flush_phase_ns = random.draw() % config.stat_flush_ns;
    let of_workload: &[String] = match &plan.subject {
        Subject::Workload(workload) => &workload.settings,
        Subject::Trace(..) => &[],
    };
    for setting in of_workload.iter().chain(&plan.settings) {
        settings::apply(&mut config, setting)?;
    }
    config.check_zones()?;
    Ok(config)
}

/// Room for all that a workload can swap at the same time.
fn anon_pages(workload: &Workload) -> u64 {
    let of_processes: u64 = workload
        .process
        .iter()
        .flat_map(|process| {
            let copies = u64::from(process.count) * u64::from(process.forks + 1);
            process.area.iter().map(move |area| (area, copies))
        })
        .filter(|(area, _)| area.file.is_none())
        .map(|(area, copies)| workload.area_pages(area).unwrap_or(0) * copies)
        .sum();
    let of_trace = workload
        .trace
        .as_ref()
        .map_or(0, |trace| u64::from(trace.pages) + u64::from(trace.hot));
    of_processes + of_trace
}

/// Runs a plan to its end.
///
/// # Errors
/// [`RunError`] when it cannot be carried out.
pub fn run(plan: &Plan) -> Result<Measured, RunError> {
    let mut run = Run::new(plan)?;
    run.run_until(u64::MAX)?;
    Ok(run.measures())
}
