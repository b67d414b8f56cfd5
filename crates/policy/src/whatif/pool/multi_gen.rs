// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU: generations, aged by a walk over all accessed bits when only two are left.
//!
//! A page enters the youngest generation. Eviction takes from the oldest; a page found used there
//! joins the youngest. When only two generations are left, a walk opens a new one and moves
//! everything to it that was used since the previous walk.

use super::Pool;
use super::links::{Links, List};
use crate::whatif::Slot;

/// The most generations at a time.
const GENERATIONS: usize = 4;
/// With this many, a walk is due.
const GENERATIONS_MIN: u32 = 2;

const ABSENT: u8 = u8::MAX;
/// Accessed bit, stored next to the number of the list.
const YOUNG: u8 = 0x80;

#[derive(Debug)]
pub(super) struct MultiGen {
    capacity: u32,
    links: Links,
    lists: [List; GENERATIONS],
    /// The number of the list of each page, and whether it was used since the last check.
    places: Vec<u8>,
    /// Sequence numbers; a generation's list is its number modulo [`GENERATIONS`].
    oldest: u32,
    youngest: u32,
}

impl MultiGen {
    fn list_of(sequence: u32) -> usize {
        sequence as usize % GENERATIONS
    }

    fn put(&mut self, slot: Slot, list: usize, is_young: bool) {
        let young = if is_young { YOUNG } else { 0 };
        self.places[usize::from(slot)] = list as u8 | young;
        self.links.push(&mut self.lists[list], slot);
    }

    fn take(&mut self, slot: Slot) {
        let list = usize::from(self.places[usize::from(slot)] & !YOUNG);
        self.links.unlink(&mut self.lists[list], slot);
    }

    fn evict_one(&mut self) {
        loop {
            if self.youngest - self.oldest < GENERATIONS_MIN {
                self.age();
            }
            let list = Self::list_of(self.oldest);
            let Some(slot) = self.lists[list].oldest() else {
                self.oldest += 1;
                continue;
            };
            let place = self.places[usize::from(slot)];
            self.take(slot);
            if place & YOUNG == 0 {
                self.places[usize::from(slot)] = ABSENT;
                return;
            }
            self.put(slot, Self::list_of(self.youngest), false);
        }
    }

    /// The walk: opens a new generation of everything that was used.
    fn age(&mut self) {
        self.youngest += 1;
        let list = Self::list_of(self.youngest);
        for slot in 0..self.places.len() {
            let place = self.places[slot];
            if place != ABSENT && place & YOUNG != 0 {
                let slot = slot as Slot;
                self.take(slot);
                self.put(slot, list, false);
            }
        }
    }
}

impl Pool for MultiGen {
    fn new(slots: usize) -> Self {
        MultiGen {
            capacity: 1,
            links: Links::new(slots),
            lists: [List::EMPTY; GENERATIONS],
            places: vec![ABSENT; slots],
            oldest: 0,
            youngest: GENERATIONS_MIN,
        }
    }

    fn set_capacity(&mut self, pages: u32) {
        self.capacity = pages.max(1);
        while self.len() > self.capacity {
            self.evict_one();
        }
    }

    fn access(&mut self, slot: Slot) -> bool {
        let place = &mut self.places[usize::from(slot)];
        if *place != ABSENT {
            *place |= YOUNG;
            return true;
        }
        while self.len() >= self.capacity {
            self.evict_one();
        }
        self.put(slot, Self::list_of(self.youngest), true);
        false
    }

    fn remove(&mut self, slot: Slot) {
        if self.places[usize::from(slot)] != ABSENT {
            self.take(slot);
            self.places[usize::from(slot)] = ABSENT;
        }
    }

    fn len(&self) -> u32 {
        self.lists.iter().map(|list| list.len).sum()
    }
}
