// SPDX-License-Identifier: Apache-2.0
//! Cgroups that are held as small as possible without harm: rules with the policy `shrink`.
//!
//! [`Keeper`] decides. This module sets the limits; each is written to the journal before, and
//! recorded in the ledger so that a killed daemon leaves none behind.

use std::collections::BTreeMap;

use agewise_cli::counters::Counters;
use agewise_host::cgroup::Cgroup;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Throttle, ThrottleError};
use agewise_host::whatif::Files;
use agewise_policy::whatif::Facts;
use agewise_policy::whatif::keep::{Change, Idle, Keeper, Room, STEP_BYTES_MAX, Wanted, Why};
use agewise_policy::whatif::{Curves, Prices};

use super::curves::beyond_bytes;
use super::journal::Journal;
use super::news::News;
use super::observer::Key;
use super::record::{NotShrunk, Shrunk};

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
    /// Why it is not limited for now.
    pub paused: Option<&'static str>,
}

#[derive(Debug)]
struct Held {
    small: Small,
    keeper: Keeper,
    counters: Counters,
    /// Why nothing was done, as far as it was written.
    holds: News,
}

/// Facts in addition to those from the cgroups.
pub struct Known<'a> {
    /// The time, ms. Setting a limit takes some.
    pub now_ms: &'a dyn Fn() -> u64,
    /// When accessed bits were last cleared, ms.
    pub looked_ms: u64,
    /// When they will be cleared again, ms.
    pub next_look_ms: u64,
    /// Room in the swap of the machine now.
    pub swap_free_bytes: &'a dyn Fn() -> u64,
    /// The cost of bringing pages back.
    pub prices: Prices,
    /// The newest curves of a cgroup.
    pub curves: &'a dyn Fn(&Key) -> Option<&'a Curves>,
    /// Which files charged to a cgroup they cover.
    pub files: &'a dyn Fn(&Key) -> Files,
}

/// Holds cgroups small.
#[derive(Debug, Default)]
pub struct Shrinkers {
    throttle: Option<Throttle>,
    held: BTreeMap<Key, Held>,
    polled_ms: u64,
}

impl Shrinkers {
    /// Sets limits through `throttle` from now on; existing limits stay, unless there is none.
    pub fn equip(&mut self, throttle: Option<Throttle>, journal: &Journal) {
        match throttle {
            Some(throttle) => {
                self.throttle.get_or_insert(throttle);
            }
            None if self.throttle.is_some() => {
                self.undo_all(journal);
                self.throttle = None;
            }
            None => {}
        }
    }

    /// Whether it may set limits.
    pub fn acts(&self) -> bool {
        self.throttle.is_some()
    }

    /// Sets which cgroups are held from now on; others get their memory back. What is paused is
    /// lowered again only after a rest: it may be paused again and again.
    pub fn follow(&mut self, all: Vec<Small>, now_ms: u64, journal: &Journal) {
        let mut before = std::mem::take(&mut self.held);
        for small in all {
            let is_same = |held: &Held| {
                held.small.wanted == small.wanted && held.small.dry_run == small.dry_run
            };
            let mut held = match before.remove(&small.key) {
                Some(held) if is_same(&held) => Held { small, ..held },
                other => {
                    other
                        .into_iter()
                        .for_each(|held| self.let_go(&held, journal));
                    Held {
                        keeper: Keeper::new(small.wanted),
                        counters: Counters::new(ProcRoot::default()),
                        holds: News::default(),
                        small,
                    }
                }
            };
            let throttle = self.throttle.as_mut().filter(|_| held.keeper.is_busy());
            if let Some((throttle, why)) = throttle.zip(held.small.paused) {
                give_up(&mut held, throttle, why, now_ms, journal);
            }
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
        let began_ms = (known.now_ms)();
        if self.polled_ms > 0 && began_ms < self.polled_ms + POLL_MS {
            return;
        }
        self.polled_ms = began_ms;
        let held = self.held.values_mut();
        for held in held.filter(|held| held.small.paused.is_none()) {
            // Those before it may have taken long.
            let now_ms = (known.now_ms)();
            let throttle = self.throttle.as_mut();
            if let Some(throttle) = throttle.filter(|throttle| is_taken(held, throttle)) {
                give_up(held, throttle, "taken", now_ms, journal);
                continue;
            }
            let room = room(&held.small, known);
            let usage_bytes = room.map(|room| room.usage_bytes);
            // Reclaim to a slow disk takes long, and the daemon does nothing else meanwhile.
            let is_late = now_ms >= began_ms + POLL_MS;
            match change(held, room, known, now_ms, is_late) {
                Some(change) => {
                    let throttle = self.throttle.as_mut();
                    carry_out(held, throttle, change, now_ms, usage_bytes, journal);
                }
                None => say_why(held, usage_bytes, now_ms, journal),
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
        if let Some(throttle) = &mut self.throttle {
            unlimit(&held.small, throttle, "over", journal);
        }
    }
}

/// Whether somebody else has set the limit of a cgroup since: theirs stays, and ours is not there.
fn is_taken(held: &Held, throttle: &Throttle) -> bool {
    let is_limited = held.keeper.limit_bytes().is_some();
    let check = || throttle.check_limit(&held.small.cgroup);
    is_limited && matches!(check(), Err(ThrottleError::Taken { .. }))
}

/// The change that the keeper of a cgroup wants; nothing is lowered if it is late.
fn change(
    held: &mut Held,
    room: Option<Room>,
    known: &Known<'_>,
    now_ms: u64,
    is_late: bool,
) -> Option<Change> {
    let (small, keeper) = (&held.small, &mut held.keeper);
    let curves = (known.curves)(&small.key);
    if small.dry_run {
        return keeper.rehearse(now_ms, &room?, curves);
    }
    let facts = held.counters.read(&small.cgroup, now_ms).ok();
    // If looks follow each other faster than that, the best time is right before the next one.
    let is_soon = now_ms + POLL_MS >= known.next_look_ms;
    let is_blind = is_late || now_ms < known.looked_ms + MARKED_MS && !is_soon;
    match room.zip(facts) {
        Some((room, facts)) => keeper.next(Facts { is_blind, ..facts }, &room, curves),
        None => keeper.lose_sight(now_ms),
    }
}

/// Writes why the limit of a cgroup is not lowered, if that is news.
fn say_why(held: &mut Held, usage_bytes: Option<u64>, now_ms: u64, journal: &Journal) {
    let reason = match usage_bytes {
        None => Some(Why::Unseen.name()),
        Some(_) => held.keeper.idle().map(Idle::name),
    };
    if let Some(reason) = reason.filter(|reason| held.holds.is_news(now_ms, reason)) {
        let line = NotShrunk {
            target: &held.small.key.0,
            policy: "shrink",
            dry_run: held.small.dry_run,
            reason,
            usage_bytes,
        };
        journal.write("hold", &line);
    }
}

fn room(small: &Small, known: &Known<'_>) -> Option<Room> {
    let cgroup = &small.cgroup;
    let limits = cgroup.limits().ok()?;
    let swap_room_bytes = cgroup.swap_room_bytes().ok()?.unwrap_or(u64::MAX);
    Some(Room {
        usage_bytes: cgroup.usage_bytes().ok()??,
        beyond_bytes: beyond_bytes(cgroup, (known.files)(&small.key)),
        swap_free_bytes: (known.swap_free_bytes)().min(swap_room_bytes),
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
    line.predicted_wait_ratio = change.predicted_wait_ratio.map(|wait| wait.likely);
    // Giving memory back needs no permission.
    if small.dry_run {
        return journal.write("action", &line);
    }
    let is_permitted = journal.permits("action", &line) || change.limit_bytes.is_none();
    let Some(throttle) = throttle else {
        return held.keeper.fail(now_ms);
    };
    if !is_permitted {
        return give_up(held, throttle, "failed", now_ms, journal);
    }
    let done = set(&small.cgroup, throttle, change);
    line.phase = "after";
    line.trouble = done.as_ref().err().cloned();
    journal.write("action", &line);
    if done.is_err() {
        give_up(held, throttle, "failed", now_ms, journal);
    }
}

/// Returns what went wrong, in words.
fn set(cgroup: &Cgroup, throttle: &mut Throttle, change: Change) -> Result<(), String> {
    let words = |error: ThrottleError| error.to_string();
    let Some(limit_bytes) = change.limit_bytes else {
        return throttle.unlimit(cgroup).map_err(|error| error.to_string());
    };
    // A limit that is raised is urgent. One that is lowered takes a step: if the cgroup has another
    // step beyond that, it grows fast, and the kernel would reclaim all of it at once.
    if change.why == Why::Curve {
        let room = throttle.make_room(cgroup, limit_bytes, 2 * STEP_BYTES_MAX);
        if room.map_err(words)? {
            return Err("it has grown by more than a step meanwhile".to_owned());
        }
    }
    throttle.limit(cgroup, limit_bytes).map(drop).map_err(words)
}

/// Gives up a limit that cannot be changed, or not for now: it must not stay, because nobody would
/// raise it if it does harm.
fn give_up(
    held: &mut Held,
    throttle: &mut Throttle,
    why: &'static str,
    now_ms: u64,
    journal: &Journal,
) {
    unlimit(&held.small, throttle, why, journal);
    held.keeper.fail(now_ms);
}

/// Removes a limit, if there is one, with one line before and one after. If it cannot be removed it
/// stays in the ledger, which tries again.
fn unlimit(small: &Small, throttle: &mut Throttle, why: &'static str, journal: &Journal) {
    if !throttle.has_limit(&small.cgroup) {
        return;
    }
    let mut line = Shrunk::new(&small.key.0, false, None, why);
    journal.write("action", &line);
    line.phase = "after";
    line.trouble = throttle.unlimit(&small.cgroup).err().map(|e| e.to_string());
    journal.write("action", &line);
}

#[cfg(test)]
mod tests;
