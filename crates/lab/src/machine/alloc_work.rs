// SPDX-License-Identifier: Apache-2.0
//! Work of the page allocator.

/// What allocating and freeing took, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocWork {
    /// Allocations that found a page or block.
    pub allocations: u64,
    /// Pages given back.
    pub frees: u64,
    /// Watermarks of zones compared.
    pub zone_checks: u64,
    /// Zones passed over because their batch was used up.
    pub depleted_skips: u64,
    /// Batches written (`NR_ALLOC_BATCH`), each with a test of what is left.
    pub batch_updates: u64,
    /// Batches reset, one per zone.
    pub batch_resets: u64,
    /// Of the zone checks, those after the first of their scan.
    pub further_zone_checks: u64,
}

impl AllocWork {
    /// What was done since an earlier reading.
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
