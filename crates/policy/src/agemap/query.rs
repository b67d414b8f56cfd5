// SPDX-License-Identifier: Apache-2.0
//! Queries of an age map: which pages are old, and how old a range is.

use std::ops::{ControlFlow, Range};

use super::AgeMap;
use super::leaf::{self, SWAPPED};
use super::store::Table;
use crate::generations::{ByType, LABEL_NONE, LABELS, Label, PageType, Sizes};
use crate::table::{PAGES_PER_TABLE, WORDS_PER_TABLE};

/// Neighbouring present pages of one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Page numbers.
    pub pages: Range<u64>,
    /// What backs them.
    pub page_type: PageType,
}

/// What the map knows about one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Its generation, or the one it had when it went to swap.
    pub label: Label,
    /// Whether it is in swap.
    pub swapped: bool,
    /// What backs it.
    pub page_type: PageType,
}

/// Pages of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeSizes {
    /// Present pages by label and type.
    pub sizes: Box<Sizes>,
    /// Pages in swap.
    pub swapped: ByType<u64>,
}

impl AgeMap {
    /// What is known about one page; `None` if it is neither present nor in swap.
    pub fn page(&self, page: u64) -> Option<PageState> {
        let index = page / PAGES_PER_TABLE as u64;
        let table = self.store.tables.get(self.store.position(index))?;
        if table.index != index {
            return None;
        }
        let slot = (page % PAGES_PER_TABLE as u64) as usize;
        let byte = self
            .leaf_of(table)
            .map_or(table.uniform, |leaf| leaf.byte(slot));
        let is_file = self.store.file_mask(table.files)[slot / 64] >> (slot % 64) & 1 == 1;
        (byte != LABEL_NONE).then_some(PageState {
            label: byte & !SWAPPED,
            swapped: byte & SWAPPED != 0,
            page_type: PageType::ALL[usize::from(is_file)],
        })
    }

    /// Present pages of `pages` that have certainly been idle since a time in this range, as runs
    /// in ascending order.
    pub fn runs_idle_since(
        &self,
        pages: Range<u64>,
        since_ms: &Range<u64>,
        visit: impl FnMut(Run) -> ControlFlow<()>,
    ) {
        if let Some((first, last)) = self.generations.labels_idle_since(since_ms) {
            self.runs_labelled(pages, first, last, visit);
        }
    }

    /// Present pages of `pages` with a label from `first` to `last`, as runs in ascending order.
    /// A run ends where the type changes.
    pub fn runs_labelled(
        &self,
        pages: Range<u64>,
        first: Label,
        last: Label,
        mut visit: impl FnMut(Run) -> ControlFlow<()>,
    ) {
        let mut open: Option<Run> = None;
        let mut extend = |run: Run| match &mut open {
            Some(open) if open.pages.end == run.pages.start && open.page_type == run.page_type => {
                open.pages.end = run.pages.end;
                ControlFlow::Continue(())
            }
            _ => open
                .replace(run)
                .map_or(ControlFlow::Continue(()), &mut visit),
        };
        let found = self.words(pages, |start, word, within| {
            let wanted = within
                & match word.bytes {
                    Bytes::Each(lanes) => leaf::labelled_within(lanes, first, last),
                    Bytes::Uniform(label) if (first..=last).contains(&label) => u64::MAX,
                    Bytes::Uniform(_) => 0,
                };
            runs_of(wanted, word.files, |bits, page_type| {
                let pages = start + u64::from(bits.start)..start + u64::from(bits.end);
                extend(Run { pages, page_type })
            })
        });
        if let (ControlFlow::Continue(()), Some(run)) = (found, open) {
            let _ = visit(run);
        }
    }

    /// Present and swapped pages of a range, for example for the histogram of a mapping.
    pub fn sizes_within(&self, pages: Range<u64>) -> RangeSizes {
        let mut found = RangeSizes {
            sizes: Box::new([[0; 2]; LABELS]),
            swapped: [0; 2],
        };
        let _ = self.words(pages, |_, word, within| {
            for (page_type, pages) in [(0, within & !word.files), (1, within & word.files)] {
                let lanes = match word.bytes {
                    Bytes::Each(lanes) => lanes,
                    Bytes::Uniform(label) => {
                        let pages = u64::from(pages.count_ones());
                        found.sizes[usize::from(label)][page_type] += pages;
                        continue;
                    }
                };
                let (occupied, swapped) = leaf::occupied_and_swapped(lanes);
                found.swapped[page_type] += u64::from((swapped & pages).count_ones());
                leaf::by_label(lanes, pages & occupied & !swapped, |label, n| {
                    found.sizes[usize::from(label)][page_type] += n;
                });
            }
            ControlFlow::Continue(())
        });
        found
    }

    /// Counts the present pages of a range by label and type: calls `count` with parts of them,
    /// possibly several times with the same label and type.
    pub fn count_within(&self, pages: Range<u64>, mut count: impl FnMut(Label, PageType, u64)) {
        let _ = self.words(pages, |_, word, within| {
            for page_type in PageType::ALL {
                let pages = match page_type {
                    PageType::Anon => within & !word.files,
                    PageType::File => within & word.files,
                };
                match word.bytes {
                    Bytes::Each(lanes) => {
                        let (occupied, swapped) = leaf::occupied_and_swapped(lanes);
                        let present = pages & occupied & !swapped;
                        leaf::by_label(lanes, present, |label, n| count(label, page_type, n));
                    }
                    Bytes::Uniform(label) => {
                        count(label, page_type, u64::from(pages.count_ones()));
                    }
                }
            }
            ControlFlow::Continue(())
        });
    }

    /// Visits the words of 64 pages of a range that may contain pages. Passes the first page's
    /// number, the word, and which of its pages are in the range.
    fn words(
        &self,
        pages: Range<u64>,
        mut visit: impl FnMut(u64, WordOf<'_>, u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if pages.is_empty() {
            return ControlFlow::Continue(());
        }
        let from = self.store.position(pages.start / PAGES_PER_TABLE as u64);
        let last = (pages.end - 1) / PAGES_PER_TABLE as u64;
        let tables = self.store.tables[from..]
            .iter()
            .take_while(|table| table.index <= last);
        for table in tables {
            let files = self.store.file_mask(table.files);
            for (word, files) in files.words().iter().copied().enumerate() {
                let start = table.index * PAGES_PER_TABLE as u64 + 64 * word as u64;
                let within = bits_within(start, &pages);
                if within != 0 {
                    visit(
                        start,
                        WordOf {
                            bytes: self.bytes_of(table, word),
                            files,
                        },
                        within,
                    )?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// The tables with pages of a range, each by its first page's number / 512, ascending. The time
    /// depends on their number, not on that of the pages.
    pub fn tables_within(&self, pages: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let from = self.store.position(pages.start / PAGES_PER_TABLE as u64);
        let end = pages.end.div_ceil(PAGES_PER_TABLE as u64);
        let tables = self.store.tables[from..].iter().map(|table| table.index);
        tables.take_while(move |index| *index < end)
    }

    fn bytes_of(&self, table: &Table, word: usize) -> Bytes<'_> {
        debug_assert!(word < WORDS_PER_TABLE);
        match self.leaf_of(table) {
            Some(leaf) => Bytes::Each(leaf.lanes(word)),
            None => Bytes::Uniform(table.uniform),
        }
    }
}

/// 64 pages, and which of them are file pages.
struct WordOf<'a> {
    bytes: Bytes<'a>,
    files: u64,
}

/// The bytes of 64 pages.
enum Bytes<'a> {
    Each(&'a leaf::Lanes),
    /// All have this label.
    Uniform(Label),
}

/// Which of the 64 pages from `start` are in the range.
fn bits_within(start: u64, pages: &Range<u64>) -> u64 {
    let from = pages.start.saturating_sub(start).min(64);
    let to = pages.end.saturating_sub(start).min(64);
    if from >= to {
        return 0;
    }
    (u64::MAX >> (64 - (to - from))) << from
}

/// Calls `visit` with the runs of set bits, split where the type changes.
fn runs_of(
    bits: u64,
    files: u64,
    mut visit: impl FnMut(Range<u32>, PageType) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut left = bits;
    while left != 0 {
        let start = left.trailing_zeros();
        let is_file = files >> start & 1 == 1;
        let same = left & if is_file { files } else { !files };
        let length = (same >> start).trailing_ones();
        visit(start..start + length, PageType::ALL[usize::from(is_file)])?;
        left &= !((u64::MAX >> (64 - length)) << start);
    }
    ControlFlow::Continue(())
}
