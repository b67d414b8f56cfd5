// SPDX-License-Identifier: Apache-2.0
//! Active and inactive list, as in Linux 5.9 and later (workingset detection for all pages).
//!
//! A page starts on the inactive list. If reclaim finds it used there, it goes round once more; if
//! reclaim finds it used again, it becomes active. The active list gives pages to the inactive one
//! when it is longer. A page that comes back after at most as many evictions as there are active
//! pages becomes active at once: it would have stayed if the active pages had not been kept.

use super::Pool;
use super::links::{Links, List};
use crate::whatif::Slot;

const RESIDENT: u8 = 1;
const ACTIVE: u8 = 2;
/// Accessed bit.
const YOUNG: u8 = 4;
/// An earlier scan found it used.
const REFERENCED: u8 = 8;
/// It was evicted; its stamp says when.
const SHADOW: u8 = 16;

#[derive(Debug)]
pub(super) struct Classic {
    capacity: u32,
    links: Links,
    active: List,
    inactive: List,
    flags: Vec<u8>,
    /// The value of `age` when the page was evicted.
    stamps: Vec<u32>,
    /// Evictions and activations so far.
    age: u32,
}

impl Classic {
    fn evict_one(&mut self) {
        // Each round either removes a mark or evicts a page, so there are few rounds.
        loop {
            if self.active.len > self.inactive.len {
                self.deactivate_one();
            }
            let Some(slot) = self.inactive.oldest() else {
                return;
            };
            let flags = &mut self.flags[usize::from(slot)];
            self.links.unlink(&mut self.inactive, slot);
            if *flags & YOUNG == 0 {
                *flags = SHADOW;
                self.stamps[usize::from(slot)] = self.age;
                self.age = self.age.wrapping_add(1);
                return;
            }
            let is_second = *flags & REFERENCED != 0;
            *flags = (*flags & !YOUNG) | REFERENCED;
            if is_second {
                *flags |= ACTIVE;
                self.age = self.age.wrapping_add(1);
                self.links.push(&mut self.active, slot);
            } else {
                self.links.push(&mut self.inactive, slot);
            }
        }
    }

    fn deactivate_one(&mut self) {
        if let Some(slot) = self.active.oldest() {
            self.links.unlink(&mut self.active, slot);
            // Reading the accessed bit clears it; the result does not matter here.
            self.flags[usize::from(slot)] &= !(ACTIVE | YOUNG);
            self.links.push(&mut self.inactive, slot);
        }
    }
}

impl Pool for Classic {
    fn new(slots: usize) -> Self {
        Classic {
            capacity: 1,
            links: Links::new(slots),
            active: List::EMPTY,
            inactive: List::EMPTY,
            flags: vec![0; slots],
            stamps: vec![0; slots],
            age: 0,
        }
    }

    fn set_capacity(&mut self, pages: u32) {
        self.capacity = pages.max(1);
        while self.len() > self.capacity {
            self.evict_one();
        }
    }

    fn access(&mut self, slot: Slot) -> bool {
        let at = usize::from(slot);
        if self.flags[at] & RESIDENT != 0 {
            self.flags[at] |= YOUNG;
            return true;
        }
        while self.len() >= self.capacity {
            self.evict_one();
        }
        let distance = self.age.wrapping_sub(self.stamps[at]);
        let is_workingset = self.flags[at] & SHADOW != 0 && distance <= self.active.len;
        self.flags[at] = RESIDENT | YOUNG;
        if is_workingset {
            self.flags[at] |= ACTIVE;
            self.age = self.age.wrapping_add(1);
            self.links.push(&mut self.active, slot);
        } else {
            self.links.push(&mut self.inactive, slot);
        }
        false
    }

    fn remove(&mut self, slot: Slot) {
        let flags = std::mem::take(&mut self.flags[usize::from(slot)]);
        if flags & RESIDENT != 0 {
            let list = match flags & ACTIVE {
                0 => &mut self.inactive,
                _ => &mut self.active,
            };
            self.links.unlink(list, slot);
        }
    }

    fn len(&self) -> u32 {
        self.active.len + self.inactive.len
    }
}
