// SPDX-License-Identifier: Apache-2.0
//! Estimates the whole from the sampled blocks.

use crate::generations::{ByType, LABEL_UNSEEN, LABELS, Sizes};

/// Pages by label of all memory: `whole` was followed page by page, and `sampled` represents the
/// rest of `known`, all resident pages by type. The sum is exactly `known`, or what was seen if
/// that is more (the kernel's counters lag a little).
pub fn scale(whole: &Sizes, sampled: &Sizes, known: ByType<u64>) -> Sizes {
    let mut scaled: Sizes = [[0; 2]; LABELS];
    for page_type in 0..2 {
        let of = |sizes: &Sizes| -> Vec<u64> { sizes.iter().map(|by| by[page_type]).collect() };
        let (whole, sampled) = (of(whole), of(sampled));
        let seen: u64 = sampled.iter().sum();
        let rest = known[page_type]
            .saturating_sub(whole.iter().sum())
            .max(seen);
        // If no block represents the rest, it has the pattern of what was followed whole, or
        // unknown age.
        let pattern = if seen > 0 { &sampled } else { &whole };
        let mut shares = share_out(rest, pattern);
        shares[usize::from(LABEL_UNSEEN)] += rest - shares.iter().sum::<u64>();
        for (label, pages) in shares.into_iter().enumerate() {
            scaled[label][page_type] = whole[label] + pages;
        }
    }
    scaled
}

/// Divides `total` in the proportions of `pattern` into whole numbers with that sum: the largest
/// remainders are rounded up. All 0 if `pattern` is.
fn share_out(total: u64, pattern: &[u64]) -> Vec<u64> {
    let sum: u128 = pattern.iter().map(|part| u128::from(*part)).sum();
    if sum == 0 {
        return vec![0; pattern.len()];
    }
    let parts = pattern
        .iter()
        .map(|part| u128::from(*part) * u128::from(total));
    let mut shares: Vec<u64> = parts.clone().map(|part| (part / sum) as u64).collect();
    let mut remainders: Vec<(u128, usize)> = parts.map(|part| part % sum).zip(0..).collect();
    remainders.sort_unstable_by_key(|(remainder, at)| (std::cmp::Reverse(*remainder), *at));
    let missing = total - shares.iter().sum::<u64>();
    for (_, at) in remainders.into_iter().take(missing as usize) {
        shares[at] += 1;
    }
    shares
}
