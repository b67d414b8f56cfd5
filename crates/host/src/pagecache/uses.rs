// SPDX-License-Identifier: Apache-2.0
//! Records which file pages were used since they were last shown to a simulation.
//!
//! Walks of the page cache are expensive and rare. Accesses between two walks are recorded anyway,
//! so a simulation that depends on the order of uses fetches them far more often than the contents
//! of the cache.

use std::collections::HashMap;

use agewise_policy::table::PageSet;

use super::accesses::{Accesses, Block};

/// Used pages, by block.
pub type Uses = HashMap<Block, PageSet>;

/// Most blocks kept, at 80 bytes each. If there are more, nobody fetches them any more.
const BLOCKS_MAX: usize = 1 << 18;

/// Uses not shown yet. Recorded once somebody has asked for them, until there are too many.
#[derive(Default)]
pub(super) struct Unshown {
    is_kept: bool,
    blocks: Uses,
}

impl Unshown {
    /// Adds accesses through file descriptors.
    pub fn add(&mut self, accesses: &Accesses) {
        self.add_blocks(&accesses.blocks);
    }

    /// Adds accesses of any kind.
    pub fn add_blocks(&mut self, blocks: &Uses) {
        if self.is_kept {
            for (block, pages) in blocks {
                *self.blocks.entry(*block).or_insert(PageSet::NONE) |= *pages;
            }
        }
        if self.blocks.len() > BLOCKS_MAX {
            *self = Unshown::default();
        }
    }

    /// Returns the uses since the last call; the first call only starts recording.
    pub fn take(&mut self) -> Uses {
        self.is_kept = true;
        std::mem::take(&mut self.blocks)
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.blocks.capacity() * (size_of::<(Block, PageSet)>() + 1)
    }
}

#[cfg(test)]
mod tests {
    use crate::pagecache::fake::{self, Shared};
    use agewise_policy::table::PageSet;

    use crate::pagecache::{Block, CacheKind, FileAges};

    #[test]
    fn what_is_used_is_shown_once_and_ages_have_it_too() {
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![fake::file(1, CacheKind::File, 7, 40)];
        let mut ages = shared.ages(1000);
        let read = |pages: u64| shared.0.lock().unwrap().files[0].read = pages;
        let taken = |ages: &mut FileAges| {
            let uses = ages.take_uses().unwrap();
            uses.values().map(|pages| pages[0]).sum::<u64>()
        };
        read(0b1);
        ages.look(&|_| true).unwrap();
        assert_eq!(taken(&mut ages), 0, "nobody had asked");
        read(0b10);
        ages.look(&|_| true).unwrap();
        read(0b100);
        assert_eq!(taken(&mut ages), 0b110, "before the look and after it");
        assert_eq!(taken(&mut ages), 0);
        assert_eq!(ages.look(&|_| true).unwrap().young_pages, 1);
        assert_eq!(taken(&mut ages), 0);
    }
    #[test]
    fn what_nobody_takes_does_not_grow_for_ever() {
        let mut unshown = super::Unshown::default();
        unshown.take();
        let blocks = |from: u32, to: u32| {
            let block = |block| Block {
                inode: 1,
                number: 1,
                block,
            };
            let sets = (from..to).map(|at| (block(at), PageSet::ALL));
            sets.collect::<super::Uses>()
        };
        unshown.add_blocks(&blocks(0, 10));
        unshown.add_blocks(&blocks(10, super::BLOCKS_MAX as u32 + 1));
        assert!(unshown.take().is_empty(), "it was given up");
        unshown.add_blocks(&blocks(0, 10));
        assert_eq!(unshown.take().len(), 10, "from then on anew");
    }
}
