// SPDX-License-Identifier: Apache-2.0
//! Pages that several processes map: each counts once, and is young if it is young in any mapping.
//!
//! Frame numbers are compared only where pages can be shared at all: mappings of a file that two
//! processes map, and private memory at the same addresses in two processes (after a fork).

use std::collections::HashMap;

use agewise_policy::table::PageSet;

use crate::access::{AddressRange, TableSight};
use crate::vma::Vma;

/// The process that counts each file (by device and inode) for those that could not be looked at.
pub(super) type Keepers = HashMap<(u64, u64), u32>;

/// Calls `visit` with the page and frame of each page in `pages` (bits of the sight) that has a
/// frame.
pub(super) fn frames(sight: &TableSight<'_>, pages: &PageSet, mut visit: impl FnMut(usize, u64)) {
    for page in pages.pages() {
        if let Some(frame) = sight.pfn(page) {
            visit(page, frame);
        }
    }
}

/// Finds the mappings whose pages more than one process may map.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// The process that maps a file, or `MANY`.
    files: HashMap<(u64, u64), u32>,
    /// Private memory: range and process number.
    private: Vec<(AddressRange, u32)>,
    /// Parts of `private` that two processes have, ascending, disjoint.
    overlaps: Vec<AddressRange>,
}

const MANY: u32 = u32::MAX;

impl Sharing {
    /// Forgets all processes.
    pub fn clear(&mut self) {
        self.files.clear();
        self.private.clear();
        self.overlaps.clear();
    }

    /// Adds the mappings of a process, identified by any number below `u32::MAX`.
    pub fn add<'v>(&mut self, process: u32, vmas: impl Iterator<Item = &'v Vma>) {
        for vma in vmas {
            if vma.inode != 0 {
                let of = self.files.entry((vma.device, vma.inode)).or_insert(process);
                if *of != process {
                    *of = MANY;
                }
            } else {
                self.private.push((vma.range, process));
            }
        }
    }

    /// Called after all processes have been added: finds the overlaps.
    pub fn finish(&mut self) {
        self.private
            .sort_unstable_by_key(|(range, process)| (range.start, *process));
        // The end of the range that reaches furthest so far, and its process.
        let mut reach: Option<(u64, u32)> = None;
        for (range, process) in &self.private {
            if let Some((end, of)) = reach
                && range.start < end
                && of != *process
            {
                let overlap = AddressRange {
                    start: range.start,
                    end: range.end.min(end),
                };
                match self.overlaps.last_mut() {
                    Some(last) if last.end >= overlap.start => {
                        last.end = last.end.max(overlap.end);
                    }
                    _ => self.overlaps.push(overlap),
                }
            }
            if reach.is_none_or(|(end, _)| range.end > end) {
                reach = Some((range.end, *process));
            }
        }
    }

    /// Whether another process may map pages of this mapping too.
    pub fn may_be_shared(&self, vma: &Vma) -> bool {
        if vma.inode != 0 {
            return self.files.get(&(vma.device, vma.inode)) == Some(&MANY);
        }
        let at = self
            .overlaps
            .partition_point(|overlap| overlap.end <= vma.range.start);
        self.overlaps
            .get(at)
            .is_some_and(|overlap| overlap.start < vma.range.end)
    }
}
