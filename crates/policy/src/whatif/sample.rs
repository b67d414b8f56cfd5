// SPDX-License-Identifier: Apache-2.0
//! Which pages are simulated: a fixed number, chosen by hash (SHARDS).
//!
//! Source: Waldspurger et al., "Efficient MRC construction with SHARDS", FAST 2015, with a fixed
//! size: when there are too many pages the one with the greatest hash goes, and from then on no
//! page with that hash or a greater one is taken. So what is in the sample has been from its first
//! use.

use std::collections::BTreeMap;

use super::{Fact, Slot};
use crate::generations::PageType;
use crate::sample::Level;

/// Tells which pages are simulated, without the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    threshold: u64,
}

impl Filter {
    /// Takes every page.
    pub(super) const ALL: Filter = Filter {
        threshold: u64::MAX,
    };

    /// Whether a page is simulated. `hash` is [`page_hash`] of what names it for good; it was found
    /// among memory of which one block in 2^`level` is followed.
    #[inline]
    pub fn takes(self, hash: u64, level: Level) -> bool {
        rank(hash, level) < self.threshold
    }

    /// The share of the pages that are simulated.
    pub fn share(self) -> f64 {
        self.threshold as f64 / u64::MAX as f64
    }
}

/// The order in which pages leave the sample. Of memory that is followed in part more is taken, so
/// that every page of all memory is as likely to be in the sample as any other.
fn rank(hash: u64, level: Level) -> u64 {
    hash.checked_shr(u32::from(level)).unwrap_or(0)
}

/// What names a page, as a number that looks drawn by chance: of process and address, or of file
/// and place in it.
pub fn page_hash(of: u64, page: u64) -> u64 {
    crate::mix::hash(crate::mix::hash(of) ^ page)
}

/// A page of the sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub rank: u64,
    /// How many pages were shown for the first time before it.
    pub number: u32,
    pub page_type: PageType,
    /// The look that last showed it, and what it showed.
    pub shown: u32,
    pub fact: Fact,
    /// That was the first one.
    pub is_new: bool,
    /// It was there when the observation began and has not been used since: nothing is known of its
    /// last use.
    pub is_unknown: bool,
    /// It was in swap before it was used.
    pub is_out: bool,
}

impl Page {
    /// One that a look shows for the first time.
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
        }
    }

    /// A look shows it.
    pub fn show(&mut self, look: u32, page_type: PageType, fact: Fact) {
        if self.shown == look {
            // By another process. Used by one is used, there for one is there.
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

/// The pages simulated.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pages: Vec<Option<Page>>,
    by_rank: BTreeMap<u64, Slot>,
    free: Vec<Slot>,
    threshold: u64,
    /// Pages taken in so far.
    taken: u32,
}

impl Sample {
    /// Of at most so many pages.
    pub fn new(slots: usize) -> Self {
        Sample {
            pages: vec![None; slots],
            by_rank: BTreeMap::new(),
            free: (0..slots as Slot).rev().collect(),
            threshold: u64::MAX,
            taken: 0,
        }
    }

    pub fn filter(&self) -> Filter {
        Filter {
            threshold: self.threshold,
        }
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

    /// Takes a new page in, if its rank is low enough. A page that has to leave for it does so for
    /// good; that is returned, and its number belongs to the new one.
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

    /// A page is no more. Its place is free.
    pub fn remove(&mut self, slot: Slot) {
        if let Some(page) = self.pages[usize::from(slot)].take() {
            self.by_rank.remove(&page.rank);
            self.free.push(slot);
        }
    }

    /// All pages.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &Page)> {
        let pages = (0..).zip(&self.pages);
        pages.filter_map(|(slot, page)| Some((slot, page.as_ref()?)))
    }

    /// Pages in it.
    pub fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Bytes taken from the allocator, about: nodes of a tree are two thirds full.
    pub fn memory_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Option<Page>>()
            + self.by_rank.len() * (size_of::<u64>() + size_of::<Slot>()) * 3 / 2
            + self.free.capacity() * size_of::<Slot>()
    }
}
