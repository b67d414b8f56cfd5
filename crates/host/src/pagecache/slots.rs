// SPDX-License-Identifier: Apache-2.0
//! Assigns the pages of files to one age map: every file has its own range of page numbers.
//!
//! Files smaller than a table (2 MiB) share tables with others of their size class, so that a
//! million files of one page cost two thousand tables. Larger files get so much room that they
//! never move.

use agewise_policy::table::PAGES_PER_TABLE;

const TABLE: u64 = PAGES_PER_TABLE as u64;
/// Log2 of the pages in a table.
const TABLE_CLASS: u8 = TABLE.trailing_zeros() as u8;
/// Log2 of the minimum number of pages reserved for a large file: 2 TiB.
const LARGE_CLASS: u8 = 29;
/// Log2 of the maximum number of pages of a file (4 PiB): a sparse file may claim to be far larger,
/// and a few of those would use up all page numbers.
const MOST_CLASS: u8 = 40;
/// Limit of page numbers: an age map counts tables by u64.
const END: u64 = 1 << 63;

/// The range of one file: 2^`class` pages from `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// First page number.
    pub first: u64,
    class: u8,
}

impl Slot {
    /// Number of pages in the slot.
    pub fn pages(&self) -> u64 {
        1 << self.class
    }

    /// Whether a file of this many pages fits.
    pub fn holds(&self, pages: u64) -> bool {
        pages <= self.pages()
    }
}

/// Slots handed out and returned.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// First pages of free slots, by class.
    free: Vec<Vec<u64>>,
    /// No page number from here on has been handed out.
    next: u64,
}

impl Slots {
    /// All slots are taken.
    #[cfg(test)]
    pub fn used_up() -> Self {
        Slots {
            free: Vec::new(),
            next: END,
        }
    }

    /// Takes a slot for a file of this many pages; `None` if those are too many, or page numbers
    /// have run out.
    pub fn take(&mut self, pages: u64) -> Option<Slot> {
        let class = class_of(pages)?;
        self.free.resize_with(64, Vec::new);
        if let Some(first) = self.free[usize::from(class)].pop() {
            return Some(Slot { first, class });
        }
        let size = (1u64 << class).max(TABLE);
        let first = self.next;
        self.next = first.checked_add(size).filter(|next| *next <= END)?;
        // The rest of the table goes to later files of the class.
        let others = (1..size >> class).rev().map(|at| first + (at << class));
        self.free[usize::from(class)].extend(others);
        Some(Slot { first, class })
    }

    /// Returns a slot. Its pages must have left the age map.
    pub fn give_back(&mut self, slot: Slot) {
        self.free[usize::from(slot.class)].push(slot.first);
    }
}

fn class_of(pages: u64) -> Option<u8> {
    let class = pages.max(1).checked_next_power_of_two()?.trailing_zeros() as u8;
    match class {
        small if small < TABLE_CLASS => Some(small),
        large => (large <= MOST_CLASS).then_some(large.max(LARGE_CLASS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_never_overlap_and_hold_what_was_asked(
            sizes in prop::collection::vec(
                (prop_oneof![0u64..2000, any::<u64>()], any::<bool>()),
                1..200,
            ),
        ) {
            let mut slots = Slots::default();
            let mut held: Vec<Slot> = Vec::new();
            for (pages, give_back) in sizes {
                if give_back && !held.is_empty() {
                    let at = pages as usize % held.len();
                    slots.give_back(held.swap_remove(at));
                }
                let pages = pages % (1 << 40);
                let Some(slot) = slots.take(pages) else { continue };
                prop_assert!(slot.holds(pages) && slot.holds(1));
                // A small file lies within one table.
                let last = slot.first + slot.pages() - 1;
                prop_assert!(slot.pages() >= TABLE || slot.first / TABLE == last / TABLE);
                prop_assert!(slot.first % slot.pages().min(TABLE) == 0);
                for other in &held {
                    let apart = other.first + other.pages() <= slot.first
                        || slot.first + slot.pages() <= other.first;
                    prop_assert!(apart, "{slot:?} {other:?}");
                }
                held.push(slot);
            }
        }
    }

    #[test]
    fn files_that_only_claim_to_be_large_leave_room_for_others() {
        let mut slots = Slots::default();
        for pages in [1 << 51, (1 << 40) + 1] {
            let taken: Vec<_> = (0..4096).filter_map(|_| slots.take(pages)).collect();
            taken.into_iter().for_each(|slot| slots.give_back(slot));
        }
        assert!(slots.take(1 << 40).is_some() && slots.take(1 << 20).is_some());
    }

    #[test]
    fn a_million_small_files_take_few_tables() {
        let mut slots = Slots::default();
        (0..1_000_000).for_each(|_| assert!(slots.take(1).is_some()));
        assert!(slots.next <= 1_000_448);
        // A file with more pages than there are page numbers is refused; nothing wraps around.
        assert!(Slots::default().take(u64::MAX).is_none());
    }
}
