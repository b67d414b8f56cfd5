// SPDX-License-Identifier: Apache-2.0
//! What to clear of a batch of sights, kept as it was seen until the batch ends. Turning it into
//! runs is part of clearing: the less is done between reading a table and clearing it, the fewer
//! accesses are lost.

use agewise_policy::table::PageSet;

use super::runs::{Run, Runs};
use crate::access::TABLE_BYTES;

/// The longest run, which bounds how long one call holds the target's mmap lock (0.2 ms).
const RUN_BYTES_MAX: u64 = 16 << 20;

#[derive(Clone, Copy, Debug)]
enum Note {
    /// A table of base pages, which owns the next element of `bits`.
    Table { of: usize, va: u64 },
    /// Adjacent 2 MiB leaves.
    Leaves { of: usize, va: u64, tables: u64 },
    /// Present pages that are not to be cleared but may be bridged.
    Pass(u32),
    /// Something that must not be cleared.
    Close,
}

/// Notes in ascending address order.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// The wanted and the present pages of each noted table.
    bits: Vec<[PageSet; 2]>,
    /// Whether anything is to be cleared.
    wanted: bool,
}

impl Notes {
    /// Whether nothing is to be cleared.
    pub fn is_empty(&self) -> bool {
        !self.wanted
    }

    /// Notes a table of the mapping `of`, with the arguments of [`Runs::table`].
    pub fn table(&mut self, of: usize, va: u64, wanted: PageSet, present: PageSet) {
        self.wanted = true;
        self.notes.push(Note::Table { of, va });
        self.bits.push([wanted, present]);
    }

    /// Notes adjacent 2 MiB leaves of the mapping `of`.
    pub fn leaves(&mut self, of: usize, va: u64, tables: u64) {
        self.wanted = true;
        // Several followed blocks may lie in one leaf, which is cleared once.
        let is_noted = |note: &Note| matches!(note, Note::Leaves { va: noted, .. } if *noted == va);
        if !self.notes.iter().rev().take(2).any(is_noted) {
            self.notes.push(Note::Leaves { of, va, tables });
        }
    }

    /// Notes present pages that are not to be cleared but may be bridged.
    pub fn pass(&mut self, pages: u32) {
        match self.notes.last_mut() {
            Some(Note::Pass(passed)) => *passed = passed.saturating_add(pages),
            // Before the first note there is no run to extend.
            None => {}
            Some(_) => self.notes.push(Note::Pass(pages)),
        }
    }

    /// Notes that what follows must not be joined to what came before.
    pub fn close(&mut self) {
        if !matches!(self.notes.last(), None | Some(Note::Close)) {
            self.notes.push(Note::Close);
        }
    }

    /// Turns the notes into runs, and drops them. `bridge_pages` is that of [`Runs::new`].
    pub fn take_runs(&mut self, bridge_pages: u32) -> Vec<Run> {
        let mut runs = Runs::new(bridge_pages, RUN_BYTES_MAX);
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
        runs.end()
    }

    /// Number of tables of base pages to clear.
    pub fn tables(&self) -> u64 {
        self.bits.len() as u64
    }

    /// Drops the notes.
    pub fn forget(&mut self) {
        self.notes.clear();
        self.bits.clear();
        self.wanted = false;
    }

    /// Drops the notes and frees their memory: most processes are small, and many are watched.
    pub fn release(&mut self) {
        *self = Notes::default();
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.bits.capacity() * size_of::<[PageSet; 2]>()
    }
}
