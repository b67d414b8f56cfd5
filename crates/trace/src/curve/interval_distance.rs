// SPDX-License-Identifier: Apache-2.0
//! Bounds of LRU stack distances if the order of accesses inside an interval is unknown.
//!
//! Between two accesses of a page, in intervals `j` and `i`, there are at least the pages last
//! accessed in the intervals between, and at most also those of `j` and `i` themselves. A Fenwick
//! tree over the intervals, with the number of pages last accessed in each, gives both counts.

use super::StackDistances;

const NEVER: u32 = u32::MAX;

/// Counts distances interval by interval.
#[derive(Debug, Default)]
pub struct IntervalDistances {
    /// Interval of the last access, by page.
    last: Vec<u32>,
    pages_of_interval: Fenwick,
    interval: u32,
    least: Vec<u64>,
    most: Vec<u64>,
    cold: u64,
    accesses: u64,
}

impl IntervalDistances {
    /// Starts without accesses.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next interval: the pages (dense numbers) accessed in it. Duplicates count as one
    /// access.
    pub fn interval(&mut self, pages: &[u32]) {
        let now = self.interval;
        self.interval += 1;
        self.pages_of_interval.grow();
        let mut before = Vec::with_capacity(pages.len());
        for &page in pages {
            let page = page as usize;
            if page >= self.last.len() {
                self.last.resize(page + 1, NEVER);
            }
            if self.last[page] == now {
                continue;
            }
            before.push(self.last[page]);
            // The pages of the intervals between; this interval's pages are not yet counted.
            if self.last[page] != NEVER {
                let between = self.pages_of_interval.above(self.last[page], now);
                count(&mut self.least, between);
            }
            // Only recorded: the tree keeps its state before the interval until all pages were
            // looked up.
            self.last[page] = now;
        }
        for &interval in &before {
            if interval == NEVER {
                self.cold += 1;
            } else {
                self.pages_of_interval.add(interval, -1);
            }
            self.pages_of_interval.add(now, 1);
        }
        for &interval in before.iter().filter(|&&interval| interval != NEVER) {
            let around = self.pages_of_interval.from(interval);
            // The page itself does not lie between its accesses.
            count(&mut self.most, around - 1);
        }
        self.accesses += before.len() as u64;
    }

    /// The distances at their lower and upper bounds.
    #[must_use]
    pub fn bounds(self) -> (StackDistances, StackDistances) {
        let pages = self.last.iter().filter(|&&last| last != NEVER).count();
        let of = |mut counts: Vec<u64>| {
            counts.resize(pages, 0);
            StackDistances::from_counts(counts, self.cold)
        };
        (of(self.least), of(self.most))
    }
}

fn count(counts: &mut Vec<u64>, distance: u32) {
    let at = distance as usize;
    if at >= counts.len() {
        counts.resize(at + 1, 0);
    }
    counts[at] += 1;
}

/// A Fenwick tree over intervals.
#[derive(Debug, Default)]
struct Fenwick {
    tree: Vec<i64>,
    total: i64,
}

impl Fenwick {
    /// Appends an interval without pages.
    fn grow(&mut self) {
        let at = self.tree.len() + 1;
        let lowest = at & at.wrapping_neg();
        // What its node covers besides itself.
        let mut sum = 0;
        let mut below = at - 1;
        while below > at - lowest {
            sum += self.tree[below - 1];
            below -= below & below.wrapping_neg();
        }
        self.tree.push(sum);
    }

    fn add(&mut self, interval: u32, pages: i64) {
        let mut at = interval as usize + 1;
        self.total += pages;
        while at <= self.tree.len() {
            self.tree[at - 1] += pages;
            at += at & at.wrapping_neg();
        }
    }

    /// Number of pages in intervals `0..=interval`.
    fn through(&self, interval: u32) -> i64 {
        let mut at = interval as usize + 1;
        let mut sum = 0;
        while at > 0 {
            sum += self.tree[at - 1];
            at -= at & at.wrapping_neg();
        }
        sum
    }

    /// Number of pages in the intervals after `low` and before `high`.
    fn above(&self, low: u32, high: u32) -> u32 {
        let upto = if high == 0 { 0 } else { self.through(high - 1) };
        u32::try_from(upto - self.through(low)).unwrap_or(0)
    }

    /// Number of pages in the intervals from `low` on.
    fn from(&self, low: u32) -> u32 {
        let below = if low == 0 { 0 } else { self.through(low - 1) };
        u32::try_from(self.total - below).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::DenseTrace;

    #[test]
    fn a_set_used_in_every_interval_needs_itself_at_most() {
        let mut distances = IntervalDistances::new();
        for _ in 0..10 {
            distances.interval(&[0, 1, 2, 3]);
        }
        let (least, most) = distances.bounds();
        assert_eq!(
            least.counts(),
            [36, 0, 0, 0],
            "the last of one may be the first of the next"
        );
        assert_eq!(most.counts(), [0, 0, 0, 36]);
        assert_eq!((most.cold(), most.accesses()), (4, 40));
    }

    proptest! {
        /// For any order of the pages within each interval, the misses are within the bounds.
        #[test]
        fn every_order_lies_within(
            intervals in prop::collection::vec(prop::collection::btree_set(0u32..12, 0..8), 1..20),
            seed in any::<u64>(),
        ) {
            use rand::seq::SliceRandom;
            use rand::SeedableRng;
            let mut rng = rand_pcg::Pcg64::seed_from_u64(seed);
            let mut bounds = IntervalDistances::new();
            let mut pages = Vec::new();
            for interval in &intervals {
                let mut order: Vec<u32> = interval.iter().copied().collect();
                bounds.interval(&order);
                order.shuffle(&mut rng);
                pages.extend(order.into_iter().map(u64::from));
            }
            let exact = StackDistances::of(&DenseTrace::from_pages(&pages));
            let (least, most) = bounds.bounds();
            let sizes: Vec<usize> = (1..=12).collect();
            let misses = exact.misses(&sizes);
            let (low, high) = (least.misses(&sizes), most.misses(&sizes));
            for at in 0..sizes.len() {
                prop_assert!(low[at] <= misses[at] && misses[at] <= high[at]);
            }
            prop_assert_eq!(exact.cold(), most.cold());
        }
    }
}
