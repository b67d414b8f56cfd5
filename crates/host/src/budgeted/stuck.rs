// SPDX-License-Identifier: Apache-2.0
//! Pages of a process that were to leave and stayed.
//!
//! The kernel skips pages that several processes map (all that was forked and not written since),
//! locked and pinned ones. These are often the coldest: they would be tried again and again, and in
//! the queue they would keep places from pages that can leave.

use std::collections::BTreeMap;
use std::ops::Range;

use agewise_policy::budget::Seen;
use agewise_policy::table::PageSet;

use super::known::by_table;

/// Each is tried again after one look in this many, some minutes: the other processes may have
/// ended. Sooner would cost more than it finds: memory that a hundred processes share is there a
/// hundred times.
const AGAIN_LOOKS: u64 = 1024;

/// The pages, by table.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// Passed to the kernel since the last look.
    passed: BTreeMap<u64, PageSet>,
    stuck: BTreeMap<u64, PageSet>,
    looks: u64,
}

impl Stuck {
    /// These pages were passed to the kernel.
    pub fn pass(&mut self, runs: &[Range<u64>]) {
        for (index, pages) in runs.iter().cloned().flat_map(by_table) {
            *self.passed.entry(index).or_default() |= pages;
        }
    }

    /// Takes in a look at everything (tables ascending). Pages that stayed become unmovable, but
    /// for those that are tried again: a different part of the tables each time, so that what is
    /// movable in all hardly changes.
    pub fn look(&mut self, tables: &mut [Seen]) {
        self.looks += 1;
        for (index, passed) in std::mem::take(&mut self.passed) {
            let Ok(at) = tables.binary_search_by_key(&index, |seen| seen.index) else {
                continue;
            };
            // A page that left and came back was accessed.
            let stayed = (passed & tables[at].bits.present).without(&tables[at].bits.young);
            if !stayed.is_empty() {
                *self.stuck.entry(index).or_default() |= stayed;
            }
        }
        self.stuck.retain(|index, pages| {
            let Ok(at) = tables.binary_search_by_key(index, |seen| seen.index) else {
                return false;
            };
            *pages &= tables[at].bits.present;
            if !(index + self.looks).is_multiple_of(AGAIN_LOOKS) {
                tables[at].movable = tables[at].movable.without(pages);
            }
            !pages.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::table::TableBits;

    use super::*;

    fn set(pages: Range<usize>) -> PageSet {
        PageSet::range(pages)
    }

    fn look(stuck: &mut Stuck, present: PageSet, young: PageSet) -> PageSet {
        let bits = TableBits {
            present,
            young,
            ..TableBits::default()
        };
        let mut seen = [Seen {
            index: 3,
            bits,
            movable: PageSet::ALL,
        }];
        stuck.look(&mut seen);
        seen[0].movable & present
    }

    #[test]
    fn what_stays_is_left_alone_and_tried_again_later() {
        let mut stuck = Stuck::default();
        let of_table = |pages: Range<u64>| pages.start + 3 * 512..pages.end + 3 * 512;
        let present = set(0..100);
        assert_eq!(look(&mut stuck, present, PageSet::NONE), present);
        stuck.pass(std::slice::from_ref(&of_table(0..30)));
        // Ten left, ten came back.
        let (there, young) = (present.without(&set(0..10)), set(10..20));
        let movable = there.without(&set(20..30));
        assert_eq!(look(&mut stuck, there, young), movable);
        // Table 3 is tried again after this look.
        for looks in 3..AGAIN_LOOKS - 3 {
            assert_eq!(look(&mut stuck, there, PageSet::NONE), movable, "{looks}");
        }
        assert_eq!(look(&mut stuck, there, PageSet::NONE), there);
        stuck.pass(std::slice::from_ref(&of_table(20..25)));
        let there = there.without(&set(20..25));
        assert_eq!(
            look(&mut stuck, there, PageSet::NONE),
            there.without(&set(25..30))
        );
        assert_eq!(look(&mut stuck, set(50..60), PageSet::NONE), set(50..60));
        assert!(stuck.stuck.is_empty());
    }
}
