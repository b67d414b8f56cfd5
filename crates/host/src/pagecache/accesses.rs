// SPDX-License-Identifier: Apache-2.0
//! What was accessed since a look, and how much of it was lost.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

/// 512 pages of an inode: `struct af_key`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Block {
    /// Kernel address of the inode.
    pub inode: u64,
    /// Low half of the inode number.
    pub number: u32,
    /// Index of its first page / 512.
    pub block: u32,
}

impl Block {
    /// Its pages, by index in the file.
    pub fn pages(&self) -> Range<u64> {
        let first = u64::from(self.block) * PAGES_PER_TABLE as u64;
        first..first + PAGES_PER_TABLE as u64
    }

    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let half = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        Some(Block {
            inode: u64::from_ne_bytes(bytes.get(..8)?.try_into().ok()?),
            number: half(8)?,
            block: half(12)?,
        })
    }

    pub(super) fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.inode.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.number.to_ne_bytes());
        bytes[12..].copy_from_slice(&self.block.to_ne_bytes());
        bytes
    }
}

/// So many accesses that no program saw are harmless: at worst, as many reads repeat what was
/// dropped.
const MISSED_MIN: u64 = 16;
/// Beyond that, so many per event are: a page that is accessed often was hardly missed each time.
const MISSED_PERCENT: u64 = 1;

/// Accesses since the previous look.
#[derive(Debug, Default)]
pub struct Accesses {
    /// Accessed pages, by block.
    pub blocks: HashMap<Block, PageSet>,
    /// Events that reported new pages.
    pub events: u64,
    /// Events lost: `blocks` lacks some accesses. Those for which the map had no room are counted;
    /// 1 stands for all while the programs did not run.
    pub dropped: u64,
    /// Times a program did not run, because it was running on that CPU already: `blocks` may lack
    /// as many accesses. Includes those that would have reported no new pages.
    pub missed: u64,
}

impl Accesses {
    /// Adds the accesses found by a later look.
    pub fn add(&mut self, later: Accesses) {
        for (block, pages) in later.blocks {
            *self.blocks.entry(block).or_insert(PageSet::NONE) |= pages;
        }
        self.events += later.events;
        self.dropped += later.dropped;
        self.missed += later.missed;
    }

    /// Whether so many are lacking that any page may have been accessed.
    pub fn lacks_many(&self) -> bool {
        let harmless = MISSED_MIN.max(self.events.saturating_mul(MISSED_PERCENT) / 100);
        self.dropped > 0 || self.missed > harmless
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_miss_a_few_accesses_but_no_room_may_lack() {
        let lacks_many = |events, dropped, missed| {
            let accesses = Accesses {
                events,
                dropped,
                missed,
                ..Accesses::default()
            };
            accesses.lacks_many()
        };
        assert!(!lacks_many(0, 0, 0) && lacks_many(1_000_000, 1, 0));
        assert!(!lacks_many(0, 0, MISSED_MIN) && lacks_many(0, 0, MISSED_MIN + 1));
        assert!(!lacks_many(10_000, 0, 100) && lacks_many(10_000, 0, 101));
    }
}
