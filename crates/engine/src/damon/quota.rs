// SPDX-License-Identifier: Apache-2.0
//! How much a scheme may do, and which regions come first when that is not enough
//! (mm/damon/core.c: `damos_adjust_quota`, `damos_set_effective_quota`; mm/damon/ops-common.c).

use super::attrs::MIN_REGION_BYTES;
use super::region::{BP, Region};
use super::scheme::Wanted;
use super::space::{Space, TargetId};

/// Highest score; scores are 0..=99.
pub const MAX_SCORE: u32 = 99;

/// Age is scored by the bit length of its seconds, up to this many bits.
const MAX_AGE_BITS: u32 = 32;

/// Throughput assumed while nothing has been measured: 4 MiB a ms (`PAGE_SIZE * 1024`).
const ASSUMED_BYTES_PER_MS: u64 = 4096 * 1024;

/// What a goal measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoalMetric {
    /// A number somebody feeds in.
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
    /// What is measured.
    pub metric: GoalMetric,
    /// The wanted value; not 0.
    pub target: u64,
    /// The last value seen.
    pub current: u64,
    /// Reading of an ever-growing metric when the window began.
    baseline: u64,
}

impl Goal {
    /// A goal nothing has been measured for.
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
    fn read(&mut self, space: &impl Space) {
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

    /// 10000 when the goal is met exactly.
    #[must_use]
    pub fn score(&self) -> u64 {
        let score = u128::from(self.current) * u128::from(BP) / u128::from(self.target.max(1));
        u64::try_from(score).unwrap_or(u64::MAX)
    }
}

/// Weights of a region's properties in its score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Of the size (not used by the scores of either kernel).
    pub size: u32,
    /// Of the access rate.
    pub nr_accesses: u32,
    /// Of the age.
    pub age: u32,
}

/// Limits of a scheme.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Time a window, in ms; 0 means no limit on time.
    pub ms: u64,
    /// Bytes a window; 0 means no limit on bytes.
    pub bytes: u64,
    /// Length of a window, in ms.
    pub reset_interval_ms: u64,
    /// Goals that steer the bytes a window.
    pub goals: Vec<Goal>,
    /// What makes a region come first.
    pub weights: Weights,
}

/// Limits of a scheme and what it used of them (`struct damos_quota`).
#[derive(Clone, Debug, Default)]
pub struct Quota {
    /// The limits; may be changed while running, and take effect in the next window.
    pub limits: Limits,
    /// Bytes it may charge in this window; 0 means no limit.
    effective_bytes: u64,
    /// The fed-back part of it, in 1/10000 byte.
    goal_bp: u64,
    charged_bytes: u64,
    window_start_us: Option<u64>,
    total_charged_bytes: u64,
    total_charged_ns: u64,
    /// Where the last full window stopped; the next one goes on there.
    pub(super) resume: Option<(TargetId, u64)>,
    /// Regions below this score are left for another window.
    min_score: u32,
}

impl Quota {
    /// No limit of any kind.
    #[must_use]
    pub fn unlimited() -> Quota {
        Quota::default()
    }

    /// A quota nothing has been charged to.
    #[must_use]
    pub fn new(limits: Limits) -> Quota {
        Quota {
            limits,
            ..Quota::default()
        }
    }

    /// Whether any limit is set.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.limits.ms != 0 || self.limits.bytes != 0 || !self.limits.goals.is_empty()
    }

    /// Bytes it may charge in this window; 0 means no limit.
    #[must_use]
    pub fn effective_bytes(&self) -> u64 {
        self.effective_bytes
    }

    /// Bytes charged in this window.
    #[must_use]
    pub fn charged_bytes(&self) -> u64 {
        self.charged_bytes
    }

    /// Lowest score that is served in this window.
    #[must_use]
    pub fn min_score(&self) -> u32 {
        self.min_score
    }

    /// Whether something may still be charged. `exact` is the rule of 7.2, which asks for room for a
    /// whole smallest region; 6.12 lets any remainder through.
    #[must_use]
    pub(super) fn has_room(&self, exact: bool) -> bool {
        if exact {
            !self.is_set()
                || self.effective_bytes.saturating_sub(self.charged_bytes) >= MIN_REGION_BYTES
        } else {
            self.effective_bytes == 0 || self.charged_bytes < self.effective_bytes
        }
    }

    /// Bytes of a region that still fit, aligned down to whole smallest regions.
    pub(super) fn room_for(&self, bytes: u64) -> u64 {
        if self.effective_bytes == 0 {
            return bytes;
        }
        let room = self.effective_bytes.saturating_sub(self.charged_bytes);
        if bytes <= room {
            bytes
        } else {
            room & !(MIN_REGION_BYTES - 1)
        }
    }

    /// Books what was done. Returns true when the window is full now.
    pub(super) fn charge(&mut self, bytes: u64, cost_ns: u64) -> bool {
        self.total_charged_ns = self.total_charged_ns.saturating_add(cost_ns);
        if !self.is_set() {
            return false;
        }
        self.charged_bytes = self.charged_bytes.saturating_add(bytes);
        self.effective_bytes != 0 && self.charged_bytes >= self.effective_bytes
    }

    /// Starts the first or a new window when it is time. Returns true when a window ended full.
    /// `limit_first` is the rule of 7.2; 6.12 has no limit at all in its first window.
    pub(super) fn renew(&mut self, space: &impl Space, limit_first: bool) -> bool {
        if !self.is_set() {
            return false;
        }
        let now_us = space.now_us();
        let Some(start_us) = self.window_start_us else {
            self.window_start_us = Some(now_us);
            self.limits
                .goals
                .iter_mut()
                .for_each(|goal| goal.read(space));
            if limit_first {
                self.set_effective_bytes();
            }
            return false;
        };
        if now_us.saturating_sub(start_us) < self.limits.reset_interval_ms.saturating_mul(1000) {
            return false;
        }
        let full = self.effective_bytes != 0 && self.charged_bytes >= self.effective_bytes;
        self.total_charged_bytes = self.total_charged_bytes.saturating_add(self.charged_bytes);
        self.window_start_us = Some(now_us);
        self.charged_bytes = 0;
        self.limits
            .goals
            .iter_mut()
            .for_each(|goal| goal.read(space));
        self.set_effective_bytes();
        full
    }

    fn set_effective_bytes(&mut self) {
        if self.limits.ms == 0 && self.limits.goals.is_empty() {
            self.effective_bytes = self.limits.bytes;
            return;
        }
        let mut effective = u64::MAX;
        if let Some(score) = self.limits.goals.iter().map(Goal::score).max() {
            self.goal_bp = feed(self.goal_bp.max(BP), score);
            effective = self.goal_bp / BP;
        }
        if self.limits.ms != 0 {
            let bytes = u128::from(self.bytes_per_ms()) * u128::from(self.limits.ms);
            let bytes = u64::try_from(bytes)
                .unwrap_or(u64::MAX)
                .max(MIN_REGION_BYTES);
            effective = effective.min(bytes);
        }
        if self.limits.bytes != 0 {
            effective = effective.min(self.limits.bytes);
        }
        self.effective_bytes = effective;
    }

    fn bytes_per_ms(&self) -> u64 {
        if self.total_charged_ns == 0 {
            return ASSUMED_BYTES_PER_MS;
        }
        let rate =
            u128::from(self.total_charged_bytes) * 1_000_000 / u128::from(self.total_charged_ns);
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    /// Sets the lowest score to serve, from the bytes at each score: scores are taken from the top
    /// until the window would be full.
    pub(super) fn set_min_score(&mut self, bytes_by_score: &[u64; MAX_SCORE as usize + 1]) {
        let mut sum = 0u64;
        self.min_score = 0;
        for score in (0..=MAX_SCORE).rev() {
            sum = sum.saturating_add(bytes_by_score[score as usize]);
            if sum >= self.effective_bytes {
                self.min_score = score;
                return;
            }
        }
    }
}

/// The kernel's feedback loop (`damon_feed_loop_next_input`): the next input from the last one and
/// the score it brought; 10000 is the goal.
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

/// Score of a region among those that fit a scheme, 0..=99; the highest is served first
/// (`damon_hot_score`, `damon_cold_score`).
#[must_use]
pub fn score(
    region: &Region,
    max_nr_accesses: u32,
    aggr_us: u64,
    weights: Weights,
    wanted: Wanted,
) -> u32 {
    match wanted {
        Wanted::Any => MAX_SCORE,
        Wanted::Hot => hot_score(region, max_nr_accesses, aggr_us, weights),
        Wanted::Cold => MAX_SCORE - hot_score(region, max_nr_accesses, aggr_us, weights),
    }
}

fn hot_score(region: &Region, max_nr_accesses: u32, aggr_us: u64, weights: Weights) -> u32 {
    let rate = region.nr_accesses_bp / BP;
    let frequency = (rate * 100 / u64::from(max_nr_accesses.max(1))).min(100);
    let seconds = u128::from(region.age) * u128::from(aggr_us) / 1_000_000;
    let bits = (u128::BITS - seconds.leading_zeros()).min(MAX_AGE_BITS);
    let age = if frequency == 0 {
        MAX_AGE_BITS - bits
    } else {
        MAX_AGE_BITS + bits
    };
    let age = u64::from(age) * 100 / u64::from(2 * MAX_AGE_BITS);
    let (of_rate, of_age) = (u64::from(weights.nr_accesses), u64::from(weights.age));
    let sum = of_rate * frequency + of_age * age;
    let mean = sum.checked_div(of_rate + of_age).unwrap_or(sum);
    u32::try_from(mean * u64::from(MAX_SCORE) / 100)
        .unwrap_or(MAX_SCORE)
        .min(MAX_SCORE)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::Still;
    use super::*;

    fn region(rate: u64, age: u32) -> Region {
        Region {
            nr_accesses_bp: rate * BP,
            age,
            ..Region::new(0, 4096)
        }
    }

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

    #[test]
    fn scores_of_hand_worked_regions() {
        let both = Weights {
            size: 0,
            nr_accesses: 1,
            age: 1,
        };
        // Rate 10 of 20 = 50; age 30 aggregations of 100 ms = 3 s, 2 bits: (32+2)*100/64 = 53.
        // (50 + 53) / 2 = 51, times 99/100 = 50.
        assert_eq!(score(&region(10, 30), 20, 100_000, both, Wanted::Hot), 50);
        // Idle for 2 minutes: 7 bits: (32-7)*100/64 = 39; (0 + 39) / 2 = 19, times 99/100 = 18.
        assert_eq!(score(&region(0, 1200), 20, 100_000, both, Wanted::Hot), 18);
        assert_eq!(score(&region(0, 1200), 20, 100_000, both, Wanted::Cold), 81);
        let none = Weights::default();
        assert_eq!(score(&region(20, 9), 20, 100_000, none, Wanted::Hot), 0);
    }

    #[test]
    fn a_time_quota_is_turned_into_bytes_by_what_was_measured() {
        let mut quota = Quota::new(Limits {
            ms: 5,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        assert!(!quota.renew(&Still::at(0), true));
        assert_eq!(
            quota.effective_bytes(),
            5 * ASSUMED_BYTES_PER_MS,
            "the guess"
        );
        quota.charge(10 << 20, 10_000_000);
        assert!(
            !quota.renew(&Still::at(999_999), true),
            "the window is not over"
        );
        assert!(!quota.renew(&Still::at(1_000_000), true), "it was not full");
        assert_eq!(
            quota.effective_bytes(),
            5 << 20,
            "10 MiB in 10 ms is 1 MiB a ms"
        );
        assert!(quota.charge(5 << 20, 0));
        assert!(
            quota.renew(&Still::at(2_000_000), true),
            "this one was full"
        );
    }

    #[test]
    fn the_first_window_of_6_12_has_no_limit() {
        let mut quota = Quota::new(Limits {
            bytes: 4096,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        quota.renew(&Still::at(0), false);
        assert!(quota.has_room(false) && !quota.charge(1 << 30, 0) && quota.has_room(false));
        quota.renew(&Still::at(1_000_000), false);
        assert!(quota.has_room(false) && quota.charge(4096, 0) && !quota.has_room(false));
    }

    #[test]
    fn room_is_whole_regions_in_7_2() {
        let mut quota = Quota::new(Limits {
            bytes: 10_000,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true);
        assert_eq!(quota.room_for(8192), 8192);
        assert_eq!(quota.room_for(16384), 8192);
        quota.charge(8192, 0);
        assert!(!quota.has_room(true), "1808 bytes are no region");
        assert!(quota.has_room(false));
    }

    #[test]
    fn the_histogram_picks_the_highest_scores_that_fill_the_window() {
        let mut quota = Quota::new(Limits {
            bytes: 3 * 4096,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true);
        let mut bytes = [0u64; 100];
        bytes[90] = 4096;
        bytes[50] = 8192;
        bytes[10] = 1 << 30;
        quota.set_min_score(&bytes);
        assert_eq!(quota.min_score(), 50);
        bytes[10] = 0;
        bytes[50] = 4096;
        quota.set_min_score(&bytes);
        assert_eq!(quota.min_score(), 0, "everything fits");
    }

    #[test]
    fn several_goals_are_steered_by_the_one_nearest_to_being_met() {
        let goal = |current| Goal {
            current,
            ..Goal::new(GoalMetric::UserInput, 100)
        };
        let mut quota = Quota::new(Limits {
            goals: vec![goal(50), goal(75)],
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true);
        // feed(10000, 7500) = 12500 bp = 1 byte.
        assert_eq!(quota.effective_bytes(), 1);
    }

    proptest! {
        #[test]
        fn scores_are_monotone(rate in 0u64..20, age in 0u32..100_000, frequency_weight in 1u32..5, age_weight in 0u32..5) {
            let weights = Weights { size: 0, nr_accesses: frequency_weight, age: age_weight };
            let of = |rate, age| score(&region(rate, age), 20, 100_000, weights, Wanted::Hot);
            prop_assert!(of(rate, age) <= of(rate + 1, age));
            if rate > 0 {
                prop_assert!(of(rate, age) <= of(rate, age * 2));
            } else {
                prop_assert!(of(rate, age) >= of(rate, age * 2));
            }
            prop_assert!(of(rate, age) <= MAX_SCORE);
        }
    }
}
