// SPDX-License-Identifier: Apache-2.0
//! Selects the pages to simulate: a fixed number, by hash (SHARDS).
//!
//! Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015, the variant of
//! fixed size: if there are too many pages, the one with the greatest hash leaves, and from then on
//! no page with that hash or a greater one is accepted. So every page in the sample has been in it
//! since its first use.

use std::collections::BTreeMap;
use std::ops::Range;

use super::first_use::FirstUse;
use super::{Fact, Slot};
use crate::generations::PageType;
use crate::mix;
use crate::sample::Level;
use crate::table::PAGES_PER_TABLE;

/// Determines which pages are simulated, without the sample itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    threshold: u64,
}

impl Filter {
    /// Whether a page is simulated. `hash` is the [`page_hash`] of its permanent name; one block in
    /// 2^`level` of the memory it belongs to is followed.
    #[inline]
    pub fn takes(self, hash: u64, level: Level) -> bool {
        rank(hash, level) < self.threshold
    }

    /// Calls `take` with number and hash of each simulated page among `pages`, in ascending order.
    /// They are pages of `of`, as in [`page_hash`], and one in 2^`level` of them is followed. The
    /// time depends on the number of pages found and of tables of 512 pages, not on the number of
    /// pages.
    pub fn each(self, of: u64, pages: Range<u64>, level: Level, mut take: impl FnMut(u64, u64)) {
        let is_all = self.threshold.leading_zeros() < u32::from(level);
        let end = if is_all {
            u64::MAX
        } else {
            self.threshold << level
        };
        for number in pages.start / TABLE..pages.end.div_ceil(TABLE) {
            let table = Table::new(of, number);
            let mut found = [0; PAGES_PER_TABLE];
            let last = (end >> TURN_SHIFT) as usize;
            let found = &mut found[..=last];
            for (turn, place) in (0..).zip(found.iter_mut()) {
                *place = table.place(turn);
            }
            found.sort_unstable();
            for place in found {
                let (page, hash) = (number * TABLE + *place, table.hash(*place));
                if pages.contains(&page) && self.takes(hash, level) {
                    take(page, hash);
                }
            }
        }
    }

    /// The share of pages that are simulated.
    pub fn share(self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }
}

/// The order in which pages leave the sample. Pages of memory that is only followed in part get
/// lower ranks, so that any page of all memory is equally likely to be in the sample.
fn rank(hash: u64, level: Level) -> u64 {
    hash.checked_shr(u32::from(level)).unwrap_or(0)
}

/// Ranks of pages at this level are below it (but for one in 2^(64 - `level`)).
fn threshold_of(level: Level) -> u64 {
    u64::MAX.checked_shr(u32::from(level)).unwrap_or(0)
}

/// The name of a page as a pseudo-random number, derived from process and address, or from file and
/// place in the file. Each of the 512 pages of a table has its own 512th of the numbers, so a
/// sample takes equally many from each table, and finds them without trying every page.
pub fn page_hash(of: u64, page: u64) -> u64 {
    Table::new(of, page / TABLE).hash(page % TABLE)
}

/// Pages of a table.
const TABLE: u64 = PAGES_PER_TABLE as u64;
/// The upper bits of a hash are the turn of a page among those of its table.
const TURN_SHIFT: u32 = u64::BITS - TABLE.trailing_zeros();

/// Hashes of the pages of a table.
#[derive(Clone, Copy)]
struct Table {
    seed: u64,
}

impl Table {
    fn new(of: u64, number: u64) -> Self {
        Table {
            seed: mix::hash(mix::hash(of) ^ number),
        }
    }

    /// Odd, so that each page of the table has its own turn.
    fn factor(self) -> u64 {
        self.seed | 1
    }

    fn offset(self) -> u64 {
        self.seed >> 32
    }

    fn hash(self, place: u64) -> u64 {
        let turn = place
            .wrapping_mul(self.factor())
            .wrapping_add(self.offset())
            % TABLE;
        turn << TURN_SHIFT | mix::hash(self.seed ^ place) >> (u64::BITS - TURN_SHIFT)
    }

    /// The page whose turn it is.
    fn place(self, turn: u64) -> u64 {
        // Newton's method: each step doubles the correct bits, starting from three.
        let step = |inverse: u64| {
            inverse.wrapping_mul(2u64.wrapping_sub(self.factor().wrapping_mul(inverse)))
        };
        let inverse = step(step(self.factor()));
        turn.wrapping_sub(self.offset()).wrapping_mul(inverse) % TABLE
    }
}

/// A page of the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub rank: u64,
    /// How many pages entered the sample before it.
    pub number: u32,
    pub page_type: PageType,
    /// The last look that showed it, and what that look showed.
    pub shown: u32,
    pub fact: Fact,
    /// Whether that was the first look to show it.
    pub is_new: bool,
    /// It was resident when the observation began and has not been used since: its last use is
    /// unknown.
    pub is_unknown: bool,
    /// It has been in swap since its last use.
    pub is_out: bool,
    pub first_use: FirstUse,
}

impl Page {
    /// A page that a look shows for the first time.
    pub fn new(look: u32, page_type: PageType, fact: Fact) -> Self {
        Page {
            rank: 0,
            number: 0,
            page_type,
            shown: look,
            fact,
            is_new: true,
            is_unknown: look == 0,
            is_out: fact == Fact::Out,
            first_use: match look {
                0 => FirstUse::Before,
                _ => FirstUse::Unseen,
            },
        }
    }

    /// Records that a look shows it.
    pub fn show(&mut self, look: u32, page_type: PageType, fact: Fact) {
        if self.shown == look {
            // Another process also maps it: used, or present, in one of them is enough.
            if fact == Fact::Used || self.fact == Fact::Out {
                self.fact = fact;
            }
            return;
        }
        (self.shown, self.page_type, self.fact) = (look, page_type, fact);
        self.is_new = false;
        self.is_out = fact == Fact::Out || (self.is_out && fact == Fact::Used);
    }
}

/// The simulated pages.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pages: Vec<Option<Page>>,
    by_rank: BTreeMap<u64, Slot>,
    free: Vec<Slot>,
    threshold: u64,
    /// The coarsest level at which pages were shown by this look, and by the last whole one.
    coarsest: Level,
    coarsest_whole: Level,
    /// Pages taken in so far.
    taken: u32,
}

impl Sample {
    /// An empty sample of at most this many pages.
    pub fn new(slots: usize) -> Self {
        Sample {
            pages: vec![None; slots],
            by_rank: BTreeMap::new(),
            free: (0..slots as Slot).rev().collect(),
            threshold: u64::MAX,
            coarsest: 0,
            coarsest_whole: 0,
            taken: 0,
        }
    }

    pub fn filter(&self) -> Filter {
        Filter {
            threshold: self.threshold,
        }
    }

    /// Starts a look.
    pub fn begin(&mut self) {
        self.coarsest = 0;
    }

    /// Ends a look that showed everything.
    pub fn end_whole(&mut self) {
        self.coarsest_whole = self.coarsest;
    }

    /// Whether a new sample would have a larger share of the pages.
    pub fn is_part(&self) -> bool {
        self.threshold < threshold_of(self.coarsest_whole)
    }

    /// Of memory of which one block in 2^`level` is followed, no larger share can be in the sample;
    /// nor may there be of other memory, or it would represent too much. Returns the slots of the
    /// pages that had to leave.
    pub fn limit(&mut self, level: Level) -> Vec<Slot> {
        if level <= self.coarsest {
            return Vec::new();
        }
        self.coarsest = level;
        if self.threshold <= threshold_of(level) {
            return Vec::new();
        }
        self.threshold = threshold_of(level);
        let left = self.by_rank.split_off(&self.threshold);
        let left: Vec<Slot> = left.into_values().collect();
        for slot in &left {
            self.pages[usize::from(*slot)] = None;
        }
        self.free.extend(&left);
        left
    }

    /// The page of a hash, if it is in the sample.
    pub fn find(&self, hash: u64, level: Level) -> Option<Slot> {
        self.by_rank.get(&rank(hash, level)).copied()
    }

    pub fn page_mut(&mut self, slot: Slot) -> Option<&mut Page> {
        self.pages[usize::from(slot)].as_mut()
    }

    pub fn page(&self, slot: Slot) -> Option<&Page> {
        self.pages[usize::from(slot)].as_ref()
    }

    /// Adds a new page if its rank is low enough. Returns the slot of the page that had to leave
    /// for it, if one did; that page never comes back, and the new one has its slot.
    pub fn add(&mut self, hash: u64, level: Level, page: Page) -> Option<Slot> {
        let rank = rank(hash, level);
        if rank >= self.threshold {
            return None;
        }
        let mut left = None;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let (greatest, slot) = self.by_rank.last_key_value()?;
                let (greatest, slot) = (*greatest, *slot);
                self.threshold = greatest.max(rank);
                if greatest < rank {
                    return None;
                }
                self.by_rank.remove(&greatest);
                left = Some(slot);
                slot
            }
        };
        let number = self.taken;
        self.taken = self.taken.wrapping_add(1);
        self.pages[usize::from(slot)] = Some(Page {
            rank,
            number,
            ..page
        });
        self.by_rank.insert(rank, slot);
        left
    }

    /// Removes a page that is gone, and frees its slot.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(page) = self.pages[usize::from(slot)].take() {
            self.by_rank.remove(&page.rank);
            self.free.push(slot);
        }
    }

    /// All pages, with their slots.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Page)> {
        let pages = (0..).zip(&self.pages);
        pages.filter_map(|(slot, page)| Some((slot, page.as_ref()?)))
    }

    /// The same, to be changed.
    pub fn pages_mut(&mut self) -> impl Iterator<Item = &mut Page> {
        self.pages.iter_mut().flatten()
    }

    /// Number of pages in it.
    pub fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// The most pages that fit.
    pub fn slots(&self) -> usize {
        self.pages.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The pages found are those that are taken when each is tried.
        #[test]
        fn none_is_missed_and_none_made_up(
            of in any::<u64>(),
            start in 0u64..1 << 40,
            count in 0u64..1500,
            threshold in prop_oneof![any::<u64>(), 0u64..1 << 56, Just(u64::MAX)],
            level in 0u8..=40,
        ) {
            let filter = Filter { threshold };
            let pages = start..start + count;
            let mut found = Vec::new();
            filter.each(of, pages.clone(), level, |page, hash| found.push((page, hash)));
            let tried = pages.map(|page| (page, page_hash(of, page)));
            let taken: Vec<_> = tried.filter(|(_, hash)| filter.takes(*hash, level)).collect();
            prop_assert_eq!(found, taken);
        }

        #[test]
        fn every_place_has_a_turn(of in any::<u64>(), number in any::<u64>()) {
            let table = Table::new(of, number);
            for turn in 0..TABLE {
                let place = table.place(turn);
                prop_assert!(place < TABLE);
                prop_assert_eq!(table.hash(place) >> TURN_SHIFT, turn);
            }
        }
    }
}
