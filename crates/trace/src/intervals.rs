// SPDX-License-Identifier: Apache-2.0
//! The intervals of a trace that was recorded by interval.

use super::access::Access;

/// Where the intervals of a trace begin.
///
/// Everything that a look saw has the time of the look. The page faults before it have times of
/// their own, and it is unknown whether a page that was seen was accessed before or after them:
/// they belong to the interval that the look ends.
#[derive(Debug, Clone, Default)]
pub struct Intervals {
    starts: Vec<usize>,
    accesses: usize,
    last_ns: u64,
    /// Whether nothing but faults had the last time.
    is_open: bool,
}

impl Intervals {
    /// Adds the next access of the trace.
    pub fn add(&mut self, access: &Access) {
        let is_first = self.accesses == 0;
        let is_fault = access.evidence.is_fault();
        let is_later = is_first || access.time_ns != self.last_ns;
        if is_first || is_later && !self.is_open {
            self.starts.push(self.accesses);
        }
        self.is_open = is_fault && (is_later || self.is_open);
        self.last_ns = access.time_ns;
        self.accesses += 1;
    }

    /// The position of the first access of each interval.
    #[must_use]
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::access::Evidence;
    use crate::curve::{IntervalDistances, StackDistances};
    use crate::dense::DenseTrace;

    /// An interval: the pages that faulted, in order, and the other pages that the look saw.
    type Interval = (Vec<u32>, Vec<u32>);

    /// The pages of each interval of a trace that was recorded so.
    fn parts(intervals: &[Interval]) -> (DenseTrace, Vec<Vec<u32>>) {
        let (mut found, mut pages) = (Intervals::default(), Vec::new());
        for (number, (faulted, seen)) in intervals.iter().enumerate() {
            let begin_ns = number as u64 * 1000;
            let faults = faulted.iter().zip(1..).map(|(page, at_ns)| Access {
                page: u64::from(*page),
                time_ns: begin_ns + at_ns,
                evidence: Evidence::MinorFault,
                ..Access::default()
            });
            let seen = seen.iter().map(|page| Access {
                page: u64::from(*page),
                time_ns: begin_ns + 1000,
                ..Access::default()
            });
            for access in faults.chain(seen) {
                found.add(&access);
                pages.push(access.page);
            }
        }
        let trace = DenseTrace::from_pages(&pages);
        let parts = trace.parts(found.starts());
        (trace, parts)
    }

    fn bounds(parts: &[Vec<u32>]) -> (StackDistances, StackDistances) {
        let mut distances = IntervalDistances::new();
        parts.iter().for_each(|pages| distances.interval(pages));
        distances.bounds()
    }

    #[test]
    fn faults_belong_to_the_look_that_follows_them() {
        let (_, parts) = parts(&[
            (vec![1, 2, 1], vec![3]),
            (vec![4], vec![]),
            (vec![5], vec![3]),
        ]);
        assert_eq!(parts, [vec![0, 1, 2], vec![3, 4, 2]]);
        let mut late = Intervals::default();
        // The last one was reported after the look, and has its time.
        for (time_ns, evidence) in [
            (5, Evidence::Fault),
            (10, Evidence::Seen),
            (10, Evidence::Fault),
            (12, Evidence::Fault),
            (20, Evidence::Seen),
        ] {
            late.add(&Access {
                time_ns,
                evidence,
                ..Access::default()
            });
        }
        assert_eq!(late.starts(), [0, 3]);
    }

    #[test]
    fn between_two_uses_there_may_be_the_faults_of_both_intervals() {
        let seen = vec![0];
        let (_, parts) = parts(&[((1..4).collect(), seen.clone()), ((4..9).collect(), seen)]);
        let (least, most) = bounds(&parts);
        // Page 0 came first, and then last: all the others are between.
        assert_eq!(most.misses(&[8, 9]), [10, 9]);
        // It came last, and then first.
        assert_eq!(least.misses(&[1]), [9]);
    }

    proptest! {
        /// Wherever among the faults of its interval each page that was seen came, the misses are
        /// within the bounds.
        #[test]
        fn every_place_among_the_faults_lies_within(
            intervals in prop::collection::vec(
                prop::collection::vec((0u32..12, any::<bool>(), 0usize..12), 1..9), 1..15),
        ) {
            let mut recorded = Vec::new();
            let mut pages = Vec::new();
            for mut interval in intervals {
                let mut known = std::collections::BTreeSet::new();
                interval.retain(|(page, ..)| known.insert(*page));
                let of = |is_fault: bool| {
                    let all = interval.iter().filter(move |of| of.1 == is_fault);
                    all.map(|(page, ..)| *page).collect::<Vec<_>>()
                };
                let mut order = of(true);
                // A look sees something: a page of the program's code, at least.
                let mut seen = of(false);
                seen.push(12);
                recorded.push((order.clone(), seen));
                let placed = interval.iter().filter(|of| !of.1);
                for (page, _, place) in placed.chain(&[(12, false, 3)]) {
                    order.insert((*place).min(order.len()), *page);
                }
                pages.extend(order.into_iter().map(u64::from));
            }
            let exact = StackDistances::of(&DenseTrace::from_pages(&pages));
            let (_, parts) = parts(&recorded);
            let (least, most) = bounds(&parts);
            let sizes: Vec<usize> = (1..=13).collect();
            let misses = exact.misses(&sizes);
            let (low, high) = (least.misses(&sizes), most.misses(&sizes));
            for at in 0..sizes.len() {
                prop_assert!(low[at] <= misses[at] && misses[at] <= high[at]);
            }
        }
    }
}
