// SPDX-License-Identifier: Apache-2.0
//! One look at an address space: takes facts about tables and updates labels and sizes.

use super::AgeMap;
use super::facts::{Facts, Leaves, LookCounts, OutOfOrder, Part, PartSizes};
use super::leaf::{self, Leaf};
use super::store::{Files, NO_LEAF, Table};
use super::word::Word;
use crate::generations::{LABEL_NONE, LABEL_UNSEEN, LABELS, Label, PageType, Sizes};
use crate::table::{PAGES_PER_TABLE, PageSet, TableBits, WORDS_PER_TABLE};

/// A look in progress. Tables come in ascending order; [`finish`](Self::finish) ends it.
#[derive(Debug)]
pub struct Look<'a> {
    map: &'a mut AgeMap,
    cursor: usize,
    fresh: Vec<Table>,
    pending: Option<Pending>,
    /// The index of the last table reported.
    last: Option<u64>,
    counts: LookCounts,
    returned: Sizes,
    label: Label,
    first: bool,
}

/// A table of which more may still be reported.
#[derive(Debug)]
struct Pending {
    index: u64,
    bits: TableBits,
    files: PageSet,
    parts: Vec<(Part, PageSet)>,
}

impl<'a> Look<'a> {
    pub(super) fn begin(map: &'a mut AgeMap) -> Self {
        map.look = map.look.wrapping_add(1);
        map.parts.iter_mut().for_each(PartSizes::clear);
        let first = map.is_first_look();
        let label = if first {
            LABEL_UNSEEN
        } else {
            map.generations.youngest()
        };
        Look {
            map,
            cursor: 0,
            fresh: Vec::new(),
            pending: None,
            last: None,
            counts: LookCounts::default(),
            returned: [[0; 2]; LABELS],
            label,
            first,
        }
    }

    /// Takes in what was seen of one table. Ranges that share a table may report it several times;
    /// the facts add up. If all 512 pages are present, they must all be in one report.
    ///
    /// # Errors
    /// [`OutOfOrder`]; nothing is taken in then.
    pub fn table(&mut self, facts: Facts<'_>) -> Result<(), OutOfOrder> {
        let facts = Facts {
            files: facts.files & (facts.bits.present | facts.bits.swapped),
            ..facts
        };
        if let Some(last) = self.last.filter(|last| facts.index < *last) {
            let index = facts.index;
            return Err(OutOfOrder { index, last });
        }
        let again = self.last.replace(facts.index) == Some(facts.index);
        match &mut self.pending {
            Some(pending) if again => {
                pending.add(&facts);
                return Ok(());
            }
            // The table was complete.
            None if again => return Ok(()),
            _ => self.flush(),
        }
        if facts.bits.present.is_full() {
            // One range covers the whole table: nothing more can come, so nothing has to be stored.
            self.take_in(&facts);
            return Ok(());
        }
        self.pending = Some(Pending {
            index: facts.index,
            bits: *facts.bits,
            files: facts.files,
            parts: facts.parts.to_vec(),
        });
        Ok(())
    }

    /// Takes in leaves: like [`table`](Self::table) for each, but in a fraction of the time.
    ///
    /// # Errors
    /// [`OutOfOrder`]; nothing is taken in then.
    pub fn leaves(&mut self, leaves: Leaves) -> Result<(), OutOfOrder> {
        if let Some(last) = self.last.filter(|last| leaves.first <= *last) {
            let index = leaves.first;
            return Err(OutOfOrder { index, last });
        }
        let Some(past_first) = leaves.tables.checked_sub(1) else {
            return Ok(());
        };
        self.flush();
        self.last = Some(leaves.first + past_first);
        for index in leaves.first..=leaves.first + past_first {
            self.take_leaf(index, leaves.young, leaves.page_type);
        }
        Ok(())
    }

    fn take_leaf(&mut self, index: u64, young: bool, page_type: PageType) {
        let (files, mask) = match page_type {
            PageType::Anon => (Files::None, PageSet::NONE),
            PageType::File => (Files::All, PageSet::ALL),
        };
        self.seek(index);
        let table = self.map.store.tables.get_mut(self.cursor);
        let as_before = |table: &&mut Table| {
            table.index == index && table.leaf == NO_LEAF && table.full && table.files == files
        };
        let Some(table) = table.filter(as_before) else {
            let young = if young { PageSet::ALL } else { PageSet::NONE };
            let bits = TableBits {
                present: PageSet::ALL,
                young,
                ..TableBits::default()
            };
            return self.take_in(&Facts {
                index,
                bits: &bits,
                files: mask,
                parts: &[],
            });
        };
        let pages = PAGES_PER_TABLE as u64;
        self.counts.tables += 1;
        self.counts.present += pages;
        table.look = self.map.look;
        if young && !self.first {
            let (old, t) = (usize::from(table.uniform), page_type as usize);
            let sizes = self.map.generations.sizes_mut();
            sizes[old][t] -= pages;
            sizes[usize::from(self.label)][t] += pages;
            self.returned[old][t] += pages;
            self.counts.young += pages;
            table.uniform = self.label;
        }
    }

    /// Moves to the first known table that is not before `index`.
    fn seek(&mut self, index: u64) {
        let tables = &self.map.store.tables;
        while tables
            .get(self.cursor)
            .is_some_and(|table| table.index < index)
        {
            self.cursor += 1;
        }
    }

    /// Declares that the tables in `indices` were deliberately left out of this look: they stay
    /// unchanged. They must be whole tables, in the same ascending order.
    pub fn keep(&mut self, indices: std::ops::Range<u64>) {
        let store = &mut self.map.store;
        for at in store.position(indices.start)..store.tables.len() {
            let table = &mut store.tables[at];
            if table.index >= indices.end {
                break;
            }
            table.look = self.map.look;
        }
    }

    /// Ends the look: anything not reported is gone. If a look is dropped instead (the process
    /// vanished half-way), whatever it did not reach stays unchanged.
    pub fn finish(self) -> LookCounts {
        self.finish_with_returned().0
    }

    /// Does the same, and also returns the pages that the look found accessed and that were present
    /// or in swap before, by their previous label: how long accessed memory had been idle.
    /// Interpret these labels before [`AgeMap::advance`].
    pub fn finish_with_returned(mut self) -> (LookCounts, Sizes) {
        self.flush();
        self.forget_unseen();
        (self.counts, self.returned)
    }

    fn forget_unseen(&mut self) {
        let map = &mut *self.map;
        let look = map.look;
        if map.store.tables.iter().any(|table| table.look != look) {
            let mut tables = std::mem::take(&mut map.store.tables);
            tables.retain(|table| {
                if table.look != look {
                    self.counts.gone += forget(map, table);
                    map.store.release(*table);
                }
                table.look == look
            });
            map.store.tables = tables;
        }
    }

    fn flush(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.take_in(&pending.facts());
        }
    }

    fn take_in(&mut self, seen: &Facts<'_>) {
        self.seek(seen.index);
        let tables = &self.map.store.tables;
        let known = tables
            .get(self.cursor)
            .is_some_and(|table| table.index == seen.index);
        let mut table = match known {
            true => tables[self.cursor],
            false => Table {
                index: seen.index,
                leaf: NO_LEAF,
                files: Files::None,
                look: 0,
                uniform: LABEL_NONE,
                full: false,
            },
        };
        self.counts.tables += 1;
        let occupied = seen.bits.present | seen.bits.swapped;
        if occupied.is_empty() {
            return;
        }
        table.look = self.map.look;
        self.update(&mut table, seen);
        self.map
            .store
            .set_files(&mut table.files, &seen.files, &occupied);
        self.count_parts(&table, seen);
        if known {
            self.map.store.tables[self.cursor] = table;
        } else {
            self.fresh.push(table);
        }
    }

    fn update(&mut self, table: &mut Table, seen: &Facts<'_>) {
        let young = if self.first {
            PageSet::NONE
        } else {
            seen.bits.young
        };
        let all_present = seen.bits.present.is_full();
        let (none_young, all_young) = (young.is_empty(), young.is_full());
        if table.leaf == NO_LEAF && all_present {
            let appeared = table.uniform == LABEL_NONE;
            if appeared || all_young || none_young {
                self.update_uniform(table, seen, appeared, all_young);
                return;
            }
        }
        let old_files = self.map.store.file_mask(table.files);
        let was_full = std::mem::replace(&mut table.full, all_present);
        let is_steady = was_full && all_present && old_files == seen.files;
        if is_steady && none_young {
            self.counts.present += PAGES_PER_TABLE as u64;
            return;
        }
        if table.leaf == NO_LEAF {
            table.leaf = self.map.store.leaves.insert(Leaf::filled(table.uniform));
        }
        if is_steady {
            self.update_steady(table, &young, &old_files);
        } else {
            self.update_words(table, seen, &young, &old_files, was_full);
        }
        if all_present && all_young {
            self.map.store.leaves.remove(table.leaf);
            table.leaf = NO_LEAF;
            table.uniform = self.label;
        }
    }

    /// All 512 pages were and still are present, with the same types: only accesses matter.
    fn update_steady(&mut self, table: &Table, young: &PageSet, files: &PageSet) {
        let leaf = &mut self.map.store.leaves[table.leaf];
        let sizes = self.map.generations.sizes_mut();
        let returned = &mut self.returned;
        let anon = young.without(files);
        let file = *young & *files;
        for (t, accessed) in [anon, file].iter().enumerate() {
            let pages = accessed.len();
            if pages == 0 {
                continue;
            }
            leaf.by_label(accessed, |old, n| {
                sizes[usize::from(old)][t] -= n;
                returned[usize::from(old)][t] += n;
            });
            sizes[usize::from(self.label)][t] += pages;
            self.counts.young += pages;
        }
        leaf.mark(young, self.label);
        self.counts.present += PAGES_PER_TABLE as u64;
    }

    fn update_words(
        &mut self,
        table: &Table,
        seen: &Facts<'_>,
        young: &PageSet,
        old_files: &PageSet,
        was_full: bool,
    ) {
        let leaf = &mut self.map.store.leaves[table.leaf];
        for word in 0..WORDS_PER_TABLE {
            let seen = Word {
                present: seen.bits.present[word],
                young: young[word],
                swapped: seen.bits.swapped[word],
                files: seen.files[word],
                old_files: old_files[word],
                was_full,
            };
            let sizes = self.map.generations.sizes_mut();
            seen.update(
                leaf.lanes_mut(word),
                self.label,
                sizes,
                &mut self.map.swapped,
                &mut self.returned,
                &mut self.counts,
            );
        }
    }

    /// All 512 pages had one label or were absent, and now all have one label.
    fn update_uniform(&mut self, table: &mut Table, seen: &Facts<'_>, appeared: bool, young: bool) {
        let sizes = self.map.generations.sizes_mut();
        let pages = PAGES_PER_TABLE as u64;
        if !appeared {
            let old = self.map.store.file_mask(table.files).len();
            sizes[usize::from(table.uniform)][0] -= pages - old;
            sizes[usize::from(table.uniform)][1] -= old;
            if young {
                self.returned[usize::from(table.uniform)][0] += pages - old;
                self.returned[usize::from(table.uniform)][1] += old;
            }
        } else {
            self.counts.appeared += pages;
        }
        if appeared || young {
            table.uniform = self.label;
        }
        table.full = true;
        let new = seen.files.len();
        sizes[usize::from(table.uniform)][0] += pages - new;
        sizes[usize::from(table.uniform)][1] += new;
        self.counts.present += pages;
        self.counts.young += if young { pages } else { 0 };
    }

    fn count_parts(&mut self, table: &Table, seen: &Facts<'_>) {
        for (part, mask) in seen.parts {
            let part = usize::from(*part);
            if self.map.parts.len() <= part {
                self.map.parts.resize_with(part + 1, PartSizes::default);
            }
            let sizes = &mut self.map.parts[part];
            for (word, wanted) in mask.words().iter().enumerate() {
                let wanted = wanted & seen.bits.present[word];
                let files = seen.files[word];
                for (page_type, pages) in [(0, wanted & !files), (1, wanted & files)] {
                    if table.leaf == NO_LEAF {
                        sizes.add(table.uniform, page_type, u64::from(pages.count_ones()));
                        continue;
                    }
                    let lanes = self.map.store.leaves[table.leaf].lanes(word);
                    leaf::by_label(lanes, pages, |label, n| sizes.add(label, page_type, n));
                }
            }
        }
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.flush();
        self.map.store.merge(&self.fresh);
        self.map.store.shrink();
    }
}

impl Pending {
    fn facts(&self) -> Facts<'_> {
        Facts {
            index: self.index,
            bits: &self.bits,
            files: self.files,
            parts: &self.parts,
        }
    }

    fn add(&mut self, more: &Facts<'_>) {
        self.bits.present |= more.bits.present;
        self.bits.young |= more.bits.young;
        self.bits.dirty |= more.bits.dirty;
        self.bits.swapped |= more.bits.swapped;
        self.files |= more.files;
        self.parts.extend_from_slice(more.parts);
    }
}

#[inline]
fn count_out(lanes: &leaf::Lanes, pages: u64, page_type: PageType, sizes: &mut Sizes) {
    leaf::by_label(lanes, pages, |label, n| {
        sizes[usize::from(label)][page_type as usize] -= n
    });
}

/// Removes a table's pages from the sizes; returns how many there were.
fn forget(map: &mut AgeMap, table: &Table) -> u64 {
    let files = map.store.file_mask(table.files);
    let mut gone = 0;
    for (word, files) in files.words().iter().enumerate() {
        let (lanes, occupied, swapped) = match table.leaf {
            NO_LEAF => (*Leaf::filled(table.uniform).lanes(word), u64::MAX, 0),
            leaf => {
                let lanes = *map.store.leaves[leaf].lanes(word);
                let (occupied, swapped) = leaf::occupied_and_swapped(&lanes);
                (lanes, occupied, swapped)
            }
        };
        let sizes = map.generations.sizes_mut();
        count_out(&lanes, occupied & !swapped & !files, PageType::Anon, sizes);
        count_out(&lanes, occupied & !swapped & files, PageType::File, sizes);
        map.swapped[0] -= u64::from((swapped & !files).count_ones());
        map.swapped[1] -= u64::from((swapped & files).count_ones());
        gone += u64::from(occupied.count_ones());
    }
    gone
}
