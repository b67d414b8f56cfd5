// SPDX-License-Identifier: Apache-2.0
//! The input of a look, and its result, as a whole and of pages counted separately.

use crate::generations::{ByType, LABELS, Label, PageType, Relabel, Sizes};
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

/// A group of pages that the caller wants counted separately in each look: pages of a NUMA node, or
/// pages that another process of the same target already counts.
pub type Part = u8;

/// Present pages of one part, by label and type. Most parts (the libraries of a small process) have
/// only a few labels, so only those that occur are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartSizes {
    /// In the order in which they were first seen.
    counted: Vec<(Label, ByType<u64>)>,
}

impl PartSizes {
    /// The labels that occur, each once, and how many pages have them.
    pub fn iter(&self) -> impl Iterator<Item = (Label, ByType<u64>)> + '_ {
        self.counted.iter().copied()
    }

    /// The same as one number per label.
    pub fn to_sizes(&self) -> Sizes {
        let mut sizes: Sizes = [[0; 2]; LABELS];
        for (label, pages) in self.iter() {
            sizes[usize::from(label)] = pages;
        }
        sizes
    }

    pub(super) fn clear(&mut self) {
        self.counted.clear();
    }

    #[inline]
    pub(super) fn add(&mut self, label: Label, page_type: usize, pages: u64) {
        if pages == 0 {
            return;
        }
        match self.counted.iter_mut().find(|(of, _)| *of == label) {
            Some((_, by_type)) => by_type[page_type] += pages,
            None => {
                let mut by_type = [0; 2];
                by_type[page_type] = pages;
                self.counted.push((label, by_type));
            }
        }
    }

    pub(super) fn relabel(&mut self, relabel: &Relabel) {
        for (label, by_type) in std::mem::take(&mut self.counted) {
            let target = relabel[usize::from(label)];
            self.add(target, 0, by_type[0]);
            self.add(target, 1, by_type[1]);
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.counted.capacity() * size_of::<(Label, ByType<u64>)>() + size_of::<Self>()
    }
}
