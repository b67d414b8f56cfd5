// SPDX-License-Identifier: Apache-2.0
//! The input of a look, and its result.

use super::part::Part;
use crate::generations::PageType;
use crate::table::{PageSet, TableBits};

/// What a look saw of one table.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Page number of the table's first page / 512.
    pub index: u64,
    /// The bits. Those outside the table's own range must be zero.
    pub bits: &'a TableBits,
    /// Which of the pages are file pages; the others are anon. Bits of absent pages are ignored.
    pub files: PageSet,
    /// Pages to count separately.
    pub parts: &'a [(Part, PageSet)],
}

/// Neighbouring 2 MiB leaves of one type: in each, all 512 pages are present, and all or none of
/// them were accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    /// Page number of the first page / 512.
    pub first: u64,
    /// How many tables.
    pub tables: u64,
    /// Whether they were accessed.
    pub young: bool,
    /// What backs them.
    pub page_type: PageType,
}

/// What one look found, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookCounts {
    /// Tables reported.
    pub tables: u64,
    /// Present pages.
    pub present: u64,
    /// Pages seen accessed since accessed bits were last cleared; 0 in the first look, because
    /// nobody knows when that was.
    pub young: u64,
    /// Pages that were absent in the previous look.
    pub appeared: u64,
    /// Pages that are no longer present or in swap.
    pub gone: u64,
    /// Pages that went from present to swap.
    pub swapped_out: u64,
    /// Pages that came back from swap: refaults.
    pub refaulted: u64,
}

/// A table was reported after another with a greater index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("table {index} reported after table {last}: a look goes through addresses upwards")]
pub struct OutOfOrder {
    /// The table reported now.
    pub index: u64,
    /// The one before it.
    pub last: u64,
}
