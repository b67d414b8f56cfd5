// SPDX-License-Identifier: Apache-2.0
//! Hours of the daemon in seconds: the test's own clock drives all the state kept between ticks,
//! while cgroups come and go, and every byte allocated and not freed is counted. (`agewise bench
//! daemon` measures the agent's state of real processes.)

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use agewise_daemon::config::{Config, Matcher};
use agewise_daemon::demo;
use agewise_daemon::files::Source;
use agewise_daemon::health::Health;
use agewise_daemon::journal::Journal;
use agewise_daemon::metrics::families::families;
use agewise_daemon::metrics::shown::{Chooser, Limits};
use agewise_daemon::metrics::text::{Syntax, render};
use agewise_daemon::observer::Seen;
use agewise_daemon::pace::Pace;
use agewise_daemon::protect::{Counters, Ours, Protector};
use agewise_daemon::state::{Event, Hub, Scope, Snapshot};
use agewise_host::root::ProcRoot;
use agewise_policy::workingset::report::{File, GroupFile};

/// Bytes currently allocated.
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

struct Counting;

// SAFETY: forwards to the system allocator; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The test's clock in ms; a static, since the files take a function.
static NOW_MS: AtomicU64 = AtomicU64::new(0);

fn now_ms() -> u64 {
    NOW_MS.load(Ordering::Relaxed)
}

const TICK_MS: u64 = 5000;
const TICKS_PER_HOUR: u64 = 3_600_000 / TICK_MS;
/// Number of cgroups at a time, and the number of ticks each lives.
const CGROUPS: u64 = 60;
const LIFE_TICKS: u64 = 30;

/// A machine on which two cgroups appear and two disappear at each tick; every second new one
/// reuses the name of an old one.
fn machine(tick: u64) -> Snapshot {
    let mut snapshot = demo::snapshot(tick + 1, now_ms());
    let like = snapshot.subject("/batch").unwrap().clone();
    for place in 0..CGROUPS {
        let generation = (tick + place) / LIFE_TICKS;
        let name = match place % 2 {
            0 => format!("/zone-{place:02}"),
            _ => format!("/zone-{place:02}-{generation}"),
        };
        let mut view = like.clone();
        view.name = Arc::from(name);
        view.id = 1000 + place + generation * CGROUPS;
        view.refaulted_bytes = tick * place * 4096;
        snapshot.subjects.push(view);
    }
    snapshot.subjects.retain(|view| view.is_cgroup);
    snapshot
}

/// Everything that lives as long as the daemon.
struct Daemon {
    hub: Hub,
    source: Source,
    chooser: Chooser,
    protector: Protector,
    matcher: Matcher,
    journal: Journal,
    pace: Pace,
    _directory: tempfile::TempDir,
}

impl Daemon {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = Config::parse(&format!(
            "[protect]\ncgroups = ['/web']\nup_to = 'freeze'\n[journal]\nfile = '{}'\n\
             size_max = '64K'\nkeep = 1\n",
            directory.path().join("journal").display()
        ))
        .unwrap();
        let hub = Hub::new(demo::settings());
        Daemon {
            source: Source::new(hub.clone(), now_ms, Duration::ZERO),
            hub,
            chooser: Chooser::new(Limits {
                subjects_max: 50,
                containers_max: 50,
                depth_max: 3,
            }),
            protector: Protector::new(&config.protect, ProcRoot::new("/nowhere"), None).unwrap(),
            matcher: Matcher::new(&config).unwrap(),
            journal: Journal::open(&config.journal, &Health::default()).unwrap(),
            pace: Pace::new(1.0, TICK_MS),
            _directory: directory,
        }
    }

    fn tick(&mut self, tick: u64) {
        NOW_MS.store((tick + 1) * TICK_MS, Ordering::Relaxed);
        self.pace.begin(now_ms());
        let snapshot = machine(tick);
        let seen: Vec<Seen> = (0..)
            .zip(&snapshot.subjects)
            .map(|(at, view)| Seen {
                at,
                key: (Arc::clone(&view.name), view.id),
                cgroup: None,
                container: None,
                pids: vec![4000 + at as u32],
            })
            .collect();
        let views = snapshot.subjects.clone();
        self.hub
            .forget_reports(|name| views.iter().any(|view| &*view.name == name));
        self.hub.publish(snapshot);
        let newest = &views[views.len() - 1 - (tick % CGROUPS) as usize].name;
        let scope = Scope {
            cgroup: Some(Arc::clone(newest)),
            node: 0,
        };
        self.hub.tell(Event::Pressure([scope].into()));

        // A client that changes a file's setting and reads it, a scraper, and the web page.
        let interval = File::Group(Arc::clone(newest), GroupFile::RefreshInterval);
        self.source.write(&interval, b"N0=1000").unwrap();
        let ages = File::Group(Arc::clone(newest), GroupFile::PageAge);
        assert!(self.source.read(&ages).unwrap().contains("N0"));
        self.source.age();
        let snapshot = self.hub.snapshot();
        let shown = self.chooser.choose(&snapshot);
        assert!(!render(families(&snapshot, &shown), Syntax::OpenMetrics).is_empty());

        // The protected cgroup suffers for some minutes of every hour.
        let bad = u64::from(tick % TICKS_PER_HOUR < 60);
        let ours = Ours {
            line: &[1],
            cgroup: None,
        };
        self.protector.follow(&seen, &views, &self.matcher, &ours);
        let read = |watched: &agewise_daemon::protect::Watched| {
            let is_web = &*watched.name == "/web";
            Some(Counters {
                used_bytes: (1 << 30) + if is_web { 0 } else { tick << 20 },
                swapped_bytes: 0,
                refaulted_pages: [tick * 100_000 * u64::from(is_web) * bad, 0],
                stolen_pages: None,
                full_stall_us: Some(tick * 4_000_000 * bad),
                limits: Vec::new(),
            })
        };
        self.protector
            .poll(now_ms(), read, &self.matcher, &self.journal);
        self.pace.spent(now_ms(), now_ms() + 40, 30.0);
    }
}

#[test]
fn hours_of_coming_and_going_leave_nothing() {
    let mut daemon = Daemon::new();
    let mut live = Vec::new();
    // The timeline is full after an hour.
    for tick in 0..6 * TICKS_PER_HOUR {
        daemon.tick(tick);
        if (tick + 1) % TICKS_PER_HOUR == 0 {
            live.push(LIVE_BYTES.load(Ordering::Relaxed));
        }
    }
    println!("live bytes, hour by hour: {live:?}");
    let settings = daemon.hub.settings();
    assert!(
        settings.reports.len() as u64 <= CGROUPS + 10,
        "{}",
        settings.reports.len()
    );
    let (second, last) = (live[1], live[live.len() - 1]);
    // Names have more digits by then; nothing else may grow.
    assert!(last - second < 64 << 10, "{live:?}");
}
