// SPDX-License-Identifier: Apache-2.0
//! Work counters of the page allocator.

/// Counts of the work done by allocations and frees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocWork {
    /// Allocations that found a page or block.
    pub allocations: u64,
    /// Pages freed.
    pub frees: u64,
    /// Watermark comparisons of zones.
    pub zone_checks: u64,
    /// Zones skipped because their batch was used up.
    pub depleted_skips: u64,
    /// Batch updates (`NR_ALLOC_BATCH`), each with a test of what is left.
    pub batch_updates: u64,
    /// Batches reset, one per zone.
    pub batch_resets: u64,
    /// Zone checks after the first one of their scan; part of `zone_checks`.
    pub further_zone_checks: u64,
}

impl AllocWork {
    /// Work done since an earlier reading.
    pub fn since(&self, before: &AllocWork) -> AllocWork {
        AllocWork {
            allocations: self.allocations - before.allocations,
            frees: self.frees - before.frees,
            zone_checks: self.zone_checks - before.zone_checks,
            depleted_skips: self.depleted_skips - before.depleted_skips,
            batch_updates: self.batch_updates - before.batch_updates,
            batch_resets: self.batch_resets - before.batch_resets,
            further_zone_checks: self.further_zone_checks - before.further_zone_checks,
        }
    }
}
