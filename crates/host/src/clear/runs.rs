// SPDX-License-Identifier: Apache-2.0
//! What to clear of a batch of sights, and the address ranges worth a call. It is kept as it was
//! seen until the batch ends: turning it into ranges is part of clearing, because the less is done
//! between reading a table and clearing it, the fewer accesses are lost.

use agewise_policy::table::{PAGES_PER_TABLE, PageSet, WORDS_PER_TABLE};

use crate::access::{AddressRange, PAGE_BYTES, TABLE_BYTES};

/// The longest run, which bounds how long one call holds the target's mmap lock (0.2 ms).
const RUN_BYTES_MAX: u64 = 16 << 20;

/// One range to be cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its addresses.
    pub range: AddressRange,
    /// Present pages in the range.
    pub present_pages: u32,
}

/// Collects runs in ascending address order.
#[derive(Clone, Debug)]
pub struct Runs {
    done: Vec<Run>,
    /// The last run while it may still grow, and the present pages seen after it.
    open: Option<(Run, u32)>,
    /// Index of the mapping that contains `open`: ranges never span two mappings.
    of: usize,
    bridge_pages: u32,
    max_bytes: u64,
}

impl Runs {
    /// `bridge_pages`: up to this many present pages between two young ones are included rather
    /// than left out. `max_bytes`: the longest run, since a call holds the target's mmap lock for
    /// reading.
    pub fn new(bridge_pages: u32, max_bytes: u64) -> Self {
        Runs {
            done: Vec::new(),
            open: None,
            of: 0,
            bridge_pages,
            max_bytes,
        }
    }

    /// Adds a table of base pages: `wanted` pages must be covered, and covering other `present`
    /// ones has a cost. `of` is the mapping it belongs to.
    pub fn table(&mut self, of: usize, va: u64, wanted: &PageSet, present: &PageSet) {
        self.enter(of);
        if wanted.is_full() {
            self.add(va, va + TABLE_BYTES, PAGES_PER_TABLE as u32);
            return;
        }
        for word in 0..WORDS_PER_TABLE {
            let (want, have) = (wanted[word], present[word]);
            let base = va + word as u64 * 64 * PAGE_BYTES;
            if want == 0 {
                self.pass(have.count_ones());
                continue;
            }
            if self.bridge_pages >= u64::BITS {
                // No gap inside is wide enough to end a run: one piece from first to last.
                let (first, end) = (want.trailing_zeros(), 64 - want.leading_zeros());
                self.pass((have & mask(0, first)).count_ones());
                let present = (have & mask(first, end)).count_ones();
                let page = |bit: u32| base + u64::from(bit) * PAGE_BYTES;
                self.add(page(first), page(end), present);
                self.pass((have & mask(end, 64)).count_ones());
                continue;
            }
            let mut rest = want;
            let mut at = 0;
            while rest != 0 {
                let first = rest.trailing_zeros();
                let length = (rest >> first).trailing_ones();
                self.pass((have & mask(at, first)).count_ones());
                at = first + length;
                let present = (have & mask(first, at)).count_ones();
                let page = |bit: u32| base + u64::from(bit) * PAGE_BYTES;
                self.add(page(first), page(at), present);
                rest &= !mask(0, at);
            }
            self.pass((have & mask(at, 64)).count_ones());
        }
    }

    /// Adds a 2 MiB leaf as a whole: a range over part of it would make the kernel split it.
    pub fn leaf(&mut self, of: usize, va: u64) {
        self.enter(of);
        // To the kernel it is one page.
        self.add(va, va + TABLE_BYTES, 1);
    }

    /// All runs.
    pub fn end(mut self) -> Vec<Run> {
        self.close();
        self.done
    }

    fn enter(&mut self, of: usize) {
        if self.of != of {
            self.close();
            self.of = of;
        }
    }

    /// Ends the open run: what follows must not be joined to it, since there is something in
    /// between that must not be cleared.
    pub fn close(&mut self) {
        if let Some((run, _)) = self.open.take() {
            self.done.push(run);
        }
    }

    /// Passes over present pages that are not wanted.
    pub fn pass(&mut self, pages: u32) {
        if let Some((_, passed)) = &mut self.open {
            *passed = passed.saturating_add(pages);
            if *passed > self.bridge_pages {
                self.close();
            }
        }
    }

    fn add(&mut self, start: u64, end: u64, present: u32) {
        if let Some((run, passed)) = &mut self.open {
            if end - run.range.start <= self.max_bytes {
                run.range.end = end;
                run.present_pages += *passed + present;
                *passed = 0;
                return;
            }
            self.close();
        }
        let range = AddressRange { start, end };
        self.open = Some((
            Run {
                range,
                present_pages: present,
            },
            0,
        ));
    }
}

#[derive(Clone, Copy, Debug)]
enum Note {
    /// A table of base pages, which owns the next element of `bits`.
    Table { of: usize, va: u64 },
    /// Adjacent 2 MiB leaves.
    Leaves { of: usize, va: u64, tables: u64 },
    /// Present pages that are not to be cleared but may be bridged.
    Pass(u32),
    /// Something that must not be cleared.
    Close,
}

/// Notes in ascending address order.
#[derive(Debug, Default)]
pub(super) struct Notes {
    notes: Vec<Note>,
    /// The wanted and the present pages of each noted table.
    bits: Vec<[PageSet; 2]>,
    /// Whether anything is to be cleared.
    wanted: bool,
}

impl Notes {
    /// Whether nothing is to be cleared.
    pub fn is_empty(&self) -> bool {
        !self.wanted
    }

    /// Notes a table of the mapping `of`, with the arguments of [`Runs::table`].
    pub fn table(&mut self, of: usize, va: u64, wanted: PageSet, present: PageSet) {
        self.wanted = true;
        self.notes.push(Note::Table { of, va });
        self.bits.push([wanted, present]);
    }

    /// Notes adjacent 2 MiB leaves of the mapping `of`.
    pub fn leaves(&mut self, of: usize, va: u64, tables: u64) {
        self.wanted = true;
        // Several followed blocks may lie in one leaf, which is cleared once.
        let is_noted = |note: &Note| matches!(note, Note::Leaves { va: noted, .. } if *noted == va);
        if !self.notes.iter().rev().take(2).any(is_noted) {
            self.notes.push(Note::Leaves { of, va, tables });
        }
    }

    /// Notes present pages that are not to be cleared but may be bridged.
    pub fn pass(&mut self, pages: u32) {
        match self.notes.last_mut() {
            Some(Note::Pass(passed)) => *passed = passed.saturating_add(pages),
            // Before the first note there is no run to extend.
            None => {}
            Some(_) => self.notes.push(Note::Pass(pages)),
        }
    }

    /// Notes that what follows must not be joined to what came before.
    pub fn close(&mut self) {
        if !matches!(self.notes.last(), None | Some(Note::Close)) {
            self.notes.push(Note::Close);
        }
    }

    /// Turns the notes into runs, and drops them. `bridge_pages` is that of [`Runs::new`].
    pub fn take_runs(&mut self, bridge_pages: u32) -> Vec<Run> {
        let mut runs = Runs::new(bridge_pages, RUN_BYTES_MAX);
        let mut bits = self.bits.drain(..);
        for note in self.notes.drain(..) {
            match note {
                Note::Table { of, va } => {
                    if let Some([wanted, present]) = bits.next() {
                        runs.table(of, va, &wanted, &present);
                    }
                }
                Note::Leaves { of, va, tables } => {
                    let places = (va..).step_by(TABLE_BYTES as usize);
                    places
                        .take(tables as usize)
                        .for_each(|va| runs.leaf(of, va));
                }
                Note::Pass(pages) => runs.pass(pages),
                Note::Close => runs.close(),
            }
        }
        drop(bits);
        self.wanted = false;
        runs.end()
    }

    /// Number of tables of base pages to clear.
    pub fn tables(&self) -> u64 {
        self.bits.len() as u64
    }

    /// Drops the notes.
    pub fn forget(&mut self) {
        self.notes.clear();
        self.bits.clear();
        self.wanted = false;
    }

    /// Drops the notes and frees their memory: most processes are small, and many are watched.
    pub fn release(&mut self) {
        *self = Notes::default();
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.notes.capacity() * size_of::<Note>() + self.bits.capacity() * size_of::<[PageSet; 2]>()
    }
}

fn mask(from: u32, to: u32) -> u64 {
    if from >= to {
        return 0;
    }
    (u64::MAX >> (64 - (to - from))) << from
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(pages: &[usize]) -> PageSet {
        let mut bits = PageSet::default();
        for page in pages {
            bits[page / 64] |= 1 << (page % 64);
        }
        bits
    }

    const ALL: PageSet = PageSet::ALL;

    #[test]
    fn a_gap_is_bridged_up_to_the_limit() {
        let mut runs = Runs::new(3, 1 << 30);
        runs.table(0, 0, &bits(&[10, 14, 19]), &ALL);
        let got = runs.end();
        assert_eq!(got.len(), 2);
        assert_eq!(
            got[0].range,
            AddressRange {
                start: 10 * 4096,
                end: 15 * 4096
            }
        );
        assert_eq!(got[0].present_pages, 5);
        assert_eq!(
            got[1].range,
            AddressRange {
                start: 19 * 4096,
                end: 20 * 4096
            }
        );
    }

    #[test]
    fn holes_cost_nothing_and_tables_join() {
        let mut runs = Runs::new(0, 1 << 30);
        runs.table(0, 0, &bits(&[1, 511]), &bits(&[1, 511]));
        runs.table(0, TABLE_BYTES, &bits(&[7]), &bits(&[7]));
        let got = runs.end();
        assert_eq!(got.len(), 1);
        assert_eq!(
            got[0].range,
            AddressRange {
                start: 4096,
                end: TABLE_BYTES + 8 * 4096
            }
        );
        assert_eq!(got[0].present_pages, 3);
    }

    #[test]
    fn mappings_never_join_and_long_runs_are_cut() {
        let mut runs = Runs::new(1000, 2 * TABLE_BYTES);
        runs.leaf(0, 0);
        runs.leaf(1, TABLE_BYTES);
        runs.leaf(1, 2 * TABLE_BYTES);
        runs.table(1, 3 * TABLE_BYTES, &ALL, &ALL);
        let got: Vec<_> = runs
            .end()
            .iter()
            .map(|run| (run.range.start / TABLE_BYTES, run.range.len()))
            .collect();
        assert_eq!(
            got,
            [(0, TABLE_BYTES), (1, 2 * TABLE_BYTES), (3, TABLE_BYTES)]
        );
    }

    proptest! {
        /// Every wanted page is in exactly one run, a run begins and ends with a wanted page, no
        /// gap inside contains more present pages than allowed, and page counts are right.
        #[test]
        fn runs_cover_what_is_wanted_and_little_else(
            present in prop::collection::vec(any::<[u64; 8]>(), 1..4),
            picks in prop::collection::vec(any::<[u64; 8]>(), 4),
            sparse in any::<bool>(),
            bridge in prop_oneof![0u32..40, 60u32..300],
            max_tables in 1u64..4,
        ) {
            let mut runs = Runs::new(bridge, max_tables * TABLE_BYTES);
            let (mut have, mut want) = (Vec::new(), Vec::new());
            for (index, present) in present.iter().enumerate() {
                let wanted: PageSet = PageSet::from_words(|word| {
                    let pick = picks[index][word];
                    let few = pick & pick >> 3 & pick >> 7 & pick << 5;
                    present[word] & if sparse { few } else { pick }
                });
                runs.table(0, index as u64 * TABLE_BYTES, &wanted, &PageSet::new(*present));
                for page in 0..512 {
                    have.push(present[page / 64] >> (page % 64) & 1 == 1);
                    want.push(wanted.contains(page));
                }
            }
            let got = runs.end();
            let mut covered = vec![false; have.len()];
            for run in &got {
                let page = |address: u64| (address / 4096) as usize;
                let (from, to) = (page(run.range.start), page(run.range.end));
                prop_assert!(want[from] && want[to - 1]);
                prop_assert!(run.range.len() <= max_tables * TABLE_BYTES);
                let present = have[from..to].iter().filter(|&&h| h).count();
                prop_assert_eq!(run.present_pages as usize, present);
                let mut gap = 0;
                for page in from..to {
                    prop_assert!(!covered[page]);
                    covered[page] = true;
                    gap = if want[page] { 0 } else { gap + u32::from(have[page]) };
                    prop_assert!(gap <= bridge);
                }
            }
            for page in 0..want.len() {
                prop_assert!(!want[page] || covered[page]);
            }
        }
    }
}
