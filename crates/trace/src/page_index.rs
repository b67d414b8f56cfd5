// SPDX-License-Identifier: Apache-2.0
//! Maps 64-bit pages to small dense numbers in the order in which they first appear.
//!
//! Uses open addressing over the numbers alone, since the list of pages has the page of each
//! number. Neighbouring pages have their slots in one cache line. A slot also has a few bits of its
//! page's hash, as many as the number leaves: the slot of another page is recognised without
//! reading the list, which would be one more cache miss. A growing table is rebuilt from the list
//! after the old one was freed: the peak is 8 bytes per page for the list and 10.7 for a table that
//! has just grown.

/// Slots per cache line, a power of two; as many neighbouring pages share one.
const LINE_SLOTS: usize = 16;
const LINE_SHIFT: u32 = LINE_SLOTS.trailing_zeros();
/// The distance between successive probes: one line further, since a run that meets a full line
/// would otherwise walk through it. Odd, so that every slot is probed before one is repeated.
const STEP: usize = LINE_SLOTS + 1;
/// Number of lines in an empty map.
const LINES_MIN: usize = 64;
/// The most pages, so that a number plus one fits a `u32`.
const PAGES_MAX: usize = (u32::MAX - 1) as usize;

/// The tag begins here in the hash: it has neither the bits that select a line nor the last ones,
/// which select the place in it.
const TAG_SHIFT: u32 = u64::BITS - LINE_SHIFT - u32::BITS;

/// The map. Numbers are `0..len()`.
pub struct PageIndex {
    /// A number plus one, with the page's tag in the bits that it leaves; 0 for an empty slot: a
    /// zeroed table is not resident before it is used.
    slots: Vec<u32>,
    pages: Vec<u64>,
    /// The number looked up last. Pages used in a run are mostly used in the same run again, so the
    /// next number is tried before the table.
    last: u32,
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
            slots: vec![0; LINES_MIN * LINE_SLOTS],
            pages: Vec::new(),
            last: 0,
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

    /// Memory use in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + size_of_val(&*self.pages)
    }

    /// The pages by number; drops the rest of the map.
    #[must_use]
    pub fn into_pages(self) -> Vec<u64> {
        self.pages
    }

    /// The pages by number.
    #[must_use]
    pub fn pages(&self) -> &[u64] {
        &self.pages
    }

    /// The number of a page, a new one if the page is new. `None` once there are `u32::MAX - 1`
    /// pages.
    #[inline]
    pub fn number(&mut self, page: u64) -> Option<u32> {
        if self.pages.get(self.last as usize + 1) == Some(&page) {
            self.last += 1;
            return Some(self.last);
        }
        let (mut at, tag) = first_slot(page, self.slots.len());
        self.last = loop {
            let slot = self.slots[at];
            if slot == 0 {
                break self.add(page, at, tag)?;
            }
            let number = number_in(slot, tag);
            if self.pages.get(number as usize) == Some(&page) {
                break number;
            }
            at = next_slot(at, self.slots.len());
        };
        Some(self.last)
    }

    fn add(&mut self, page: u64, at: usize, tag: u32) -> Option<u32> {
        if self.pages.len() >= PAGES_MAX {
            return None;
        }
        let number = self.pages.len() as u32;
        self.pages.push(page);
        self.slots[at] = tag ^ (number + 1);
        if self.pages.len() > self.slots.len() / 4 * 3 {
            self.grow();
        }
        Some(number)
    }

    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        // Free the old table first: both together would be the peak.
        self.slots = Vec::new();
        self.slots = vec![0; size];
        for (number, &page) in (1..).zip(&self.pages) {
            let (mut at, tag) = first_slot(page, size);
            while self.slots[at] != 0 {
                at = next_slot(at, size);
            }
            self.slots[at] = tag ^ number;
        }
    }
}

/// Where the search for a page starts in a table of `size` slots, and the page's tag: bits of its
/// hash above those that a number in such a table needs.
///
/// Neighbours differ only in the last bits, which are mixed with the hash: otherwise pages at equal
/// distances would share a few slots of each line.
#[inline]
fn first_slot(page: u64, size: usize) -> (usize, u32) {
    let mask = size - 1;
    let line = hash(page >> LINE_SHIFT);
    let place = (page ^ (line >> (u64::BITS - LINE_SHIFT))) & (LINE_SLOTS as u64 - 1);
    let at = (line << LINE_SHIFT | place) as usize & mask;
    (at, (line >> TAG_SHIFT) as u32 & !mask as u32)
}

/// The slot to look at after `at`.
#[inline]
fn next_slot(at: usize, size: usize) -> usize {
    (at + STEP) & (size - 1)
}

/// The number in a slot, or none that exists if the slot is empty or of a page with another tag,
/// whose entry in the list is then not read.
#[inline]
fn number_in(slot: u32, tag: u32) -> u32 {
    (slot ^ tag).wrapping_sub(1)
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

    /// The bar for a whole reader is 24 bytes per page, and it also keeps 4 bytes per access.
    #[test]
    fn at_most_20_bytes_a_page_however_they_lie() {
        for distance in [1, 7, 16, 4096, 1 << 40] {
            let mut index = PageIndex::new();
            for n in 0..100_000 {
                assert_eq!(index.number(n * distance), Some(n as u32));
                if n >= 1000 {
                    assert!(index.memory_bytes() <= 20 * index.len(), "{distance} {n}");
                }
            }
        }
    }
}
