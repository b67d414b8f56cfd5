// SPDX-License-Identifier: Apache-2.0
//! Cgroups that are held as small as possible without harm: rules with the policy `shrink`.
//!
//! [`Keeper`] decides. This module sets the limits; each is written to the journal before, and
//! recorded in the ledger so that a killed daemon leaves none behind.

use std::collections::BTreeMap;

use agewise_cli::whatif::facts;
use agewise_host::cgroup::Cgroup;
use agewise_host::throttle::{Throttle, ThrottleError};
use agewise_policy::whatif::keep::{Change, Idle, Keeper, Room, Wanted, Why};
use agewise_policy::whatif::shrink::Facts;
use agewise_policy::whatif::{Curves, Prices};

use super::curves::{Files, beyond_bytes};
use super::journal::Journal;
use super::news::News;
use super::observer::Key;
use super::record::{NotShrunk, Shrunk};

/// Time between two reads of the counters of held cgroups.
const POLL_MS: u64 = 500;

/// The most that is reclaimed from a cgroup at a poll. Reclaim to a slow disk takes long, and the
/// daemon does nothing else meanwhile.
const PIECE_BYTES: u64 = 64 << 20;

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
    /// Why nothing was done, as far as it was written.
    holds: News,
    setting: Option<Setting>,
    /// The limit that is set.
    limit_bytes: Option<u64>,
}

/// A change that was announced and not made yet. Until then the keeper judges nothing.
#[derive(Debug)]
struct Setting {
    change: Change,
    usage_bytes: Option<u64>,
    /// What is still to be reclaimed before it.
    left_bytes: u64,
}

/// Facts in addition to those from the cgroups.
pub struct Known<'a> {
    /// The time, ms. Setting a limit takes some.
    pub now_ms: &'a dyn Fn() -> u64,
    /// When accessed bits were last cleared, ms.
    pub looked_ms: u64,
    /// When they will be cleared again, ms.
    pub next_look_ms: u64,
    /// Time for which some task of the machine has waited for memory, us; `None` if the kernel does
    /// not report it.
    pub machine_waited_us: &'a dyn Fn() -> Option<u64>,
    pub swap_free_bytes: u64,
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
                        holds: News::default(),
                        setting: None,
                        limit_bytes: None,
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
        self.held.get(key)?.limit_bytes
    }

    /// Reads the counters, and changes limits if necessary.
    pub fn poll(&mut self, known: &Known<'_>, journal: &Journal) {
        let began_ms = (known.now_ms)();
        if self.polled_ms > 0 && began_ms < self.polled_ms + POLL_MS {
            return;
        }
        self.polled_ms = began_ms;
        for held in self.held.values_mut() {
            // Those before it may have taken long.
            let now_ms = (known.now_ms)();
            let mut throttle = self.throttle.as_mut();
            if held.setting.is_none() {
                let room = room(&held.small, known);
                let usage_bytes = room.map(|room| room.usage_bytes);
                match change(held, room, known, now_ms) {
                    Some(change) => {
                        let throttle = throttle.as_deref_mut();
                        announce(held, throttle, change, now_ms, usage_bytes, journal);
                    }
                    None => say_why(held, usage_bytes, now_ms, journal),
                }
            }
            if let Some(throttle) = throttle {
                let may_reclaim = now_ms < began_ms + POLL_MS && !is_blind(known, now_ms);
                carry_on(held, throttle, may_reclaim, now_ms, journal);
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
        if let Some(setting) = &held.setting {
            let mut line = setting.line(&held.small);
            line.phase = "after";
            line.trouble = Some("its rule ended before it was set".to_owned());
            journal.write("action", &line);
        }
        if let Some(throttle) = &mut self.throttle {
            unlimit(&held.small, throttle, "over", journal);
        }
    }
}

/// The change that the keeper of a cgroup wants.
fn change(held: &mut Held, room: Option<Room>, known: &Known<'_>, now_ms: u64) -> Option<Change> {
    let (small, keeper) = (&held.small, &mut held.keeper);
    let curves = (known.curves)(&small.key);
    if small.dry_run {
        return keeper.rehearse(now_ms, &room?, curves);
    }
    let facts = facts(&small.cgroup, now_ms, (known.machine_waited_us)()).ok();
    let is_blind = is_blind(known, now_ms);
    match room.zip(facts) {
        Some((room, facts)) => keeper.next(Facts { is_blind, ..facts }, &room, curves),
        None => keeper.lose_sight(now_ms),
    }
}

/// Whether accessed bits were cleared so recently that the kernel would take pages in use.
fn is_blind(known: &Known<'_>, now_ms: u64) -> bool {
    // If looks follow each other faster than that, the best time is right before the next one.
    let is_soon = now_ms + POLL_MS >= known.next_look_ms;
    now_ms < known.looked_ms + MARKED_MS && !is_soon
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
        swap_free_bytes: known.swap_free_bytes.min(swap_room_bytes),
        floor_bytes: limits.min_bytes.max(limits.low_bytes),
        prices: known.prices,
    })
}

/// Writes the line before a change.
fn announce(
    held: &mut Held,
    throttle: Option<&mut Throttle>,
    change: Change,
    now_ms: u64,
    usage_bytes: Option<u64>,
    journal: &Journal,
) {
    let setting = Setting {
        change,
        usage_bytes,
        left_bytes: match (usage_bytes, change.limit_bytes) {
            (Some(usage), Some(limit)) if held.small.cgroup.can_reclaim() => {
                usage.saturating_sub(limit)
            }
            _ => 0,
        },
    };
    let line = setting.line(&held.small);
    // Giving memory back needs no permission.
    if held.small.dry_run {
        return journal.write("action", &line);
    }
    let is_permitted = journal.permits("action", &line) || change.limit_bytes.is_none();
    match throttle {
        None => held.keeper.fail(now_ms),
        Some(throttle) if !is_permitted => give_up(held, throttle, now_ms, journal),
        Some(_) => held.setting = Some(setting),
    }
}

/// Makes an announced change, or reclaims a piece of what has to leave before it; writes the line
/// after it.
fn carry_on(
    held: &mut Held,
    throttle: &mut Throttle,
    may_reclaim: bool,
    now_ms: u64,
    journal: &Journal,
) {
    let is_ready = |setting: &mut Setting| setting.left_bytes == 0 || may_reclaim;
    let Some(mut setting) = held.setting.take_if(is_ready) else {
        return;
    };
    let done = setting.step(&held.small.cgroup, throttle);
    if matches!(done, Ok(false)) {
        held.setting = Some(setting);
        return;
    }
    let mut line = setting.line(&held.small);
    line.phase = "after";
    line.trouble = done.as_ref().err().map(ToString::to_string);
    journal.write("action", &line);
    held.limit_bytes = setting.change.limit_bytes;
    if done.is_err() {
        give_up(held, throttle, now_ms, journal);
    }
}

impl Setting {
    fn line<'a>(&self, small: &'a Small) -> Shrunk<'a> {
        let change = &self.change;
        let why = change.why.name();
        let mut line = Shrunk::new(&small.key.0, small.dry_run, change.limit_bytes, why);
        line.usage_bytes = self.usage_bytes;
        line.predicted_wait_ratio = change.predicted_wait_ratio.map(|wait| wait.likely);
        line
    }

    /// Returns whether the limit is set or removed.
    fn step(&mut self, cgroup: &Cgroup, throttle: &mut Throttle) -> Result<bool, ThrottleError> {
        let Some(limit_bytes) = self.change.limit_bytes else {
            throttle.unlimit(cgroup)?;
            return Ok(true);
        };
        let piece_bytes = self.left_bytes.min(PIECE_BYTES);
        if piece_bytes > 0 && throttle.make_room(cgroup, limit_bytes, piece_bytes)? {
            self.left_bytes -= piece_bytes;
            // Whatever it has grown by meanwhile is left to the limit.
            if self.left_bytes > 0 {
                return Ok(false);
            }
        }
        throttle.limit(cgroup, limit_bytes)?;
        Ok(true)
    }
}

/// Gives up a limit that cannot be changed: it must not stay, because nobody would raise it if it
/// does harm.
fn give_up(held: &mut Held, throttle: &mut Throttle, now_ms: u64, journal: &Journal) {
    unlimit(&held.small, throttle, "failed", journal);
    held.keeper.fail(now_ms);
    held.limit_bytes = None;
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
