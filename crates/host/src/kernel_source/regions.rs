// SPDX-License-Identifier: Apache-2.0
//! From the regions of a DAMON monitor to ages of pages: a page is as old as its region.

use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use crate::access::PAGE_BYTES;
use crate::agent::SubjectReport;
use crate::damon::TriedRegion;

/// An idle time of this share of the observation, in percent, is all of it: the monitor's clock
/// runs a little slower than ours, and begins a little later.
const ALL_OF_IT_PERCENT: u64 = 90;

/// What converts a region's age into agewise's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Length of an aggregation, in which regions count their age.
    pub aggr_us: u64,
    /// For how long the monitor has run.
    pub observed_ms: u64,
    /// Where pages go that were idle for all of that time.
    pub oldest: OldestPages,
}

/// The resident pages of a process or cgroup by age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub histogram: Histogram,
    pub pages: [u64; 2],
    /// Never seen accessed.
    pub unseen_pages: [u64; 2],
    /// In no region.
    pub uncovered_pages: u64,
    pub swapped_pages: u64,
}

impl Counted {
    /// Nothing yet.
    pub fn new(intervals: &Intervals) -> Self {
        Counted {
            histogram: Histogram::new(intervals),
            pages: [0; 2],
            unseen_pages: [0; 2],
            uncovered_pages: 0,
            swapped_pages: 0,
        }
    }

    /// Adds resident pages of a region, or of none.
    pub fn add(
        &mut self,
        page_type: PageType,
        pages: u64,
        region: Option<&TriedRegion>,
        scale: Scale,
    ) {
        let index = page_type as usize;
        self.pages[index] += pages;
        let Some(region) = region else {
            self.uncovered_pages += pages;
            self.unseen_pages[index] += pages;
            self.histogram
                .add_at_least(page_type, pages, 0, scale.oldest);
            return;
        };
        let aggregations = match region.nr_accesses {
            0 => u64::from(region.age).max(1),
            _ => 1,
        };
        let age_ms = aggregations.saturating_mul(scale.aggr_us) / 1000;
        let is_unseen = region.nr_accesses == 0
            && age_ms.saturating_mul(100) >= scale.observed_ms.saturating_mul(ALL_OF_IT_PERCENT);
        let (age_ms, oldest) = if is_unseen {
            self.unseen_pages[index] += pages;
            (age_ms.max(scale.observed_ms), scale.oldest)
        } else {
            (age_ms, OldestPages::AtLeast)
        };
        self.histogram
            .add_at_least(page_type, pages, age_ms, oldest);
    }

    /// Adds it to a report with one node that stands for all of them.
    pub fn add_to(&self, report: &mut SubjectReport) {
        if let Some((_, histogram)) = report.nodes.first_mut() {
            histogram.add(&self.histogram.scaled(PAGE_BYTES));
        }
        for index in 0..2 {
            report.resident_bytes[index] += self.pages[index] * PAGE_BYTES;
            report.unseen_bytes[index] += self.unseen_pages[index] * PAGE_BYTES;
        }
        report.swapped_bytes += self.swapped_pages * PAGE_BYTES;
    }
}
