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
mod estimate;
mod interval;
#[cfg(test)]
mod interval_tests;
#[cfg(test)]
mod tests;

pub use choice::{Area, Identity, Piece, choose, sampled, whole_limit};
pub use estimate::scale;
pub use interval::{Interval, Margin, Spread};

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
