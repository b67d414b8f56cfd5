// SPDX-License-Identifier: Apache-2.0
//! The refault feedback loop: a PI controller over tiers and types.
//!
//! The process variable is refaulted / (evicted + protected) of one tier, the set point that of
//! another. Proportional part: the counts of the current oldest generation; integral part: their
//! moving averages (`struct ctrl_pos`).

use crate::folio::FolioType;

use super::profile::Profile;
use super::{MAX_NR_GENS, MAX_NR_TIERS, MIN_LRU_BATCH};

/// Counters of one type and generation, by tier, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counters {
    pub refaulted: [u64; MAX_NR_TIERS],
    pub evicted: [u64; MAX_NR_TIERS],
    pub protected: [u64; MAX_NR_TIERS],
}

/// Refault feedback of one lruvec.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Control {
    /// Moving averages, by type and tier.
    pub avg_refaulted: [[u64; MAX_NR_TIERS]; 2],
    pub avg_total: [[u64; MAX_NR_TIERS]; 2],
    /// Current counts, by slot of history and type. Without history only slot 0 is used.
    pub current: [[Counters; 2]; MAX_NR_GENS],
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ControlPosition {
    pub refaulted: u64,
    pub total: u64,
    pub gain: u64,
}

impl ControlPosition {
    /// Whether `process` refaults no more, weighted by the gains, than this set point
    /// (`positive_ctrl_err`). Few refaults never count.
    pub(super) fn tolerates(&self, process: &ControlPosition) -> bool {
        let wide = u128::from;
        process.refaulted < MIN_LRU_BATCH
            || wide(process.refaulted) * wide(self.total + MIN_LRU_BATCH) * wide(self.gain)
                <= wide(self.refaulted + 1) * wide(process.total) * wide(process.gain)
    }
}

/// The slot of history that counts for a generation (`lru_hist_from_seq`).
#[inline]
pub(super) fn history_slot(seq: u64, history: bool) -> usize {
    if history {
        (seq % MAX_NR_GENS as u64) as usize
    } else {
        0
    }
}

impl Control {
    /// Position of some tiers of a type (`read_ctrl_pos`).
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

    /// The oldest generation of a type is gone: its counts move into the averages.
    pub(super) fn carry_over(
        &mut self,
        profile: &Profile,
        slot: usize,
        folio_type: FolioType,
        history: bool,
    ) {
        let t = folio_type.index();
        let current = &mut self.current[slot][t];
        for tier in 0..MAX_NR_TIERS {
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

    /// First tier above the protection threshold, minus one: folios of higher tiers are protected
    /// (`get_tier_idx`). `set_point` is tier 0 of the same type unless given.
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
        (1..MAX_NR_TIERS)
            .find(|&tier| {
                let process = self.position(profile, slot, folio_type, tier..tier + 1, gain);
                !set_point.tolerates(&process)
            })
            .unwrap_or(MAX_NR_TIERS)
            - 1
    }
}
