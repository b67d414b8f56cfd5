// SPDX-License-Identifier: Apache-2.0
//! Lists of pages by slot number: two bytes per link.

use crate::whatif::{NONE, Slot};

/// The links of all lists of a pool. A page is on at most one of them.
#[derive(Debug)]
pub(super) struct Links {
    newer: Vec<Slot>,
    older: Vec<Slot>,
}

/// One list, from the newest to the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    newest: Slot,
    oldest: Slot,
    pub len: u32,
}

impl List {
    pub const EMPTY: List = List {
        newest: NONE,
        oldest: NONE,
        len: 0,
    };

    /// The page that has been on the list longest.
    pub fn oldest(&self) -> Option<Slot> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

impl Links {
    pub fn new(slots: usize) -> Self {
        Links {
            newer: vec![NONE; slots],
            older: vec![NONE; slots],
        }
    }

    /// Puts a page that is on no list in front.
    pub fn push(&mut self, list: &mut List, slot: Slot) {
        let at = usize::from(slot);
        (self.newer[at], self.older[at]) = (NONE, list.newest);
        match list.newest {
            NONE => list.oldest = slot,
            newest => self.newer[usize::from(newest)] = slot,
        }
        list.newest = slot;
        list.len += 1;
    }

    /// Removes a page from the list it is on.
    pub fn unlink(&mut self, list: &mut List, slot: Slot) {
        let at = usize::from(slot);
        let (newer, older) = (self.newer[at], self.older[at]);
        match newer {
            NONE => list.newest = older,
            newer => self.older[usize::from(newer)] = older,
        }
        match older {
            NONE => list.oldest = newer,
            older => self.newer[usize::from(older)] = newer,
        }
        list.len -= 1;
    }
}
