// SPDX-License-Identifier: Apache-2.0
//! The refault feedback loop: a PI controller over tiers and types.
//!
//! The process variable is refaulted / (evicted + protected) of one tier, the set point is that of
//! another tier. The proportional part uses the counts of the current oldest generation, the
//! integral part their moving averages (`struct ctrl_pos`).

use crate::folio::FolioType;

use super::profile::Profile;
use super::{GENERATIONS_MAX, MIN_LRU_BATCH, TIERS_MAX};

/// Counters of one type and generation, by tier, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub refaulted: [u64; TIERS_MAX],
    pub evicted: [u64; TIERS_MAX],
    pub protected: [u64; TIERS_MAX],
}

/// Refault feedback of one lruvec.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    /// Moving averages, by type and tier.
    pub avg_refaulted: [[u64; TIERS_MAX]; 2],
    pub avg_total: [[u64; TIERS_MAX]; 2],
    /// Current counts, by history slot and type. Without history only slot 0 is used.
    pub current: [[Counters; 2]; GENERATIONS_MAX],
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlPosition {
    pub refaulted: u64,
    pub total: u64,
    pub gain: u64,
}

impl ControlPosition {
    /// Whether the refault rate of `process`, weighted by the gains, is at most that of this set
    /// point (`positive_ctrl_err`). Few refaults are always tolerated.
    pub(super) fn tolerates(&self, process: &ControlPosition) -> bool {
        let wide = u128::from;
        process.refaulted < MIN_LRU_BATCH
            || wide(process.refaulted) * wide(self.total + MIN_LRU_BATCH) * wide(self.gain)
                <= wide(self.refaulted + 1) * wide(process.total) * wide(process.gain)
    }
}

impl Control {
    /// The position of some tiers of a type (`read_ctrl_pos`).
    pub(super) fn position(
        &self,
        profile: &Profile,
        slot: usize,
        folio_type: FolioType,
        tiers: std::ops::Range<usize>,
        gain: u64,
    ) -> ControlPosition {
        let t = folio_type.index();
        let current = &self.current[slot][t];
        let mut position = ControlPosition {
            refaulted: 0,
            total: 0,
            gain,
        };
        for tier in tiers {
            position.refaulted += self.avg_refaulted[t][tier] + current.refaulted[tier];
            position.total += self.avg_total[t][tier] + current.evicted[tier];
            if profile.counts_protected(tier) {
                position.total += current.protected[tier];
            }
        }
        position
    }

    /// Moves the counts of a retired oldest generation into the averages.
    pub(super) fn carry_over(
        &mut self,
        profile: &Profile,
        slot: usize,
        folio_type: FolioType,
        history: bool,
    ) {
        let t = folio_type.index();
        let current = &mut self.current[slot][t];
        for tier in 0..usize::from(profile.tiers) {
            let protected = if profile.counts_protected(tier) {
                current.protected[tier]
            } else {
                0
            };
            let total = self.avg_total[t][tier] + current.evicted[tier] + protected;
            self.avg_total[t][tier] = total / 2;
            self.avg_refaulted[t][tier] =
                (self.avg_refaulted[t][tier] + current.refaulted[tier]) / 2;
        }
        if !history {
            *current = Counters::default();
        }
    }

    /// The first tier above the protection threshold, minus one: folios of higher tiers are
    /// protected (`get_tier_idx`). `set_point` defaults to tier 0 of the same type.
    pub(super) fn tier_threshold(
        &self,
        profile: &Profile,
        slot: usize,
        folio_type: FolioType,
        set_point: Option<(ControlPosition, u64)>,
    ) -> usize {
        let (set_point, gain) = set_point.unwrap_or_else(|| {
            let (own, other) = profile.tier_gain;
            (self.position(profile, slot, folio_type, 0..1, own), other)
        });
        let tiers = usize::from(profile.tiers);
        (1..tiers)
            .find(|&tier| {
                let process = self.position(profile, slot, folio_type, tier..tier + 1, gain);
                !set_point.tolerates(&process)
            })
            .unwrap_or(tiers)
            - 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::profile::{V6_12, V7_2};
    use super::*;

    const ANON: FolioType = FolioType::Anon;

    /// A controller with these current counts of one type: refaulted, evicted and protected, by
    /// tier.
    fn control(
        refaulted: [u64; TIERS_MAX],
        evicted: [u64; TIERS_MAX],
        protected: [u64; TIERS_MAX],
    ) -> Control {
        let mut control = Control::default();
        control.current[0][0] = Counters {
            refaulted,
            evicted,
            protected,
        };
        control
    }

    #[test]
    fn few_refaults_are_always_tolerated() {
        let at = |refaulted, total, gain| ControlPosition {
            refaulted,
            total,
            gain,
        };
        assert!(at(0, 0, 1).tolerates(&at(63, 63, 1)));
        // 64 * (0 + 64) * 1 = 4096 against (0 + 1) * 64 * 1 = 64.
        assert!(!at(0, 0, 1).tolerates(&at(64, 64, 1)));
        // 64 * (936 + 64) * 2 = 128000 against (99 + 1) * 1280 * 1 = 128000: equal is tolerated.
        assert!(at(99, 936, 2).tolerates(&at(64, 1280, 1)));
        assert!(!at(99, 937, 2).tolerates(&at(64, 1280, 1)));
        // Products that exceed 64 bits.
        let huge = u64::MAX / 2;
        assert!(at(huge, huge - 64, 1).tolerates(&at(huge, huge, 2)));
        assert!(!at(huge, huge - 64, 2).tolerates(&at(huge, huge, 1)));
    }

    #[test]
    fn the_threshold_is_below_the_first_tier_that_refaults_more() {
        // Tier 0: 100 of 1000. Tier 2: 300 of 1000, three times as many.
        let worse = control([100, 10, 300, 0], [1000, 100, 900, 10], [0, 0, 100, 0]);
        assert_eq!(worse.tier_threshold(&V7_2, 0, ANON, None), 1);
        // Tier 2: 140 of 1000 is within 3:2.
        let similar = control([100, 10, 140, 0], [1000, 100, 900, 10], [0, 0, 100, 0]);
        assert_eq!(similar.tier_threshold(&V7_2, 0, ANON, None), 3);
        // 160 of 1000 is not within 3:2, but within 2:1.
        let between = control([100, 10, 160, 0], [1000, 100, 900, 10], [0, 0, 100, 0]);
        assert_eq!(between.tier_threshold(&V7_2, 0, ANON, None), 1);
        assert_eq!(between.tier_threshold(&V6_12, 0, ANON, None), 3);
    }

    #[test]
    fn tier_zero_counts_as_protected_in_7_2_only() {
        let control = control([0; 4], [10, 20, 0, 0], [5, 7, 0, 0]);
        let total = |profile, tiers| control.position(profile, 0, ANON, tiers, 1).total;
        assert_eq!(total(&V7_2, 0..1), 15);
        assert_eq!(total(&V6_12, 0..1), 10);
        assert_eq!(total(&V7_2, 0..4), 42);
        assert_eq!(total(&V6_12, 0..4), 37);
    }

    #[test]
    fn averages_halve_with_each_generation() {
        let mut control = control([100, 0, 0, 0], [300, 0, 0, 0], [40, 0, 0, 0]);
        control.carry_over(&V7_2, 0, ANON, false);
        assert_eq!(control.avg_refaulted[0][0], 50);
        assert_eq!(control.avg_total[0][0], 170);
        assert_eq!(control.current[0][0], Counters::default());
        control.carry_over(&V7_2, 0, ANON, false);
        assert_eq!(control.avg_refaulted[0][0], 25);
        assert_eq!(control.avg_total[0][0], 85);
        control.current[2][0].evicted[1] = 8;
        control.carry_over(&V7_2, 2, ANON, true);
        assert_eq!(control.avg_total[0][1], 4);
        assert_eq!(control.current[2][0].evicted[1], 8, "history is kept");
    }
}
