// SPDX-License-Identifier: Apache-2.0
//! Regions: neighbouring pages assumed to have the same access pattern, and how they are split and
//! merged (mm/damon/core.c: `damon_merge_regions_of`, `damon_split_regions_of`).

use rand::{Rng, RngExt};

/// Fixed-point unit of the moving sum: 10000 is one access.
pub const BP: u64 = 10_000;

/// A range of addresses and its accesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// Checks in this aggregation that found an access.
    pub nr_accesses: u32,
    /// The same for the previous aggregation.
    pub last_nr_accesses: u32,
    /// Moving sum over the last aggregation interval, in 1/10000 access.
    pub nr_accesses_bp: u64,
    /// Number of aggregations in which the access rate stayed similar.
    pub age: u32,
    /// Address of the page checked in this sample.
    pub sampling_addr: u64,
}

impl Region {
    /// A region without observations.
    #[must_use]
    pub fn new(start: u64, end: u64) -> Region {
        debug_assert!(start < end);
        Region {
            start,
            end,
            nr_accesses: 0,
            last_nr_accesses: 0,
            nr_accesses_bp: 0,
            age: 0,
            sampling_addr: start,
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.end - self.start
    }

    /// Processes one check. `looks` is the number of checks per aggregation. In the kernels the
    /// moving sum may wrap below zero; here it stops at zero.
    pub fn update(&mut self, accessed: bool, looks: u32) {
        self.nr_accesses += u32::from(accessed);
        let leaving = u64::from(self.last_nr_accesses) * BP / u64::from(looks.max(1));
        let entering = if accessed { BP } else { 0 };
        self.nr_accesses_bp = (self.nr_accesses_bp + entering).saturating_sub(leaving);
    }

    /// Starts the next aggregation. The moving sum is set to the count, as in 7.2.
    pub fn reset(&mut self) {
        self.last_nr_accesses = self.nr_accesses;
        self.nr_accesses_bp = u64::from(self.nr_accesses) * BP;
        self.nr_accesses = 0;
    }

    /// Splits at `bytes` from the start and returns the right part, which inherits all state.
    pub fn split_off(&mut self, bytes: u64) -> Region {
        debug_assert!(bytes > 0 && bytes < self.size());
        let middle = self.start + bytes;
        let right = Region {
            start: middle,
            sampling_addr: middle,
            ..self.clone()
        };
        self.end = middle;
        right
    }

    /// Absorbs the right neighbour: count and age become means weighted by size.
    fn absorb(&mut self, right: &Region) {
        let (left_size, right_size) = (u128::from(self.size()), u128::from(right.size()));
        let mean = |left: u32, right: u32| {
            let sum = u128::from(left) * left_size + u128::from(right) * right_size;
            u32::try_from(sum / (left_size + right_size)).unwrap_or(u32::MAX)
        };
        self.nr_accesses = mean(self.nr_accesses, right.nr_accesses);
        self.last_nr_accesses = mean(self.last_nr_accesses, right.last_nr_accesses);
        self.age = mean(self.age, right.age);
        self.nr_accesses_bp = u64::from(self.nr_accesses) * BP;
        self.end = right.end;
    }
}

/// Updates ages after an aggregation: the age of a region whose rate moved by more than
/// `threshold`, or changed between zero and nonzero, is reset.
pub fn count_ages(regions: &mut [Region], threshold: u32) {
    for region in regions {
        let moved = region.nr_accesses.abs_diff(region.last_nr_accesses) > threshold;
        let crossed_zero = (region.nr_accesses == 0) != (region.last_nr_accesses == 0);
        region.age = if moved || crossed_zero {
            0
        } else {
            region.age.saturating_add(1)
        };
    }
}

/// Merges adjacent regions that differ by at most `threshold` accesses and together stay within
/// `limit_bytes`.
pub fn merge(regions: &mut Vec<Region>, threshold: u32, limit_bytes: u64) {
    regions.dedup_by(|right, left| {
        let alike = left.end == right.start
            && left.nr_accesses.abs_diff(right.nr_accesses) <= threshold
            && left.size() + right.size() <= limit_bytes;
        if alike {
            left.absorb(right);
        }
        alike
    });
}

/// Splits every region larger than `limit_bytes` into parts of that size (7.2, after every merge).
/// The limit must be a positive multiple of the smallest region.
pub fn enforce_limit(regions: &mut Vec<Region>, limit_bytes: u64) {
    debug_assert!(limit_bytes > 0);
    if regions.iter().all(|region| region.size() <= limit_bytes) {
        return;
    }
    let mut parts = Vec::with_capacity(regions.len() * 2);
    for mut region in regions.drain(..) {
        while region.size() > limit_bytes {
            let right = region.split_off(limit_bytes);
            parts.push(std::mem::replace(&mut region, right));
        }
        parts.push(region);
    }
    *regions = parts;
}

/// Splits each region randomly into up to `parts` parts, to find a boundary between hot and cold.
/// Each further split is made in the left remainder; a draw that would split off nothing is
/// skipped. `granule` is the smallest region, in bytes.
pub fn split(regions: &mut Vec<Region>, parts: u32, granule: u64, rng: &mut impl Rng) {
    let mut cut = Vec::with_capacity(regions.len() * parts as usize);
    let mut rights = Vec::with_capacity(parts as usize);
    for mut region in regions.drain(..) {
        let mut size = region.size();
        for _ in 1..parts {
            if size <= 2 * granule {
                break;
            }
            let tenths: u64 = rng.random_range(1..10);
            let left = u128::from(size) * u128::from(tenths) / 10;
            // Smaller than `size`, so it fits.
            let left = left as u64 - left as u64 % granule;
            if left == 0 {
                continue;
            }
            rights.push(region.split_off(left));
            size = left;
        }
        cut.push(region);
        cut.extend(rights.drain(..).rev());
    }
    *regions = cut;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng;
    use rand_pcg::Pcg64;

    use super::*;

    fn region(pages: std::ops::Range<u64>, nr: u32, last: u32, age: u32) -> Region {
        Region {
            nr_accesses: nr,
            last_nr_accesses: last,
            age,
            nr_accesses_bp: u64::from(nr) * BP,
            ..Region::new(pages.start * 4096, pages.end * 4096)
        }
    }

    #[test]
    fn merging_weighs_by_size() {
        // 3 pages with 4 accesses and 1 page with 8: (3*4 + 1*8) / 4 = 5.
        let mut regions = vec![region(0..3, 4, 0, 8), region(3..4, 8, 0, 4)];
        merge(&mut regions, 4, u64::MAX);
        assert_eq!(regions, vec![region(0..4, 5, 0, 7)]);
    }

    #[test]
    fn merging_respects_gaps_difference_and_limit() {
        let kept = vec![
            region(0..1, 5, 0, 0),
            region(2..3, 5, 0, 0),
            region(3..4, 8, 0, 0),
        ];
        let mut regions = kept.clone();
        merge(&mut regions, 2, u64::MAX);
        assert_eq!(regions, kept, "a gap and a difference of 3 keep them apart");
        let mut regions = vec![region(0..2, 1, 0, 0), region(2..4, 1, 0, 0)];
        merge(&mut regions, 2, 3 * 4096);
        assert_eq!(regions.len(), 2, "together they exceed the limit");
    }

    #[test]
    fn an_age_starts_again_when_the_rate_moves_or_crosses_zero() {
        let mut regions = vec![
            region(0..1, 5, 4, 7),
            region(1..2, 9, 4, 7),
            region(2..3, 1, 0, 7),
        ];
        count_ages(&mut regions, 2);
        assert_eq!(regions.iter().map(|r| r.age).collect::<Vec<_>>(), [8, 0, 0]);
    }

    #[test]
    fn the_moving_sum_follows_and_never_wraps() {
        let mut region = region(0..1, 0, 20, 0);
        region.nr_accesses_bp = 3 * BP;
        for _ in 0..20 {
            region.update(false, 20);
        }
        assert_eq!(region.nr_accesses_bp, 0);
        region.reset();
        for _ in 0..20 {
            region.update(true, 20);
        }
        assert_eq!((region.nr_accesses, region.nr_accesses_bp), (20, 20 * BP));
    }

    proptest! {
        /// Splitting and merging preserve the total size, the order and the alignment.
        #[test]
        fn bytes_are_conserved(
            sizes in prop::collection::vec((1u64..5000, 0u32..20, any::<bool>()), 1..40),
            parts in 2u32..=3,
            threshold in 0u32..20,
            limit_pages in 1u64..3000,
            seed: u64,
        ) {
            let mut regions = Vec::new();
            let mut page = 0;
            for (pages, nr, gap) in sizes {
                page += u64::from(gap);
                regions.push(region(page..page + pages, nr, nr, 1));
                page += pages;
            }
            let bytes = |regions: &[Region]| regions.iter().map(Region::size).sum::<u64>();
            let before = bytes(&regions);
            split(&mut regions, parts, 4096, &mut Pcg64::seed_from_u64(seed));
            prop_assert_eq!(bytes(&regions), before);
            merge(&mut regions, threshold, limit_pages * 4096);
            prop_assert_eq!(bytes(&regions), before);
            enforce_limit(&mut regions, limit_pages * 4096);
            prop_assert_eq!(bytes(&regions), before);
            for pair in regions.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            for region in &regions {
                prop_assert!(region.size() <= limit_pages * 4096);
                prop_assert_eq!(region.start % 4096, 0);
                prop_assert!(region.size() >= 4096);
            }
        }
    }
}
