// SPDX-License-Identifier: Apache-2.0
//! Takes memory from a cgroup: as far as the curve allows, in steps, each compared with the
//! prediction, and back at once if it does harm.
//!
//! [`plan`](super::plan) uses the curve. [`Shrink`] takes the time and the counters of the cgroup
//! and returns the next action. It neither waits nor touches anything, so the same code runs for a
//! real cgroup and for a simulated one. The cost of a page is only known to a factor of about two,
//! and the waiting at a step reveals that factor: so it continues below the likely goal as long as
//! the measurements predict that the next step does no harm either.
//!
//! A step that does harm has not shown that the limit is too low: the kernel also takes pages that
//! are in use, all at once, and these come back over some seconds. So it is taken back, and shorter
//! ones follow; if even the shortest does harm, the limit is too low. It ends once a limit that it
//! went back to holds: one that held before may not any more.

use super::Prices;
use super::plan::{PARTS, Planned, Steps, Terms};

/// Counters of the cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The time, ms.
    pub now_ms: u64,
    /// Pages that have come back so far, from swap and from files.
    pub faults: [u64; 2],
    /// Time for which some task of the cgroup has waited for memory so far, us; `None` if the
    /// kernel does not report it. It is then computed from faults and prices: the kernel's count of
    /// the machine is no bound, but a mean over the processors, on which others may wait less.
    pub waited_us: Option<u64>,
    /// Accessed bits were cleared recently, and will then be left alone for so long that it is
    /// better to wait: the kernel cannot see what is in use, and would take pages that are.
    pub is_blind: bool,
}

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
    /// Faults per second while the limit was held; if it was not kept, over the time that decided.
    pub faults_per_second: f64,
    /// Waiting over the same time.
    pub wait_ratio: f64,
    /// Whether the limit was kept.
    pub is_kept: bool,
}

/// A step on the way to the goal is held for this long before the next one.
const HOLD_MS: u64 = 4_000;
/// The goal and what is below it are held for this long: there a measurement decides how to go on,
/// and pages that left come back late.
const MEASURE_HOLD_MS: u64 = 10_000;
/// The transient effect of a new limit settles within this time: pages in use leave and come back.
const SETTLE_MS: u64 = 1_000;
/// Until then, waiting may be this many times what is allowed.
const SETTLE_FACTOR: f64 = 10.0;
/// Waiting is judged over this period.
pub(super) const WINDOW_MS: u64 = 2_000;
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
    /// When the limit was set, or before the first step, when one may be taken.
    since_ms: u64,
    /// Counters when the effects of the step had settled.
    settled: Option<Facts>,
    /// Counters of the last seconds, oldest first.
    window: Vec<Facts>,
    surprises: u32,
    /// How it ends once a limit holds that it went back to, and how often one that did no harm
    /// before has done some.
    ending: Option<(Verdict, u32)>,
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
            since_ms: 0,
            settled: None,
            window: Vec::new(),
            surprises: 0,
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
            return match facts.is_blind || facts.now_ms < self.since_ms {
                true => Act::Wait,
                false => self.begin(self.towards_goal(0), facts),
            };
        };
        let held_ms = facts.now_ms.saturating_sub(self.since_ms);
        let first = self.window[0];
        if self.settled.is_none() {
            let (_, wait) = self.rates(first, facts);
            if held_ms >= SETTLE_MS / 2 && wait > self.terms.wait_max * SETTLE_FACTOR {
                return self.back(at, [first, facts], Verdict::Waiting);
            }
            if held_ms < SETTLE_MS {
                return Act::Wait;
            }
            self.window.clear();
        }
        let first = first_of_window(&mut self.window, facts);
        if waits_too_long(first, facts, self.terms.prices, self.terms.wait_max) {
            return self.back(at, [first, facts], Verdict::Waiting);
        }
        // Setting the limit may have taken longer than a step is held.
        let settled = *self.settled.get_or_insert(facts);
        if facts.now_ms.saturating_sub(settled.now_ms) < self.hold_ms(at) - SETTLE_MS {
            return Act::Wait;
        }
        if let Some((verdict, _)) = self.ending {
            self.verdict = verdict;
            return Act::Done;
        }
        let (faults, wait) = self.rates(settled, facts);
        let following = self.following(at, wait);
        if facts.is_blind && following.is_some() {
            return Act::Wait;
        }
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
        let Some(following) = following else {
            self.verdict = Verdict::Reached;
            return Act::Done;
        };
        self.begin(following, facts)
    }

    fn hold_ms(&self, at: usize) -> u64 {
        match at + 1 < self.to_goal && self.ending.is_none() {
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

    /// The following step, given the waiting at this one. Below the goal: the lowest limit within a
    /// step that is harmless when its prediction is wrong by the same factor.
    fn following(&self, at: usize, wait: f64) -> Option<usize> {
        if at + 1 < self.to_goal {
            return Some(self.towards_goal(at + 1));
        }
        let likely = self.steps[at].wait_ratio.likely;
        let is_harmless = |of: &&Planned| {
            let expected = of.wait_ratio.likely * wait / likely;
            likely > 0.0 && expected <= self.terms.wait_max
        };
        let further = self.steps[at + 1..].iter().take(self.stride);
        let count = further.take_while(is_harmless).count();
        (count > 0).then_some(at + count)
    }

    fn begin(&mut self, at: usize, facts: Facts) -> Act {
        let Some(step) = self.steps.get(at) else {
            self.verdict = Verdict::Reached;
            return Act::Done;
        };
        self.at = Some(at);
        self.since_ms = facts.now_ms;
        self.settled = None;
        self.window = vec![facts];
        Act::Limit(step.limit_bytes)
    }

    /// Takes a step back, because of what happened between two samples. Goes on with steps of half
    /// the length; if there is none, it ends when a limit holds. Below the goal that counts as
    /// reaching it.
    fn back(&mut self, at: usize, [from, to]: [Facts; 2], why: Verdict) -> Act {
        self.note(at, from, to, false);
        // Zero if what did no harm before does now: something else has changed.
        let parts = (at + 1).saturating_sub(self.harmless.map_or(0, |harmless| harmless + 1));
        self.ending = match self.ending {
            Some((_, times)) => Some((why, times + 1)),
            None if parts <= 1 || why == Verdict::Unpredicted => {
                let is_below = at >= self.to_goal && parts > 0;
                let verdict = if is_below { Verdict::Reached } else { why };
                Some((verdict, u32::from(parts == 0)))
            }
            None => None,
        };
        self.stride = (parts / 2).max(1);
        self.at = self.harmless_above(at);
        self.harmless = self.at;
        // What a harmful step took comes back. What did no harm before took nothing just now.
        self.settled = self.ending.filter(|_| parts == 0).map(|_| to);
        self.window = vec![to];
        self.since_ms = to.now_ms;
        let Some(at) = self.at else {
            self.since_ms += HOLD_MS;
            self.verdict = self.ending.map_or(self.verdict, |(verdict, _)| verdict);
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
        let times = self.ending.map_or(0, |(_, times)| times);
        let skip = (1usize << times.saturating_sub(1).min(16)) - 1;
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
        (faults, waited_ratio(from, to, self.terms.prices))
    }

    /// The current step.
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

/// Adds a sample to the window, and removes those that are too old. Returns the first that remains.
pub(super) fn first_of_window(window: &mut Vec<Facts>, facts: Facts) -> Facts {
    window.push(facts);
    let keep_ms = facts.now_ms.saturating_sub(WINDOW_MS);
    let before = window.iter().take_while(|of| of.now_ms <= keep_ms).count();
    window.drain(..before.saturating_sub(1));
    window[0]
}

/// Whether tasks waited for more than this share of a whole window between two samples. It may not
/// have passed yet: what is enough for all of it is too much for a part.
pub(super) fn waits_too_long(from: Facts, to: Facts, prices: Prices, wait_max: f64) -> bool {
    let window_ms = to.ms_since(from).max(WINDOW_MS as f64);
    waited_ms(from, to, prices) > wait_max * window_ms
}

/// The share of the time that tasks waited between two samples.
fn waited_ratio(from: Facts, to: Facts, prices: Prices) -> f64 {
    waited_ms(from, to, prices) / to.ms_since(from)
}

/// How long tasks waited between two samples: the kernel's own count, or faults times prices.
fn waited_ms(from: Facts, to: Facts, prices: Prices) -> f64 {
    let counted = to.waited_us.zip(from.waited_us);
    match counted {
        Some((to_us, from_us)) => to_us.saturating_sub(from_us) as f64 / 1e3,
        None => {
            let [anon, file] = to.faults_since(from);
            (anon * prices.anon_ns.likely + file * prices.file_ns.likely) / 1e6
        }
    }
}

#[cfg(test)]
#[path = "shrink_tests.rs"]
mod tests;
