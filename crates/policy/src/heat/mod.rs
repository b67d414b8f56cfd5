// SPDX-License-Identifier: Apache-2.0
//! Decayed access frequency: one byte a page, from accessed bits alone.
//!
//! Ages tell when a page was accessed last; on a skewed load that mistakes a page read once for one
//! that is read all the time. Heat counts: `h = h * decay + accessed` at every scan, kept after the
//! page is gone to swap, so that one that comes back is known. What has to go is the coldest that is
//! not in use right now, and among equals the one at the highest address: a loop then keeps a stable
//! part of itself instead of none, and victims lie together in runs.
//!
//! Only what was accessed costs anything in a scan: a byte is a logarithm relative to a reference that
//! grows as heats decay. Measured against the kernel's lists on the reference traces: `docs/use/proactive.md`.

pub(crate) mod scale;

use std::ops::Range;

use crate::table::{PAGES_PER_TABLE, PageSet, TableBits, WORDS_PER_TABLE};
use scale::{LEVELS_ALIKE, Scale};

/// Heats of the pages of one address space. Pages are named by number: address / page size.
#[derive(Clone, Debug)]
pub struct HeatMap {
    scale: Scale,
    tables: Vec<Table>,
}

#[derive(Clone, Debug)]
struct Table {
    /// Page number of its first page / 512.
    index: u64,
    levels: Box<[u8; PAGES_PER_TABLE]>,
}

/// Pages of a table among which to choose.
#[derive(Clone, Copy, Debug)]
pub struct Candidates {
    /// Page number of the table's first page / 512.
    pub index: u64,
    /// The pages: present, and not accessed since the last scan.
    pub pages: PageSet,
}

impl HeatMap {
    /// An empty map. `decay` is what a scan leaves of a heat, between 0 and 1; what was measured to
    /// be good lies between 0.95 and 0.98.
    ///
    /// # Panics
    /// If it is not between 0.01 and 0.9999.
    pub fn new(decay: f64) -> Self {
        assert!((0.01..=0.9999).contains(&decay), "a decay of {decay}");
        HeatMap {
            scale: Scale::new(decay),
            tables: Vec::new(),
        }
    }

    /// Begins a scan: once whenever accessed bits are read to be cleared. Tables that it does not
    /// report are forgotten.
    pub fn scan(&mut self) -> Scan<'_> {
        let lower = self.scale.advance();
        if lower > 0 {
            for table in &mut self.tables {
                for level in table.levels.iter_mut() {
                    *level = level.saturating_sub(lower);
                }
            }
        }
        let before = std::mem::take(&mut self.tables);
        Scan {
            map: self,
            before: before.into_iter().peekable(),
        }
    }

    /// The heat of a page: accesses seen, each worth less by `decay` for every scan since.
    pub fn heat(&self, page: u64) -> f64 {
        let level = self
            .table(page / PAGES_PER_TABLE as u64)
            .map_or(0, |levels| levels[(page % PAGES_PER_TABLE as u64) as usize]);
        self.scale.heat(level)
    }

    /// The coldest `pages` of the candidates (their tables ascending), as runs in ascending order.
    pub fn coldest(&self, candidates: &[Candidates], pages: u64) -> Vec<Range<u64>> {
        self.coldest_in_tiers(candidates, pages, u64::MAX)
    }

    /// The same in tiers: first the coldest `first` pages, then twice as many of the next, and so
    /// on, each tier as runs in ascending order. Whoever takes n pages takes hardly any that is
    /// warmer than the coldest 2n, and still finds neighbours together.
    pub fn coldest_in_tiers(
        &self,
        candidates: &[Candidates],
        pages: u64,
        first: u64,
    ) -> Vec<Range<u64>> {
        let mut counts = [0u64; 256];
        self.each(candidates, |_, rank| counts[usize::from(rank)] += 1);
        // How many pages go before one of a rank; among equals the one at the highest address first.
        let mut before = [0u64; 256];
        let mut colder = 0;
        for (before, count) in before.iter_mut().zip(counts) {
            colder += count;
            *before = colder;
        }
        let mut tiers: Vec<Vec<Range<u64>>> = Vec::new();
        self.each(candidates, |page, rank| {
            let place = &mut before[usize::from(rank)];
            *place -= 1;
            if *place >= pages {
                return;
            }
            let tier = (*place / first.max(1)).saturating_add(1).ilog2() as usize;
            if tiers.len() <= tier {
                tiers.resize(tier + 1, Vec::new());
            }
            match tiers[tier].last_mut() {
                Some(run) if run.end == page => run.end += 1,
                _ => tiers[tier].push(page..page + 1),
            }
        });
        tiers.into_iter().flatten().collect()
    }

    /// Bytes of memory the map takes.
    pub fn memory_bytes(&self) -> usize {
        self.tables.capacity() * size_of::<Table>() + self.tables.len() * PAGES_PER_TABLE
    }

    /// Calls `visit` with each candidate and how warm it is.
    fn each(&self, candidates: &[Candidates], mut visit: impl FnMut(u64, u8)) {
        for candidate in candidates {
            let levels = self.table(candidate.index);
            for slot in candidate.pages.pages() {
                let level = levels.map_or(0, |levels| levels[slot]);
                visit(
                    candidate.index * PAGES_PER_TABLE as u64 + slot as u64,
                    level / LEVELS_ALIKE,
                );
            }
        }
    }

    fn table(&self, index: u64) -> Option<&[u8; PAGES_PER_TABLE]> {
        let at = self
            .tables
            .binary_search_by_key(&index, |table| table.index);
        at.ok().map(|at| &*self.tables[at].levels)
    }
}

/// A scan under way. Tables come in ascending order; [`finish`](Self::finish) or dropping ends it.
#[derive(Debug)]
pub struct Scan<'a> {
    map: &'a mut HeatMap,
    before: std::iter::Peekable<std::vec::IntoIter<Table>>,
}

impl Scan<'_> {
    /// Takes in what was seen of one table. A table before one already reported is ignored.
    pub fn table(&mut self, index: u64, bits: &TableBits) {
        while self.before.next_if(|table| table.index < index).is_some() {}
        let known = self.before.next_if(|table| table.index == index);
        if self
            .map
            .tables
            .last()
            .is_some_and(|last| last.index >= index)
        {
            return;
        }
        if bits.present.is_empty() && bits.swapped.is_empty() {
            return;
        }
        let mut table = known.unwrap_or_else(|| Table {
            index,
            levels: Box::new([0; PAGES_PER_TABLE]),
        });
        for word in 0..WORDS_PER_TABLE {
            let gone = !(bits.present[word] | bits.swapped[word]);
            each_bit(gone, |bit| table.levels[word * 64 + bit] = 0);
            each_bit(bits.young[word], |bit| {
                let slot = word * 64 + bit;
                table.levels[slot] = self.map.scale.after_access(table.levels[slot]);
            });
        }
        self.map.tables.push(table);
    }

    /// Leaves a table as it was: nothing was accessed in it, or it was not looked at.
    pub fn keep(&mut self, index: u64) {
        while self.before.next_if(|table| table.index < index).is_some() {}
        if let Some(table) = self.before.next_if(|table| table.index == index) {
            self.map.tables.push(table);
        }
    }

    /// Ends the scan.
    pub fn finish(self) {}
}

fn each_bit(bits: u64, mut visit: impl FnMut(usize)) {
    let mut left = bits;
    while left != 0 {
        visit(left.trailing_zeros() as usize);
        left &= left - 1;
    }
}
