// SPDX-License-Identifier: Apache-2.0
//! Compares what an agent sees of an exerciser's pages with the truth.

use agewise_host::access::{Batch, Leaf, TABLE_BYTES, TableSight, Target};
use agewise_host::agent::{Judged, Tap};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::PAGE_BYTES;
use super::tally::{Span, Tally};
use crate::exercise::truth::{Kind, Truth};

/// Start and end of reading each table in the last scan, by region and table; `None` if it was not
/// read.
type Readings = Vec<Vec<Option<(u64, u64)>>>;

/// Judges every page for which two successive scans have a reading.
pub struct Judge<'a> {
    truth: &'a Truth,
    readings: Readings,
    /// Tables reported since the end of the last batch: region and number.
    in_batch: Vec<(usize, usize)>,
    tally: Tally,
}

impl<'a> Judge<'a> {
    /// Creates a judge for an exerciser, which must be the agent's only target.
    pub fn new(truth: &'a Truth) -> Self {
        let tables = |pages: u64| (pages as usize).div_ceil(PAGES_PER_TABLE) + 1;
        Judge {
            truth,
            readings: truth
                .regions()
                .iter()
                .map(|region| vec![None; tables(region.pages)])
                .collect(),
            in_batch: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// The results so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }
}

impl Tap for Judge<'_> {
    fn table(&mut self, _: &Target, sight: &TableSight<'_>, judged: Judged<'_>) {
        self.compare(sight, judged.young);
    }

    fn batch_end(&mut self, _: &Target, batch: &Batch) {
        for (region, table) in self.in_batch.drain(..) {
            self.readings[region][table] = Some((batch.begin_ns, batch.end_ns));
        }
    }
}

impl Judge<'_> {
    /// Compares the pages taken for young with those that were accessed.
    fn compare(&mut self, sight: &TableSight<'_>, young: &PageSet) {
        let end = sight.va + TABLE_BYTES;
        for (number, region) in self.truth.regions().iter().enumerate() {
            let region_end = region.address + region.pages * PAGE_BYTES;
            if end <= region.address || sight.va >= region_end {
                continue;
            }
            let first_table = region.address & !(TABLE_BYTES - 1);
            let table = ((sight.va - first_table) / TABLE_BYTES) as usize;
            self.in_batch.push((number, table));
            let before = self.readings[number][table];
            let (Some((before_begin_ns, before_end_ns)), tally) = (before, &mut self.tally) else {
                continue;
            };
            let span = Span {
                before_begin_ns,
                before_end_ns,
                now_begin_ns: sight.seen_ns,
            };
            let last_access_ns = |page: usize| {
                let at = sight.va + page as u64 * PAGE_BYTES;
                let inside = at >= region.address && at < region_end;
                inside.then(|| {
                    let slot = region.first_slot + (at - region.address) / PAGE_BYTES;
                    self.truth.last_access_ns(slot)
                })
            };
            if sight.leaf != Leaf::Page && region.kind == Kind::AnonHuge {
                let last = (0..PAGES_PER_TABLE).filter_map(last_access_ns).max();
                if let (Some(last), true) = (last, sight.bits.present.contains(0)) {
                    tally.judge(span, last, young.contains(0));
                }
                continue;
            }
            for page in sight.bits.present.pages() {
                if let Some(last) = last_access_ns(page) {
                    tally.judge(span, last, young.contains(page));
                }
            }
        }
    }
}
