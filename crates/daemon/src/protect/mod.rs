// SPDX-License-Identifier: Apache-2.0
//! Thrashing prevention for protected cgroups whose working set cannot be kept, and its culprits.
//!
//! The engine ([`Guard`]) decides based on the cgroups' own counters, also between ticks: if memory
//! is short, there is no time to wait for a look at all of it. This module turns cgroups into
//! samples, and decisions into actions: a lower limit, a pause, a kill, as far as the configuration
//! allows. Whatever can be undone is undone: when the situation is calm, at the end, and by the
//! next daemon if this one is killed.

mod counters;
#[cfg(test)]
mod evade_tests;
mod groups;
mod lines;
mod refusal;
#[cfg(test)]
mod tests;

use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_host::access::PAGE_BYTES;
use agewise_host::cgroup::Cgroup;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Throttle, ThrottleError, Undone};
use agewise_policy::mix::hash;
use agewise_policy::thrashing::{Act, Config as Rules, Decision, GroupSample, Guard, Sample, Step};

pub use counters::Counters;
pub use groups::{Demands, Ours, Own, Watched, choose};
use lines::{ActLine, Thrashing};
use refusal::is_of_user;
pub use refusal::{acts, refusal};

use super::config::{self, Matcher, UpTo};
use super::journal::Journal;
use super::observer::Seen;
use super::record::Message;
use super::state::SubjectView;
use super::world;

/// Minimum time between two reads of the counters.
const POLL_MIN_MS: u64 = 1000;
/// Reading the counters of a cgroup takes at most a tenth of a millisecond: with this much time for
/// each, reading them takes 0.2 % of a core.
const POLL_PER_GROUP_MS: u64 = 50;

/// The current state of a squeeze.
#[derive(Clone, Copy, Debug)]
struct Squeeze {
    /// The limit that the kernel enforces.
    limit_bytes: u64,
    /// The same share of what its processes map, which is what can be moved out page by page.
    mapped_limit_bytes: u64,
}

/// A cgroup that is held back.
#[derive(Debug)]
struct Held {
    /// The cgroup that is acted upon.
    cgroup: Option<Cgroup>,
    protected: Arc<str>,
    squeeze: Option<Squeeze>,
}

/// Watches protected cgroups, and holds back those that take their memory.
#[derive(Debug)]
pub struct Protector {
    guard: Guard<Arc<str>>,
    proc: ProcRoot,
    throttle: Option<Throttle>,
    dry_run: bool,
    watched: Vec<Watched>,
    demands: Demands,
    /// By the cgroup that is acted upon.
    held: BTreeMap<Arc<str>, Held>,
    poll_ms: u64,
    polled_ms: Option<u64>,
    /// Whether something was frozen at the last tick.
    was_frozen: bool,
}

fn rules(config: &config::Protect) -> Rules {
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    Rules {
        min_ttl_ms: millis(config.min_ttl.0),
        up_to: match config.up_to {
            UpTo::Report => Step::Report,
            UpTo::Squeeze => Step::Squeeze,
            UpTo::Freeze => Step::Freeze,
            UpTo::Kill => Step::Kill,
        },
        freeze_ms: millis(config.freeze.0),
        ..Rules::default()
    }
}

impl Protector {
    /// A protector for a checked configuration; `None` if nothing is protected. Without a
    /// `throttle` it only records what it would do.
    pub fn new(
        config: &config::Protect,
        proc: ProcRoot,
        throttle: Option<Throttle>,
    ) -> Option<Self> {
        if config.cgroups.is_empty() {
            return None;
        }
        let rules = rules(config);
        Some(Protector {
            proc,
            dry_run: throttle.is_none(),
            throttle,
            watched: Vec::new(),
            demands: Demands::default(),
            held: BTreeMap::new(),
            poll_ms: rules.min_ttl_ms.max(POLL_MIN_MS),
            polled_ms: None,
            was_frozen: false,
            guard: Guard::new(rules),
        })
    }

    /// Whether it may do more than record.
    pub fn acts(&self) -> bool {
        self.throttle.is_some()
    }

    /// Takes in the cgroups that a tick found.
    pub fn follow(
        &mut self,
        seen: &[Seen],
        views: &[SubjectView],
        matcher: &Matcher,
        ours: &Ours<'_>,
    ) {
        self.watched = choose(seen, views, matcher, ours);
        // What is frozen demands nothing; what it did before counts.
        let is_frozen = self.guard.next_thaw_ms().is_some();
        let was_frozen = std::mem::replace(&mut self.was_frozen, is_frozen);
        self.demands.update(seen, views, !is_frozen && !was_frozen);
        let count = u64::try_from(self.watched.len()).unwrap_or(u64::MAX);
        let least_ms = count.saturating_mul(POLL_PER_GROUP_MS).max(POLL_MIN_MS);
        self.poll_ms = self.guard.config().min_ttl_ms.max(least_ms);
    }

    /// When to read the counters again, or thaw a frozen cgroup.
    pub fn next_ms(&self, now_ms: u64) -> u64 {
        let poll_ms = match self.watched.is_empty() {
            // Until a look has found some.
            true => u64::MAX,
            false => self.due_ms().unwrap_or(now_ms),
        };
        self.guard.next_thaw_ms().unwrap_or(u64::MAX).min(poll_ms)
    }

    /// When the counters are to be read again; `None` for the first time. It varies by a quarter:
    /// a program that takes memory and gives it back in step with that would seem not to grow.
    fn due_ms(&self) -> Option<u64> {
        let at_ms = self.polled_ms?;
        let sooner_ms = hash(at_ms) % (self.poll_ms / 4 + 1);
        Some(at_ms.saturating_add(self.poll_ms - sooner_ms))
    }

    /// Reads the counters if it is time, and acts on the result.
    pub fn poll(
        &mut self,
        now_ms: u64,
        read: impl Fn(&Watched) -> Option<Counters>,
        matcher: &Matcher,
        journal: &Journal,
    ) {
        let is_due = self.due_ms().is_none_or(|due_ms| now_ms >= due_ms);
        let decisions = if is_due {
            self.polled_ms = Some(now_ms);
            for decision in self.forget_gone() {
                self.carry_out(&decision, matcher, journal);
            }
            self.forget_free();
            self.squeeze_on(journal);
            self.look(now_ms, read, matcher)
        } else {
            self.guard.thaw_due(now_ms)
        };
        for decision in &decisions {
            if decision.suffering.is_some() {
                journal.write("thrashing", &Thrashing::new(decision));
            }
            self.carry_out(decision, matcher, journal);
        }
        self.forget_free();
    }

    fn look(
        &mut self,
        now_ms: u64,
        read: impl Fn(&Watched) -> Option<Counters>,
        matcher: &Matcher,
    ) -> Vec<Decision<Arc<str>>> {
        // Most kernels count by cgroup, so that this need not be read.
        let of_machine = LazyCell::new(|| world::stolen_pages(&self.proc));
        let groups = self
            .watched
            .iter()
            .filter_map(|watched| {
                let counters = read(watched)?;
                let [anon_pages, file_pages] = counters.refaulted_pages;
                Some(GroupSample {
                    group: Arc::clone(&watched.name),
                    is_protected: watched.is_protected,
                    is_untouchable: watched.is_untouchable,
                    resident_bytes: counters.used_bytes,
                    swapped_bytes: counters.swapped_bytes,
                    // What the kernel does not count, this daemon has seen.
                    refaulted_pages: anon_pages.max(watched.refaulted_pages) + file_pages,
                    // No kernel reports how long ago the pages were used, so all refaults count.
                    young_refaulted_pages: None,
                    stolen_pages: counters.stolen_pages.or_else(|| *of_machine),
                    full_stall_us: counters.full_stall_us,
                    limits: counters.limits,
                })
            })
            .collect();
        let (demands, held, proc) = (&self.demands, &self.held, &self.proc);
        let part = |guilty: &Arc<str>| {
            let is_held = |name: &str| held.contains_key(name);
            let is_of_strangers = |name: &str| {
                let cgroup = demands.cgroup(name);
                !demands.is_container(name) && cgroup.is_some_and(|of| !is_of_user(&of))
            };
            let part = demands.narrow(guilty, is_held, is_of_strangers);
            let whole = demands.holding(guilty, &part, held.keys());
            let may_be_held = |name: &Arc<str>| {
                let cgroup = demands.cgroup(name);
                cgroup.is_some_and(|of| {
                    is_of_user(&of) && refusal(proc, &of, matcher).is_ok_and(|why| why.is_none())
                })
            };
            // Part of it is better than nothing.
            whole.filter(may_be_held).unwrap_or(part)
        };
        self.guard.look(Sample { now_ms, groups }, part)
    }

    /// Lets go of cgroups that are gone: their restraints went with them, and one of the same name
    /// is another.
    fn forget_gone(&mut self) -> Vec<Decision<Arc<str>>> {
        let is_gone = |held: &Held| held.cgroup.as_ref().is_some_and(|of| of.check().is_err());
        let gone = self.held.iter().filter(|(_, held)| is_gone(held));
        gone.flat_map(|(name, _)| self.guard.forget(name)).collect()
    }

    /// Lowers limits that were too far below what a cgroup has to be set at once.
    fn squeeze_on(&mut self, journal: &Journal) {
        let Some(throttle) = &mut self.throttle else {
            return;
        };
        for held in self.held.values_mut() {
            let (Some(cgroup), Some(squeeze)) = (&held.cgroup, held.squeeze) else {
                continue;
            };
            if let Err(error) = throttle.squeeze_on(cgroup, squeeze.limit_bytes) {
                journal.write("trouble", &lines::stays(&error));
                // The limit stays where it is.
                held.squeeze = None;
            }
        }
    }

    /// Carries out a decision, with one line before and one after.
    fn carry_out(&mut self, decision: &Decision<Arc<str>>, matcher: &Matcher, journal: &Journal) {
        let Some(blame) = decision.blame.as_ref() else {
            return;
        };
        if decision.act == Act::Report {
            return;
        }
        let is_back = decision.suffering.is_none();
        let subject = &blame.part;
        if is_back && !self.held.contains_key(subject) {
            return;
        }
        let held = self
            .held
            .entry(Arc::clone(subject))
            .or_insert_with(|| Held {
                cgroup: self.demands.cgroup(subject),
                protected: Arc::clone(&decision.protected),
                squeeze: None,
            });
        let mut line = ActLine::before(&decision.act, subject, &held.protected, self.dry_run);
        let used_bytes = held.cgroup.as_ref().and_then(Counters::read);
        let used_bytes = used_bytes.map_or(blame.resident_bytes, |now| now.used_bytes);
        if let Act::Squeeze { limit_bytes } = decision.act {
            // The limit is a share of the culprit's memory; the cgroup below it gets the same share
            // of its own.
            let share = limit_bytes as f64 / blame.resident_bytes.max(1) as f64;
            let floor_bytes = self.guard.config().squeeze_floor_bytes;
            let limit_bytes = (used_bytes as f64 * share.min(1.0)) as u64;
            line.limit_bytes = Some(limit_bytes.max(floor_bytes));
        }
        // Undoing does not depend on whether it can be recorded.
        if !journal.permits("action", &line) && !takes_back(decision) {
            return self.guard.not_done(subject, true);
        }
        line.phase = "after";
        let done = match &held.cgroup {
            None => Ok(()),
            Some(cgroup) => {
                let refused = match takes_back(decision) {
                    false => refusal(&self.proc, cgroup, matcher),
                    true => Ok(None),
                };
                do_it(&mut line, decision, cgroup, refused, self.throttle.as_mut())
            }
        };
        let comes_again = !done.as_ref().is_err_and(ThrottleError::counts_as_tried);
        if let Err(error) = done {
            line.trouble = Some(error.to_string());
        }
        journal.write("action", &line);
        let is_done = line.trouble.is_none() && line.refused.is_none();
        if !is_done && !takes_back(decision) {
            self.guard.not_done(subject, comes_again);
        }
        match (&decision.act, line.limit_bytes) {
            (Act::Squeeze { .. }, Some(limit_bytes)) if is_done => {
                let part = limit_bytes as f64 / used_bytes.max(1) as f64;
                held.squeeze = Some(Squeeze {
                    limit_bytes,
                    mapped_limit_bytes: (self.demands.mapped_bytes(subject) as f64 * part.min(1.0))
                        as u64,
                });
            }
            (Act::Release, _) => held.squeeze = None,
            _ => {}
        }
    }

    /// Forgets cgroups that have been released completely.
    fn forget_free(&mut self) {
        let guard = &self.guard;
        self.held
            .retain(|name, _| guard.throttled().any(|throttled| throttled == name));
    }

    /// The squeezed cgroups, how much of the memory mapped by their processes must go, and their
    /// limits; empty in a rehearsal.
    pub fn excess(&self) -> Vec<(Arc<str>, u64, u64)> {
        self.held
            .values()
            .filter(|_| !self.dry_run)
            .filter_map(|held| {
                let (cgroup, squeeze) = (held.cgroup.as_ref()?, held.squeeze?);
                // Another of the same name is not squeezed.
                cgroup.check().ok()?;
                // If the limit is already met, there is nothing more to do.
                let used_bytes = cgroup.usage_bytes().ok().flatten()?;
                let name: Arc<str> = Arc::from(cgroup.name());
                let mapped_bytes = self.demands.mapped_bytes(&name);
                let too_much = used_bytes.saturating_sub(squeeze.limit_bytes);
                let excess_bytes =
                    too_much.min(mapped_bytes.saturating_sub(squeeze.mapped_limit_bytes));
                (excess_bytes >= PAGE_BYTES).then_some((name, excess_bytes, squeeze.limit_bytes))
            })
            .collect()
    }

    /// Undoes everything, for an orderly end.
    pub fn undo_all(&mut self, matcher: &Matcher, journal: &Journal) {
        for decision in self.guard.let_go() {
            self.carry_out(&decision, matcher, journal);
        }
        self.forget_free();
        if let Some(throttle) = &mut self.throttle {
            let undone = throttle.undo_all();
            record_undone(&undone, journal);
            for error in &undone.failures {
                journal.write("trouble", &lines::left(error));
            }
        }
    }
}

/// Records what was undone after its own line had said that it could not be.
pub fn record_undone(undone: &Undone, journal: &Journal) {
    for undo in &undone.done {
        let message = format!("{} was undone at another try", undo.describe());
        journal.write("undo", &Message { message });
    }
}

fn takes_back(decision: &Decision<Arc<str>>) -> bool {
    matches!(decision.act, Act::Thaw | Act::Release)
}

/// Acts on a cgroup, unless it must be left alone or this is a rehearsal.
fn do_it(
    line: &mut ActLine<'_>,
    decision: &Decision<Arc<str>>,
    cgroup: &Cgroup,
    refused: Result<Option<String>, ThrottleError>,
    throttle: Option<&mut Throttle>,
) -> Result<(), ThrottleError> {
    line.refused = refused?;
    let Some(throttle) = throttle.filter(|_| line.refused.is_none()) else {
        return Ok(());
    };
    match decision.act {
        Act::Report => {}
        Act::Squeeze { .. } => {
            let file = throttle.squeeze(cgroup, line.limit_bytes.unwrap_or(u64::MAX))?;
            line.file = file.file_name().map(|name| name.to_string_lossy().into());
        }
        Act::Freeze { .. } => throttle.freeze(cgroup)?,
        Act::Thaw => throttle.thaw(cgroup)?,
        Act::Release => throttle.release(cgroup)?,
        Act::Kill => {
            let killed = throttle.kill(cgroup)?;
            line.killed_processes = Some(killed.ended);
            if !killed.is_complete() {
                line.trouble = Some(killed.to_string());
            }
        }
    }
    Ok(())
}
