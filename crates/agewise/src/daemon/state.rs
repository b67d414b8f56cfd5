// SPDX-License-Identifier: Apache-2.0
//! What the daemon knows, as those see it who show it: files, metrics, the page.
//!
//! After every tick the daemon publishes a [`Snapshot`], which never changes afterwards: a reader
//! holds an `Arc` of it for as long as it likes and never waits for a tick, nor a tick for a reader.
//! What readers may change are [`Settings`] of reports; nothing here leads to memory being moved.
//!
//! ```
//! use agewise::daemon::{demo, state::Hub};
//! let hub = Hub::new(demo::settings());
//! hub.publish(demo::snapshot(1, 10_000));
//! let seen = hub.snapshot();
//! assert!(seen.subject("/web").is_some());
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agewise_engine::generations::ByType;
use agewise_engine::workingset::{Histogram, Intervals};
use rustix::event::{EventfdFlags, eventfd};
use serde::Serialize;

use super::timeline::{Moment, Timeline};

/// Events a subscriber may fall behind before it loses some (and is told by
/// [`Event::Lost`] with the next one it takes).
const EVENTS_MAX: usize = 64;
/// Subscribers at a time: each pollable file, each client that waits.
const SUBSCRIBERS_MAX: usize = 4096;

/// Why bytes were moved out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Older than the age set.
    Age,
    /// A probe of the pressure controller.
    Pressure,
    /// Projected to cost little.
    Cost,
    /// Ahead of the limit of its cgroup.
    Budget,
    /// Guilty of thrashing that a protected cgroup suffers from.
    Thrash,
}

impl Reason {
    /// All, in the order of [`Reclaimed`].
    pub const ALL: [Self; 5] = [
        Self::Age,
        Self::Pressure,
        Self::Cost,
        Self::Budget,
        Self::Thrash,
    ];

    /// The name in JSON, metrics and the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Pressure => "pressure",
            Self::Cost => "cost",
            Self::Budget => "budget",
            Self::Thrash => "thrash",
        }
    }
}

/// Bytes that left memory since the daemon began, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed([u64; 5]);

impl Reclaimed {
    /// Those of one reason.
    pub fn bytes(&self, reason: Reason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts more of them.
    pub fn add(&mut self, reason: Reason, bytes: u64) {
        let sum = &mut self.0[reason as usize];
        *sum = sum.saturating_add(bytes);
    }

    /// Of all reasons.
    pub fn total_bytes(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// One line of a pressure file: shares of the last 10 s and 60 s in percent, and time in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stall {
    /// Percent of the last 10 s.
    pub avg10_percent: f64,
    /// Percent of the last minute.
    pub avg60_percent: f64,
    /// Stalled time in all, us.
    pub total_us: u64,
}

/// Pressure on memory; `full` where the kernel tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Psi {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks waited at once.
    pub full: Stall,
}

/// The memory of one subject on one NUMA node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeView {
    /// The node.
    pub node: u32,
    /// Ages in bytes, by the bounds of the snapshot ([`Snapshot::intervals`]).
    pub ages: Histogram,
    /// Ages in bytes, by the bounds that were set for this node ([`Settings::intervals`]).
    pub report: Histogram,
    /// Resident memory: the sum of either histogram.
    pub resident_bytes: ByType<u64>,
}

/// A cgroup with all below it, or a process given by its pid.
#[derive(Clone, Debug, PartialEq)]
pub struct SubjectView {
    /// The path below the hierarchy, `/` for its root; `PID (name)` for a process.
    pub name: Arc<str>,
    /// It is a cgroup.
    pub is_cgroup: bool,
    /// Levels below the root: 0 for the root and for processes.
    pub depth: usize,
    /// The inode of the cgroup's directory, which tells one from the next of the same name; the
    /// start time for a process.
    pub id: u64,
    /// The policy that acts on it; `None` when it is only observed.
    pub policy: Option<Reason>,
    /// What it does is only written down (dry run).
    pub is_rehearsal: bool,
    /// Processes in it.
    pub processes: usize,
    /// Its memory by node, in the order of [`Snapshot::nodes`].
    pub nodes: Vec<NodeView>,
    /// When the process was last looked at for which that is longest ago, by the clock of
    /// [`Snapshot::time_ms`].
    pub looked_ms: u64,
    /// For how long it has been observed.
    pub observed_ms: u64,
    /// Pages of its processes in swap.
    pub swapped_bytes: u64,
    /// Page cache charged to it that no process maps; unknown for processes.
    pub unmapped_cache_bytes: Option<u64>,
    /// What came back from swap since the daemon began.
    pub refaulted_bytes: u64,
    /// What left by our doing since the daemon began.
    pub reclaimed: Reclaimed,
    /// What would have left, had it not been a rehearsal.
    pub rehearsed_bytes: u64,
    /// Pressure, where the kernel tells it for a cgroup (v2).
    pub psi: Option<Psi>,
    /// The kernel reclaimed from it, on its own account, since the snapshot before.
    pub is_under_reclaim: bool,
    /// What stood in the way of looking at it; a few of them.
    pub troubles: Vec<String>,
}

impl SubjectView {
    /// Resident memory of all nodes.
    pub fn resident_bytes(&self) -> ByType<u64> {
        self.nodes.iter().fold([0; 2], |sum, node| {
            [
                sum[0].saturating_add(node.resident_bytes[0]),
                sum[1].saturating_add(node.resident_bytes[1]),
            ]
        })
    }

    /// Its memory on one node.
    pub fn node(&self, node: u32) -> Option<&NodeView> {
        self.nodes.iter().find(|view| view.node == node)
    }

    /// Ages on all nodes, by the bounds of the snapshot.
    pub fn ages(&self, intervals: &Intervals) -> Histogram {
        let mut sum = Histogram::new(intervals);
        for node in &self.nodes {
            sum.add(&node.ages);
        }
        sum
    }
}

/// What the daemon itself takes, and whether it keeps its pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OwnUse {
    /// CPU time since it began, all threads, ms.
    pub cpu_ms: f64,
    /// Share of one core over the last minute or so, percent.
    pub cpu_percent: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Memory that ages take; the rest is the program.
    pub ages_bytes: u64,
    /// Ticks so far.
    pub ticks: u64,
    /// How much later than planned the last tick began, ms.
    pub late_ms: u64,
    /// The most so far.
    pub late_max_ms: u64,
    /// CPU time of the last tick's look, ms.
    pub scan_cpu_ms: f64,
    /// How long that took, ms.
    pub scan_ms: f64,
    /// CPU time of all looks so far, ms.
    pub scan_cpu_total_ms: f64,
    /// CPU time of moving memory out so far, ms.
    pub move_cpu_total_ms: f64,
}

/// The CPU budget and what it does to the pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Budget {
    /// Share of one core that was granted, percent.
    pub percent: f64,
    /// Time between ticks that was asked for, ms.
    pub tick_ms: u64,
    /// Time between ticks that the budget allows now, ms.
    pub actual_ms: u64,
}

impl Budget {
    /// It scans less often than it was asked to.
    pub fn is_short(&self) -> bool {
        self.actual_ms > self.tick_ms
    }
}

/// The machine as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Machine {
    /// Memory.
    pub total_bytes: u64,
    /// What could be had without swapping.
    pub available_bytes: u64,
    /// Swap space.
    pub swap_total_bytes: u64,
    /// Free swap space.
    pub swap_free_bytes: u64,
    /// Pressure on memory, where the kernel tells it.
    pub psi: Option<Psi>,
    /// The kernel reclaimed, on its own account, since the snapshot before.
    pub is_under_reclaim: bool,
}

/// Everything known after one tick.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// 0 before the first tick; grows by one with each.
    pub sequence: u64,
    /// `CLOCK_MONOTONIC`, ms: what ages are told by.
    pub time_ms: u64,
    /// Since 1970, ms.
    pub unix_ms: u64,
    /// NUMA nodes with memory, ascending.
    pub nodes: Vec<u32>,
    /// Bounds of [`NodeView::ages`].
    pub intervals: Intervals,
    /// Sorted by path, component by component: a cgroup comes right before those below it.
    /// Processes come last.
    pub subjects: Vec<SubjectView>,
    /// The machine.
    pub machine: Machine,
    /// The daemon.
    pub own: OwnUse,
    /// Its budget.
    pub budget: Budget,
    /// There are more cgroups or processes than the limits allow.
    pub is_truncated: bool,
}

impl Snapshot {
    /// Before the first tick.
    pub fn empty() -> Self {
        Snapshot {
            sequence: 0,
            time_ms: 0,
            unix_ms: 0,
            nodes: Vec::new(),
            intervals: Intervals::default(),
            subjects: Vec::new(),
            machine: Machine::default(),
            own: OwnUse::default(),
            budget: Budget::default(),
            is_truncated: false,
        }
    }

    /// A subject by its name.
    pub fn subject(&self, name: &str) -> Option<&SubjectView> {
        self.subjects.iter().find(|subject| &*subject.name == name)
    }
}

/// Whose report a setting is for: a node of a cgroup, or (no cgroup) of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The cgroup's path; `None` is the machine.
    pub cgroup: Option<Arc<str>>,
    /// The node.
    pub node: u32,
}

/// What may be set of a report, in milliseconds; 0 switches it off, as it is at first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportSetting {
    /// A report older than this is made anew when read.
    pub refresh_interval_ms: u32,
    /// Under pressure, readers that wait are woken when the last notification is older than this.
    pub report_threshold_ms: u32,
}

/// What readers have set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bounds of reports, by node. None: a single bin.
    pub intervals: BTreeMap<u32, Intervals>,
    /// What was set of reports; those of cgroups that are gone are forgotten.
    pub reports: BTreeMap<Scope, ReportSetting>,
}

impl Settings {
    /// The shortest interval at which some report is to be refreshed.
    pub fn refresh_min_ms(&self) -> Option<u32> {
        let intervals = self.reports.values().map(|set| set.refresh_interval_ms);
        intervals.filter(|ms| *ms > 0).min()
    }

    /// Bounds of one node.
    pub fn intervals_of(&self, node: u32) -> Intervals {
        self.intervals.get(&node).cloned().unwrap_or_default()
    }
}

/// What happens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a new snapshot.
    Tick {
        /// Its number.
        sequence: u64,
    },
    /// The kernel reclaims from this scope, or has to soon: the moment of notifications.
    Pressure(Scope),
    /// This many events did not fit before this one.
    Lost(u64),
}

struct Subscriber {
    sender: SyncSender<Event>,
    lost: u64,
}

/// Where the daemon and those who show what it knows meet. Cloned handles are the same hub.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    latest: Mutex<Arc<Snapshot>>,
    published: Condvar,
    settings: Mutex<Settings>,
    subscribers: Mutex<Vec<Subscriber>>,
    timeline: Mutex<Timeline>,
    wake: OwnedFd,
}

/// A panic of another holder left nothing half done: every change is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// A hub with these settings and nothing known yet.
    ///
    /// # Panics
    /// When no file descriptor is left.
    pub fn new(settings: Settings) -> Self {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("a file descriptor for an eventfd");
        Hub(Arc::new(Shared {
            latest: Mutex::new(Arc::new(Snapshot::empty())),
            published: Condvar::new(),
            settings: Mutex::new(settings),
            subscribers: Mutex::new(Vec::new()),
            timeline: Mutex::new(Timeline::default()),
            wake,
        }))
    }

    /// The latest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.0.latest))
    }

    /// Waits until there is a snapshot with a higher number than `sequence`; `None` if that takes
    /// longer than `timeout`.
    pub fn wait_newer(&self, sequence: u64, timeout: Duration) -> Option<Arc<Snapshot>> {
        let deadline = Instant::now() + timeout;
        let mut latest = lock(&self.0.latest);
        while latest.sequence <= sequence {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            latest = self
                .0
                .published
                .wait_timeout(latest, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        Some(Arc::clone(&latest))
    }

    /// A snapshot that was begun after this call: wakes the daemon and waits. When the daemon takes
    /// longer than `timeout` (its budget is spent, the machine is busy) the latest there is.
    pub fn refreshed(&self, timeout: Duration) -> Arc<Snapshot> {
        let before = self.snapshot().sequence;
        self.wake();
        self.wait_newer(before, timeout)
            .unwrap_or_else(|| self.snapshot())
    }

    /// Makes a snapshot the latest and tells subscribers. For the daemon.
    pub fn publish(&self, snapshot: Snapshot) {
        let sequence = snapshot.sequence;
        let moment = Moment::of(&snapshot, &self.snapshot());
        let snapshot = Arc::new(snapshot);
        *lock(&self.0.latest) = snapshot;
        self.0.published.notify_all();
        lock(&self.0.timeline).push(moment);
        self.tell(Event::Tick { sequence });
    }

    /// Tells subscribers. For the daemon.
    pub fn tell(&self, event: Event) {
        lock(&self.0.subscribers).retain_mut(|subscriber| {
            if subscriber.lost > 0 {
                match subscriber.sender.try_send(Event::Lost(subscriber.lost)) {
                    Ok(()) => subscriber.lost = 0,
                    Err(TrySendError::Full(_)) => {
                        subscriber.lost += 1;
                        return true;
                    }
                    Err(TrySendError::Disconnected(_)) => return false,
                }
            }
            match subscriber.sender.try_send(event.clone()) {
                Ok(()) => true,
                Err(TrySendError::Full(_)) => {
                    subscriber.lost += 1;
                    true
                }
                Err(TrySendError::Disconnected(_)) => false,
            }
        });
    }

    /// Events from now on; dropping the receiver ends it. `None` when there are too many
    /// subscribers.
    pub fn subscribe(&self) -> Option<Receiver<Event>> {
        let mut subscribers = lock(&self.0.subscribers);
        if subscribers.len() >= SUBSCRIBERS_MAX {
            return None;
        }
        let (sender, receiver) = mpsc::sync_channel(EVENTS_MAX);
        subscribers.push(Subscriber { sender, lost: 0 });
        Some(receiver)
    }

    /// What happened, oldest first.
    pub fn timeline(&self) -> Vec<Arc<Moment>> {
        lock(&self.0.timeline).moments()
    }

    /// What readers have set.
    pub fn settings(&self) -> Settings {
        lock(&self.0.settings).clone()
    }

    /// Sets the bounds of a node's reports, from the next tick on, which comes at once.
    pub fn set_intervals(&self, node: u32, intervals: Intervals) {
        lock(&self.0.settings).intervals.insert(node, intervals);
        self.wake();
    }

    /// Changes what is set of a report; a tick comes at once, since the interval may have become
    /// shorter.
    pub fn set_report(&self, scope: Scope, change: impl FnOnce(&mut ReportSetting)) {
        {
            let mut settings = lock(&self.0.settings);
            let setting = settings.reports.entry(scope).or_default();
            change(setting);
            settings
                .reports
                .retain(|_, setting| *setting != ReportSetting::default());
        }
        self.wake();
    }

    /// Forgets settings of cgroups that `is_there` no longer knows. For the daemon.
    pub fn forget_reports(&self, is_there: impl Fn(&str) -> bool) {
        lock(&self.0.settings)
            .reports
            .retain(|scope, _| scope.cgroup.as_deref().is_none_or(&is_there));
    }

    /// Asks for a tick as soon as the daemon's budget allows.
    pub fn wake(&self) {
        // It only fails when the counter is full: then the daemon is being woken already.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Readable when a tick was asked for. For the daemon.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }

    /// Whether a tick was asked for since the last call. For the daemon.
    pub fn take_wake(&self) -> bool {
        rustix::io::read(&self.0.wake, &mut [0u8; 8]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::super::demo;
    use super::*;

    fn hub() -> Hub {
        Hub::new(demo::settings())
    }

    #[test]
    fn a_reader_keeps_what_it_holds_and_waits_for_what_is_newer() {
        let hub = hub();
        let old = hub.snapshot();
        assert_eq!(old.sequence, 0);
        let waiter = {
            let hub = hub.clone();
            std::thread::spawn(move || hub.wait_newer(0, Duration::from_secs(20)))
        };
        hub.publish(demo::snapshot(1, 1000));
        assert_eq!(waiter.join().unwrap().unwrap().sequence, 1);
        assert_eq!(old.sequence, 0);
        assert!(hub.wait_newer(1, Duration::from_millis(1)).is_none());
        assert_eq!(hub.refreshed(Duration::from_millis(1)).sequence, 1);
        assert!(hub.take_wake() && !hub.take_wake());
    }

    #[test]
    fn a_slow_subscriber_is_told_what_it_missed() {
        let hub = hub();
        let events = hub.subscribe().unwrap();
        for sequence in 0..EVENTS_MAX as u64 + 5 {
            hub.tell(Event::Tick { sequence });
        }
        assert_eq!(events.try_iter().count(), EVENTS_MAX);
        hub.tell(Event::Pressure(Scope::default()));
        let rest: Vec<Event> = events.try_iter().collect();
        assert_eq!(rest, [Event::Lost(5), Event::Pressure(Scope::default())]);
        drop(events);
        hub.tell(Event::Tick { sequence: 0 });
        assert!(lock(&hub.0.subscribers).is_empty());
    }

    #[test]
    fn settings_are_kept_until_they_are_nothing_or_their_cgroup_is_gone() {
        let hub = Hub::new(Settings::default());
        let scope = |cgroup: Option<&str>| Scope {
            cgroup: cgroup.map(Arc::from),
            node: 0,
        };
        hub.set_report(scope(Some("/a")), |set| set.refresh_interval_ms = 700);
        hub.set_report(scope(None), |set| set.report_threshold_ms = 9);
        assert!(hub.take_wake());
        assert_eq!(hub.settings().refresh_min_ms(), Some(700));
        hub.forget_reports(|path| path != "/a");
        assert_eq!(hub.settings().refresh_min_ms(), None);
        hub.set_report(scope(None), |set| set.report_threshold_ms = 0);
        assert_eq!(hub.settings(), Settings::default());
        hub.set_intervals(3, "1s,2s".parse().unwrap());
        assert_eq!(hub.settings().intervals_of(3).bounds_ms(), [1000, 2000]);
        assert_eq!(hub.settings().intervals_of(0), Intervals::default());
    }

    #[test]
    fn reasons_have_a_place_each() {
        let mut reclaimed = Reclaimed::default();
        for (at, reason) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            reclaimed.add(reason, 1 << at);
            assert_eq!(reclaimed.bytes(reason), 1 << at);
        }
        assert_eq!(reclaimed.total_bytes(), (1 << Reason::ALL.len()) - 1);
    }
}
