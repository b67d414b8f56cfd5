// SPDX-License-Identifier: Apache-2.0
//! Maps 64-bit pages to small dense numbers in the order they are first seen.
//!
//! Neighbouring pages share a leaf of one cache line, and the leaf used last is remembered: a run of
//! pages costs one probe for 16 pages. A page without neighbours costs a whole leaf, 64 bytes.

/// Pages of a leaf, a power of two.
const LEAF_PAGES: usize = 16;
const LEAF_SHIFT: u32 = LEAF_PAGES.trailing_zeros();
/// Marks a page not seen, and an empty slot.
const NONE: u32 = u32::MAX;

/// The map. Numbers are `0..len()`.
pub struct PageIndex {
    /// Open addressing by the page's prefix: prefix and leaf.
    slots: Vec<(u64, u32)>,
    /// `slots.len() - 1`, which is a power of two less one.
    mask: usize,
    leaves: Vec<[u32; LEAF_PAGES]>,
    pages: Vec<u64>,
    last_prefix: u64,
    last_leaf: u32,
}

impl Default for PageIndex {
    fn default() -> Self {
        Self::new()
    }
}

impl PageIndex {
    /// An empty map.
    #[must_use]
    pub fn new() -> Self {
        Self {
            slots: vec![(0, NONE); 1024],
            mask: 1023,
            leaves: Vec::new(),
            pages: Vec::new(),
            last_prefix: u64::MAX,
            last_leaf: NONE,
        }
    }

    /// Pages seen so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether no page was seen yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// What it takes in memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of::<(u64, u32)>() * self.slots.capacity()
            + size_of::<[u32; LEAF_PAGES]>() * self.leaves.capacity()
            + size_of::<u64>() * self.pages.capacity()
    }

    /// The pages, by their numbers, without the rest of it.
    #[must_use]
    pub fn into_pages(self) -> Vec<u64> {
        self.pages
    }

    /// The pages, by their numbers.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// The number of a page, a new one if it was not seen before. `None` once there are `u32::MAX - 1`.
    #[inline]
    pub fn number(&mut self, page: u64) -> Option<u32> {
        let prefix = page >> LEAF_SHIFT;
        if prefix != self.last_prefix {
            self.last_leaf = self.leaf(prefix);
            self.last_prefix = prefix;
        }
        let entry = &mut self.leaves[self.last_leaf as usize][page as usize & (LEAF_PAGES - 1)];
        if *entry == NONE {
            let number = u32::try_from(self.pages.len())
                .ok()
                .filter(|&number| number < NONE)?;
            *entry = number;
            self.pages.push(page);
        }
        Some(*entry)
    }

    fn leaf(&mut self, prefix: u64) -> u32 {
        let mut at = hash(prefix) as usize & self.mask;
        loop {
            let (found, leaf) = self.slots[at];
            if leaf == NONE {
                break;
            }
            if found == prefix {
                return leaf;
            }
            at = (at + 1) & self.mask;
        }
        // Every leaf holds a page, so leaves are counted by at most as many bits as pages.
        let leaf = self.leaves.len() as u32;
        self.leaves.push([NONE; LEAF_PAGES]);
        self.slots[at] = (prefix, leaf);
        if self.leaves.len() * 2 > self.slots.len() {
            self.grow();
        }
        leaf
    }

    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![(0, NONE); size]);
        self.mask = size - 1;
        for (prefix, leaf) in old.into_iter().filter(|(_, leaf)| *leaf != NONE) {
            let mut at = hash(prefix) as usize & self.mask;
            while self.slots[at].1 != NONE {
                at = (at + 1) & self.mask;
            }
            self.slots[at] = (prefix, leaf);
        }
    }
}

/// Spreads a number over 64 bits by a folded multiplication.
#[inline]
#[must_use]
pub fn hash(value: u64) -> u64 {
    let product = u128::from(value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn as_a_hash_map(pages in proptest::collection::vec(
            prop_oneof![0u64..200, any::<u64>(), (0u64..64).prop_map(|n| u64::MAX - n),
                        (0u64..4000).prop_map(|n| n << 32)], 0..4000))
        {
            let mut index = PageIndex::new();
            let mut model = HashMap::new();
            for page in pages {
                let next = model.len() as u32;
                let expected = *model.entry(page).or_insert(next);
                prop_assert_eq!(index.number(page), Some(expected));
                prop_assert_eq!(index.pages()[expected as usize], page);
            }
            prop_assert_eq!(index.len(), model.len());
        }
    }
}
