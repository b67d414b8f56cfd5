// SPDX-License-Identifier: Apache-2.0
//! Files of which only a sample of the blocks is followed.
//!
//! Reads at random places of a large cached file become up to a fifth slower while all of its
//! blocks are followed, because each one looks its block up in a table of the kernel. Above a rate
//! of recorded accesses, one block in eight of each large file is followed instead, a random one of
//! each group of eight, and stands for the others. The choice never changes, so that the history of
//! the blocks that are followed stays whole.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::generations::{LABEL_UNSEEN, Sizes};

use super::accessed::SAMPLED_FILES_MAX;
use super::accesses::{Accesses, Block};
use super::shown::Key;

/// Recorded accesses per second above which large files are followed by sample. At 0.1 to 0.35 us
/// each they take 1 or 2 % of a core.
const EVENTS_PER_S_MAX: u64 = 50_000;
/// Fewest blocks accessed between two looks that make a file a large one: it then has at least four
/// blocks in the sample.
const BLOCKS_MIN: usize = 32;
/// Blocks for which one stands.
const GROUP: u32 = 8;
/// `mix()` of `accessed.bpf.c`.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The files followed by sample.
#[derive(Default)]
pub(super) struct Sampled {
    by_slot: HashMap<usize, Key>,
}

impl Sampled {
    /// Whether a file is followed by sample.
    pub fn has(&self, key: &Key) -> bool {
        self.by_slot.get(&slot(key)) == Some(key)
    }

    /// The files followed by sample.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.by_slot.values()
    }

    /// Number of files followed by sample.
    pub fn count(&self) -> u64 {
        self.by_slot.len() as u64
    }

    /// The block that is followed in place of this one: itself, unless its file is sampled.
    pub fn stand_in(&self, block: &Block) -> Block {
        match self.has(&(block.inode, block.number)) {
            true => Block {
                block: chosen(block.number, block.block / GROUP),
                ..*block
            },
            false => *block,
        }
    }

    /// The blocks that this one stands for. None if another stands for it.
    pub fn stands_for(&self, block: &Block) -> Range<u32> {
        let first = block.block / GROUP * GROUP;
        match self.has(&(block.inode, block.number)) {
            false => block.block..block.block.saturating_add(1),
            true if !is_chosen(block) => 0..0,
            true => first..first.saturating_add(GROUP),
        }
    }

    /// The large files in `accesses` that are to be followed by sample from now on, if there were
    /// too many accesses in `elapsed_ms`.
    pub fn busy(&self, accesses: &Accesses, elapsed_ms: u64) -> Vec<Key> {
        if accesses.events.saturating_mul(1000) <= EVENTS_PER_S_MAX.saturating_mul(elapsed_ms) {
            return Vec::new();
        }
        let mut blocks: HashMap<Key, usize> = HashMap::new();
        for block in accesses.blocks.keys() {
            *blocks.entry((block.inode, block.number)).or_default() += 1;
        }
        let is_large = |(key, blocks): &(Key, usize)| {
            *blocks >= BLOCKS_MIN && !self.by_slot.contains_key(&slot(key))
        };
        blocks
            .into_iter()
            .filter(is_large)
            .map(|(key, _)| key)
            .collect()
    }

    /// Adds a file, and returns its slot; `None` if another file has it.
    pub fn add(&mut self, key: Key) -> Option<usize> {
        let slot = slot(&key);
        let is_free = !self.by_slot.contains_key(&slot);
        is_free.then(|| {
            self.by_slot.insert(slot, key);
            slot
        })
    }

    /// Removes the files that are no longer cached, and returns their slots.
    pub fn remove_gone(&mut self, is_cached: impl Fn(&Key) -> bool) -> Vec<usize> {
        let gone = self.by_slot.extract_if(|_, key| !is_cached(key));
        gone.map(|(slot, _)| slot).collect()
    }
}

fn slot(key: &Key) -> usize {
    key.1 as usize % SAMPLED_FILES_MAX
}

/// The block of a group that is followed.
fn chosen(number: u32, group: u32) -> u32 {
    let mixed = (u64::from(number) << 32 ^ u64::from(group)).wrapping_mul(MIX);
    group * GROUP + (mixed >> 61) as u32
}

/// Whether a block is followed if its file is followed by sample.
pub(super) fn is_chosen(block: &Block) -> bool {
    chosen(block.number, block.block / GROUP) == block.block
}

/// Adds `total` pages of each type to `sizes`, distributed over ages like those of `sample`. If
/// that has none, their age is unknown.
pub(super) fn add_scaled(sizes: &mut Sizes, sample: &Sizes, total: [u64; 2]) {
    for (page_type, total) in total.into_iter().enumerate() {
        let of: u64 = sample.iter().map(|pages| pages[page_type]).sum();
        if of == 0 {
            sizes[usize::from(LABEL_UNSEEN)][page_type] += total;
            continue;
        }
        // Rounded sums, so that exactly `total` pages are added.
        let (mut sampled, mut added) = (0, 0);
        for (pages, of_label) in sizes.iter_mut().zip(sample) {
            sampled += of_label[page_type];
            let up_to = (u128::from(total) * u128::from(sampled) / u128::from(of)) as u64;
            pages[page_type] += up_to - added;
            added = up_to;
        }
    }
}

#[cfg(test)]
#[path = "sampled_tests.rs"]
mod tests;
