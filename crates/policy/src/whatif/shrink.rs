// SPDX-License-Identifier: Apache-2.0
//! Takes memory from a cgroup: as far as the curve allows, in steps, each compared with the
//! prediction, and back at once if it does harm.
//!
//! [`plan`] uses the curve. [`Shrink`] takes the time and the counters of the cgroup and returns
//! the next action. It neither waits nor touches anything, so the same code runs for a real cgroup
//! and for a simulated one. The cost of a page is only known to a factor of about two, and the
//! waiting at a step reveals that factor: so it continues below the likely goal as long as the
//! measurements predict that the next step does no harm either, and towards the end in smaller
//! steps.

mod plan;

use super::{Bound, Prices};
use plan::STRIDE;
pub use plan::{Goal, Planned, Refusal, Steps, Terms, plan};

/// Counters of the cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The time, ms.
    pub now_ms: u64,
    /// Pages that have come back so far, from swap and from files.
    pub faults: [u64; 2],
    /// Time for which some task of the cgroup has waited for memory so far, us; `None` if the
    /// kernel does not report it. It is then computed from faults and prices.
    pub waited_us: Option<u64>,
    /// Time for which some task of the machine has waited, us, which is at least as much; `None` if
    /// the kernel does not report that either.
    pub machine_waited_us: Option<u64>,
    /// Accessed bits were cleared recently, and will then be left alone for so long that it is
    /// better to wait: the kernel cannot see what is in use, and would take pages that are.
    pub is_blind: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Set its limit to this many bytes.
    Limit(u64),
    /// Remove the limit: even the first step did harm.
    Unlimit,
    /// Ask again soon.
    Wait,
    /// It has ended; leave the limit as it is.
    Done,
}

/// How the attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has not ended.
    Underway,
    /// The goal was reached, and held.
    Reached,
    /// Tasks waited more than is allowed.
    Waiting,
    /// There were repeatedly more faults than the curve predicts.
    Unpredicted,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The planned step.
    pub planned: Planned,
    /// Faults per second while the limit was held.
    pub faults_per_second: f64,
    /// Waiting while the limit was held.
    pub wait_ratio: f64,
    /// Whether the limit was kept.
    pub is_kept: bool,
}

/// A step is held for this long before the next one.
const HOLD_MS: u64 = 4_000;
/// The transient effect of a new limit settles within this time: pages in use leave and come back.
const SETTLE_MS: u64 = 1_000;
/// Until then, waiting may be this many times what is allowed.
const SETTLE_FACTOR: f64 = 10.0;
/// Waiting is judged over this period.
pub(super) const WINDOW_MS: u64 = 2_000;
/// The last step is held for this long.
const LAST_HOLD_MS: u64 = 10_000;
/// After a step back nothing is judged until waiting is within the allowance again, but at most for
/// this long: the pages that the step drove out come back, which is no harm of the limit before it.
const RETURN_MS: u64 = 10_000;
/// Fewer faults per second than this are too few to be compared with a prediction.
const FAULTS_FEW: f64 = 10.0;
/// This many steps in a row may have more faults than predicted.
const SURPRISES_MAX: u32 = 2;

/// Executes the steps of a plan.
#[derive(Clone, Debug)]
pub struct Shrink {
    steps: Vec<Planned>,
    /// How many of them lead to the goal.
    to_goal: usize,
    terms: Terms,
    /// The limit that is set, an index of `steps`; `None` without a limit.
    at: Option<usize>,
    /// The limits that did no harm, each below the one before.
    harmless: Vec<usize>,
    /// The highest limit that did harm.
    harmful: Option<usize>,
    /// Whether pages may still come back that a harmful limit drove out.
    is_returning: bool,
    /// When the limit was last changed, or was last judged anew.
    since_ms: u64,
    /// Counters when the effects of the step had settled.
    settled: Option<Facts>,
    /// Counters of the last seconds, oldest first.
    window: Vec<Facts>,
    surprises: u32,
    verdict: Verdict,
    outcomes: Vec<Outcome>,
}

impl Shrink {
    /// A plan of which no step has been taken yet.
    pub fn new(steps: Steps, terms: Terms) -> Self {
        let to_goal = steps.to_goal.len();
        let steps = [steps.to_goal, steps.further].concat();
        Shrink {
            steps,
            to_goal,
            terms,
            at: None,
            harmless: Vec::new(),
            harmful: None,
            is_returning: false,
            since_ms: 0,
            settled: None,
            window: Vec::new(),
            surprises: 0,
            verdict: Verdict::Underway,
            outcomes: Vec::new(),
        }
    }

    /// How it ended, or that it has not.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// The steps so far.
    pub fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
    }

    /// What to do next. Must be asked about every half second.
    pub fn next(&mut self, facts: Facts) -> Act {
        if self.verdict != Verdict::Underway {
            return Act::Done;
        }
        let held_ms = facts.now_ms.saturating_sub(self.since_ms);
        if self.is_returning {
            let wait = recent_wait(&mut self.window, facts, self.terms.prices);
            let is_back = wait.is_some_and(|wait| wait <= self.terms.wait_max);
            if held_ms >= RETURN_MS || held_ms >= HOLD_MS && is_back {
                self.is_returning = false;
                // The same limit, judged from now on.
                self.set(self.at, facts);
            }
            return Act::Wait;
        }
        let Some(at) = self.at else {
            return match facts.is_blind {
                true => Act::Wait,
                false => self.go_on(self.next_below(None, 0.0), facts),
            };
        };
        let first = self.window[0];
        if held_ms < SETTLE_MS {
            let (_, wait) = self.rates(first, facts);
            if held_ms >= SETTLE_MS / 2 && wait > self.terms.wait_max * SETTLE_FACTOR {
                return self.back(at, facts, Verdict::Waiting);
            }
            return Act::Wait;
        }
        if self.settled.is_none() {
            self.window.clear();
        }
        let wait = recent_wait(&mut self.window, facts, self.terms.prices);
        if wait > Some(self.terms.wait_max) {
            return self.back(at, facts, Verdict::Waiting);
        }
        let settled = *self.settled.get_or_insert(facts);
        if held_ms < HOLD_MS {
            return Act::Wait;
        }
        let (faults, wait) = self.rates(settled, facts);
        let next = self.next_below(Some(at), wait);
        if next.is_none() && held_ms < LAST_HOLD_MS {
            return Act::Wait;
        }
        if facts.is_blind && next.is_some() {
            return Act::Wait;
        }
        let is_surprise = faults > self.steps[at].faults_per_second.high + FAULTS_FEW;
        self.surprises = if is_surprise { self.surprises + 1 } else { 0 };
        if self.surprises > SURPRISES_MAX {
            return self.back(at, facts, Verdict::Unpredicted);
        }
        self.note(at, settled, facts, true);
        if self.harmless.last() != Some(&at) {
            self.harmless.push(at);
        }
        self.go_on(next, facts)
    }

    /// The limit to set after this one, given the waiting at this one. On the way to the goal, that
    /// is the next one that is not known to do harm; below the goal it must also be harmless when
    /// its prediction is wrong by the same factor as that of this one.
    fn next_below(&self, at: Option<usize>, wait: f64) -> Option<usize> {
        let from = at.map_or(0, |at| at + 1);
        let goal = self.to_goal.saturating_sub(1);
        let strides = [STRIDE, STRIDE / 2, 1].into_iter();
        let mut candidates = strides.map(|stride| match from + stride - 1 {
            next if from <= goal => next.min(goal),
            next => next,
        });
        candidates.find(|&next| {
            let is_open = next < self.harmful.unwrap_or(self.steps.len());
            is_open && (next <= goal || at.is_some_and(|at| self.allows(at, wait, next)))
        })
    }

    /// Whether the waiting at one limit predicts that another does no harm.
    fn allows(&self, at: usize, wait: f64, next: usize) -> bool {
        let [likely, expected] = [at, next].map(|of| self.steps[of].wait_ratio.likely);
        likely > 0.0 && expected * wait / likely <= self.terms.wait_max
    }

    /// Sets the next limit; without one, it has ended.
    fn go_on(&mut self, next: Option<usize>, facts: Facts) -> Act {
        match next {
            Some(next) => self.set(Some(next), facts),
            None => {
                self.end(Verdict::Waiting);
                Act::Done
            }
        }
    }

    fn set(&mut self, at: Option<usize>, facts: Facts) -> Act {
        self.at = at;
        self.since_ms = facts.now_ms;
        self.settled = None;
        self.window = vec![facts];
        match at {
            Some(at) => Act::Limit(self.steps[at].limit_bytes),
            None => Act::Unlimit,
        }
    }

    /// Returns to the last harmless limit, and ends unless there are limits between the two and it
    /// may choose the goal.
    fn back(&mut self, at: usize, facts: Facts, why: Verdict) -> Act {
        self.note(at, self.settled.unwrap_or(self.window[0]), facts, false);
        self.harmful = Some(at);
        self.harmless.retain(|&of| of < at);
        let before = self.harmless.last().copied();
        let is_between = at > before.map_or(0, |before| before + 1);
        let is_found = self.terms.goal == Goal::Auto(Bound::Likely);
        if !(is_between && is_found && why == Verdict::Waiting) {
            self.end(why);
        }
        self.is_returning = true;
        self.set(before, facts)
    }

    /// Ends: with success if a limit at or below the goal did no harm, and for this reason if not.
    fn end(&mut self, why: Verdict) {
        let lowest = self.harmless.last();
        let is_reached = lowest.is_some_and(|at| at + 1 >= self.to_goal);
        self.verdict = if is_reached { Verdict::Reached } else { why };
    }

    fn note(&mut self, at: usize, from: Facts, to: Facts, is_kept: bool) {
        let (faults_per_second, wait_ratio) = self.rates(from, to);
        self.outcomes.push(Outcome {
            planned: self.steps[at],
            faults_per_second,
            wait_ratio,
            is_kept,
        });
    }

    /// Faults per second, and the share of the time that tasks waited.
    fn rates(&self, from: Facts, to: Facts) -> (f64, f64) {
        let [anon, file] = to.faults_since(from);
        let faults = (anon + file) * 1000.0 / to.ms_since(from);
        (faults, waited_ratio(from, to, self.terms.prices))
    }

    /// The limit that is set.
    pub(super) fn held(&self) -> Option<&Planned> {
        self.steps.get(self.at?)
    }
}

impl Facts {
    fn ms_since(self, from: Facts) -> f64 {
        self.now_ms.saturating_sub(from.now_ms).max(1) as f64
    }

    fn faults_since(self, from: Facts) -> [f64; 2] {
        [0, 1].map(|of: usize| self.faults[of].saturating_sub(from.faults[of]) as f64)
    }
}

/// The share of the time that tasks waited between two samples: the kernel's own count; or faults
/// times prices, but no more than the machine waited.
fn waited_ratio(from: Facts, to: Facts, prices: Prices) -> f64 {
    let counted_ms = |of: fn(&Facts) -> Option<u64>| {
        let waited_us = of(&to)?.saturating_sub(of(&from)?);
        Some(waited_us as f64 / 1000.0)
    };
    let waited_ms = counted_ms(|of| of.waited_us).unwrap_or_else(|| {
        let [anon, file] = to.faults_since(from);
        let reckoned_ms = (anon * prices.anon_ns + file * prices.file_ns) / 1e6;
        counted_ms(|of| of.machine_waited_us).map_or(reckoned_ms, |most| reckoned_ms.min(most))
    });
    waited_ms / to.ms_since(from)
}

/// Adds to counters of the last seconds, oldest first; the waiting over [`WINDOW_MS`], if they span
/// as much.
pub(super) fn recent_wait(window: &mut Vec<Facts>, facts: Facts, prices: Prices) -> Option<f64> {
    window.push(facts);
    let keep_ms = facts.now_ms.saturating_sub(WINDOW_MS);
    let before = window.iter().take_while(|of| of.now_ms <= keep_ms).count();
    window.drain(..before.saturating_sub(1));
    let first = window[0];
    let is_long = facts.now_ms >= first.now_ms + WINDOW_MS;
    is_long.then(|| waited_ratio(first, facts, prices))
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
