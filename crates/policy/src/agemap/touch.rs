// SPDX-License-Identifier: Apache-2.0
//! Accesses that become known between two looks.

use super::AgeMap;
use super::leaf::{self, Leaf};
use super::store::NO_LEAF;
use crate::generations::{LABEL_OLDEST, Label};
use crate::table::{PageSet, WORDS_PER_TABLE};

impl AgeMap {
    /// Makes pages of one table (page number of its first page / 512) as young as an access just
    /// before `at_ms` makes them. Pages that are not present stay as they are. Returns those that
    /// are present.
    pub fn touch(&mut self, index: u64, pages: &PageSet, at_ms: u64) -> PageSet {
        let position = self.store.position(index);
        let tables = &self.store.tables;
        let Some(mut table) = tables.get(position).copied() else {
            return PageSet::NONE;
        };
        if table.index != index {
            return PageSet::NONE;
        }
        let label = self.label_before(at_ms);
        if table.leaf == NO_LEAF {
            if table.uniform == label {
                return *pages;
            }
            table.leaf = self.store.leaves.insert(Leaf::filled(table.uniform));
        }
        let files = self.store.file_mask(table.files);
        let bytes = &mut self.store.leaves[table.leaf];
        let sizes = self.generations.sizes_mut();
        let mut touched = PageSet::NONE;
        for word in 0..WORDS_PER_TABLE {
            if pages[word] == 0 {
                continue;
            }
            let lanes = bytes.lanes_mut(word);
            let (occupied, swapped) = leaf::occupied_and_swapped(lanes);
            let present = pages[word] & occupied & !swapped;
            touched[word] = present;
            for (t, of) in [(0, present & !files[word]), (1, present & files[word])] {
                leaf::by_label(lanes, of, |old, n| sizes[usize::from(old)][t] -= n);
                sizes[usize::from(label)][t] += u64::from(of.count_ones());
            }
            leaf::mark(lanes, present, label);
        }
        if touched.is_full() {
            self.store.leaves.remove(table.leaf);
            (table.leaf, table.uniform) = (NO_LEAF, label);
        }
        self.store.tables[position] = table;
        touched
    }

    /// The generation in whose interval a time lies; an interval ends with the time at which the
    /// next one begins.
    fn label_before(&self, at_ms: u64) -> Label {
        let mut window = self.generations.iter().rev();
        let found = window.find(|(_, generation)| generation.birth_ms < at_ms);
        found.map_or(LABEL_OLDEST, |(label, _)| label)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AgeMap, Facts};
    use crate::generations::{LABEL_UNSEEN, PageType};
    use crate::table::{PageSet, TableBits};

    /// A map of a table of 512 file pages and one of 100 file pages and 50 anon pages, seen at
    /// 1, 2 and 3 s.
    fn map() -> AgeMap {
        let mut map = AgeMap::new(0, 3_600_000);
        for second in 1..=3 {
            let mut look = map.look();
            for (index, present) in [(0, PageSet::ALL), (7, PageSet::range(0..150))] {
                let bits = TableBits {
                    present,
                    ..TableBits::default()
                };
                let files = match index {
                    0 => PageSet::ALL,
                    _ => PageSet::range(0..100),
                };
                let parts = &[];
                let bits = &bits;
                look.table(Facts {
                    index,
                    bits,
                    files,
                    parts,
                })
                .unwrap();
            }
            look.finish();
            map.advance(second * 1000);
        }
        map
    }

    fn sizes(map: &AgeMap) -> Vec<(u8, [u64; 2])> {
        let sizes = (0u8..).zip(map.generations().sizes());
        let some = sizes.filter(|(_, pages)| **pages != [0; 2]);
        some.map(|(label, pages)| (label, *pages)).collect()
    }

    #[test]
    fn what_is_present_becomes_as_young_as_its_access() {
        let mut map = map();
        let youngest = map.generations().youngest();
        assert_eq!(sizes(&map), [(LABEL_UNSEEN, [50, 612])]);
        let touched = map.touch(7, &PageSet::range(90..300), 3500);
        assert_eq!(touched, PageSet::range(90..150));
        assert_eq!(
            sizes(&map),
            [(LABEL_UNSEEN, [0, 602]), (youngest, [50, 10])]
        );
        // An access that was fetched when the generation began lies in the one before it.
        assert_eq!(map.touch(0, &PageSet::range(3..4), 3000).len(), 1);
        let page = map.page(3).unwrap();
        assert_eq!((page.label, page.page_type), (youngest - 1, PageType::File));
        assert_eq!(map.touch(0, &PageSet::ALL, 4000), PageSet::ALL);
        assert_eq!(
            sizes(&map),
            [(LABEL_UNSEEN, [0, 90]), (youngest, [50, 522])]
        );
        assert_eq!(map.touch(3, &PageSet::ALL, 4000), PageSet::NONE, "no table");
        // What the map holds is what a look finds.
        map.advance(4000);
        let mut look = map.look();
        look.keep(0..8);
        look.finish();
        assert_eq!(map.generations().pages(), [50, 612]);
    }
}
