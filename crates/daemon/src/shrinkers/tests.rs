// SPDX-License-Identifier: Apache-2.0
use std::cell::Cell;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use agewise_host::cgroup::{Hierarchy, Version};
use agewise_host::root::Roots;
use agewise_host::throttle::Ledger;
use agewise_policy::whatif::Estimate;

use super::*;
use crate::config;
use crate::health::Health;

const FULL: u64 = 64 << 20;

/// A cgroup of plain files that needs no more than 60 % of its memory.
struct World {
    top: tempfile::TempDir,
    journal: Journal,
    cgroup: Cgroup,
    dir: PathBuf,
    now_ms: Cell<u64>,
    looked_ms: u64,
    /// Page cache that no process maps.
    cache_bytes: u64,
    files: Files,
    counted: Cell<Option<(u64, u64)>>,
}

impl World {
    fn new() -> Self {
        let top = tempfile::tempdir().unwrap();
        let dir = top.path().join("cgroup/job");
        fs::create_dir_all(&dir).unwrap();
        for (file, text) in [
            ("cgroup.procs", ""),
            ("memory.stat", "anon 0\nfile 0\n"),
            ("memory.high", "max\n"),
            ("memory.max", "max\n"),
            ("memory.low", "0\n"),
            ("memory.min", "0\n"),
        ] {
            fs::write(dir.join(file), text).unwrap();
        }
        let hierarchy = Hierarchy::at(Version::V2, top.path().join("cgroup"));
        let config = config::Journal {
            file: top.path().join("journal"),
            ..config::Journal::default()
        };
        let world = World {
            journal: Journal::open(&config, &Health::default()).unwrap(),
            cgroup: Cgroup::open(&hierarchy, "/job").unwrap(),
            dir,
            now_ms: Cell::new(1000),
            looked_ms: 0,
            cache_bytes: 0,
            files: Files::All,
            counted: Cell::default(),
            top,
        };
        world.count(0);
        world
    }

    /// Makes its usage equal to its limit.
    fn count(&self, faults: u64) {
        let limit: u64 = self.high().parse().unwrap_or(u64::MAX);
        let counted = Some((faults, limit));
        if self.counted.replace(counted) == counted {
            return;
        }
        let (cache, full) = (self.cache_bytes, FULL + self.cache_bytes);
        fs::write(self.dir.join("memory.current"), limit.min(full).to_string()).unwrap();
        let stat = format!("anon {FULL}\nfile {cache}\nworkingset_refault_anon {faults}\n");
        fs::write(self.dir.join("memory.stat"), stat).unwrap();
    }

    fn high(&self) -> String {
        let text = fs::read_to_string(self.dir.join("memory.high")).unwrap();
        text.trim().to_owned()
    }

    fn throttle(&self) -> Throttle {
        let (ledger, undone) = Ledger::open(&self.top.path().join("state")).unwrap();
        assert!(undone.failures.is_empty());
        Throttle::new(Roots::below(self.top.path()).proc, ledger)
    }

    fn small(&self, dry_run: bool) -> Small {
        Small {
            key: (Arc::from("/job"), self.cgroup.id()),
            cgroup: self.cgroup.clone(),
            wanted: Wanted {
                wait_max: 0.002,
                floor_bytes: 0,
            },
            dry_run,
            paused: None,
        }
    }

    /// With the rule of [`small`](Self::small), not as a rehearsal.
    fn shrinkers(&self) -> Shrinkers {
        let mut shrinkers = Shrinkers::default();
        shrinkers.equip(Some(self.throttle()), &self.journal);
        shrinkers.follow(vec![self.small(false)], self.now_ms.get(), &self.journal);
        shrinkers
    }

    fn run(&mut self, shrinkers: &mut Shrinkers, seconds: u64, faults_per_second: u64) {
        self.run_with(shrinkers, seconds, faults_per_second, Some(&curves()));
    }

    fn run_with(
        &mut self,
        shrinkers: &mut Shrinkers,
        seconds: u64,
        faults_per_second: u64,
        curves: Option<&Curves>,
    ) {
        for _ in 0..seconds * 2 {
            self.pass(POLL_MS, faults_per_second);
            self.poll(shrinkers, &|_| curves);
        }
    }

    fn pass(&self, ms: u64, faults_per_second: u64) {
        self.now_ms.set(self.now_ms.get() + ms);
        self.count(self.now_ms.get() * faults_per_second / 1000);
    }

    fn poll<'a>(&self, shrinkers: &mut Shrinkers, curves: &dyn Fn(&Key) -> Option<&'a Curves>) {
        let known = Known {
            now_ms: &|| self.now_ms.get(),
            looked_ms: self.looked_ms,
            next_look_ms: self.looked_ms + 10_000,
            swap_free_bytes: &|| 1 << 50,
            prices: Prices::exact(10_000.0, 0.0),
            curves: &|key| curves(key),
            files: &|_| self.files,
        };
        shrinkers.poll(&known, &self.journal);
    }

    fn lines(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.top.path().join("journal")).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }
}

fn curves() -> Curves {
    Curves::of_anon(FULL, 900_000, |percent| {
        Estimate::exact(f64::from(60u16.saturating_sub(percent)) * 100.0)
    })
}

#[test]
fn it_shrinks_gives_back_and_leaves_nothing_behind() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    assert_eq!(shrinkers.next_ms(), None, "nothing is limited yet");
    world.run(&mut shrinkers, 120, 0);
    let limit: u64 = world.high().parse().expect("a limit");
    assert!(
        (FULL / 100 * 57..FULL / 100 * 66).contains(&limit),
        "{limit}"
    );
    let key = (Arc::from("/job"), world.cgroup.id());
    let held = shrinkers.limit_bytes(&key).map(|bytes| bytes / 4096 * 4096);
    assert_eq!(held, Some(limit), "in whole pages");
    assert_eq!(shrinkers.next_ms(), Some(world.now_ms.get() + POLL_MS));
    // It needs its memory back: first the limit is raised, then removed.
    world.run(&mut shrinkers, 30, 5000);
    assert_eq!(world.high(), "max");
    let lines = world.lines();
    let has = |act: &str, reason: &str| {
        let is = |line: &&serde_json::Value| line["act"] == act && line["reason"] == reason;
        lines.iter().filter(is).count()
    };
    assert!(
        has("limit", "curve") > 4 && has("limit", "curve") % 2 == 0,
        "{lines:?}"
    );
    assert_eq!(has("unlimit", "waiting"), 2, "before and after: {lines:?}");
    // It is limited once more, and the rule disappears.
    world.run(&mut shrinkers, 1300, 0);
    assert_ne!(world.high(), "max");
    shrinkers.follow(Vec::new(), world.now_ms.get(), &world.journal);
    assert_eq!(world.high(), "max");
    let over = world.lines();
    let over = over.iter().filter(|line| line["reason"] == "over");
    let phases: Vec<_> = over.map(|line| line["phase"].as_str()).collect();
    assert_eq!(phases, [Some("before"), Some("after")]);
}

/// A runner has cgroups for its jobs, each for some seconds.
#[test]
fn one_that_holds_another_now_and_then_is_not_lowered_each_time() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 10, 0);
    assert_ne!(world.high(), "max");
    for paused in [Some("nested"), None] {
        let small = Small {
            paused,
            ..world.small(false)
        };
        shrinkers.follow(vec![small], world.now_ms.get(), &world.journal);
        assert_eq!(world.high(), "max");
        world.run(&mut shrinkers, 10, 0);
    }
    let lines = world.lines();
    let last = lines.iter().rev().find(|line| line["act"] == "unlimit");
    assert_eq!(last.unwrap()["reason"], "nested");
    world.run(&mut shrinkers, 570, 0);
    assert_eq!(world.high(), "max");
    world.run(&mut shrinkers, 60, 0);
    assert_ne!(world.high(), "max");
}

#[test]
fn it_says_why_it_does_nothing() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run_with(&mut shrinkers, 600, 0, None);
    let needed = Curves::of_anon(FULL, 900_000, |percent| {
        Estimate::exact(f64::from(100u16.saturating_sub(percent)) * 1e5)
    });
    world.run_with(&mut shrinkers, 600, 0, Some(&needed));
    let lines = world.lines();
    let said: Vec<_> = lines
        .iter()
        .map(|line| (line["record"].as_str(), line["reason"].as_str()))
        .collect();
    let hold = |reason| (Some("hold"), Some(reason));
    assert_eq!(said, [hold("no_curve"), hold("needed")], "{lines:?}");
    assert_eq!(lines[0]["usage_bytes"], FULL);
}

#[test]
fn a_limit_that_is_given_up_is_removed_with_lines() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 60, 0);
    assert_ne!(world.high(), "max");
    // Nothing can be recorded in the ledger: the next limit fails.
    fs::create_dir(world.top.path().join("state/ledger.new")).unwrap();
    world.run(&mut shrinkers, 60, 5000);
    assert_eq!(world.high(), "max");
    let lines = world.lines();
    let failed = lines.iter().filter(|line| line["reason"] == "failed");
    let said: Vec<_> = failed
        .map(|line| (line["act"].as_str(), line["phase"].as_str()))
        .collect();
    let unlimit = |phase| (Some("unlimit"), Some(phase));
    assert_eq!(said, [unlimit("before"), unlimit("after")], "{lines:?}");
}

/// systemd sets the limits of all its units again when it applies any of them after a
/// `daemon-reload`.
#[test]
fn one_that_somebody_else_limits_is_given_up_at_once_and_lowered_after_a_rest() {
    for (theirs, is_lowered) in [("max".to_owned(), true), ((FULL / 4).to_string(), false)] {
        let mut world = World::new();
        let mut shrinkers = world.shrinkers();
        world.run(&mut shrinkers, 120, 0);
        assert_ne!(world.high(), "max");
        fs::write(world.dir.join("memory.high"), &theirs).unwrap();
        world.run(&mut shrinkers, 1, 0);
        let key = (Arc::from("/job"), world.cgroup.id());
        assert_eq!(shrinkers.limit_bytes(&key), None);
        let lines = world.lines();
        let taken = lines.iter().filter(|line| line["reason"] == "taken");
        let acts: Vec<_> = taken.map(|line| line["act"].as_str()).collect();
        assert_eq!(acts, [Some("unlimit"); 2], "before and after: {lines:?}");
        world.run(&mut shrinkers, 590, 0);
        assert_eq!(world.high(), theirs);
        world.run(&mut shrinkers, 60, 0);
        assert_eq!(world.high() != theirs, is_lowered);
    }
}

/// Kubernetes forbids swap to pods unless told otherwise.
#[test]
fn one_that_may_not_swap_is_not_held() {
    let mut world = World::new();
    fs::write(world.dir.join("memory.swap.max"), "0\n").unwrap();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 120, 0);
    assert_eq!(world.high(), "max");
    let lines = world.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!(lines[0]["reason"], "swap_full");
}

#[test]
fn without_a_journal_no_limit_stays_that_nobody_would_raise() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 60, 0);
    assert_ne!(world.high(), "max");
    let config = config::Journal {
        file: "/dev/full".into(),
        ..config::Journal::default()
    };
    world.journal = Journal::open(&config, &Health::default()).unwrap();
    world.run(&mut shrinkers, 30, 5000);
    assert_eq!(world.high(), "max");
}

#[test]
fn page_cache_that_the_curve_does_not_cover_is_kept() {
    for files in [Files::None, Files::Mapped] {
        let mut world = World::new();
        (world.cache_bytes, world.files) = (FULL, files);
        world.count(1);
        let mut shrinkers = world.shrinkers();
        world.run(&mut shrinkers, 120, 0);
        let limit: u64 = world.high().parse().expect("a limit");
        let of_curve = limit.saturating_sub(FULL);
        assert!(
            (FULL / 100 * 57..FULL / 100 * 66).contains(&of_curve),
            "{limit}"
        );
    }
}

/// The kernel reclaims before the call that sets a limit returns.
#[test]
fn what_happens_while_another_limit_is_set_is_not_taken_for_a_burst() {
    let mut world = World::new();
    let dir = world.top.path().join("cgroup/a");
    fs::create_dir(&dir).unwrap();
    for file in fs::read_dir(&world.dir).unwrap().flatten() {
        fs::copy(file.path(), dir.join(file.file_name())).unwrap();
    }
    let hierarchy = Hierarchy::at(Version::V2, world.top.path().join("cgroup"));
    let cgroup = Cgroup::open(&hierarchy, "/a").unwrap();
    let slow: Key = (Arc::from("/a"), cgroup.id());
    let other = Small {
        key: slow.clone(),
        cgroup,
        ..world.small(true)
    };
    let mut shrinkers = world.shrinkers();
    shrinkers.follow(
        vec![other, world.small(false)],
        world.now_ms.get(),
        &world.journal,
    );
    // 0.15 % of the time, and 0.2 % is allowed.
    let faults_per_second = 150;
    world.run(&mut shrinkers, 120, faults_per_second);
    let limit = world.high();
    assert_ne!(limit, "max");
    let curves = curves();
    world.pass(POLL_MS, faults_per_second);
    world.poll(&mut shrinkers, &|key| {
        world.pass(if *key == slow { 3000 } else { 0 }, faults_per_second);
        Some(&curves)
    });
    world.run(&mut shrinkers, 10, faults_per_second);
    assert_eq!(world.high(), limit);
}

/// The kernel would reclaim all of it at once, and the daemon would do nothing else meanwhile.
#[test]
fn one_that_grows_by_more_than_a_step_before_its_limit_is_set_is_not_limited() {
    for (grown_bytes, is_limited) in [(4096, true), (STEP_BYTES_MAX * 2, false)] {
        let mut world = World::new();
        world.cache_bytes = 1 << 40;
        world.now_ms.set(10_000);
        world.count(1);
        fs::write(world.dir.join("memory.reclaim"), "").unwrap();
        let curves = Curves::of_anon(FULL << 14, 900_000, |_| Estimate::exact(0.0));
        let current = world.dir.join("memory.current");
        let usage_bytes = FULL + world.cache_bytes;
        let mut shrinkers = world.shrinkers();
        // After its usage was read.
        world.poll(&mut shrinkers, &|_| {
            let grown = usage_bytes + grown_bytes;
            fs::write(&current, grown.to_string()).unwrap();
            Some(&curves)
        });
        let limit = world.high().parse::<u64>().ok();
        let step = limit.map(|limit| usage_bytes - limit <= STEP_BYTES_MAX);
        assert_eq!(step, is_limited.then_some(true), "{limit:?}");
        assert_eq!(world.lines().len(), 2);
    }
}

/// Otherwise the kernel would take pages that are in use.
#[test]
fn no_limit_is_lowered_right_after_accessed_bits_were_cleared() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    let mut since_ms = Vec::new();
    for second in 0..60 {
        if second % 10 == 0 {
            world.looked_ms = world.now_ms.get();
        }
        let before = world.high();
        world.run(&mut shrinkers, 1, 0);
        if world.high() != before {
            since_ms.push(world.now_ms.get() - world.looked_ms);
        }
    }
    assert!(since_ms.len() > 8, "{since_ms:?}");
    assert!(since_ms.iter().all(|ms| *ms >= MARKED_MS), "{since_ms:?}");
}

#[test]
fn one_whose_counters_cannot_be_read_is_not_held() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 60, 0);
    assert_ne!(world.high(), "max");
    fs::remove_file(world.dir.join("memory.stat")).unwrap();
    world.counted.set(Some((0, world.high().parse().unwrap())));
    world.run(&mut shrinkers, 1, 0);
    assert_eq!(world.high(), "max");
    let lines = world.lines();
    let mut actions = lines.iter().rev().filter(|line| line["record"] == "action");
    let last = actions.next().unwrap();
    assert_eq!(
        (&last["act"], &last["reason"]),
        (&"unlimit".into(), &"unseen".into())
    );
}

#[test]
fn a_killed_one_is_undone_and_a_rehearsal_only_says() {
    let mut world = World::new();
    let mut shrinkers = world.shrinkers();
    world.run(&mut shrinkers, 60, 0);
    assert_ne!(world.high(), "max");
    // Killed: the daemon itself undoes nothing.
    let copied = world.top.path().join("copied");
    fs::create_dir(&copied).unwrap();
    fs::copy(world.top.path().join("state/ledger"), copied.join("ledger")).unwrap();
    let (_, undone) = Ledger::open(&copied).unwrap();
    assert_eq!(
        (undone.done.len(), undone.failures.len()),
        (1, 0),
        "{undone:?}"
    );
    assert_eq!(world.high(), "max");
    drop(shrinkers);
    let mut shrinkers = Shrinkers::default();
    shrinkers.follow(vec![world.small(true)], world.now_ms.get(), &world.journal);
    let said = world.lines().len();
    world.run(&mut shrinkers, 1300, 0);
    assert_eq!(world.high(), "max");
    let lines = world.lines();
    let rehearsed = &lines[said..];
    assert!(
        (2..=3).contains(&rehearsed.len()),
        "every ten minutes: {rehearsed:?}"
    );
    assert!(rehearsed.iter().all(|line| line["dry_run"] == true));
}
