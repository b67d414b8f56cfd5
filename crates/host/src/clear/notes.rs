// SPDX-License-Identifier: Apache-2.0
//! What a batch of sights asks to be cleared, kept as it was seen until the batch ends: making runs
//! of it is part of clearing, and the less is done between the read of a table and its clear the
//! fewer accesses are lost.

use agewise_policy::table::PageSet;

use super::runs::Runs;
use crate::access::TABLE_BYTES;

#[derive(Clone, Copy, Debug)]
enum Note {
    /// A table of base pages; the next of the bits are its.
    Table { of: usize, va: u64 },
    /// Neighbouring 2 MiB leaves.
    Leaves { of: usize, va: u64, tables: u64 },
    /// Present pages outside the followed ones.
    Pass(u32),
    /// Something that must not be cleared.
    Close,
}

/// Notes in rising order of address.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// What is wanted and what is present of each table among them.
    bits: Vec<[PageSet; 2]>,
    /// Something is to be cleared.
    wanted: bool,
}

impl Notes {
    /// Nothing was noted that is to be cleared.
    pub fn is_empty(&self) -> bool {
        !self.wanted
    }

    /// A table of the mapping `of`, as [`Runs::table`] takes it.
    pub fn table(&mut self, of: usize, va: u64, wanted: PageSet, present: PageSet) {
        self.wanted = true;
        self.notes.push(Note::Table { of, va });
        self.bits.push([wanted, present]);
    }

    /// Neighbouring 2 MiB leaves of the mapping `of`.
    pub fn leaves(&mut self, of: usize, va: u64, tables: u64) {
        self.wanted = true;
        // Several parts of one leaf may be followed: it is cleared once.
        let is_noted = |note: &Note| matches!(note, Note::Leaves { va: noted, .. } if *noted == va);
        if !self.notes.iter().rev().take(2).any(is_noted) {
            self.notes.push(Note::Leaves { of, va, tables });
        }
    }

    /// Present pages outside the followed ones.
    pub fn pass(&mut self, pages: u32) {
        match self.notes.last_mut() {
            Some(Note::Pass(passed)) => *passed = passed.saturating_add(pages),
            // In front of everything there is no run that could grow.
            None => {}
            Some(_) => self.notes.push(Note::Pass(pages)),
        }
    }

    /// What comes next must not be joined to what came before.
    pub fn close(&mut self) {
        if !matches!(self.notes.last(), None | Some(Note::Close)) {
            self.notes.push(Note::Close);
        }
    }

    /// Turn the notes into runs, and forget them.
    pub fn make_runs(&mut self, runs: &mut Runs) {
        let mut bits = self.bits.drain(..);
        for note in self.notes.drain(..) {
            match note {
                Note::Table { of, va } => {
                    if let Some([wanted, present]) = bits.next() {
                        runs.table(of, va, &wanted, &present);
                    }
                }
                Note::Leaves { of, va, tables } => {
                    let places = (va..).step_by(TABLE_BYTES as usize);
                    places
                        .take(tables as usize)
                        .for_each(|va| runs.leaf(of, va));
                }
                Note::Pass(pages) => runs.pass(pages),
                Note::Close => runs.close(),
            }
        }
        drop(bits);
        self.wanted = false;
    }

    /// Tables of base pages that are to be cleared.
    pub fn tables(&self) -> u64 {
        self.bits.len() as u64
    }

    /// Forget them.
    pub fn forget(&mut self) {
        self.notes.clear();
        self.bits.clear();
        self.wanted = false;
    }

    /// Forget them, and give their memory back: most processes are small, and many are watched.
    pub fn release(&mut self) {
        *self = Notes::default();
    }

    /// Bytes of memory held.
    pub fn memory_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.bits.capacity() * size_of::<[PageSet; 2]>()
    }
}
