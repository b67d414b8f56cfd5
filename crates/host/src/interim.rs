// SPDX-License-Identifier: Apache-2.0
//! Intermediate scans, for when another program clears accessed bits too.
//!
//! DAMON clears the accessed bit of each page it samples; in a large folio it clears all of them at
//! once, without a TLB flush (`damon_folio_mkold_one`, mm/damon/ops-common.c, 6.18). The next look
//! then misses pages accessed before that and not after: over a third of the accesses to a file in
//! folios of 1 MiB, with two samples a second and one look. agewise cannot stop the other program,
//! but it can read the bits more often. An intermediate scan clears nothing and costs the target
//! nothing.

use std::time::Duration;

use agewise_policy::table::PageSet;

use crate::access::{
    AccessError, AccessSource, AddressRange, Leaf, TABLE_BYTES, TableSight, Target,
};
use crate::error;
use crate::root::{Roots, numbers_in};
use crate::vma::VmaKind;

/// Intermediate scans per sampling interval of the other program.
const PER_SAMPLE: u32 = 4;
/// Most intermediate scans between two looks. More would cost more than they find.
const PER_LOOK_MAX: u32 = 8;

/// What to scan in one process, and the pages seen accessed since the last look.
#[derive(Debug, Default)]
pub struct InterimScans {
    young: Seen,
    /// The mappings that others clear by large folios, according to the last look: file mappings,
    /// and those with huge pages.
    ranges: Vec<AddressRange>,
    /// The same for the look in progress, as indexes of its ranges.
    found: Vec<usize>,
}

impl InterimScans {
    /// Reads the accessed bits of the mappings that others clear by large folios. Returns the CPU
    /// time in ns.
    ///
    /// # Errors
    /// [`AccessError`]. Pages seen before the error are kept.
    pub fn scan(
        &mut self,
        source: &mut dyn AccessSource,
        target: &Target,
    ) -> Result<u64, AccessError> {
        if self.ranges.is_empty() {
            return Ok(0);
        }
        let young = &mut self.young;
        young.rewind();
        let mut sink = |sight: &TableSight<'_>| {
            if !sight.bits.young.is_empty() {
                young.add(sight.va / TABLE_BYTES, &sight.bits.young);
            }
        };
        let scanned = source.scan(target, &self.ranges, &mut sink);
        young.rewind();
        scanned
    }

    /// Takes in a table that a look shows, of a mapping of this kind. Returns the pages seen
    /// accessed since the last look that are still present.
    pub fn take_in(&mut self, sight: &TableSight<'_>, kind: VmaKind) -> PageSet {
        let in_folios = kind != VmaKind::Anon || sight.leaf != Leaf::Page;
        if in_folios && self.found.last() != Some(&sight.range) {
            self.found.push(sight.range);
        }
        match self.young.of(sight.va / TABLE_BYTES) {
            Some(seen) => *seen & sight.bits.present,
            None => PageSet::default(),
        }
    }

    /// Whether anything of a table was seen accessed. Call in ascending order, together with
    /// [`take_in`](Self::take_in).
    pub fn has_seen(&mut self, va: u64) -> bool {
        self.young.of(va / TABLE_BYTES).is_some()
    }

    /// Ends a look at these ranges, which has taken in everything seen so far.
    pub fn end(&mut self, ranges: &[AddressRange]) {
        self.young.clear();
        self.ranges.clear();
        let found = self.found.drain(..);
        self.ranges
            .extend(found.filter_map(|range| ranges.get(range).copied()));
    }

    /// Approximate bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.young.capacity() * (size_of::<u64>() + size_of::<PageSet>())
            + self.ranges.capacity() * size_of::<AddressRange>()
            + self.found.capacity() * size_of::<usize>()
    }
}

/// Bits by table. Callers add and look up tables in ascending order, starting again after each
/// [`rewind`](Self::rewind). So no search is needed, and the next table is next in memory.
#[derive(Debug, Default)]
struct Seen {
    /// Ascending by table.
    tables: Vec<(u64, PageSet)>,
    /// Added since the last rewind, ascending; none of them is in `tables`.
    fresh: Vec<(u64, PageSet)>,
    at: usize,
}

impl Seen {
    /// Starts from the first table again.
    fn rewind(&mut self) {
        self.at = 0;
        if !self.fresh.is_empty() {
            self.tables.append(&mut self.fresh);
            // Two sorted runs: the sort detects and merges them.
            self.tables.sort_by_key(|(table, _)| *table);
        }
    }

    fn seek(&mut self, table: u64) -> Option<&mut PageSet> {
        while self.tables.get(self.at).is_some_and(|(at, _)| *at < table) {
            self.at += 1;
        }
        let found = self.tables.get_mut(self.at).filter(|(at, _)| *at == table);
        found.map(|(_, bits)| bits)
    }

    fn add(&mut self, table: u64, young: &PageSet) {
        // Two mappings may share a table, which is then added twice.
        if let Some((_, bits)) = self.fresh.last_mut().filter(|(last, _)| *last == table) {
            *bits |= *young;
        } else if let Some(bits) = self.seek(table) {
            *bits |= *young;
        } else {
            self.fresh.push((table, *young));
        }
    }

    fn of(&mut self, table: u64) -> Option<&PageSet> {
        self.seek(table).map(|bits| &*bits)
    }

    fn clear(&mut self) {
        self.tables.clear();
        self.fresh.clear();
        self.at = 0;
    }

    fn capacity(&self) -> usize {
        self.tables.capacity() + self.fresh.capacity()
    }
}

/// Returns the period of intermediate scans, given a look every `look`. `None` if no other program
/// clears.
pub fn period(roots: &Roots, look: Duration) -> Option<Duration> {
    let sample = fastest_sample(roots)?;
    Some((sample / PER_SAMPLE).max(look / PER_LOOK_MAX))
}

/// The shortest sampling interval of all running kdamonds: those in `sysfs`, and those of the
/// modules `damon_reclaim` and `damon_lru_sort`.
fn fastest_sample(roots: &Roots) -> Option<Duration> {
    let admin = roots.sys.join("kernel/mm/damon/admin/kdamonds");
    let mut samples_us: Vec<u64> = Vec::new();
    let text = |path: std::path::PathBuf| error::read(&path).ok();
    for kdamond in numbers_in(&admin).unwrap_or_default() {
        let kdamond = admin.join(kdamond.to_string());
        if text(kdamond.join("state")).is_none_or(|state| state.trim() != "on") {
            continue;
        }
        let contexts = kdamond.join("contexts");
        for context in numbers_in(&contexts).unwrap_or_default() {
            let path = format!("{context}/monitoring_attrs/intervals/sample_us");
            samples_us
                .extend(text(contexts.join(path)).and_then(|us| us.trim().parse::<u64>().ok()));
        }
    }
    for module in ["damon_reclaim", "damon_lru_sort"] {
        let parameters = roots.sys.join("module").join(module).join("parameters");
        if text(parameters.join("enabled")).is_some_and(|enabled| enabled.trim() == "Y") {
            let us = text(parameters.join("sample_interval"));
            samples_us.extend(us.and_then(|us| us.trim().parse::<u64>().ok()));
        }
    }
    samples_us.into_iter().min().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join("sys").join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn what_was_seen_adds_up_by_table() {
        let mut seen = Seen::default();
        let bits = |bit: u32| {
            let mut bits = PageSet::default();
            bits[0] = 1 << bit;
            bits
        };
        for round in [[(3, 0), (7, 1), (7, 2)], [(1, 3), (3, 4), (9, 5)]] {
            seen.rewind();
            round
                .iter()
                .for_each(|(table, bit)| seen.add(*table, &bits(*bit)));
        }
        seen.rewind();
        let found: Vec<_> = (0..10)
            .filter_map(|table| seen.of(table).map(|bits| (table, bits[0])))
            .collect();
        assert_eq!(
            found,
            [(1, 1 << 3), (3, 1 | 1 << 4), (7, 0b110), (9, 1 << 5)]
        );
        seen.clear();
        assert_eq!(seen.of(3), None);
    }

    #[test]
    fn scans_come_several_times_a_sample_and_not_too_often() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let second = Duration::from_secs(1);
        assert_eq!(period(&roots, second), None, "no DAMON at all");
        let kdamond = "kernel/mm/damon/admin/kdamonds/0";
        let sample = "contexts/0/monitoring_attrs/intervals/sample_us";
        write(dir.path(), &format!("{kdamond}/state"), "off\n");
        write(dir.path(), &format!("{kdamond}/{sample}"), "500000\n");
        assert_eq!(period(&roots, second), None, "it does not run");
        write(dir.path(), &format!("{kdamond}/state"), "on\n");
        assert_eq!(period(&roots, second), Some(Duration::from_millis(125)));
        assert_eq!(
            period(&roots, 10 * second),
            Some(Duration::from_millis(1250))
        );
        let module = "module/damon_reclaim/parameters";
        write(dir.path(), &format!("{module}/enabled"), "Y\n");
        write(dir.path(), &format!("{module}/sample_interval"), "5000\n");
        assert_eq!(
            period(&roots, second / 100),
            Some(Duration::from_micros(1250))
        );
    }
}
