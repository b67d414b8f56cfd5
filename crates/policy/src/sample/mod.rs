// SPDX-License-Identifier: Apache-2.0
//! A fixed sample of memory, to estimate how much of it has which age.
//!
//! Histograms, curves and models need a sample, not every page: blocks of 256 MiB in total estimate
//! the ages of a terabyte to about one percent. So memory up to a bound is followed whole, and of
//! larger memory a number of blocks ([`Bounds`]) that does not grow with it.
//!
//! Blocks are *fixed*: the selection depends only on their address, or on the file and the place in
//! it ([`Identity`]). So a followed page stays followed and its history is complete, and a page
//! that two processes map is followed in both or in neither. Blocks are *stratified*: exactly one
//! of 2^[`Level`] neighbouring blocks is followed, so every part of every mapping has its share.
//! And they are *nested*: of the two blocks that a finer sample follows in neighbouring strata, a
//! coarser one follows one, so a lower rate starts no new history. Small mappings are followed
//! whole.
//!
//! The result is scaled to the exactly known resident memory of the process by type ([`scale`]),
//! and every figure has a 95 % interval ([`Spread`]).
//!
//! ```
//! use agewise_policy::sample::{Area, Bounds, Identity, choose, level_for};
//!
//! let bounds = Bounds::default();
//! // A terabyte of one mapping.
//! let area = Area { pages: 0..1 << 28, identity: Identity::Address, kind: 0 };
//! let level = level_for(1 << 28, 0, &bounds);
//! let blocks = choose(&[area], level, bounds.block_pages, 0);
//! let followed: u64 = blocks.iter().map(|piece| piece.pages.end - piece.pages.start).sum();
//! assert!(followed <= bounds.sampled_pages());
//! assert!(followed * 2 >= bounds.sampled_pages());
//! ```

mod choice;
mod interval;
#[cfg(test)]
mod interval_tests;
#[cfg(test)]
mod tests;

pub use choice::{Area, Identity, Piece, choose, sampled, whole_limit};
pub use interval::{Interval, Margin, Spread};

use crate::generations::{ByType, LABEL_UNSEEN, LABELS, Sizes};

/// One of 2^level neighbouring blocks is followed; at level 0, all.
pub type Level = u8;

/// No sample is finer: where neighbours are alike, reading and clearing half of all blocks one by
/// one costs more than reading and clearing everything (4.9 and 3.1 ms for 613 MiB).
const LEVEL_MIN: Level = 2;

/// No sample is coarser: 2^40 blocks of one page are more than an address space of 48 bits
/// contains.
pub const LEVEL_MAX: Level = 40;

/// How much is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of blocks followed. Resident memory of as many pages is followed whole; of
    /// larger memory at least half as many blocks, or a quarter if it is only a little larger.
    pub blocks: u64,
    /// Pages of a block, a power of two up to 512. Large blocks are cheaper to read; small ones say
    /// more for the same number of pages, because neighbours are alike.
    pub block_pages: u64,
    /// Maximum number of pages in small mappings that are followed whole, resident or not.
    pub whole_pages: u64,
}

impl Default for Bounds {
    /// Up to 384 MiB whole; of more, up to 6144 blocks of 64 KiB, and 64 MiB of small mappings. Not
    /// a power of two: a program slightly larger than one should not get half as many blocks.
    fn default() -> Self {
        Bounds {
            blocks: 6 << 10,
            block_pages: 16,
            whole_pages: 1 << 14,
        }
    }
}

impl Bounds {
    /// Maximum number of pages in the blocks followed.
    pub fn sampled_pages(&self) -> u64 {
        self.blocks.saturating_mul(self.block_pages)
    }
}

/// The level of the sample for this much resident memory, after a sample of level `before`. It
/// never becomes finer: blocks that join late have no history.
pub fn level_for(resident_pages: u64, before: Level, bounds: &Bounds) -> Level {
    let is_enough = |level: Level| resident_pages >> level <= bounds.sampled_pages().max(1);
    if is_enough(before) {
        return before;
    }
    (before.max(LEVEL_MIN)..LEVEL_MAX)
        .find(|level| is_enough(*level))
        .unwrap_or(LEVEL_MAX)
}

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
