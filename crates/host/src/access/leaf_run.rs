// SPDX-License-Identifier: Apache-2.0
//! Runs of huge leaves shown together.

use super::{Entries, TABLE_BYTES, TableSight};
use crate::pagewalk::entry::EntryFormat;
use crate::pagewalk::layout::Entry;

/// Adjacent 2 MiB leaves of one mapping that look alike. Memory in huge pages is hot or idle over
/// long stretches, so a stretch is handled at once.
#[derive(Clone, Copy, Debug)]
pub struct LeafRun<'a> {
    /// The first leaf: fully covered and present.
    first: TableSight<'a>,
    tables: u64,
    /// The raw entries, one per leaf, if the source has them.
    entries: Option<(&'a [Entry], EntryFormat)>,
}

impl<'a> LeafRun<'a> {
    /// A run of `tables` leaves starting with `first`, with one entry per leaf if `entries` is
    /// given.
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

    /// The first leaf.
    pub fn first(&self) -> &TableSight<'a> {
        &self.first
    }

    /// Number of leaves.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// Whether the leaves were accessed: all of them, or none.
    pub fn is_young(&self) -> bool {
        self.first.bits.young[0] != 0
    }

    /// First address of leaf number `at`.
    pub fn va(&self, at: u64) -> u64 {
        self.first.va + at * TABLE_BYTES
    }

    /// The sight of leaf number `at`.
    pub fn sight(&self, at: u64) -> TableSight<'a> {
        let raw = self.entries.and_then(|(entries, format)| {
            let entry = entries.get(usize::try_from(at).ok()?)?.entry;
            Some(Entries::Leaf(format.pfn_in_leaf(entry, TABLE_BYTES, 0)))
        });
        TableSight {
            va: self.va(at),
            entries: raw.unwrap_or(Entries::Unknown),
            ..self.first
        }
    }

    /// The sights of all leaves, one by one.
    pub fn sights(&self) -> impl Iterator<Item = TableSight<'a>> + '_ {
        (0..self.tables).map(|at| self.sight(at))
    }

    /// The leaves `from..to` of this run.
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

    /// The same run as part of range number `range`.
    pub(crate) fn of_range(&self, range: usize) -> LeafRun<'a> {
        let first = TableSight {
            range,
            ..self.first
        };
        LeafRun { first, ..*self }
    }
}
