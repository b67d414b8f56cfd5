// SPDX-License-Identifier: Apache-2.0
//! Bloom filters that tell walks which last-level tables had many accessed pages.
//!
//! Two filters alternate: the walk of a generation reads one and fills the other. About 1 in 5
//! absent tables passes at 10 000 entries, 1 in 2 at 20 000 (`mm/vmscan.c`).

use crate::ids::MmId;
use crate::page_table::PAGES_PER_PMD;

const SHIFT: u32 = 15;
const WORDS: usize = (1 << SHIFT) / 64;

/// The two filters of a lruvec. A filter that was never used lets every table pass.
#[derive(Clone, Debug, Default)]
pub(super) struct Filters([Option<Box<[u64; WORDS]>>; 2]);

impl Filters {
    /// Whether the filter of `seq` may contain the table that covers `vpn`.
    #[inline]
    pub(super) fn test(&self, seq: u64, mm: MmId, vpn: u64) -> bool {
        let Some(filter) = &self.0[(seq % 2) as usize] else {
            return true;
        };
        let bits = bits(mm, vpn);
        bits.iter()
            .all(|bit| filter[bit / 64] >> (bit % 64) & 1 == 1)
    }

    /// Inserts the table that covers `vpn`; does nothing if the filter was never used.
    #[inline]
    pub(super) fn insert(&mut self, seq: u64, mm: MmId, vpn: u64) {
        if let Some(filter) = &mut self.0[(seq % 2) as usize] {
            for bit in bits(mm, vpn) {
                filter[bit / 64] |= 1 << (bit % 64);
            }
        }
    }

    /// Empties the filter of `seq` and puts it to use.
    pub(super) fn reset(&mut self, seq: u64) {
        self.0[(seq % 2) as usize]
            .get_or_insert_with(|| Box::new([0; WORDS]))
            .fill(0);
    }
}

/// The two bits of a table. The kernel hashes the address of its entry (`hash_ptr`); here the
/// address space and the range replace it.
#[inline]
fn bits(mm: MmId, vpn: u64) -> [usize; 2] {
    const GOLDEN_RATIO_64: u64 = 0x61c8_8646_80b5_83eb;
    let item = (u64::from(mm.0) << 32) ^ (vpn / PAGES_PER_PMD);
    let mixed = (item ^ (item >> 29)).wrapping_mul(GOLDEN_RATIO_64);
    let hash = (mixed >> (64 - 2 * SHIFT)) as usize;
    [hash & ((1 << SHIFT) - 1), hash >> SHIFT]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_unused_filter_passes_everything_and_keeps_nothing() {
        let mut filters = Filters::default();
        filters.insert(3, MmId(1), 512);
        assert!(filters.test(3, MmId(1), 0));
        filters.reset(3);
        assert!(!filters.test(3, MmId(1), 512));
    }

    #[test]
    fn the_two_filters_alternate() {
        let mut filters = Filters::default();
        filters.reset(4);
        filters.reset(5);
        filters.insert(4, MmId(1), 512);
        assert!(
            filters.test(6, MmId(1), 512 + 511),
            "same table, same parity"
        );
        assert!(!filters.test(5, MmId(1), 512));
    }

    #[test]
    fn few_false_positives_at_ten_thousand_entries() {
        let mut filters = Filters::default();
        filters.reset(0);
        for table in 0..10_000 {
            filters.insert(0, MmId(1), table * PAGES_PER_PMD);
        }
        let passed = (10_000..20_000)
            .filter(|table| filters.test(0, MmId(1), table * PAGES_PER_PMD))
            .count();
        assert!((1_000..3_000).contains(&passed), "{passed} of 10000");
    }

    proptest! {
        #[test]
        fn no_false_negatives(tables in prop::collection::vec((0u32..50, 0u64..1 << 36), 1..500)) {
            let mut filters = Filters::default();
            filters.reset(1);
            for &(mm, vpn) in &tables {
                filters.insert(1, MmId(mm), vpn);
            }
            for &(mm, vpn) in &tables {
                prop_assert!(filters.test(1, MmId(mm), vpn));
            }
        }
    }
}
