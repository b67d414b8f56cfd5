// SPDX-License-Identifier: Apache-2.0
//! Continuous shrinking: lowers a limit as [`shrink`](super::shrink) does, raises it as soon as it
//! does harm, and lowers it again only after a rest, which doubles each time it did harm.
//!
//! [`Keeper`] takes the time, the counters of a cgroup and its newest curves, and returns the limit
//! to set. Like [`Shrink`] it neither waits nor touches anything.

use super::plan::{Goal, Steps, Terms, plan};
use super::shrink::{Act, Shrink, Verdict};
use super::waiting::{Facts, Waiting};
use super::{Bound, Curves, Estimate, Prices};

/// The rest between two attempts to lower the limit.
const REST_MS: u64 = 10 * 60 * 1000;
/// The maximum rest, however often lowering did harm.
const REST_MAX_MS: u64 = 24 * 3600 * 1000;
/// A change of less than this part of a cgroup's memory is not worthwhile.
const GAIN_PART: u64 = 16;
/// If a limit does harm, it is raised by this part; if it does harm again within this time, it is
/// removed.
const RAISE_PART: u64 = 8;
const RAISED_MS: u64 = 30 * 1000;
/// The most memory that a step takes: who sets the limits does nothing else while it leaves.
pub const STEP_BYTES_MAX: u64 = 256 << 20;
/// If swap has less room than this part of the cgroup's memory, there is no limit: the only way to
/// keep growing memory below it would be to kill.
const SWAP_PART: u64 = 8;

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Share of the time that waiting may take.
    pub wait_max: f64,
    /// The lowest allowed limit.
    pub floor_bytes: u64,
}

/// The current state of the cgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Room {
    /// Memory charged to it.
    pub usage_bytes: u64,
    /// Memory charged in addition to what the curve covers.
    pub beyond_bytes: u64,
    /// Free swap.
    pub swap_free_bytes: u64,
    /// The lowest limit that its own settings allow.
    pub floor_bytes: u64,
    /// The cost of bringing pages back.
    pub prices: Prices,
}

/// Why a limit changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// According to the curve, it can do with less.
    Curve,
    /// It waited more than is allowed.
    Waiting,
    /// There were repeatedly more faults than the curve predicts.
    Unpredicted,
    /// Pages that leave have nowhere to go.
    SwapFull,
    /// Its counters cannot be read.
    Unseen,
}

impl Why {
    /// Its name in journals.
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

/// Why a limit is not lowered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Its curve has not been counted for long enough.
    NoCurve,
    /// Lowering did harm, or failed, not long ago.
    CoolingDown,
    /// With less memory it would wait more than is allowed, or that is not certain.
    Needed,
    /// A limit must not be below the floor.
    AtFloor,
    /// What could leave is not worth a limit.
    SmallGain,
    /// Swap has no room for what would leave.
    SwapFull,
}

impl Idle {
    /// Its name in journals.
    pub fn name(self) -> &'static str {
        match self {
            Idle::NoCurve => "no_curve",
            Idle::CoolingDown => "cooling_down",
            Idle::Needed => "needed",
            Idle::AtFloor => "at_floor",
            Idle::SmallGain => "small_gain",
            Idle::SwapFull => "swap_full",
        }
    }
}

/// A change of the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The new limit; `None` removes it.
    pub limit_bytes: Option<u64>,
    /// Why.
    pub why: Why,
    /// The waiting that the curve predicts, if that is the reason.
    pub predicted_wait_ratio: Option<Estimate>,
}

#[derive(Clone, Debug)]
enum State {
    /// The limit stays.
    Holding(Waiting),
    /// The limit is being lowered.
    Shrinking(Box<Shrink>),
}

/// Holds a cgroup as small as possible without harm.
#[derive(Clone, Debug)]
pub struct Keeper {
    wanted: Wanted,
    state: State,
    limit_bytes: Option<u64>,
    /// The most memory that it had at the start of an attempt: a limit this large is not needed.
    unlimited_bytes: u64,
    /// The most memory beyond the curve since then. If the limit took some of that, it is no reason
    /// to take more.
    beyond_bytes: u64,
    /// The limit before the current or last attempt to lower it.
    before_bytes: Option<u64>,
    raised_ms: Option<u64>,
    rest_ms: u64,
    lower_at_ms: Option<u64>,
    idle: Option<Idle>,
}

impl Keeper {
    /// A keeper that has done nothing yet.
    pub fn new(wanted: Wanted) -> Self {
        Keeper {
            wanted,
            state: State::Holding(Waiting::default()),
            limit_bytes: None,
            unlimited_bytes: 0,
            beyond_bytes: 0,
            before_bytes: None,
            raised_ms: None,
            rest_ms: REST_MS,
            lower_at_ms: None,
            idle: None,
        }
    }

    /// The current limit.
    pub fn limit_bytes(&self) -> Option<u64> {
        self.limit_bytes
    }

    /// Why the limit is not lowered; `None` while it is, and after it was.
    pub fn idle(&self) -> Option<Idle> {
        self.idle
    }

    /// Whether something is limited, so that it must be called every half second.
    pub fn is_busy(&self) -> bool {
        self.limit_bytes.is_some() || matches!(self.state, State::Shrinking(_))
    }

    /// What to change. `curves` are the newest ones, which must cover a long enough time.
    pub fn next(&mut self, facts: Facts, room: &Room, curves: Option<&Curves>) -> Option<Change> {
        if self.limit_bytes.is_some() && room.swap_free_bytes < room.usage_bytes / SWAP_PART {
            self.rest(facts.now_ms);
            return Some(self.set(None, Why::SwapFull));
        }
        match &mut self.state {
            State::Shrinking(shrink) => {
                let act = shrink.next(facts);
                let verdict = shrink.verdict();
                let predicted = shrink.held().map(|step| step.wait_ratio);
                self.carry_on(act, verdict, predicted, facts)
            }
            State::Holding(waiting) => {
                waiting.add(facts, room.prices, self.wanted.wait_max);
                let harm = waiting.harm(room.prices, self.wanted.wait_max);
                match self.limit_bytes.filter(|_| harm.is_some()) {
                    Some(limit_bytes) => Some(self.raise(limit_bytes, facts)),
                    None => self.lower(facts, room, curves),
                }
            }
        }
    }

    /// To be called instead of [`next`](Self::next) if the counters cannot be read: harm done by a
    /// limit would go unnoticed.
    pub fn lose_sight(&mut self, now_ms: u64) -> Option<Change> {
        self.limit_bytes?;
        self.rest(now_ms);
        Some(self.set(None, Why::Unseen))
    }

    /// Records that the last action failed and nothing is limited: nothing is tried before a rest.
    pub fn fail(&mut self, now_ms: u64) {
        self.rest(now_ms);
        self.limit_bytes = None;
        self.state = State::Holding(Waiting::default());
    }

    /// What a rehearsal would do; the next answer comes after a rest.
    pub fn rehearse(
        &mut self,
        now_ms: u64,
        room: &Room,
        curves: Option<&Curves>,
    ) -> Option<Change> {
        let (steps, _) = self.steps(now_ms, room, curves)?;
        self.lower_at_ms = Some(now_ms + self.rest_ms);
        let last = steps.to_goal.last()?;
        Some(Change {
            limit_bytes: Some(last.limit_bytes),
            why: Why::Curve,
            predicted_wait_ratio: Some(last.wait_ratio),
        })
    }

    fn carry_on(
        &mut self,
        act: Act,
        verdict: Verdict,
        predicted: Option<Estimate>,
        facts: Facts,
    ) -> Option<Change> {
        let is_back = match act {
            Act::Limit(bytes) => self.limit_bytes.is_some_and(|limit| bytes > limit),
            Act::Unlimit => true,
            Act::Wait | Act::Done => false,
        };
        let why = match verdict {
            Verdict::Underway if is_back => Why::Waiting,
            Verdict::Underway => Why::Curve,
            Verdict::Reached => {
                self.state = State::Holding(Waiting::new(facts));
                self.rest_ms = REST_MS;
                self.lower_at_ms = Some(facts.now_ms + self.rest_ms);
                Why::Curve
            }
            Verdict::Waiting => Why::Waiting,
            Verdict::Unpredicted => Why::Unpredicted,
        };
        if !matches!(verdict, Verdict::Underway | Verdict::Reached) {
            self.state = State::Holding(Waiting::new(facts));
            self.raised_ms = Some(facts.now_ms);
            self.rest(facts.now_ms);
        }
        match act {
            Act::Limit(bytes) => Some(Change {
                predicted_wait_ratio: predicted.filter(|_| why == Why::Curve),
                ..self.set(Some(bytes), why)
            }),
            // The first step did harm.
            Act::Unlimit if verdict == Verdict::Underway => {
                Some(self.change(self.before_bytes, why))
            }
            Act::Unlimit => Some(self.set(self.before_bytes, why)),
            Act::Wait | Act::Done => None,
        }
    }

    fn raise(&mut self, limit_bytes: u64, facts: Facts) -> Change {
        self.state = State::Holding(Waiting::new(facts));
        self.rest(facts.now_ms);
        let raised_ms = self.raised_ms.replace(facts.now_ms);
        let is_again = raised_ms.is_some_and(|at_ms| facts.now_ms < at_ms + RAISED_MS);
        let higher = limit_bytes.saturating_add(limit_bytes / RAISE_PART);
        let is_limit = !is_again && higher < self.unlimited_bytes;
        self.set(is_limit.then_some(higher), Why::Waiting)
    }

    fn lower(&mut self, facts: Facts, room: &Room, curves: Option<&Curves>) -> Option<Change> {
        let (steps, terms) = self.steps(facts.now_ms, room, curves)?;
        self.unlimited_bytes = self.unlimited_bytes.max(room.usage_bytes);
        self.before_bytes = self.limit_bytes;
        let mut shrink = Shrink::new(steps, terms);
        let act = shrink.next(facts);
        let predicted = shrink.held().map(|step| step.wait_ratio);
        self.state = State::Shrinking(Box::new(shrink));
        self.carry_on(act, Verdict::Underway, predicted, facts)
    }

    /// The steps to lower the limit, if it is time and worthwhile.
    fn steps(
        &mut self,
        now_ms: u64,
        room: &Room,
        curves: Option<&Curves>,
    ) -> Option<(Steps, Terms)> {
        if self.lower_at_ms.is_some_and(|at_ms| now_ms < at_ms) {
            return None;
        }
        let Some(curves) = curves else {
            self.idle = Some(Idle::NoCurve);
            return None;
        };
        let most_bytes = self.limit_bytes.map_or(0, |_| self.beyond_bytes);
        self.beyond_bytes = most_bytes.max(room.beyond_bytes);
        let terms = Terms {
            goal: Goal::Auto(Bound::High),
            wait_max: self.wanted.wait_max,
            prices: room.prices,
            beyond_bytes: self.beyond_bytes,
            usage_bytes: room.usage_bytes,
            step_bytes_max: STEP_BYTES_MAX,
        };
        let floor_bytes = self.wanted.floor_bytes.max(room.floor_bytes);
        let mut steps = plan(curves, &terms).unwrap_or_default();
        let is_needed = steps.to_goal.is_empty();
        steps.to_goal.retain(|step| step.limit_bytes >= floor_bytes);
        let last = steps.to_goal.last();
        let leaves = last.map(|last| room.usage_bytes.saturating_sub(last.limit_bytes));
        let spare_bytes = room.usage_bytes / SWAP_PART;
        self.idle = match leaves {
            None if is_needed => Some(Idle::Needed),
            None => Some(Idle::AtFloor),
            Some(leaves) if leaves < room.usage_bytes / GAIN_PART => Some(Idle::SmallGain),
            Some(leaves) if leaves.saturating_add(spare_bytes) > room.swap_free_bytes => {
                Some(Idle::SwapFull)
            }
            Some(_) => None,
        };
        if self.idle.is_some() {
            self.lower_at_ms = Some(now_ms + REST_MS);
            return None;
        }
        Some((steps, terms))
    }

    /// Records harm: the next attempt comes later than the one before.
    fn rest(&mut self, now_ms: u64) {
        self.idle = Some(Idle::CoolingDown);
        self.lower_at_ms = Some(now_ms + self.rest_ms);
        self.rest_ms = (self.rest_ms * 2).min(REST_MAX_MS);
    }

    fn set(&mut self, limit_bytes: Option<u64>, why: Why) -> Change {
        if limit_bytes.is_none() {
            self.state = State::Holding(Waiting::default());
            self.unlimited_bytes = 0;
        }
        self.change(limit_bytes, why)
    }

    fn change(&mut self, limit_bytes: Option<u64>, why: Why) -> Change {
        self.limit_bytes = limit_bytes;
        Change {
            limit_bytes,
            why,
            predicted_wait_ratio: None,
        }
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
