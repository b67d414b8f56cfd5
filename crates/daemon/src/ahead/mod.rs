// SPDX-License-Identifier: Apache-2.0
//! Holds targets under a budget, in steps of milliseconds: a thread in parallel with the ticks,
//! with its own access source. [`agewise_policy::budget`] decides what it does and when.
//!
//! Only this thread clears accessed bits of the anonymous memory that it holds, so it passes on
//! what it saw to the agent ([`Seen`]), whose ages stay correct.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use agewise_host::access::{AccessError, AccessSource, Target, check_page_size};
use agewise_host::agent::AlsoYoung;
use agewise_host::budgeted::{Budgeted, BudgetedFiles};
use agewise_host::cgroup::FreshStatistics;
use agewise_host::clock;
use agewise_host::pagewalk::PageWalk;
use agewise_policy::budget;
use agewise_policy::table::PageSet;

use super::observer::Key;
use target::{Target as Subject, Tools, swap_room};

mod report;
mod spaces;
mod target;
#[cfg(test)]
mod tests;

pub use report::{Announce, Begun, Held, Report};

/// Pages seen accessed, by table.
type Young = HashMap<u64, PageSet>;

/// What scans that cleared accessed bits saw of a process since the agent last took it.
#[derive(Default)]
struct Noted {
    start_ticks: u64,
    young: Young,
    /// No more scans follow: once this is taken, the agent clears the bits.
    is_last: bool,
}

/// What was done since it was last taken.
#[derive(Default)]
struct Reports {
    of: HashMap<Key, Report>,
    /// The targets for which it was announced.
    announced: HashSet<Key>,
}

#[derive(Default)]
struct Shared {
    held: Mutex<Option<Vec<Held>>>,
    reports: Mutex<Reports>,
    /// By pid. Has no entry for processes whose accessed bits the agent must clear.
    noted: Mutex<HashMap<u32, Noted>>,
    end: AtomicBool,
    /// CPU time of the thread, ns.
    cpu_ns: AtomicU64,
}

impl Shared {
    /// Adds what a scan that cleared accessed bits saw of a process.
    fn note(&self, pid: u32, start_ticks: u64, tables: &[budget::Seen]) {
        let mut noted = lock(&self.noted);
        let of = noted.entry(pid).or_default();
        if of.start_ticks != start_ticks {
            of.young.clear();
        }
        (of.start_ticks, of.is_last) = (start_ticks, false);
        for table in tables.iter().filter(|table| !table.bits.young.is_empty()) {
            *of.young.entry(table.index).or_default() |= table.bits.young;
        }
    }

    /// The thread clears accessed bits of these processes only. What it saw of others is still to
    /// be taken, once: they may have ended.
    fn keep(&self, pids: &[u32]) {
        lock(&self.noted)
            .retain(|pid, of| pids.contains(pid) || !std::mem::replace(&mut of.is_last, true));
    }

    /// The thread clears no accessed bits of these processes for a while.
    fn leave(&self, processes: &[(u32, u64)]) {
        let mut noted = lock(&self.noted);
        for (pid, _) in processes {
            if let Some(of) = noted.get_mut(pid) {
                of.is_last = true;
            }
        }
    }
}

fn now_us() -> u64 {
    clock::monotonic_ns() / 1000
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread. Dropping this ends it.
pub struct Ahead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    fresh: FreshStatistics,
}

/// Passes the pages that the thread saw accessed to the agent.
pub struct Seen(Arc<Shared>);

impl AlsoYoung for Seen {
    fn take(&mut self, target: &Target) -> Option<Young> {
        let mut noted = lock(&self.0.noted);
        let of = noted.get_mut(&target.pid)?;
        if Some(of.start_ticks) != target.start_ticks {
            return None;
        }
        let young = std::mem::take(&mut of.young);
        if of.is_last {
            noted.remove(&target.pid);
        }
        Some(young)
    }
}

impl Ahead {
    /// Starts the thread, with an access source of its own. It calls `announce` before it acts,
    /// once for all steps until the reports are taken, because there are hundreds per second.
    ///
    /// # Errors
    /// There is no source that sees single pages, the kernel's pages are larger than 4 KiB, or no
    /// thread can be started.
    pub fn start(announce: Announce) -> Result<Self, AccessError> {
        check_page_size("holding a budget")?;
        let source = Box::new(PageWalk::open()?);
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("agewise-ahead".into())
            .spawn(move || Runner::new(of_thread, source, announce).run())
            .map_err(|source| AccessError::Io {
                path: "a thread that holds budgets".into(),
                source,
            })?;
        Ok(Ahead {
            shared,
            thread: Some(thread),
            fresh: FreshStatistics::default(),
        })
    }

    /// What the thread saw, for the agent.
    pub fn seen(&self) -> Box<dyn AlsoYoung> {
        Box::new(Seen(Arc::clone(&self.shared)))
    }

    /// CPU time of the thread so far.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }

    /// Holds these targets from now on, and lets go of all others.
    ///
    /// # Errors
    /// They are held, but no thread can be started that keeps their statistics fresh.
    pub fn hold(&mut self, held: Vec<Held>) -> io::Result<()> {
        let cgroups = || held.iter().filter_map(|held| held.cgroup.as_ref());
        self.fresh
            .retain(|dir| cgroups().any(|cgroup| cgroup.dir() == dir));
        let is_fresh = cgroups().try_for_each(|cgroup| self.fresh.add(cgroup));
        *lock(&self.shared.held) = Some(held);
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
        is_fresh
    }

    /// Returns what was done since the last call. Scans are not reported before the steps they are
    /// for, so that announcements and reports come in pairs.
    pub fn take_reports(&self) -> Vec<(Key, Report)> {
        let mut reports = lock(&self.shared.reports);
        let Reports { of, announced } = &mut *reports;
        let done = |key: &Key, report: &mut Report| {
            let is_moved = report.steps > 0;
            if is_moved {
                announced.remove(key);
            }
            let is_left = report.kernel_first.is_some();
            is_moved || is_left || report.measured.is_some() || report.trouble.is_some()
        };
        of.extract_if(done).collect()
    }

    /// Ends the thread, and returns what was done since the last call.
    pub fn end(&mut self) -> Vec<(Key, Report)> {
        self.shared.end.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
            self.shared.keep(&[]);
        }
        self.take_reports()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.end();
    }
}

struct Runner {
    shared: Arc<Shared>,
    source: Box<dyn AccessSource + Send>,
    announce: Announce,
    subjects: BTreeMap<Key, Subject<Budgeted>>,
}

impl Runner {
    fn new(shared: Arc<Shared>, source: Box<dyn AccessSource + Send>, announce: Announce) -> Self {
        Runner {
            shared,
            source,
            announce,
            subjects: BTreeMap::new(),
        }
    }

    fn run(mut self) {
        while !self.shared.end.load(Ordering::SeqCst) {
            self.take_held();
            let announce = |held: &Held, begun: &Begun| {
                let is_written = (self.announce)(held, begun);
                if is_written {
                    let mut reports = lock(&self.shared.reports);
                    reports.announced.insert(held.key.clone());
                }
                is_written
            };
            let mut next_us = now_us() + 1_000_000;
            for (key, subject) in &mut self.subjects {
                if now_us() >= subject.due_us() {
                    let mut report = Report::of(&subject.held);
                    let is_announced = lock(&self.shared.reports).announced.contains(key);
                    let tools = Tools {
                        source: &mut *self.source,
                        now_us: &now_us,
                        swap_room: &swap_room,
                        open_files: &|cgroup| Ok(Box::new(BudgetedFiles::open(cgroup.clone())?)),
                        announce: (!is_announced).then_some(&announce),
                        tap: &|pid, start, tables| self.shared.note(pid, start, tables),
                    };
                    subject.turn(tools, &mut report);
                    if subject.is_left_to_kernel() {
                        self.shared.leave(&subject.held.processes);
                    }
                    lock(&self.shared.reports)
                        .of
                        .entry(key.clone())
                        .or_default()
                        .add(report);
                }
                next_us = next_us.min(subject.due_us());
            }
            let cpu_ns = clock::thread_cpu_ns();
            self.shared.cpu_ns.store(cpu_ns, Ordering::Relaxed);
            let left = next_us.saturating_sub(now_us());
            if left > 0 {
                std::thread::park_timeout(Duration::from_micros(left));
            }
        }
    }

    fn take_held(&mut self) {
        let Some(held) = lock(&self.shared.held).take() else {
            return;
        };
        let mut before = std::mem::take(&mut self.subjects);
        for held in held {
            let key = held.key.clone();
            let subject = match before.remove(&key) {
                Some(mut subject)
                    if subject.held.spec == held.spec && subject.held.guests == held.guests =>
                {
                    subject.hold(held);
                    subject
                }
                _ => Subject::new(held, clock::monotonic_ns()),
            };
            self.subjects.insert(key, subject);
        }
        let pids: Vec<u32> = self
            .subjects
            .values()
            .flat_map(|subject| subject.held.processes.iter().map(|(pid, _)| *pid))
            .collect();
        self.shared.keep(&pids);
        // What was done for targets that are gone is still to be taken.
        let subjects = &self.subjects;
        let mut reports = lock(&self.shared.reports);
        let Reports { of, announced } = &mut *reports;
        of.retain(|key, report| subjects.contains_key(key) || report.steps > 0);
        announced.retain(|key| of.contains_key(key));
    }
}
