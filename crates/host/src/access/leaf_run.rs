// SPDX-License-Identifier: Apache-2.0
//! Leaves shown together.

use super::{Entries, TABLE_BYTES, TableSight};
use crate::pagewalk::entry::EntryFormat;
use crate::pagewalk::layout::Entry;

/// Neighbouring 2 MiB leaves of one mapping that look alike. Memory in huge pages is hot or idle in
/// long stretches, so a stretch is handled at once.
#[derive(Clone, Copy, Debug)]
pub struct LeafRun<'a> {
    /// The first: whole, and present.
    first: TableSight<'a>,
    tables: u64,
    /// The raw entries, one for each, where the source has them.
    entries: Option<(&'a [Entry], EntryFormat)>,
}

impl<'a> LeafRun<'a> {
    /// `first` and as many behind it as there are `entries`, or without them `tables`.
    pub(crate) fn new(
        first: TableSight<'a>,
        tables: u64,
        entries: Option<(&'a [Entry], EntryFormat)>,
    ) -> Self {
        debug_assert!(first.covered.is_full() && first.bits.present.is_full());
        debug_assert!(entries.is_none_or(|(entries, _)| entries.len() as u64 == tables));
        LeafRun {
            first,
            tables,
            entries,
        }
    }

    /// The first of them.
    pub fn first(&self) -> &TableSight<'a> {
        &self.first
    }

    /// How many there are.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// Whether they were accessed: all of them, or none.
    pub fn is_young(&self) -> bool {
        self.first.bits.young[0] != 0
    }

    /// First address of number `at` of them.
    pub fn va(&self, at: u64) -> u64 {
        self.first.va + at * TABLE_BYTES
    }

    /// Number `at` of them.
    pub fn sight(&self, at: u64) -> TableSight<'a> {
        let raw = self.entries.and_then(|(entries, format)| {
            let entry = entries.get(usize::try_from(at).ok()?)?.entry;
            Some(Entries::Leaf(entry, format.huge_pfn(entry)))
        });
        TableSight {
            va: self.va(at),
            entries: raw.unwrap_or(Entries::Unknown),
            ..self.first
        }
    }

    /// All of them, one by one.
    pub fn sights(&self) -> impl Iterator<Item = TableSight<'a>> + '_ {
        (0..self.tables).map(|at| self.sight(at))
    }

    /// Those from number `from` to before number `to`.
    pub fn part(&self, from: u64, to: u64) -> LeafRun<'a> {
        let (to, from) = (to.min(self.tables), from.min(to).min(self.tables));
        LeafRun {
            first: self.sight(from),
            tables: to - from,
            entries: self
                .entries
                .map(|(entries, format)| (&entries[from as usize..to as usize], format)),
        }
    }

    /// The same as part of the range number `range`.
    pub(crate) fn of_range(&self, range: usize) -> LeafRun<'a> {
        let first = TableSight {
            range,
            ..self.first
        };
        LeafRun { first, ..*self }
    }
}
