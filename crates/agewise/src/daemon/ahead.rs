// SPDX-License-Identifier: Apache-2.0
//! Holding targets under a budget, in steps of milliseconds: a thread beside the ticks, with an eye
//! of its own.
//!
//! It is the only one that clears accessed bits of the processes it serves often, so what it saw is
//! handed to the agent ([`Seen`]), whose ages stay right.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use agewise_engine::proactive::{
    Action, Backend, Controller, Facts, Hands, Outcome, Reason as Why, Spec, SwapRoom,
};
use agewise_engine::table::PageBits;
use agewise_host::agent::AlsoYoung;
use agewise_host::cgroup::Cgroup;
use agewise_host::clock;
use agewise_host::eye::{AccessSource, PAGE_BYTES, Target};
use agewise_host::heated::{Heated, Moved};
use agewise_host::memory::MemInfo;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::seat::Seat;
use serde::Serialize;

use super::observer::Key;

/// What a scan leaves of a page's heat.
const DECAY: f64 = 0.97;
/// Scans take at most this share of a core, percent.
const SCAN_PERCENT: f64 = 1.0;
/// So many times what a period between two scans needed is queued for the next.
const QUEUE_FACTOR: u64 = 2;
/// At least so much is queued, pages.
const QUEUE_MIN_PAGES: u64 = 2048;
/// A scan tells most when about this share of the memory was accessed since the one before: with
/// much less nothing is learnt, with much more all look alike, and every bit cleared costs the
/// target 0.4 us when it sets it again.
const YOUNG_SHARE: f64 = 0.35;
/// Longest time between scans.
const SCAN_MAX_MS: u64 = 10_000;
/// So much is moved in one go, 0.1 ms of work, unless that would take too long in all: the program does
/// not run meanwhile, and requests that come in wait for it.
const SLICE_BYTES: u64 = 8 * PAGE_BYTES;
/// Slices in which a move is done at most.
const SLICES: u64 = 32;
/// Time between two slices.
const SLICE_US: u64 = 500;
/// One that comes late, because the program did not let it run, takes what it would have taken
/// meanwhile, up to so many.
const LATE_SLICES_MAX: u64 = 4;
/// What changes slowly is read again after this time.
const SLOW: Duration = Duration::from_secs(1);
/// Of so many processes at most it is followed on which CPU they run: moves hop from one to the next.
const FOLLOWED_MAX: usize = 8;

/// A target to hold.
#[derive(Clone, Debug)]
pub struct Held {
    /// Names it.
    pub key: Key,
    /// The cgroup; none for a process by pid.
    pub cgroup: Option<Cgroup>,
    /// Its processes.
    pub pids: Vec<u32>,
    /// The policy.
    pub spec: Spec,
    /// Nothing is moved.
    pub dry_run: bool,
    /// Where anonymous memory goes.
    pub backend: Backend,
}

/// What is about to be done for a target.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    /// Charged to it.
    pub charged_bytes: u64,
    /// In swap.
    pub swapped_bytes: u64,
    /// Asked for by the first step.
    pub asked_bytes: u64,
    /// Memory grew faster than it was moved.
    pub behind: bool,
}

/// Called before the first step for a target since its reports were taken.
pub type Announce = Box<dyn Fn(&Held, &Begun) + Send>;

/// What was done for a target since it was last asked about.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Slices moved: each is looked at once more, and goes in 0.1 ms or so.
    pub steps: u64,
    /// Scans of all its memory.
    pub scans: u64,
    /// Asked for by the policy.
    pub asked_bytes: u64,
    /// Still there and untouched when its turn came.
    pub tried_bytes: u64,
    /// Touched since it was queued.
    pub young_again_bytes: u64,
    /// Left.
    pub left_bytes: u64,
    /// Would have left.
    pub rehearsed_bytes: u64,
    /// CPU time of scans, ns.
    pub scan_cpu_ns: u64,
    /// CPU time of moving, ns.
    pub move_cpu_ns: u64,
    /// Memory grew faster than it was moved: the kernel's own reclaim had to help.
    pub behind: bool,
    /// What stood in the way, the last of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Pages seen accessed, by table.
type Young = HashMap<u64, PageBits>;

#[derive(Default)]
struct Shared {
    held: Mutex<Option<Vec<Held>>>,
    reports: Mutex<HashMap<Key, Report>>,
    /// By pid, with the start time of the process.
    young: Mutex<HashMap<u32, (u64, Young)>>,
    end: AtomicBool,
    /// CPU time of the thread, ns.
    cpu_ns: AtomicU64,
}

fn now_us() -> u64 {
    clock::monotonic_ns() / 1000
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread. Dropping it ends it.
pub struct Ahead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Hands what the thread saw accessed to the agent.
pub struct Seen(Arc<Shared>);

impl AlsoYoung for Seen {
    fn take(&mut self, target: &Target) -> Option<Young> {
        let mut young = lock(&self.0.young);
        let (start_ticks, seen) = young.get_mut(&target.pid)?;
        (Some(*start_ticks) == target.start_ticks).then(|| std::mem::take(seen))
    }
}

impl Ahead {
    /// Starts the thread with an eye of its own. What it is about to do is told to `announce`, once
    /// for all steps until the reports are taken: they are hundreds a second.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(eye: Box<dyn AccessSource + Send>, announce: Announce) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("agewise-ahead".into())
            .spawn(move || Runner::new(of_thread, eye, announce).run())?;
        Ok(Ahead {
            shared,
            thread: Some(thread),
        })
    }

    /// What it saw, for the agent.
    pub fn seen(&self) -> Box<dyn AlsoYoung> {
        Box::new(Seen(Arc::clone(&self.shared)))
    }

    /// CPU time of the thread so far.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }

    /// Holds these from now on; those that are no longer among them are let go.
    pub fn hold(&self, held: Vec<Held>) {
        *lock(&self.shared.held) = Some(held);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// What was done since the last call. Scans after which nothing had to go yet wait for the steps
    /// that they are for, so that what was announced and what is told come in pairs.
    pub fn take_reports(&self) -> Vec<(Key, Report)> {
        let mut reports = lock(&self.shared.reports);
        let done = |_: &Key, report: &mut Report| report.steps > 0 || report.trouble.is_some();
        reports.extract_if(done).collect()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// What a turn works with.
struct Tools<'a> {
    eye: &'a mut dyn AccessSource,
    seat: &'a mut Seat,
}

struct Runner {
    shared: Arc<Shared>,
    eye: Box<dyn AccessSource + Send>,
    announce: Announce,
    holders: BTreeMap<Key, Holder>,
    seat: Seat,
}

/// One target.
struct Holder {
    held: Held,
    controller: Controller,
    heated: BTreeMap<u32, Heated>,
    outcome: Option<Outcome>,
    slow: Slow,
    slow_at: Option<Instant>,
    next_us: u64,
    next_scan_us: u64,
    scan_interval_ms: u64,
    /// Asked for by the last decision and not moved yet, and in which slices it goes.
    backlog_bytes: u64,
    slice_bytes: u64,
    done: Moved,
    /// Pages that went since the last scan, and in the period before.
    went_pages: u64,
    wanted_pages: u64,
}

/// What is read once a second.
#[derive(Clone, Copy, Debug, Default)]
struct Slow {
    limit_bytes: Option<u64>,
    floor_bytes: u64,
    file_bytes: u64,
    swap_bytes: u64,
    room: SwapRoom,
}

impl Runner {
    fn new(shared: Arc<Shared>, eye: Box<dyn AccessSource + Send>, announce: Announce) -> Self {
        Runner {
            shared,
            eye,
            announce,
            holders: BTreeMap::new(),
            seat: Seat::new(),
        }
    }

    fn run(mut self) {
        // A request that is being answered is answered first. Without it they only wait longer.
        let _ = agewise_host::seat::be_patient();
        while !self.shared.end.load(Ordering::SeqCst) {
            self.take_held();
            let now_us = now_us();
            let mut next_us = now_us + 1_000_000;
            for (key, holder) in &mut self.holders {
                if now_us >= holder.next_us || now_us >= holder.next_scan_us {
                    let mut report = Report::default();
                    let told = lock(&self.shared.reports);
                    let is_told = told.get(key).is_some_and(|report| report.steps > 0);
                    drop(told);
                    let announce = (!is_told).then_some(&self.announce);
                    let mut tools = Tools {
                        eye: &mut *self.eye,
                        seat: &mut self.seat,
                    };
                    holder.turn(&mut tools, now_us, announce, &mut report);
                    holder.hand_over(&self.shared);
                    add(&self.shared, key, report);
                }
                next_us = next_us.min(holder.next_us).min(holder.next_scan_us);
            }
            let cpu_ns = clock::thread_cpu_ns();
            self.shared.cpu_ns.store(cpu_ns, Ordering::Relaxed);
            let left = next_us.saturating_sub(self::now_us());
            if left > 0 {
                std::thread::park_timeout(Duration::from_micros(left));
            }
        }
    }

    fn take_held(&mut self) {
        let Some(held) = lock(&self.shared.held).take() else {
            return;
        };
        let mut before = std::mem::take(&mut self.holders);
        for held in held {
            let holder = match before.remove(&held.key) {
                Some(mut holder) if holder.held.spec == held.spec => {
                    holder.held = held;
                    holder
                }
                _ => Holder::new(held),
            };
            self.holders.insert(holder.held.key.clone(), holder);
        }
        let pids: Vec<u32> = self
            .holders
            .values()
            .flat_map(|holder| holder.held.pids.iter().copied())
            .collect();
        lock(&self.shared.young).retain(|pid, _| pids.contains(pid));
        // What was done for one that is gone has been told, or nobody asks any more.
        let holders = &self.holders;
        lock(&self.shared.reports).retain(|key, _| holders.contains_key(key));
    }
}

fn add(shared: &Shared, key: &Key, report: Report) {
    let mut reports = lock(&shared.reports);
    let sum = reports.entry(key.clone()).or_default();
    sum.steps += report.steps;
    sum.scans += report.scans;
    sum.asked_bytes += report.asked_bytes;
    sum.tried_bytes += report.tried_bytes;
    sum.young_again_bytes += report.young_again_bytes;
    sum.left_bytes += report.left_bytes;
    sum.rehearsed_bytes += report.rehearsed_bytes;
    sum.scan_cpu_ns += report.scan_cpu_ns;
    sum.move_cpu_ns += report.move_cpu_ns;
    sum.behind |= report.behind;
    if report.trouble.is_some() {
        sum.trouble = report.trouble;
    }
}

impl Holder {
    fn new(held: Held) -> Self {
        Holder {
            controller: Controller::new(&held.spec),
            held,
            heated: BTreeMap::new(),
            outcome: None,
            slow: Slow::default(),
            slow_at: None,
            next_us: 0,
            next_scan_us: 0,
            scan_interval_ms: 0,
            backlog_bytes: 0,
            slice_bytes: 0,
            done: Moved::default(),
            went_pages: 0,
            wanted_pages: 0,
        }
    }

    fn turn(
        &mut self,
        tools: &mut Tools<'_>,
        now_us: u64,
        announce: Option<&Announce>,
        report: &mut Report,
    ) {
        if self.slow_at.is_none_or(|at| at.elapsed() >= SLOW) {
            self.read_slow();
        }
        if now_us >= self.next_scan_us {
            // It takes milliseconds, and clears without an interrupt to anybody.
            tools.seat.leave();
            self.scan(tools.eye, now_us, report);
        }
        if now_us < self.next_us {
            return;
        }
        let late_us = now_us - self.next_us;
        if self.backlog_bytes == 0 {
            self.decide(now_us, report);
        }
        if self.backlog_bytes > 0 {
            if let Some(announce) = announce {
                let begun = Begun {
                    charged_bytes: self.charged_bytes().unwrap_or(0),
                    swapped_bytes: self.slow.swap_bytes,
                    asked_bytes: self.backlog_bytes,
                    behind: report.behind,
                };
                announce(&self.held, &begun);
            }
            let slices = (1 + late_us / SLICE_US).min(LATE_SLICES_MAX);
            self.move_slices(tools, slices, now_us, report);
        }
    }

    /// Asks the policy, with what became of the last decision.
    fn decide(&mut self, now_us: u64, report: &mut Report) {
        let charged_bytes = self.charged_bytes();
        let resident = charged_bytes.unwrap_or(0);
        let file_bytes = self.slow.file_bytes.min(resident);
        // Its hand takes anonymous memory only.
        let has_swap = self.held.backend != Backend::None;
        if !has_swap {
            report.trouble =
                Some("no swap to move anonymous memory to: the budget is not held".into());
        }
        let facts = Facts {
            time_ms: now_us / 1000,
            resident_bytes: [resident - file_bytes, file_bytes],
            charged_bytes,
            out_bytes: [self.slow.swap_bytes, 0],
            swap: Some(self.slow.room),
            backend: self.held.backend,
            limit_bytes: self.slow.limit_bytes,
            floor_bytes: self.slow.floor_bytes,
            hands: Hands {
                coldest: has_swap,
                page_out: has_swap,
                reclaim: false,
                sort: false,
            },
            outcome: self.outcome.take(),
            ..Facts::default()
        };
        let decision = self.controller.decide(&facts);
        self.next_us = decision.next_ms.saturating_mul(1000);
        let behind = matches!(decision.reason, Why::OverBudget { behind: true, .. });
        report.behind |= behind;
        if let Action::Coldest { bytes_max, .. } | Action::PageOut { bytes_max, .. } =
            decision.action
        {
            self.backlog_bytes = bytes_max;
            let pieces = if behind { SLICES / 4 } else { SLICES };
            self.slice_bytes = SLICE_BYTES.max(bytes_max / pieces);
            self.done = Moved::default();
            report.asked_bytes += bytes_max;
        }
    }

    /// Moves a part of the backlog; the last one settles the decision.
    fn move_slices(
        &mut self,
        tools: &mut Tools<'_>,
        slices: u64,
        now_us: u64,
        report: &mut Report,
    ) {
        let slice = self.backlog_bytes.min(slices * self.slice_bytes);
        let moved = self.move_out(tools, slice, report);
        report.steps += 1;
        report.tried_bytes += moved.tried_bytes;
        report.young_again_bytes += moved.young_again_bytes;
        report.left_bytes += moved.left_bytes;
        report.move_cpu_ns += moved.cpu_ns;
        self.done.add(&moved);
        self.backlog_bytes = match moved.is_short {
            true => 0,
            false => self.backlog_bytes - slice,
        };
        if self.held.dry_run {
            report.rehearsed_bytes += moved.tried_bytes;
            // A rehearsal moves nothing, so what is too much stays so: once a second will do.
            self.backlog_bytes = 0;
            self.next_us = now_us + 1_000_000;
            return;
        }
        if self.backlog_bytes == 0 {
            self.outcome = Some(Outcome {
                asked_bytes: self.done.tried_bytes,
                tried_bytes: self.done.tried_bytes,
                left_bytes: [self.done.left_bytes, 0],
                cpu_ns: self.done.cpu_ns,
            });
        }
        self.next_us = now_us + SLICE_US;
    }

    /// Memory charged to the cgroup, or resident memory of a process.
    fn charged_bytes(&self) -> Option<u64> {
        match &self.held.cgroup {
            Some(cgroup) => cgroup.usage_bytes().ok().flatten(),
            None => {
                let resident = self.heated.values().map(|h| h.process().rss_bytes());
                Some(resident.filter_map(Result::ok).sum())
            }
        }
    }

    fn read_slow(&mut self) {
        self.slow_at = Some(Instant::now());
        if let Some(cgroup) = &self.held.cgroup {
            if let Ok(limits) = cgroup.limits() {
                self.slow.limit_bytes = limits.max_bytes;
                self.slow.floor_bytes = limits.min_bytes.max(limits.low_bytes);
            }
            if let Ok(stat) = cgroup.stat() {
                self.slow.file_bytes = stat.file_bytes;
                self.slow.swap_bytes = stat.swap_bytes.unwrap_or(0);
            }
        }
        if let Ok(info) = MemInfo::of_machine(&ProcRoot::default()) {
            self.slow.room = SwapRoom {
                free_bytes: info.swap_free_bytes,
                total_bytes: info.swap_total_bytes,
            };
        }
        self.follow_processes();
    }

    /// Takes up processes that are new and lets go of those that are gone.
    fn follow_processes(&mut self) {
        let pids = &self.held.pids;
        self.heated
            .retain(|pid, heated| pids.contains(pid) && heated.process().is_alive());
        for pid in pids {
            if self.heated.contains_key(pid) {
                continue;
            }
            let opened = Process::open_user(&ProcRoot::default(), *pid)
                .map_err(Into::into)
                .and_then(|process| Heated::new(process, DECAY));
            if let Ok(heated) = opened {
                self.heated.insert(*pid, heated);
                self.next_scan_us = 0;
            }
        }
        if self.heated.len() <= FOLLOWED_MAX {
            for heated in self.heated.values_mut() {
                heated.follow_worker();
            }
        }
    }

    fn scan(&mut self, eye: &mut dyn AccessSource, now_us: u64, report: &mut Report) {
        let share = QUEUE_FACTOR * self.went_pages.max(self.wanted_pages / 2);
        self.wanted_pages = self.went_pages;
        self.went_pages = 0;
        let mut cpu_ns = 0;
        let pages = share.max(QUEUE_MIN_PAGES);
        let (mut present, mut young) = (0, 0);
        for heated in self.heated.values_mut() {
            match heated.scan(eye, pages, true) {
                Ok(scanned) => {
                    cpu_ns += scanned.cpu_ns;
                    present += scanned.present_pages;
                    young += scanned.young_pages;
                }
                Err(error) if error.is_gone() => {}
                Err(error) => report.trouble = Some(error.to_string()),
            }
        }
        report.scans += 1;
        report.scan_cpu_ns += cpu_ns;
        let affordable_ms = (cpu_ns as f64 / 1e6 * 100.0 / SCAN_PERCENT) as u64;
        let look_ms = self.controller.pace().look_ms.unwrap_or(250);
        // Half of the way at a time to where the share of accessed memory would be as wanted.
        let share = young as f64 / present.max(1) as f64;
        let factor = (YOUNG_SHARE / share.max(0.01)).sqrt().clamp(0.5, 2.0);
        let wanted_ms = (self.scan_interval_ms.max(look_ms) as f64 * factor) as u64;
        let least_ms = look_ms.max(affordable_ms).min(SCAN_MAX_MS);
        self.scan_interval_ms = wanted_ms.clamp(least_ms, SCAN_MAX_MS);
        self.next_scan_us = now_us + self.scan_interval_ms * 1000;
    }

    /// Moves `bytes` of the coldest; of several processes each by its share of what is queued.
    fn move_out(&mut self, tools: &mut Tools<'_>, bytes: u64, report: &mut Report) -> Moved {
        let began_ns = clock::thread_cpu_ns();
        let mut sum = Moved::default();
        let is_followed = !self.held.dry_run && self.heated.len() <= FOLLOWED_MAX;
        for attempt in 0..2 {
            let left = bytes.saturating_sub(sum.tried_bytes);
            let queued: u64 = self.heated.values().map(Heated::queued_pages).sum();
            if left == 0 || queued == 0 && attempt > 0 {
                break;
            }
            for heated in self.heated.values_mut() {
                let share = heated.queued_pages() as f64 / queued.max(1) as f64;
                let part = (left as f64 * share).ceil() as u64;
                // Asked each time: a program that finds us on its CPU often wakes up on another.
                match is_followed.then(|| heated.cpu()).flatten() {
                    Some(cpu) => tools.seat.take(cpu),
                    None => tools.seat.leave(),
                }
                match heated.step(tools.eye, part, self.held.dry_run) {
                    Ok(moved) => sum.add(&moved),
                    Err(error) if error.is_gone() => {}
                    Err(error) => report.trouble = Some(error.to_string()),
                }
            }
            if sum.tried_bytes >= bytes || attempt > 0 {
                break;
            }
            // The queue is empty before the next scan: more of what is coldest now.
            let pages = (bytes / PAGE_BYTES * 4).max(QUEUE_MIN_PAGES);
            tools.seat.leave();
            for heated in self.heated.values_mut() {
                if let Ok(scanned) = heated.scan(tools.eye, pages, false) {
                    report.scan_cpu_ns += scanned.cpu_ns;
                }
            }
        }
        self.went_pages += sum.tried_bytes / PAGE_BYTES;
        sum.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        sum
    }

    /// Hands what was seen accessed to the agent.
    fn hand_over(&mut self, shared: &Shared) {
        for (pid, heated) in &mut self.heated {
            let seen = heated.take_young();
            if seen.is_empty() {
                continue;
            }
            let start_ticks = heated.process().start_ticks();
            let mut young = lock(&shared.young);
            let (of, sum) = young
                .entry(*pid)
                .or_insert_with(|| (start_ticks, HashMap::new()));
            if *of != start_ticks {
                (*of, *sum) = (start_ticks, HashMap::new());
            }
            for (table, bits) in seen {
                let all = sum.entry(table).or_insert([0; 8]);
                for (all, bits) in all.iter_mut().zip(bits) {
                    *all |= bits;
                }
            }
        }
    }
}
