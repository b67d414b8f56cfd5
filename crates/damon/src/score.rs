// SPDX-License-Identifier: Apache-2.0
//! Scores that decide which regions come first if a quota does not suffice for all
//! (mm/damon/ops-common.c).

use super::action::Wanted;
use super::region::{BP, Region};

/// Highest score; scores are 0..=99.
pub const MAX_SCORE: u32 = 99;

/// Age is scored by the bit length of its seconds, limited to this many bits.
const MAX_AGE_BITS: u32 = 32;

/// Weights of a region's properties in its score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// Weight of the size (not used for scores in either kernel).
    pub size: u32,
    /// Weight of the access rate.
    pub nr_accesses: u32,
    /// Weight of the age.
    pub age: u32,
}

/// The score of a region among those that match a scheme, 0..=99; the highest score is served first
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

    use super::*;

    fn region(rate: u64, age: u32) -> Region {
        Region {
            nr_accesses_bp: rate * BP,
            age,
            ..Region::new(0, 4096)
        }
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

    proptest! {
        #[test]
        fn scores_are_monotone(
            rate in 0u64..20,
            age in 0u32..100_000,
            frequency_weight in 1u32..5,
            age_weight in 0u32..5,
        ) {
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
