// SPDX-License-Identifier: Apache-2.0
//! Quotas of schemes (mm/damon/core.c: `damos_adjust_quota`, `damos_set_effective_quota`).
//! `granule` is the smallest region, in bytes.

use super::goal::{Goal, feed};
use super::region::BP;
use super::score::{MAX_SCORE, Weights};
use super::space::Space;
use super::target::TargetId;

/// Throughput assumed before any measurement: 4 MiB per ms (`PAGE_SIZE * 1024`).
const ASSUMED_BYTES_PER_MS: u64 = 4096 * 1024;

/// Limits of a scheme.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// Time per window, in ms; 0 means no limit on time.
    pub ms: u64,
    /// Bytes per window; 0 means no limit on bytes.
    pub bytes: u64,
    /// Length of a window, in ms.
    pub reset_interval_ms: u64,
    /// Goals that steer the bytes per window.
    pub goals: Vec<Goal>,
    /// The weights that decide which regions come first.
    pub weights: Weights,
}

/// A scheme's limits and what it used of them (`struct damos_quota`).
#[derive(Clone, Debug, Default)]
pub struct Quota {
    /// The limits; may be changed while running, and take effect in the next window.
    pub limits: Limits,
    /// Bytes it may charge in this window; 0 means no limit.
    effective_bytes: u64,
    /// The part set by feedback, in 1/10000 byte.
    goal_bp: u64,
    charged_bytes: u64,
    window_start_us: Option<u64>,
    total_charged_bytes: u64,
    total_charged_ns: u64,
    /// Where the last full window stopped and the next one continues.
    pub(super) resume: Option<(TargetId, u64)>,
    /// Regions with a lower score are left for another window.
    min_score: u32,
}

impl Quota {
    /// No limit of any kind.
    #[must_use]
    pub fn unlimited() -> Quota {
        Quota::default()
    }

    /// A quota with nothing charged.
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

    /// The lowest score served in this window.
    #[must_use]
    pub fn min_score(&self) -> u32 {
        self.min_score
    }

    /// Whether anything more may be charged. `exact` selects the rule of 7.2, which requires room
    /// for a whole smallest region; 6.12 allows any remainder.
    #[must_use]
    pub(super) fn has_room(&self, exact: bool, granule: u64) -> bool {
        if exact {
            !self.is_set() || self.effective_bytes.saturating_sub(self.charged_bytes) >= granule
        } else {
            self.effective_bytes == 0 || self.charged_bytes < self.effective_bytes
        }
    }

    /// The part of a region that still fits, rounded down to whole smallest regions, in bytes.
    pub(super) fn room_for(&self, bytes: u64, granule: u64) -> u64 {
        if self.effective_bytes == 0 {
            return bytes;
        }
        let room = self.effective_bytes.saturating_sub(self.charged_bytes);
        if bytes <= room {
            bytes
        } else {
            room - room % granule
        }
    }

    /// Charges what was done. Returns true if the window is now full.
    pub(super) fn charge(&mut self, bytes: u64, cost_ns: u64) -> bool {
        self.total_charged_ns = self.total_charged_ns.saturating_add(cost_ns);
        if !self.is_set() {
            return false;
        }
        self.charged_bytes = self.charged_bytes.saturating_add(bytes);
        self.effective_bytes != 0 && self.charged_bytes >= self.effective_bytes
    }

    /// Starts the first or the next window if it is due. Returns true if a window ended full.
    /// `limit_first` selects the rule of 7.2; 6.12 has no limit in its first window.
    pub(super) fn renew(&mut self, space: &impl Space, limit_first: bool, granule: u64) -> bool {
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
                self.set_effective_bytes(granule);
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
        self.set_effective_bytes(granule);
        full
    }

    fn set_effective_bytes(&mut self, granule: u64) {
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
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX).max(granule);
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

    /// Sets the lowest score to serve, given the bytes at each score: scores are added from the top
    /// that occurs until the window would be full.
    pub(super) fn set_min_score(&mut self, bytes_by_score: &[u64; MAX_SCORE as usize + 1]) {
        let mut sum = 0u64;
        self.min_score = 0;
        let highest = (0..=MAX_SCORE).rfind(|&score| bytes_by_score[score as usize] > 0);
        for score in (0..=highest.unwrap_or(0)).rev() {
            sum = sum.saturating_add(bytes_by_score[score as usize]);
            if sum >= self.effective_bytes {
                self.min_score = score;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::goal::GoalMetric;
    use super::super::testing::Still;
    use super::*;

    /// In the first window of 6.12 nothing is effective yet, and the highest score there is is
    /// served.
    #[test]
    fn the_lowest_score_served_occurs() {
        let mut quota = Quota::new(Limits::default());
        let mut bytes = [0; MAX_SCORE as usize + 1];
        bytes[40] = 1 << 20;
        bytes[61] = 4096;
        for (effective, score) in [(0, 61), (4096, 61), (8192, 40), (1 << 30, 0)] {
            quota.effective_bytes = effective;
            quota.set_min_score(&bytes);
            assert_eq!(quota.min_score, score, "{effective}");
        }
    }

    #[test]
    fn a_time_quota_is_turned_into_bytes_by_what_was_measured() {
        let mut quota = Quota::new(Limits {
            ms: 5,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        assert!(!quota.renew(&Still::at(0), true, 4096));
        assert_eq!(
            quota.effective_bytes(),
            5 * ASSUMED_BYTES_PER_MS,
            "the guess"
        );
        quota.charge(10 << 20, 10_000_000);
        assert!(
            !quota.renew(&Still::at(999_999), true, 4096),
            "the window is not over"
        );
        assert!(
            !quota.renew(&Still::at(1_000_000), true, 4096),
            "it was not full"
        );
        assert_eq!(
            quota.effective_bytes(),
            5 << 20,
            "10 MiB in 10 ms is 1 MiB a ms"
        );
        assert!(quota.charge(5 << 20, 0));
        assert!(
            quota.renew(&Still::at(2_000_000), true, 4096),
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
        quota.renew(&Still::at(0), false, 4096);
        assert!(
            quota.has_room(false, 4096) && !quota.charge(1 << 30, 0) && quota.has_room(false, 4096)
        );
        quota.renew(&Still::at(1_000_000), false, 4096);
        assert!(
            quota.has_room(false, 4096) && quota.charge(4096, 0) && !quota.has_room(false, 4096)
        );
    }

    #[test]
    fn room_is_whole_regions_in_7_2() {
        let mut quota = Quota::new(Limits {
            bytes: 10_000,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true, 4096);
        assert_eq!(quota.room_for(8192, 4096), 8192);
        assert_eq!(quota.room_for(16384, 4096), 8192);
        quota.charge(8192, 0);
        assert!(!quota.has_room(true, 4096), "1808 bytes are no region");
        assert!(quota.has_room(false, 4096));
    }

    #[test]
    fn the_histogram_picks_the_highest_scores_that_fill_the_window() {
        let mut quota = Quota::new(Limits {
            bytes: 3 * 4096,
            reset_interval_ms: 1000,
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true, 4096);
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
        let goal = |current| {
            let mut goal = Goal::new(GoalMetric::UserInput, 100);
            goal.current = current;
            goal
        };
        let mut quota = Quota::new(Limits {
            goals: vec![goal(50), goal(75)],
            ..Limits::default()
        });
        quota.renew(&Still::at(0), true, 4096);
        // feed(10000, 7500) = 12500 bp = 1 byte.
        assert_eq!(quota.effective_bytes(), 1);
    }
}
