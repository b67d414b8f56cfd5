// SPDX-License-Identifier: Apache-2.0
//! The hub connects the daemon with the parts that show its results.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agewise_policy::workingset::Intervals;
use rustix::event::{EventfdFlags, eventfd};

use super::{ReportSetting, Scope, Settings, Snapshot};
use crate::health::Health;
use crate::timeline::{Moment, Timeline};

/// Maximum number of events by which a subscriber may fall behind before it loses some; the next
/// event it receives, [`Event::Lost`], says so.
const EVENTS_MAX: usize = 64;
/// Maximum number of subscribers: pollable files and waiting clients.
const SUBSCRIBERS_MAX: usize = 4096;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// There is a new snapshot.
    Tick {
        /// Its number.
        sequence: u64,
    },
    /// The kernel reclaims from these scopes, or will have to soon: pollers are notified now. All
    /// scopes of a tick are one event, so that none is lost however many there are.
    Pressure(Arc<[Scope]>),
    /// This many events before this one were lost.
    Lost(u64),
}

struct Subscriber {
    sender: SyncSender<Event>,
    lost: u64,
}

/// The hub. Clones share their contents.
#[derive(Clone)]
pub struct Hub(Arc<Shared>);

struct Shared {
    latest: Mutex<Arc<Snapshot>>,
    /// When the latest one was published, or the hub was made.
    since: Mutex<Instant>,
    published: Condvar,
    /// Replaced or copied by each change, so that the same allocation has the same contents.
    settings: Mutex<Arc<Settings>>,
    subscribers: Mutex<Vec<Subscriber>>,
    /// `None` unless something shows it.
    timeline: Mutex<Option<Timeline>>,
    health: Health,
    wake: OwnedFd,
}

/// A panic of another holder leaves nothing half done: every change is a single assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hub {
    /// A hub with these settings and no results yet.
    ///
    /// # Panics
    /// If no file descriptor is left.
    pub fn new(settings: Settings) -> Self {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("a file descriptor for an eventfd");
        Hub(Arc::new(Shared {
            latest: Mutex::new(Arc::new(Snapshot::empty())),
            since: Mutex::new(Instant::now()),
            published: Condvar::new(),
            settings: Mutex::new(Arc::new(settings)),
            subscribers: Mutex::new(Vec::new()),
            timeline: Mutex::new(None),
            health: Health::default(),
            wake,
        }))
    }

    /// The latest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&lock(&self.0.latest))
    }

    /// How long ago the latest snapshot was published; before the first, the age of the hub.
    pub fn silent_for(&self) -> Duration {
        lock(&self.0.since).elapsed()
    }

    /// As if the latest snapshot had been published this much earlier.
    #[cfg(all(test, feature = "web"))]
    pub(crate) fn published_before(&self, by: Duration) {
        let mut since = lock(&self.0.since);
        *since = since.checked_sub(by).expect("the clock started earlier");
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

    /// Returns a snapshot that was begun after this call: wakes the daemon and waits. If the daemon
    /// takes longer than `timeout` (its budget is spent, the machine is busy), returns the latest
    /// one.
    pub fn refreshed(&self, timeout: Duration) -> Arc<Snapshot> {
        let before = self.snapshot().sequence;
        self.wake();
        self.wait_newer(before, timeout)
            .unwrap_or_else(|| self.snapshot())
    }

    /// Makes a snapshot the latest and notifies subscribers. For the daemon.
    pub fn publish(&self, snapshot: Snapshot) {
        let sequence = snapshot.sequence;
        let snapshot = Arc::new(snapshot);
        let before = std::mem::replace(&mut *lock(&self.0.latest), Arc::clone(&snapshot));
        *lock(&self.0.since) = Instant::now();
        self.0.published.notify_all();
        if let Some(timeline) = &mut *lock(&self.0.timeline) {
            timeline.push(Moment::of(&snapshot, &before));
        }
        self.tell(Event::Tick { sequence });
    }

    /// Sends an event to subscribers. For the daemon.
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

    /// Events from now on; dropping the receiver ends the subscription. `None` if there are too
    /// many subscribers.
    pub fn subscribe(&self) -> Option<Receiver<Event>> {
        let mut subscribers = lock(&self.0.subscribers);
        if subscribers.len() >= SUBSCRIBERS_MAX {
            return None;
        }
        let (sender, receiver) = mpsc::sync_channel(EVENTS_MAX);
        subscribers.push(Subscriber { sender, lost: 0 });
        Some(receiver)
    }

    /// Keeps moments from now on.
    pub fn keep_timeline(&self) {
        lock(&self.0.timeline).get_or_insert_default();
    }

    /// Past moments, oldest first.
    pub fn timeline(&self) -> Vec<Arc<Moment>> {
        lock(&self.0.timeline)
            .as_ref()
            .map_or_else(Vec::new, Timeline::moments)
    }

    /// The current problems of the daemon.
    pub fn health(&self) -> &Health {
        &self.0.health
    }

    /// The settings made by readers. If they did not change since the last call, it is the same
    /// allocation.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&lock(&self.0.settings))
    }

    /// Replaces the settings if they are still `old`; otherwise returns false. Wakes nobody.
    #[cfg(feature = "fuse")]
    pub(crate) fn replace_settings(&self, old: &Settings, new: &Arc<Settings>) -> bool {
        let mut settings = lock(&self.0.settings);
        let is_old = **settings == *old;
        if is_old {
            *settings = Arc::clone(new);
        }
        is_old
    }

    /// Sets the bounds of a node's reports. A tick follows at once.
    pub fn set_intervals(&self, node: u32, intervals: Intervals) {
        let mut settings = lock(&self.0.settings);
        Arc::make_mut(&mut settings)
            .intervals
            .insert(node, intervals);
        drop(settings);
        self.wake();
    }

    /// Changes the settings of a report. A tick follows at once, because the interval may have
    /// become shorter.
    pub fn set_report(&self, scope: Scope, change: impl FnOnce(&mut ReportSetting)) {
        let mut settings = lock(&self.0.settings);
        let reports = &mut Arc::make_mut(&mut settings).reports;
        change(reports.entry(scope).or_default());
        reports.retain(|_, setting| *setting != ReportSetting::default());
        drop(settings);
        self.wake();
    }

    /// Forgets the settings of cgroups for which `is_there` is false. For the daemon.
    pub fn forget_reports(&self, is_there: impl Fn(&str) -> bool) {
        let stays = |scope: &Scope| scope.cgroup.as_deref().is_none_or(&is_there);
        let mut settings = lock(&self.0.settings);
        if !settings.reports.keys().all(stays) {
            let reports = &mut Arc::make_mut(&mut settings).reports;
            reports.retain(|scope, _| stays(scope));
        }
    }

    /// Requests a tick as soon as the daemon's budget allows.
    pub fn wake(&self) {
        // It only fails if the counter is full: then the daemon is already being woken.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    /// Readable if a tick was requested. For the daemon.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.wake.as_fd()
    }

    /// Whether a tick was requested since the last call. For the daemon.
    pub fn take_wake(&self) -> bool {
        rustix::io::read(&self.0.wake, &mut [0u8; 8]).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

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
        hub.tell(Event::Pressure([Scope::default()].into()));
        let rest: Vec<Event> = events.try_iter().collect();
        assert_eq!(
            rest,
            [Event::Lost(5), Event::Pressure([Scope::default()].into())]
        );
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
        let refreshes = |hub: &Hub| -> Vec<u32> {
            let settings = hub.settings();
            let reports = settings.reports.values();
            reports.map(|set| set.refresh_interval_ms).collect()
        };
        assert_eq!(refreshes(&hub), [0, 700]);
        let before = hub.settings();
        hub.forget_reports(|_| true);
        assert!(Arc::ptr_eq(&before, &hub.settings()), "nothing changed");
        hub.forget_reports(|path| path != "/a");
        assert!(!Arc::ptr_eq(&before, &hub.settings()));
        assert_eq!(refreshes(&hub), [0]);
        hub.set_report(scope(None), |set| set.report_threshold_ms = 0);
        assert_eq!(*hub.settings(), Settings::default());
        hub.set_intervals(3, "1s,2s".parse().unwrap());
        assert_eq!(hub.settings().intervals_of(3).bounds_ms(), [1000, 2000]);
        assert_eq!(hub.settings().intervals_of(0), Intervals::default());
    }
}
