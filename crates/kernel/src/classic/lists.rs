// SPDX-License-Identifier: Apache-2.0
//! The four evictable lists of a lruvec and their exact sizes.

use crate::folio::{Flag, Folio, FolioList, FolioTable, FolioType, Pfn};
use crate::refault_distance::Holes;

/// A list of a lruvec (`enum lru_list`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum List {
    /// Anon pages that reclaim scans next.
    InactiveAnon = 0,
    /// Anon pages that have shown repeated use.
    ActiveAnon = 1,
    /// File pages that reclaim scans next.
    InactiveFile = 2,
    /// File pages that have shown repeated use.
    ActiveFile = 3,
}

impl List {
    /// All lists, in the order reclaim scans them.
    pub const ALL: [List; 4] = [
        List::InactiveAnon,
        List::ActiveAnon,
        List::InactiveFile,
        List::ActiveFile,
    ];

    /// The list given by a folio's flags (`folio_lru_list`).
    #[inline]
    #[must_use]
    pub fn of(folio: &Folio) -> List {
        List::new(folio.folio_type(), folio.has(Flag::Active))
    }

    /// The list of a type.
    #[inline]
    #[must_use]
    pub fn new(folio_type: FolioType, active: bool) -> List {
        match (folio_type, active) {
            (FolioType::Anon, false) => List::InactiveAnon,
            (FolioType::Anon, true) => List::ActiveAnon,
            (FolioType::File, false) => List::InactiveFile,
            (FolioType::File, true) => List::ActiveFile,
        }
    }

    /// The type of its pages.
    #[inline]
    #[must_use]
    pub fn folio_type(self) -> FolioType {
        match self {
            List::InactiveAnon | List::ActiveAnon => FolioType::Anon,
            List::InactiveFile | List::ActiveFile => FolioType::File,
        }
    }

    /// Whether it is an active list.
    #[inline]
    #[must_use]
    pub fn is_active(self) -> bool {
        matches!(self, List::ActiveAnon | List::ActiveFile)
    }

    /// Index into arrays of lists.
    #[inline]
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// Sizes and refault activations of a lruvec and all its descendants, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages of the four lists, by [`List::index`].
    pub pages: [u64; 4],
    /// Total refault activations, by type.
    pub activations: [u64; 2],
}

impl Counts {
    /// Pages of one list.
    #[inline]
    #[must_use]
    pub fn pages(&self, list: List) -> u64 {
        self.pages[list.index()]
    }

    /// Pages of all four lists.
    #[inline]
    #[must_use]
    pub fn total_pages(&self) -> u64 {
        self.pages.iter().sum()
    }

    /// Inactive and active pages of a type.
    #[inline]
    #[must_use]
    pub fn inactive_active(&self, folio_type: FolioType) -> (u64, u64) {
        (
            self.pages(List::new(folio_type, false)),
            self.pages(List::new(folio_type, true)),
        )
    }

    /// Adds the counts of another lruvec.
    pub(super) fn add(&mut self, other: &Counts) {
        for (sum, value) in self.pages.iter_mut().zip(other.pages) {
            *sum += value;
        }
        for (sum, value) in self.activations.iter_mut().zip(other.activations) {
            *sum += value;
        }
    }
}

/// Classic state of one lruvec.
#[derive(Clone, Debug, Default)]
pub struct State {
    lists: [FolioList; 4],
    /// Pages of each list by zone, exact.
    sizes: [[u64; 4]; 4],
    /// Recent cost of scanning and refaults of each type, in the kernel's unit (one rotated page; a
    /// page of I/O counts as 32).
    pub cost: [u64; 2],
    /// Pages of this lruvec and its descendants evicted or activated so far: the clock of refault
    /// distances.
    pub nonresident_age: u64,
    /// The share of recent evictions that came back, for the refault-distance rule without its
    /// first throttle.
    pub holes: Holes,
    /// Refault activations at the end of the last reclaim (`refaults`), as of the flush before it.
    pub activations_snapshot: [u64; 2],
    /// Sizes and activations of the subtree as of the last flush.
    pub flushed: Counts,
}

impl State {
    /// A list.
    #[inline]
    #[must_use]
    pub fn list(&self, list: List) -> &FolioList {
        &self.lists[list.index()]
    }

    /// The folio that has been on a list longest, or `Pfn::NONE`.
    #[inline]
    #[must_use]
    pub fn oldest(&self, folio_type: FolioType, active: bool) -> Pfn {
        self.list(List::new(folio_type, active)).tail()
    }

    /// Pages of a list in zones `0..=reclaim_idx` (`lruvec_lru_size`), exact.
    #[inline]
    #[must_use]
    pub fn size_pages(&self, list: List, reclaim_idx: usize) -> u64 {
        self.sizes[list.index()].iter().take(reclaim_idx + 1).sum()
    }

    /// Pages of a type on its active or inactive list, exact.
    #[must_use]
    pub fn pages(&self, folio_type: FolioType, active: bool) -> u64 {
        self.total_pages(List::new(folio_type, active))
    }

    /// Pages of a list, exact.
    #[inline]
    #[must_use]
    pub fn total_pages(&self, list: List) -> u64 {
        self.sizes[list.index()].iter().sum()
    }

    /// Puts a folio at the newest (or oldest) end of the list given by its flags.
    #[inline]
    pub fn add(&mut self, folios: &mut FolioTable, pfn: Pfn, tail: bool) {
        let list = List::of(&folios[pfn]).index();
        self.sizes[list][folios[pfn].zone()] += folios[pfn].nr_pages();
        if tail {
            self.lists[list].push_tail(folios, pfn);
        } else {
            self.lists[list].push_head(folios, pfn);
        }
    }

    /// Takes a folio off the list given by its flags.
    #[inline]
    pub fn remove(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let list = List::of(&folios[pfn]).index();
        self.sizes[list][folios[pfn].zone()] -= folios[pfn].nr_pages();
        self.lists[list].remove(folios, pfn);
    }

    /// Appends all lists of a removed lruvec to the oldest ends of these lists.
    pub(super) fn adopt(&mut self, folios: &mut FolioTable, from: &mut State) {
        for list in List::ALL.map(List::index) {
            self.lists[list].append_tail(folios, &mut from.lists[list]);
            for (size, more) in self.sizes[list].iter_mut().zip(&mut from.sizes[list]) {
                *size += std::mem::take(more);
            }
        }
    }

    /// Puts folios taken off `list` without accounting back at its newest end; the first one taken
    /// becomes the oldest of them.
    #[inline]
    pub(super) fn splice_head(
        &mut self,
        folios: &mut FolioTable,
        list: List,
        skipped: &mut FolioList,
    ) {
        let own = &mut self.lists[list.index()];
        skipped.append_tail(folios, own);
        *own = *skipped;
        *skipped = FolioList::default();
    }

    /// The list itself, for isolation, which moves entries without changing sizes.
    #[inline]
    pub(super) fn list_mut(&mut self, list: List) -> &mut FolioList {
        &mut self.lists[list.index()]
    }

    /// Subtracts isolated pages from the sizes.
    #[inline]
    pub(super) fn account_taken(&mut self, list: List, taken_by_zone: &[u64; 4]) {
        for (size, taken) in self.sizes[list.index()].iter_mut().zip(taken_by_zone) {
            *size -= taken;
        }
    }
}
