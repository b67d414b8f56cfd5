// SPDX-License-Identifier: Apache-2.0
//! Requests of the process that serves the report files to the daemon: for a look, and for other
//! bounds and intervals of reports. No message can move memory or access a file.
//!
//! Both sides keep the settings. What a reader writes takes effect in the process at once, and is
//! sent to the daemon as wishes. The daemon counts the wishes it took; the process only adopts the
//! daemon's settings if none is under way.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use agewise_policy::workingset::Intervals;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::state::{Hub, ReportSetting, Scope, Settings};

/// Longest wish: a write of 4 KiB as JSON.
const WISH_MAX_BYTES: usize = 16 << 10;
/// After a wish the daemon takes none for so many times as long as that one took, within these
/// bounds: a process that floods it costs a twentieth of a processor, however many cgroups there
/// are.
const PAUSE_TIMES: u32 = 19;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// One message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wish {
    /// Look as soon as the budget allows.
    Look,
    /// Set the upper bounds of the bins of a node, ms.
    Intervals { node: u32, bounds_ms: Vec<u64> },
    /// Set when the report of a cgroup or of the machine is regenerated, and when waiters are
    /// woken.
    Report {
        cgroup: Option<String>,
        node: u32,
        refresh_interval_ms: u32,
        report_threshold_ms: u32,
    },
}

/// A scope in a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    cgroup: Option<String>,
    node: u32,
}

/// What the daemon sends to the process at each tick, in addition to the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesNews {
    /// Number of wishes taken since the process was started.
    pub taken: u64,
    /// The settings, as the wishes that would make them.
    pub settings: Vec<Wish>,
    /// Where the kernel reclaims.
    pub pressed: Vec<Place>,
}

impl From<&Scope> for Place {
    fn from(scope: &Scope) -> Self {
        Place {
            cgroup: scope.cgroup.as_deref().map(str::to_owned),
            node: scope.node,
        }
    }
}

impl From<Place> for Scope {
    fn from(place: Place) -> Self {
        Scope {
            cgroup: place.cgroup.map(Arc::from),
            node: place.node,
        }
    }
}

/// The wishes that turn one state of the settings into another.
fn differences(old: &Settings, new: &Settings) -> Vec<Wish> {
    let changed = new
        .intervals
        .iter()
        .filter(|(node, intervals)| old.intervals.get(node) != Some(intervals));
    let intervals = changed.map(|(&node, intervals)| Wish::Intervals {
        node,
        bounds_ms: intervals.bounds_ms().to_vec(),
    });
    let of = |settings: &Settings, scope| settings.reports.get(scope).copied().unwrap_or_default();
    let gone = old
        .reports
        .keys()
        .filter(|scope| !new.reports.contains_key(*scope));
    let scopes = new.reports.keys().chain(gone);
    let reports = scopes
        .filter(|scope| of(old, scope) != of(new, scope))
        .map(|scope| {
            let set = of(new, scope);
            let Place { cgroup, node } = scope.into();
            Wish::Report {
                cgroup,
                node,
                refresh_interval_ms: set.refresh_interval_ms,
                report_threshold_ms: set.report_threshold_ms,
            }
        });
    intervals.chain(reports).collect()
}

/// Settings, as the wishes that would make them.
pub fn written(settings: &Settings) -> Vec<Wish> {
    differences(&Settings::default(), settings)
}

/// Settings from such wishes; invalid ones are ignored.
fn read(wishes: Vec<Wish>) -> Settings {
    let mut settings = Settings::default();
    for wish in wishes {
        match wish {
            Wish::Look => {}
            Wish::Intervals { node, bounds_ms } => {
                if let Ok(intervals) = Intervals::new(bounds_ms) {
                    settings.intervals.insert(node, intervals);
                }
            }
            Wish::Report {
                cgroup,
                node,
                refresh_interval_ms,
                report_threshold_ms,
            } => {
                let set = ReportSetting {
                    refresh_interval_ms,
                    report_threshold_ms,
                };
                settings.reports.insert(Place { cgroup, node }.into(), set);
            }
        }
    }
    settings
}

/// Grants a wish if it is about something that exists, so settings take no more room than nodes and
/// cgroups do.
pub(crate) fn grant(wish: Wish, hub: &Hub) {
    let snapshot = hub.snapshot();
    match wish {
        Wish::Look => hub.wake(),
        Wish::Intervals { node, bounds_ms } => {
            if let Ok(intervals) = Intervals::new(bounds_ms)
                && snapshot.nodes.contains(&node)
            {
                hub.set_intervals(node, intervals);
            }
        }
        Wish::Report {
            cgroup,
            node,
            refresh_interval_ms,
            report_threshold_ms,
        } => {
            let is_there = cgroup.as_deref().is_none_or(|name| {
                let mut subjects = snapshot.subjects.iter();
                subjects.any(|subject| subject.is_cgroup && &*subject.name == name)
            });
            if is_there && snapshot.nodes.contains(&node) {
                let scope = Place { cgroup, node }.into();
                hub.set_report(scope, |set| {
                    set.refresh_interval_ms = refresh_interval_ms;
                    set.report_threshold_ms = report_threshold_ms;
                });
            }
        }
    }
}

/// The daemon's side: takes wishes until the process ends or sends something that is no wish.
/// Counts them in `taken`.
pub fn listen(stream: &UnixStream, hub: &Hub, taken: &AtomicU64) {
    let mut lines = BufReader::new(Patient(stream));
    loop {
        match wish(&mut lines) {
            Ok(Some(wish)) => {
                let began = Instant::now();
                grant(wish, hub);
                taken.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(pause(began.elapsed()));
            }
            Ok(None) => return,
            Err(error) => {
                agewise_cli::note!(
                    "the process that serves the report files asks for what there is not \
                     ({error}); it is replaced"
                );
                // The process ends at the end of its input.
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }
}

fn pause(took: Duration) -> Duration {
    took.saturating_mul(PAUSE_TIMES).clamp(PAUSE_MIN, PAUSE_MAX)
}

/// Reads by waiting. Writing in the other direction must not wait, and the socket has one flag for
/// both.
struct Patient<'a>(&'a UnixStream);

impl Read for Patient<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    poll(&mut [PollFd::new(self.0, PollFlags::IN)], None)?;
                }
                done => return done,
            }
        }
    }
}

fn wish(lines: &mut impl BufRead) -> io::Result<Option<Wish>> {
    let mut line = Vec::new();
    let most = WISH_MAX_BYTES as u64;
    if lines.take(most).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

/// The process's side: sends what readers set and request.
#[derive(Clone)]
pub struct Asking {
    hub: Hub,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// The daemon's settings, once it has taken all wishes that were sent.
    settings: Arc<Settings>,
    sent: u64,
}

impl Asking {
    /// For the hub that the files are made from.
    pub fn new(hub: Hub) -> Self {
        Asking {
            hub,
            known: Arc::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends wishes whenever the hub is woken, until the daemon is gone.
    ///
    /// # Errors
    /// The error of the system.
    pub fn ask(&self, mut to: impl Write) -> io::Result<()> {
        loop {
            poll(&mut [PollFd::new(&self.hub.wake_fd(), PollFlags::IN)], None)?;
            self.hub.take_wake();
            let mut lines = Vec::new();
            for wish in self.wishes() {
                agewise_cli::output::json_line(&mut lines, &wish)?;
            }
            to.write_all(&lines)?;
        }
    }

    /// The wishes to send now.
    fn wishes(&self) -> Vec<Wish> {
        let mut known = self.known();
        let settings = self.hub.settings();
        let mut wishes = differences(&known.settings, &settings);
        wishes.push(Wish::Look);
        known.sent += wishes.len() as u64;
        known.settings = settings;
        wishes
    }

    /// Adopts the daemon's settings, unless a wish is under way.
    pub fn hear(&self, taken: u64, settings: Vec<Wish>) {
        let mut known = self.known();
        let settings = Arc::new(read(settings));
        if taken == known.sent && self.hub.replace_settings(&known.settings, &settings) {
            known.settings = settings;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

    fn set(cgroup: Option<&str>, refresh_interval_ms: u32) -> Wish {
        Wish::Report {
            cgroup: cgroup.map(str::to_owned),
            node: 0,
            refresh_interval_ms,
            report_threshold_ms: 0,
        }
    }

    fn daemon() -> Hub {
        let hub = Hub::new(Settings::default());
        hub.publish(demo::snapshot(1, 1000));
        hub
    }

    #[test]
    fn settings_travel_and_arrive() {
        let settings = demo::settings();
        assert_eq!(read(written(&settings)), settings);
        let hub = daemon();
        grant(set(Some("/web"), 700), &hub);
        let bounds = Wish::Intervals {
            node: 0,
            bounds_ms: vec![1000, 5000],
        };
        grant(bounds, &hub);
        let both = hub.settings();
        assert_eq!(both.intervals_of(0).bounds_ms(), [1000, 5000]);
        assert_eq!(both.reports.len(), 1);
        // Removing a setting is also a wish.
        assert_eq!(
            differences(&both, &Settings::default()),
            [set(Some("/web"), 0)]
        );
    }

    #[test]
    fn what_is_not_there_is_not_set() {
        let hub = daemon();
        let intervals = |node, bounds_ms| Wish::Intervals { node, bounds_ms };
        for wish in [
            set(Some("/nobody"), 1),
            intervals(77, vec![1]),
            intervals(0, vec![5, 1]),
            intervals(0, (0..1000).collect()),
        ] {
            grant(wish.clone(), &hub);
            assert_eq!(*hub.settings(), Settings::default(), "{wish:?}");
        }
        grant(Wish::Look, &hub);
        assert!(hub.take_wake());
    }

    #[test]
    fn nothing_else_can_be_said() {
        let hub = daemon();
        for line in [
            "\"reclaim\"\n",
            "{\"reclaim\":{\"cgroup\":\"/web\"}}\n",
            "{\"report\":{\"cgroup\":null,\"node\":0,\"kill\":true}}\n",
            "nonsense\n",
            "\n",
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            ours.set_nonblocking(true).unwrap();
            theirs.write_all(line.as_bytes()).unwrap();
            let taken = AtomicU64::new(0);
            listen(&ours, &hub, &taken);
            assert_eq!(taken.into_inner(), 0, "{line}");
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "it is cut off");
        }
        assert_eq!(*hub.settings(), Settings::default());
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let flood = std::thread::spawn(move || theirs.write_all(&vec![b'x'; 1 << 20]));
        listen(&ours, &hub, &AtomicU64::new(0));
        drop(ours);
        assert!(flood.join().unwrap().is_err());
    }

    #[test]
    fn a_flood_of_wishes_costs_a_twentieth_of_a_processor() {
        assert_eq!(pause(Duration::ZERO), PAUSE_MIN);
        let took = Duration::from_millis(3);
        assert_eq!(took * 20, took + pause(took));
        // The daemon was stopped meanwhile.
        assert_eq!(pause(Duration::MAX), PAUSE_MAX);
    }

    /// Both sides end up with the same settings, whatever is under way when the daemon sends its
    /// own.
    #[test]
    fn what_a_reader_wrote_is_not_lost_to_older_news() {
        let (daemon, process) = (daemon(), daemon());
        let asking = Asking::new(process.clone());
        grant(set(Some("/batch"), 3), &daemon);
        let old = written(&daemon.settings());
        let scope: Scope = Place {
            cgroup: Some("/web".to_owned()),
            node: 0,
        }
        .into();
        let refresh = |hub: &Hub| {
            let settings = hub.settings();
            settings
                .reports
                .get(&scope)
                .map(|set| set.refresh_interval_ms)
        };
        process.set_report(scope.clone(), |set| set.refresh_interval_ms = 9);
        // Before it is sent, and while it is under way.
        asking.hear(0, old.clone());
        assert_eq!(refresh(&process), Some(9));
        let wishes = asking.wishes();
        asking.hear(0, old);
        assert_eq!(refresh(&process), Some(9));
        let count = wishes.len() as u64;
        for wish in wishes {
            grant(wish, &daemon);
        }
        asking.hear(count, written(&daemon.settings()));
        assert_eq!(refresh(&process), Some(9));
        assert_eq!(process.settings(), daemon.settings());
        assert_eq!(process.settings().reports.len(), 2);
    }
}
