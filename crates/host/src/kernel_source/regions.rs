// SPDX-License-Identifier: Apache-2.0
//! Derives page ages from the regions of a DAMON monitor: a page is as old as its region.

use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use crate::access::PAGE_BYTES;
use crate::agent::SubjectReport;
use crate::damon::TriedRegion;

/// Percent of the observation from which an idle time counts as all of it: the monitor's clock runs
/// a little slower than ours, and starts a little later.
const ALL_OF_IT_PERCENT: u64 = 90;

/// How to convert a region's age to milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// Length of an aggregation interval, the unit of a region's age.
    pub aggr_us: u64,
    /// How long the monitor has been running.
    pub observed_ms: u64,
    /// The bin for pages that were idle for all of that time.
    pub oldest: OldestPages,
}

/// The resident pages of a process or cgroup by age.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    pub histogram: Histogram,
    pub pages: [u64; 2],
    /// Pages never seen accessed.
    pub unseen_pages: [u64; 2],
    /// Pages outside all regions.
    pub uncovered_pages: u64,
    pub swapped_pages: u64,
}

impl Counted {
    /// Starts with no pages.
    pub fn new(intervals: &Intervals) -> Self {
        Counted {
            histogram: Histogram::new(intervals),
            pages: [0; 2],
            unseen_pages: [0; 2],
            uncovered_pages: 0,
            swapped_pages: 0,
        }
    }

    /// Adds resident pages in a region, or outside all regions.
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

    /// Adds the counts to a report whose single node represents all nodes.
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
