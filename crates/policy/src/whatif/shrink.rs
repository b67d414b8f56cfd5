// SPDX-License-Identifier: Apache-2.0
//! Takes memory from a cgroup: as far as the curve allows, in steps, each compared with the
//! prediction, and back at once if it does harm.
//!
//! [`plan`](super::plan) uses the curve. [`Shrink`] takes the time and the counters of the cgroup
//! and returns the next action. It neither waits nor touches anything, so the same code runs for a
//! real cgroup and for a simulated one. The cost of a page is only known to a factor of about two,
//! and the waiting at a step reveals that factor: so with [`Goal::Auto`] it goes on, above the
//! likely goal and below it, as long as the measurements lead to expect no harm at the next step.
//!
//! A step that does harm has not shown that the limit is too low: the kernel also takes pages that
//! are in use, all at once, and these come back over some seconds. So it is taken back, and once
//! they are back, shorter ones follow; if even the shortest does harm, the limit is too low. It
//! ends once a limit that it went back to holds: one that held before may not any more. Waiting
//! fluctuates, so the first time that one does a little harm, it goes on from the one above.

use super::plan::{FURTHER_FACTOR, Goal, PARTS, Planned, Steps, Terms};
use super::waiting::{Facts, MUCH, Waiting};

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Set its limit to this many bytes.
    Limit(u64),
    /// Set the limit that there was at the start, or none: the first step did harm.
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
    /// The goal was reached, and held. With [`Goal::Auto`] that is the lowest limit at which the
    /// measurements lead to expect no harm.
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
    /// Faults per second while the limit was held; if it was not kept, over the time that decided.
    pub faults_per_second: f64,
    /// Waiting over the same time.
    pub wait_ratio: f64,
    /// Whether the limit was kept.
    pub is_kept: bool,
}

/// A step on the way to the goal is held for this long before the next one, if that one is expected
/// to show little waiting.
const HOLD_MS: u64 = 4_000;
/// Otherwise, and the goal and what is below it, for this long: there a measurement decides how to
/// go on, and pages that left come back late.
const MEASURE_HOLD_MS: u64 = 10_000;
/// It ends at a limit that was held for this long. What an earlier step took has come back by then,
/// and waiting that grows has grown: SQLite waited 0.27 % of the first 18 s at a limit, and 0.54 %
/// of the next 12.
const LAST_HOLD_MS: u64 = 30_000;
/// The transient effect of a new limit settles within this time: pages in use leave and come back.
const SETTLE_MS: u64 = 1_000;
/// Until then, waiting may be this many times what is allowed.
const SETTLE_FACTOR: f64 = 10.0;
/// What a harmful step took comes back, whatever the limit: the one that it went back to is judged
/// once the memory has grown to it, or after this time if it does not.
const REFILL_MS: u64 = 15_000;
/// Memory at its limit may be this far below it: the kernel charges and reclaims up to 64 pages at
/// once (0.4 MiB below was the most seen, with two processors).
const REFILLED_BYTES: u64 = 512 << 10;
/// The waiting expected at a step may be this share of what is allowed. Single seconds deviate by a
/// fifth: with more, several in a row soon exceed it, and the step is taken back.
const EXPECTED_SHARE: f64 = 0.92;
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
    /// The current step; `None` before the first, and when the first was taken back.
    at: Option<usize>,
    /// The lowest step that did no harm.
    harmless: Option<usize>,
    /// A step takes at most this many parts: half of what did harm last.
    stride: usize,
    /// Counters when the limit was set.
    since: Facts,
    /// When the first step may be taken, ms.
    first_at_ms: u64,
    /// Counters when the effects of the step had settled.
    settled: Option<Facts>,
    waiting: Waiting,
    surprises: u32,
    /// How often limits that had held did harm since one held.
    failures_in_row: u32,
    /// One held after that.
    has_recovered: bool,
    /// Why it ends once a limit holds.
    ending: Option<Verdict>,
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
            harmless: None,
            stride: PARTS,
            since: Facts::default(),
            first_at_ms: 0,
            settled: None,
            waiting: Waiting::default(),
            surprises: 0,
            failures_in_row: 0,
            has_recovered: false,
            ending: None,
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
        let Some(at) = self.at else {
            return match facts.is_blind || facts.now_ms < self.first_at_ms {
                true => Act::Wait,
                false => self.begin(self.towards_goal(0), facts),
            };
        };
        let (prices, wait_max) = (self.terms.prices, self.terms.wait_max);
        self.waiting.add(facts, prices, wait_max);
        if self.settled.is_none() {
            if let Some(act) = self.settle(at, facts) {
                return act;
            }
            self.waiting.forget();
        }
        if let Some(since) = self.waiting.harm(prices, wait_max) {
            return self.back(at, [since, facts], Verdict::Waiting);
        }
        // Setting the limit may have taken longer than a step is held.
        let settled = *self.settled.get_or_insert(facts);
        let held_ms = facts.now_ms.saturating_sub(settled.now_ms) + SETTLE_MS;
        let (faults, wait) = self.rates(settled, facts);
        if held_ms < self.hold_ms(at, wait) {
            return Act::Wait;
        }
        if wait > wait_max {
            return self.back(at, [settled, facts], Verdict::Waiting);
        }
        self.has_recovered |= self.failures_in_row > 0;
        self.failures_in_row = 0;
        // At a limit that is held again, what a harmful step took comes back: no news about it.
        if self.harmless != Some(at) {
            let is_surprise = faults > self.steps[at].faults_per_second.high + FAULTS_FEW;
            self.surprises = if is_surprise { self.surprises + 1 } else { 0 };
            if self.surprises > SURPRISES_MAX {
                return self.back(at, [settled, facts], Verdict::Unpredicted);
            }
            self.note(at, settled, facts, true);
            self.harmless = Some(at);
        }
        match self.following(at, wait) {
            None => self.end(at, held_ms),
            Some(_) if facts.is_blind || self.waiting.is_over() => Act::Wait,
            Some(following) => self.begin(following, facts),
        }
    }

    /// What to do until the effects of a new limit have settled; `None` once they have.
    fn settle(&mut self, at: usize, facts: Facts) -> Option<Act> {
        let held_ms = facts.now_ms.saturating_sub(self.since.now_ms);
        if self.harmless == Some(at) {
            // It went back: until the memory has grown to this limit, nothing leaves because of it.
            let full_bytes = self.steps[at].limit_bytes.saturating_sub(REFILLED_BYTES);
            let is_below = facts.usage_bytes.is_some_and(|bytes| bytes < full_bytes);
            return (is_below && held_ms < REFILL_MS).then_some(Act::Wait);
        }
        let (_, wait) = self.rates(self.since, facts);
        if held_ms >= SETTLE_MS / 2 && wait > self.terms.wait_max * SETTLE_FACTOR {
            return Some(self.back(at, [self.since, facts], Verdict::Waiting));
        }
        (held_ms < SETTLE_MS).then_some(Act::Wait)
    }

    /// Ends at this step if it has been held for long enough.
    fn end(&mut self, at: usize, held_ms: u64) -> Act {
        if held_ms < LAST_HOLD_MS {
            return Act::Wait;
        }
        self.verdict = match self.ending {
            Some(why) if at + 1 < self.to_goal => why,
            _ => Verdict::Reached,
        };
        Act::Done
    }

    /// How long a step is held, given the waiting at it so far.
    fn hold_ms(&self, at: usize, wait: f64) -> u64 {
        if at + 1 >= self.to_goal || self.ending.is_some() {
            return MEASURE_HOLD_MS;
        }
        let next = &self.steps[self.towards_goal(at + 1)];
        match self.expected_wait(at, wait, next) <= self.terms.wait_max / 2.0 {
            true => HOLD_MS,
            false => MEASURE_HOLD_MS,
        }
    }

    /// The end of a step on the way to the goal that begins with the part `first`. Steps end at
    /// multiples of their length, so that a step can be taken again as two of half its length.
    fn towards_goal(&self, first: usize) -> usize {
        let end = (first + 1).next_multiple_of(self.stride);
        end.min(self.to_goal).saturating_sub(1)
    }

    /// The following step, given the waiting at this one; `None` if there is none, or if it would
    /// miss the target: with `auto` that is to do no harm, with bytes it is their number.
    fn following(&self, at: usize, wait: f64) -> Option<usize> {
        if self.ending.is_some() {
            return None;
        }
        let last = match at + 1 < self.to_goal {
            true => self.towards_goal(at + 1),
            false => (at + self.stride).min(self.steps.len() - 1),
        };
        let Goal::Auto(_) = self.terms.goal else {
            return (last > at).then_some(last);
        };
        // Waiting grows ever faster, which a line through two measurements does not show.
        let is_calm = wait <= self.terms.wait_max / 2.0;
        let parts = if is_calm { PARTS } else { PARTS / 2 };
        let most = self.terms.wait_max * EXPECTED_SHARE;
        let is_harmless = |of: &&Planned| self.expected_wait(at, wait, of) <= most;
        let further = self.steps[at + 1..=last].iter().take(parts);
        let count = further.take_while(is_harmless).count();
        (count > 0).then_some(at + count)
    }

    /// The waiting at a lower limit if its prediction is wrong by the same factor as this step's,
    /// or more if waiting grows as it did since the step before.
    fn expected_wait(&self, at: usize, wait: f64, lower: &Planned) -> f64 {
        let this = &self.steps[at];
        let likely = this.wait_ratio.likely;
        let factor = if likely > 0.0 { wait / likely } else { 1.0 };
        let factor = factor.clamp(1.0 / FURTHER_FACTOR, FURTHER_FACTOR);
        let predicted = (lower.wait_ratio.likely - likely) * factor;
        let is_above = |of: &&Outcome| of.planned.limit_bytes > this.limit_bytes;
        let kept = self.outcomes.iter().filter(|of| of.is_kept);
        let measured = kept.rev().find(is_above).map_or(0.0, |before| {
            let step_bytes = before.planned.limit_bytes - this.limit_bytes;
            let further_bytes = this.limit_bytes.saturating_sub(lower.limit_bytes);
            (wait - before.wait_ratio) * further_bytes as f64 / step_bytes as f64
        });
        wait + predicted.max(measured)
    }

    fn begin(&mut self, at: usize, facts: Facts) -> Act {
        let Some(step) = self.steps.get(at) else {
            self.verdict = Verdict::Reached;
            return Act::Done;
        };
        if self.at.replace(at).is_none() {
            self.waiting = Waiting::new(facts);
        }
        self.since = facts;
        self.settled = None;
        Act::Limit(step.limit_bytes)
    }

    /// Takes a step back, because of what happened between two samples. Goes on with steps of half
    /// the length, or ends once a limit holds if there is none.
    fn back(&mut self, at: usize, [from, to]: [Facts; 2], why: Verdict) -> Act {
        self.note(at, from, to, false);
        // Zero if what did no harm before does now: something else has changed.
        let parts = (at + 1).saturating_sub(self.harmless.map_or(0, |harmless| harmless + 1));
        self.failures_in_row += u32::from(parts == 0);
        let (_, wait) = self.rates(from, to);
        let is_chance = wait <= self.terms.wait_max * MUCH && !self.has_recovered;
        if parts == 1 || (parts == 0 && !is_chance) || why == Verdict::Unpredicted {
            self.ending = Some(why);
        }
        self.stride = (parts / 2).max(1);
        self.at = self.harmless_above(at);
        self.harmless = self.at;
        self.settled = None;
        self.waiting.forget();
        self.since = to;
        let Some(at) = self.at else {
            self.first_at_ms = to.now_ms + HOLD_MS;
            self.verdict = self.ending.unwrap_or(self.verdict);
            return Act::Unlimit;
        };
        Act::Limit(self.steps[at].limit_bytes)
    }

    /// The lowest step above this one that did no harm. If that does harm now, one step further,
    /// and twice as far each time after that: so much waiting in a row is to end soon.
    fn harmless_above(&self, at: usize) -> Option<usize> {
        let kept = self.outcomes.iter().filter(|of| of.is_kept);
        let limits = kept.map(|of| of.planned.limit_bytes);
        let above = limits.filter(|limit| *limit > self.steps[at].limit_bytes);
        let above: Vec<u64> = above.collect();
        let skip = (1usize << self.failures_in_row.saturating_sub(1).min(16)) - 1;
        let limit = above[above.len().checked_sub(1)?.saturating_sub(skip)];
        self.steps.iter().position(|of| of.limit_bytes == limit)
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
        (faults, to.wait_ratio_since(from, self.terms.prices))
    }

    /// The current step.
    pub(super) fn held(&self) -> Option<&Planned> {
        self.steps.get(self.at?)
    }
}

#[cfg(test)]
#[path = "shrink_end_tests.rs"]
mod end_tests;
#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
