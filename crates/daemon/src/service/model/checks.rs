// SPDX-License-Identifier: Apache-2.0
//! What must hold after every step.

use std::collections::BTreeMap;

use agewise_host::throttle::Kind;

use super::machine::{self, Fault, Machine, OWN};
use super::{FREEZE_MS, Text, World};

/// Longer than the pause between two looks of the daemon.
const SLACK_MS: u64 = 2000;
/// After this time without suffering, everything has been undone.
const CALM_SECONDS: u64 = 60;

/// A cgroup that has waited for this long has no limit of the daemon any more.
const GIVEN_BACK_SECONDS: u64 = 12;

fn note(kind: &str, inode: u64) -> String {
    format!(" {kind}\t{inode}\t")
}

/// What the daemon does to a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    squeezed: bool,
    frozen: bool,
    /// Limited by a rule with the policy `shrink`.
    limited: bool,
}

/// By index of the cgroup.
pub type Held = BTreeMap<usize, Hold>;

impl World {
    fn held_now(&self) -> Held {
        let ledger = self.ledger();
        let of = |(name, group): (&usize, &machine::Group)| {
            let value = |fault, file| self.machine.value(*name, fault, file);
            let is_low = value(Fault::High(*name), "memory.high") != group.high;
            let limited = is_low && ledger.contains(&note("limit", group.inode));
            let hold = Hold {
                // A limit that is recorded nowhere counts as a squeeze, and is then found to be
                // unrecorded.
                squeezed: is_low && (!limited || ledger.contains(&note("squeeze", group.inode))),
                frozen: (value(Fault::Freeze(*name), "cgroup.freeze") == "1") != group.is_frozen,
                limited,
            };
            (hold != Hold::default()).then_some((*name, hold))
        };
        self.machine.groups.iter().filter_map(of).collect()
    }

    /// Must hold after every step.
    pub fn check(&mut self) {
        let held = self.held_now();
        for (name, hold) in &held {
            self.check_noted(*name, *hold);
            let before = self.held.get(name).copied().unwrap_or_default();
            let new = Hold {
                squeezed: hold.squeezed && !before.squeezed,
                frozen: hold.frozen && !before.frozen,
                limited: hold.limited && !before.limited,
            };
            let acts = [new.squeezed, new.frozen, new.limited];
            for (count, is_new) in self.acts.iter_mut().zip(acts) {
                *count += usize::from(is_new);
            }
            if new != Hold::default() {
                self.check_allowed(*name, new);
            }
        }
        let now_ms = machine::now_ms();
        let frozen = |name: &usize| held.get(name).is_some_and(|hold| hold.frozen);
        self.frozen_since_ms.retain(|name, _| frozen(name));
        for name in held.keys().filter(|name| frozen(name)) {
            // If it cannot be undone, its time starts when it can be.
            let is_excused =
                self.daemon.is_none() || self.machine.faults.contains_key(&Fault::Freeze(*name));
            let since_ms = self.frozen_since_ms.entry(*name).or_insert(now_ms);
            if is_excused {
                *since_ms = now_ms;
            }
            let is_late = now_ms > *since_ms + FREEZE_MS + SLACK_MS;
            assert!(!is_late, "{name} is frozen for too long");
        }
        self.held = held;
    }

    fn ledger(&self) -> String {
        std::fs::read_to_string(self.machine.state().join("ledger")).unwrap_or_default()
    }

    /// Every act is recorded on disk, whatever the daemon knows.
    fn check_noted(&self, name: usize, hold: Hold) {
        let ledger = self.ledger();
        let inode = self.machine.groups[&name].inode;
        for (is_held, kind) in [(hold.squeezed, "squeeze"), (hold.frozen, "freeze")] {
            assert!(
                !is_held || ledger.contains(&note(kind, inode)),
                "{name}: {kind} is not noted in {ledger:?}"
            );
        }
    }

    fn check_allowed(&self, name: usize, new: Hold) {
        let up_to = match self.text {
            Text::UpTo(up_to) => up_to,
            Text::Rules | Text::Shrinks => "freeze",
            // Without a journal, or in a rehearsal, nothing may be done.
            _ => "report",
        };
        assert!(self.daemon.is_some(), "nobody runs that could do it");
        assert!(up_to != "report", "{:?} does not act", self.text);
        assert!(!new.frozen || up_to == "freeze", "{:?}", self.text);
        assert!(
            !new.limited || self.text == Text::Shrinks,
            "{:?} limits",
            self.text
        );
        // Only protection holds cgroups back on behalf of others.
        let forbidden = match new.squeezed || new.frozen {
            true => [0, 5, OWN].as_slice(),
            false => &[OWN],
        };
        for spared in forbidden.iter().copied().flat_map(Machine::within) {
            assert!(
                !Machine::within(name).any(|below| below == spared),
                "{name} holds {spared}, which must be left alone"
            );
        }
    }

    /// After an end, or a start after a kill: only what cannot be undone remains, and it remains
    /// recorded.
    pub fn check_undone(&self) {
        for (name, hold) in self.held_now() {
            let is_in_the_way = |fault| self.machine.faults.contains_key(&fault);
            assert!(
                !(hold.squeezed || hold.limited) || is_in_the_way(Fault::High(name)),
                "{name} is still squeezed"
            );
            assert!(
                !hold.frozen || is_in_the_way(Fault::Freeze(name)),
                "{name} is still frozen"
            );
            self.check_noted(name, hold);
        }
        if self.machine.faults.is_empty() {
            let left = self.machine.state().join("ledger").exists();
            assert!(!left, "notes of nothing are left");
        }
    }

    /// After a long calm, nothing is held.
    pub fn check_calm(&self, seconds: u64) {
        let is_due = seconds >= CALM_SECONDS && self.daemon.is_some();
        if is_due && self.machine.faults.is_empty() {
            let mut held = self.held_now();
            if self.text == Text::Shrinks {
                held.values_mut().for_each(|hold| hold.limited = false);
                held.retain(|_, hold| *hold != Hold::default());
            }
            assert_eq!(held, Held::default(), "after a long calm");
        }
    }

    /// A cgroup that waits for memory taken from it gets it back.
    pub fn check_given_back(&self, name: usize, seconds: u64) {
        let is_in_the_way = self.daemon.is_none() || !self.machine.faults.is_empty();
        let held = self.held_now().get(&name).copied().unwrap_or_default();
        assert!(
            !held.limited || is_in_the_way || seconds < GIVEN_BACK_SECONDS,
            "{name} waits for {seconds} s, and is limited"
        );
    }

    /// What the daemon stores does not outgrow what exists.
    pub fn check_bounds(&self) {
        let Some(daemon) = &self.daemon else { return };
        let most = self.machine.groups.len() + 1;
        for (what, count) in [
            ("actors", daemon.tracked.actors.len()),
            ("retired", daemon.tracked.retired.len()),
            ("refaulted", daemon.tracked.refaulted.len()),
            ("shrunk", daemon.shrinkers.count()),
        ] {
            assert!(count <= most, "{count} {what} for {most} cgroups");
        }
        let ledger = daemon.found.ledger();
        let noted = |name: &usize| {
            let dir = self.machine.dir(*name);
            let has = |kind| ledger.as_ref().is_ok_and(|ledger| ledger.has(&dir, kind));
            has(Kind::Squeeze) || has(Kind::Freeze)
        };
        let names: Vec<usize> = self.machine.groups.keys().copied().collect();
        assert!(names.iter().filter(|name| noted(name)).count() <= most);
    }
}
