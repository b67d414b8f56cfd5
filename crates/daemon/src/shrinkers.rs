// SPDX-License-Identifier: Apache-2.0
//! Cgroups that are held as small as possible without harm: rules with the policy `shrink`.
//!
//! [`Keeper`] decides. This module sets the limits; each is written to the journal before, and
//! recorded in the ledger so that a killed daemon leaves none behind.

use std::collections::BTreeMap;

use agewise_cli::whatif::facts;
use agewise_host::cgroup::Cgroup;
use agewise_host::throttle::{Throttle, ThrottleError};
use agewise_policy::whatif::keep::{Change, Keeper, Room, Wanted};
use agewise_policy::whatif::shrink::Facts;
use agewise_policy::whatif::{Curves, Prices};

use super::curves::beyond_bytes;
use super::journal::Journal;
use super::observer::Key;
use super::record::Shrunk;

/// Time between two reads of the counters of held cgroups.
const POLL_MS: u64 = 500;

/// This long after accessed bits were cleared, those of pages in use are set again.
const MARKED_MS: u64 = 2000;

/// A cgroup to hold small.
#[derive(Debug)]
pub struct Small {
    /// Identifies it.
    pub key: Key,
    pub cgroup: Cgroup,
    /// How small it should be held.
    pub wanted: Wanted,
    /// Whether to limit nothing and only record.
    pub dry_run: bool,
}

#[derive(Debug)]
struct Held {
    small: Small,
    keeper: Keeper,
}

/// Facts in addition to those from the cgroups.
pub struct Known<'a> {
    /// The time, ms.
    pub now_ms: u64,
    /// When accessed bits were last cleared, ms.
    pub looked_ms: u64,
    /// When they will be cleared again, ms.
    pub next_look_ms: u64,
    /// Time for which some task of the machine has waited for memory, us; `None` if the kernel does
    /// not report it.
    pub machine_waited_us: Option<u64>,
    pub swap_free_bytes: u64,
    /// The cost of bringing pages back.
    pub prices: Prices,
    /// The newest curves of a cgroup.
    pub curves: &'a dyn Fn(&Key) -> Option<&'a Curves>,
}

/// Holds cgroups small.
#[derive(Debug, Default)]
pub struct Shrinkers {
    throttle: Option<Throttle>,
    held: BTreeMap<Key, Held>,
    polled_ms: u64,
}

impl Shrinkers {
    /// Sets limits through `throttle` from now on; existing limits stay.
    pub fn equip(&mut self, throttle: Throttle) {
        self.throttle.get_or_insert(throttle);
    }

    /// Sets which cgroups are held from now on; others get their memory back.
    pub fn follow(&mut self, all: Vec<Small>, journal: &Journal) {
        let mut before = std::mem::take(&mut self.held);
        for small in all {
            let is_same = |held: &Held| {
                held.small.wanted == small.wanted && held.small.dry_run == small.dry_run
            };
            let held = match before.remove(&small.key) {
                Some(held) if is_same(&held) => held,
                other => {
                    other
                        .into_iter()
                        .for_each(|held| self.let_go(&held, journal));
                    Held {
                        keeper: Keeper::new(small.wanted),
                        small,
                    }
                }
            };
            self.held.insert(held.small.key.clone(), held);
        }
        before.values().for_each(|held| self.let_go(held, journal));
    }

    /// When to poll next; `None` if not before the next tick.
    pub fn next_ms(&self) -> Option<u64> {
        let mut held = self.held.values();
        let is_busy = held.any(|held| held.keeper.is_busy());
        is_busy.then_some(self.polled_ms + POLL_MS)
    }

    /// How many cgroups it follows.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// The limit that is set on a cgroup.
    pub fn limit_bytes(&self, key: &Key) -> Option<u64> {
        self.held.get(key)?.keeper.limit_bytes()
    }

    /// Reads the counters, and changes limits if necessary.
    pub fn poll(&mut self, known: &Known<'_>, journal: &Journal) {
        if self.polled_ms > 0 && known.now_ms < self.polled_ms + POLL_MS {
            return;
        }
        self.polled_ms = known.now_ms;
        for held in self.held.values_mut() {
            let room = room(&held.small.cgroup, known);
            if let Some(change) = change(held, room, known) {
                let usage_bytes = room.map(|room| room.usage_bytes);
                let throttle = self.throttle.as_mut();
                carry_out(held, throttle, change, known.now_ms, usage_bytes, journal);
            }
        }
    }

    /// Removes all limits.
    pub fn undo_all(&mut self, journal: &Journal) {
        for held in std::mem::take(&mut self.held).values() {
            self.let_go(held, journal);
        }
    }

    fn let_go(&mut self, held: &Held, journal: &Journal) {
        let (Some(_), Some(throttle)) = (held.keeper.limit_bytes(), &mut self.throttle) else {
            return;
        };
        let mut line = Shrunk::new(&held.small.key.0, false, None, "over");
        line.phase = "after";
        line.trouble = throttle
            .unlimit(&held.small.cgroup)
            .err()
            .map(|e| e.to_string());
        journal.write("action", &line);
    }
}

/// The change that the keeper of a cgroup wants.
fn change(held: &mut Held, room: Option<Room>, known: &Known<'_>) -> Option<Change> {
    let (small, keeper) = (&held.small, &mut held.keeper);
    let curves = (known.curves)(&small.key);
    if small.dry_run {
        return keeper.rehearse(known.now_ms, &room?, curves?);
    }
    let facts = facts(&small.cgroup, known.now_ms, known.machine_waited_us).ok();
    // If looks follow each other faster than that, the best time is right before the next one.
    let is_soon = known.now_ms + POLL_MS >= known.next_look_ms;
    let is_blind = known.now_ms < known.looked_ms + MARKED_MS && !is_soon;
    match room.zip(facts) {
        Some((room, facts)) => keeper.next(Facts { is_blind, ..facts }, &room, curves),
        None => keeper.lose_sight(known.now_ms),
    }
}

fn room(cgroup: &Cgroup, known: &Known<'_>) -> Option<Room> {
    let limits = cgroup.limits().ok()?;
    Some(Room {
        usage_bytes: cgroup.usage_bytes().ok()??,
        beyond_bytes: beyond_bytes(cgroup),
        swap_free_bytes: known.swap_free_bytes,
        floor_bytes: limits.min_bytes.max(limits.low_bytes),
        prices: known.prices,
    })
}

/// Sets or removes a limit, with one line before and one after.
fn carry_out(
    held: &mut Held,
    throttle: Option<&mut Throttle>,
    change: Change,
    now_ms: u64,
    usage_bytes: Option<u64>,
    journal: &Journal,
) {
    let small = &held.small;
    let name = small.key.0.clone();
    let mut line = Shrunk::new(&name, small.dry_run, change.limit_bytes, change.why.name());
    line.usage_bytes = usage_bytes;
    line.told_wait_ratio = change.told_wait_ratio.map(|wait| wait.likely);
    // Giving memory back needs no permission.
    if small.dry_run {
        return journal.write("action", &line);
    }
    let is_permitted = journal.permits("action", &line) || change.limit_bytes.is_none();
    let Some(throttle) = throttle else {
        return held.keeper.fail(now_ms);
    };
    if !is_permitted {
        return give_up(held, throttle, now_ms);
    }
    let done = match change.limit_bytes {
        Some(bytes) => throttle.limit(&small.cgroup, bytes).map(drop),
        None => throttle.unlimit(&small.cgroup).map_err(ThrottleError::from),
    };
    line.phase = "after";
    line.trouble = done.as_ref().err().map(ToString::to_string);
    journal.write("action", &line);
    if done.is_err() {
        give_up(held, throttle, now_ms);
    }
}

/// Gives up a limit that cannot be changed: it must not stay, because nobody would raise it if it
/// does harm.
fn give_up(held: &mut Held, throttle: &mut Throttle, now_ms: u64) {
    // If it cannot be removed it stays in the ledger, which tries again.
    let _ = throttle.unlimit(&held.small.cgroup);
    held.keeper.fail(now_ms);
}

#[cfg(test)]
mod tests {
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
        now_ms: u64,
        looked_ms: u64,
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
                now_ms: 1000,
                looked_ms: 0,
                counted: Cell::default(),
                top,
            };
            world.count(0);
            world
        }

        /// Makes its usage equal to its limit.
        fn count(&self, faults: u64) {
            let limit: u64 = self.high().parse().unwrap_or(FULL);
            let counted = Some((faults, limit));
            if self.counted.replace(counted) == counted {
                return;
            }
            fs::write(self.dir.join("memory.current"), limit.min(FULL).to_string()).unwrap();
            let stat = format!("anon {FULL}\nfile 0\nworkingset_refault_anon {faults}\n");
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
            }
        }

        /// With the rule of [`small`](Self::small), not as a rehearsal.
        fn shrinkers(&self) -> Shrinkers {
            let mut shrinkers = Shrinkers::default();
            shrinkers.equip(self.throttle());
            shrinkers.follow(vec![self.small(false)], &self.journal);
            shrinkers
        }

        fn run(&mut self, shrinkers: &mut Shrinkers, seconds: u64, faults_per_second: u64) {
            let curves = curves();
            for _ in 0..seconds * 2 {
                self.now_ms += POLL_MS;
                self.count(self.now_ms * faults_per_second / 1000);
                let known = Known {
                    now_ms: self.now_ms,
                    looked_ms: self.looked_ms,
                    next_look_ms: self.looked_ms + 10_000,
                    machine_waited_us: None,
                    swap_free_bytes: FULL * 4,
                    prices: Prices {
                        anon_ns: 10_000.0,
                        file_ns: 0.0,
                    },
                    curves: &|_| Some(&curves),
                };
                shrinkers.poll(&known, &self.journal);
            }
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
        assert_eq!(shrinkers.next_ms(), Some(world.now_ms + POLL_MS));
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
        shrinkers.follow(Vec::new(), &world.journal);
        assert_eq!(world.high(), "max");
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

    /// Otherwise the kernel would take pages that are in use.
    #[test]
    fn no_limit_is_lowered_right_after_accessed_bits_were_cleared() {
        let mut world = World::new();
        let mut shrinkers = world.shrinkers();
        let mut since_ms = Vec::new();
        for second in 0..60 {
            if second % 10 == 0 {
                world.looked_ms = world.now_ms;
            }
            let before = world.high();
            world.run(&mut shrinkers, 1, 0);
            if world.high() != before {
                since_ms.push(world.now_ms - world.looked_ms);
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
        let last = lines.last().unwrap();
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
        assert_eq!((undone.count, undone.failures.len()), (1, 0), "{undone:?}");
        assert_eq!(world.high(), "max");
        drop(shrinkers);
        let mut shrinkers = Shrinkers::default();
        shrinkers.follow(vec![world.small(true)], &world.journal);
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
}
