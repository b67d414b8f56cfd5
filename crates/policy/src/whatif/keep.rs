// SPDX-License-Identifier: Apache-2.0
//! Continuous shrinking: down as [`shrink`](super::shrink) goes, up again as soon as it does harm,
//! and not down again before a rest that doubles each time it did harm.
//!
//! [`Keeper`] takes the time, the counters of a cgroup and its newest curves, and answers with the
//! limit to set. Like [`Shrink`] it neither waits nor touches anything.

use super::shrink::{Act, Facts, Goal, Shrink, Steps, Terms, Verdict, plan, waited_ratio};
use super::{Bound, Curves, Estimate, Prices};

/// Between two attempts to go down.
const REST_MS: u64 = 10 * 60 * 1000;
/// The maximum rest, however often lowering did harm.
const REST_MAX_MS: u64 = 24 * 3600 * 1000;
/// A change of less than this part of a cgroup's memory is not worthwhile.
const GAIN_PART: u64 = 16;
/// When it does harm the limit is raised by this part; when it does harm again within this time,
/// the limit is removed.
const RAISE_PART: u64 = 8;
const RAISED_MS: u64 = 30 * 1000;
/// Waiting is judged over this period.
const WINDOW_MS: u64 = 2000;
/// Swap has room for this part of a cgroup's memory, or nothing is held: memory that then grew
/// beyond a limit could only be killed.
const SWAP_PART: u64 = 8;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Share of the time that waiting may take.
    pub wait_max: f64,
    /// No limit is lower.
    pub floor_bytes: u64,
}

/// The current state of the cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Charged to it.
    pub usage_bytes: u64,
    /// Charged in addition to what the curve covers.
    pub beyond_bytes: u64,
    /// Free in swap.
    pub swap_free_bytes: u64,
    /// It is not to be held lower than this, according to its own settings.
    pub floor_bytes: u64,
    /// What bringing pages back costs.
    pub prices: Prices,
}

/// Why a limit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// According to the curve it can do without.
    Curve,
    /// It waited more than is allowed.
    Waiting,
    /// There were repeatedly more faults than the curve says.
    Unpredicted,
    /// What leaves has nowhere to go.
    SwapFull,
    /// What it counts cannot be read.
    Unseen,
}

impl Why {
    /// As journals call it.
    pub fn name(self) -> &'static str {
        match self {
            Why::Curve => "curve",
            Why::Waiting => "waiting",
            Why::Unpredicted => "unpredicted",
            Why::SwapFull => "swap_full",
            Why::Unseen => "unseen",
        }
    }
}

/// A change of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The limit; `None`: none any more.
    pub limit_bytes: Option<u64>,
    /// Why.
    pub why: Why,
    /// Waiting that the curve says, where that is why.
    pub told_wait_ratio: Option<Estimate>,
}

#[derive(Clone, Debug)]
enum State {
    /// As it is: counters of the last seconds, the oldest first.
    Holding(Vec<Facts>),
    /// On the way down.
    Shrinking(Box<Shrink>),
}

/// Holds a cgroup as small as possible without harm.
#[derive(Clone, Debug)]
pub struct Keeper {
    wanted: Wanted,
    state: State,
    limit_bytes: Option<u64>,
    /// What it had when it was first limited: from there on no limit is needed.
    free_bytes: u64,
    /// The limit before the way down that is gone, or was last.
    before_bytes: Option<u64>,
    raised_ms: Option<u64>,
    rest_ms: u64,
    lower_at_ms: Option<u64>,
}

impl Keeper {
    /// Nothing done yet.
    pub fn new(wanted: Wanted) -> Self {
        Keeper {
            wanted,
            state: State::Holding(Vec::new()),
            limit_bytes: None,
            free_bytes: 0,
            before_bytes: None,
            raised_ms: None,
            rest_ms: REST_MS,
            lower_at_ms: None,
        }
    }

    /// The current limit.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// It wants to be called every half second: something is limited.
    pub fn is_busy(&self) -> bool {
        self.limit_bytes.is_some() || matches!(self.state, State::Shrinking(_))
    }

    /// What to change. `curves`: the newest, covering a long enough time.
    pub fn next(&mut self, facts: Facts, room: &Room, curves: Option<&Curves>) -> Option<Change> {
        if self.limit_bytes.is_some() && room.swap_free_bytes < room.usage_bytes / SWAP_PART {
            self.rest(facts.now_ms);
            return Some(self.set(None, Why::SwapFull));
        }
        match &mut self.state {
            State::Shrinking(shrink) => {
                let act = shrink.next(facts);
                let verdict = shrink.verdict();
                let told = shrink.held().map(|step| step.wait_ratio);
                self.carry_on(act, verdict, told, facts)
            }
            State::Holding(window) => {
                let is_waiting = waits(window, facts, room.prices, self.wanted.wait_max);
                match self.limit_bytes.filter(|_| is_waiting) {
                    Some(limit_bytes) => Some(self.raise(limit_bytes, facts)),
                    None => self.lower(facts, room, curves?),
                }
            }
        }
    }

    /// In place of [`next`](Self::next) where its counters cannot be read: harm done by a limit
    /// would go unnoticed.
    pub fn lose_sight(&mut self, now_ms: u64) -> Option<Change> {
        self.limit_bytes?;
        self.rest(now_ms);
        Some(self.set(None, Why::Unseen))
    }

    /// The last action failed, and nothing is limited: nothing is tried before a rest.
    pub fn fail(&mut self, now_ms: u64) {
        self.rest(now_ms);
        self.limit_bytes = None;
        self.state = State::Holding(Vec::new());
    }

    /// What a rehearsal would do; it is asked again after a rest.
    pub fn rehearse(&mut self, now_ms: u64, room: &Room, curves: &Curves) -> Option<Change> {
        let (steps, _) = self.steps(now_ms, room, curves)?;
        self.lower_at_ms = Some(now_ms + self.rest_ms);
        let last = steps.to_goal.last()?;
        Some(Change {
            limit_bytes: Some(last.limit_bytes),
            why: Why::Curve,
            told_wait_ratio: Some(last.wait_ratio),
        })
    }

    fn carry_on(
        &mut self,
        act: Act,
        verdict: Verdict,
        told: Option<Estimate>,
        facts: Facts,
    ) -> Option<Change> {
        let why = match verdict {
            Verdict::Underway => Why::Curve,
            Verdict::Reached => {
                self.state = State::Holding(vec![facts]);
                self.rest_ms = REST_MS;
                self.lower_at_ms = Some(facts.now_ms + self.rest_ms);
                Why::Curve
            }
            Verdict::Waiting => Why::Waiting,
            Verdict::Unpredicted => Why::Unpredicted,
        };
        if why != Why::Curve {
            self.state = State::Holding(vec![facts]);
            self.raised_ms = Some(facts.now_ms);
            self.rest(facts.now_ms);
        }
        match act {
            Act::Limit(bytes) => Some(Change {
                told_wait_ratio: told.filter(|_| why == Why::Curve),
                ..self.set(Some(bytes), why)
            }),
            // Not even the first step was well.
            Act::Unlimit => Some(self.set(self.before_bytes, why)),
            Act::Wait | Act::Done => None,
        }
    }

    fn raise(&mut self, limit_bytes: u64, facts: Facts) -> Change {
        self.state = State::Holding(vec![facts]);
        self.rest(facts.now_ms);
        let raised_ms = self.raised_ms.replace(facts.now_ms);
        let is_again = raised_ms.is_some_and(|at_ms| facts.now_ms < at_ms + RAISED_MS);
        let higher = limit_bytes.saturating_add(limit_bytes / RAISE_PART);
        let is_limit = !is_again && higher < self.free_bytes;
        self.set(is_limit.then_some(higher), Why::Waiting)
    }

    fn lower(&mut self, facts: Facts, room: &Room, curves: &Curves) -> Option<Change> {
        let (steps, terms) = self.steps(facts.now_ms, room, curves)?;
        self.free_bytes = self.free_bytes.max(room.usage_bytes);
        self.before_bytes = self.limit_bytes;
        let mut shrink = Shrink::new(steps, terms);
        let act = shrink.next(facts);
        let told = shrink.held().map(|step| step.wait_ratio);
        self.state = State::Shrinking(Box::new(shrink));
        self.carry_on(act, Verdict::Underway, told, facts)
    }

    /// The way down, if it is time to go and worthwhile.
    fn steps(&mut self, now_ms: u64, room: &Room, curves: &Curves) -> Option<(Steps, Terms)> {
        if self.lower_at_ms.is_some_and(|at_ms| now_ms < at_ms) {
            return None;
        }
        let terms = Terms {
            goal: Goal::Auto(Bound::High),
            wait_max: self.wanted.wait_max,
            prices: room.prices,
            beyond_bytes: room.beyond_bytes,
            usage_bytes: room.usage_bytes,
        };
        let floor_bytes = self.wanted.floor_bytes.max(room.floor_bytes);
        let mut steps = plan(curves, &terms).unwrap_or_default();
        steps.to_goal.retain(|step| step.limit_bytes >= floor_bytes);
        let gain = |limit_bytes: u64| room.usage_bytes.saturating_sub(limit_bytes);
        let is_worth = steps.to_goal.last().is_some_and(|last| {
            let leaves = gain(last.limit_bytes);
            let spare_bytes = room.usage_bytes / SWAP_PART;
            leaves >= room.usage_bytes / GAIN_PART
                && leaves.saturating_add(spare_bytes) <= room.swap_free_bytes
        });
        if !is_worth {
            self.lower_at_ms = Some(now_ms + REST_MS);
            return None;
        }
        Some((steps, terms))
    }

    /// It did harm: the next attempt comes later than the previous one.
    fn rest(&mut self, now_ms: u64) {
        self.lower_at_ms = Some(now_ms + self.rest_ms);
        self.rest_ms = (self.rest_ms * 2).min(REST_MAX_MS);
    }

    fn set(&mut self, limit_bytes: Option<u64>, why: Why) -> Change {
        self.limit_bytes = limit_bytes;
        if limit_bytes.is_none() {
            self.state = State::Holding(Vec::new());
            self.free_bytes = 0;
        }
        Change {
            limit_bytes,
            why,
            told_wait_ratio: None,
        }
    }
}

/// Whether waiting exceeded the allowance over the window, including these facts.
fn waits(window: &mut Vec<Facts>, facts: Facts, prices: Prices, wait_max: f64) -> bool {
    window.push(facts);
    let keep_ms = facts.now_ms.saturating_sub(WINDOW_MS);
    let before = window.iter().take_while(|of| of.now_ms <= keep_ms).count();
    window.drain(..before.saturating_sub(1));
    let first = window[0];
    facts.now_ms >= first.now_ms + WINDOW_MS && waited_ratio(first, facts, prices) > wait_max
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
