// SPDX-License-Identifier: Apache-2.0
//! Goals that steer a quota, and the feedback loop behind them (`struct damos_quota_goal`,
//! `damon_feed_loop_next_input`).

use super::region::BP;
use super::space::Space;

/// The metric of a goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalMetric {
    /// A number supplied from outside.
    UserInput,
    /// Time stalled on memory since the window began, in us (PSI some).
    SomeMemPsi,
    /// Active LRU pages in 1/10000.
    ActiveMem,
    /// Inactive LRU pages in 1/10000.
    InactiveMem,
}

/// A state the quota is steered towards (`struct damos_quota_goal`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// The metric.
    pub metric: GoalMetric,
    /// The wanted value; not 0.
    pub target: u64,
    /// The last value seen.
    pub current: u64,
    /// Value of a cumulative metric when the window began.
    baseline: u64,
}

impl Goal {
    /// A goal without a measured value.
    #[must_use]
    pub fn new(metric: GoalMetric, target: u64) -> Goal {
        Goal {
            metric,
            target,
            current: 0,
            baseline: 0,
        }
    }

    /// Reads the metric at the end of a window.
    pub(super) fn read(&mut self, space: &impl Space) {
        match self.metric {
            GoalMetric::UserInput => {}
            GoalMetric::ActiveMem => self.current = space.active_mem_bp(),
            GoalMetric::InactiveMem => self.current = BP.saturating_sub(space.active_mem_bp()),
            GoalMetric::SomeMemPsi => {
                let total_us = space.mem_psi_us();
                self.current = total_us.saturating_sub(self.baseline);
                self.baseline = total_us;
            }
        }
    }

    /// The score; 10000 if the goal is met exactly.
    #[must_use]
    pub fn score(&self) -> u64 {
        let score = u128::from(self.current) * u128::from(BP) / u128::from(self.target.max(1));
        u64::try_from(score).unwrap_or(u64::MAX)
    }
}

/// The kernel's feedback loop (`damon_feed_loop_next_input`): computes the next input from the last
/// one and its score, where 10000 is the goal.
#[must_use]
pub fn feed(last: u64, score: u64) -> u64 {
    const GOAL: u64 = BP;
    if score == GOAL {
        return last;
    }
    if score >= 2 * GOAL {
        return GOAL;
    }
    let change = u128::from(last) * u128::from(GOAL.abs_diff(score)) / u128::from(GOAL);
    let change = u64::try_from(change).unwrap_or(u64::MAX);
    if score > GOAL {
        last.saturating_sub(change).max(GOAL)
    } else {
        last.saturating_add(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feedback_loop_matches_hand_worked_steps() {
        assert_eq!(feed(40_000, 10_000), 40_000, "on the goal: no change");
        assert_eq!(feed(40_000, 5_000), 60_000, "half way: half as much again");
        assert_eq!(
            feed(40_000, 12_500),
            30_000,
            "a quarter over: a quarter less"
        );
        assert_eq!(
            feed(40_000, 20_000),
            10_000,
            "twice over: back to the least"
        );
        assert_eq!(feed(11_000, 15_000), 10_000, "never under the least");
        assert_eq!(feed(u64::MAX, 0), u64::MAX, "saturates");
    }
}
