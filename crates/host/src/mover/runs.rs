// SPDX-License-Identifier: Apache-2.0
//! Sets of pages as sorted runs of addresses.

use crate::access::AddressRange;

/// A set of pages: runs in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSet(Vec<AddressRange>);

impl RunSet {
    /// Builds the set from runs in any order, overlapping or not; drops empty ones.
    pub fn from_runs(runs: impl IntoIterator<Item = AddressRange>) -> Self {
        let mut runs: Vec<AddressRange> =
            runs.into_iter().filter(|run| run.start < run.end).collect();
        runs.sort_unstable();
        let mut set = Self::default();
        for run in runs {
            set.push(run);
        }
        set
    }

    /// Adds a run that starts at or after the start of the last one, and merges them if possible.
    ///
    /// # Panics
    /// In debug builds, if the run starts before the last one.
    pub fn push(&mut self, run: AddressRange) {
        if run.start >= run.end {
            return;
        }
        match self.0.last_mut() {
            Some(last) if run.start <= last.end => {
                debug_assert!(run.start >= last.start, "runs come in ascending order");
                last.end = last.end.max(run.end);
            }
            _ => self.0.push(run),
        }
    }

    /// The runs, ascending.
    pub fn runs(&self) -> &[AddressRange] {
        &self.0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Total length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|run| run.len())
            .fold(0, u64::saturating_add)
    }

    /// The intersection of both sets.
    pub fn intersect(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let (mut a, mut b) = (0, 0);
        while let (Some(x), Some(y)) = (self.0.get(a), other.0.get(b)) {
            if let Some(run) = x.common(*y) {
                both.push(run);
            }
            if x.end <= y.end {
                a += 1;
            } else {
                b += 1;
            }
        }
        both
    }

    /// This set without the pages of the other.
    pub fn subtract(&self, other: &Self) -> Self {
        let mut rest = Self::default();
        let mut others = other.0.iter().copied().peekable();
        for run in &self.0 {
            let mut start = run.start;
            while let Some(cut) = others.peek().copied() {
                if cut.end <= start {
                    others.next();
                    continue;
                }
                if cut.start >= run.end {
                    break;
                }
                rest.push(AddressRange {
                    start,
                    end: cut.start.max(start),
                });
                start = cut.end;
                if start >= run.end {
                    break;
                }
            }
            rest.push(AddressRange {
                start: start.min(run.end),
                end: run.end,
            });
        }
        rest
    }

    /// The union of both sets.
    pub fn union(&self, other: &Self) -> Self {
        Self::from_runs(self.0.iter().chain(&other.0).copied())
    }

    /// Shrinks each run to whole units; see [`AddressRange::shrunk_to`].
    pub fn shrunk_to(&self, unit: u64) -> Self {
        Self(
            self.0
                .iter()
                .filter_map(|run| run.shrunk_to(unit))
                .collect(),
        )
    }
}

impl FromIterator<AddressRange> for RunSet {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(runs: I) -> Self {
        Self::from_runs(runs)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pages(set: &RunSet) -> BTreeSet<u64> {
        set.runs()
            .iter()
            .flat_map(|run| run.start..run.end)
            .collect()
    }

    fn is_normal(set: &RunSet) -> bool {
        set.runs().iter().all(|run| run.start < run.end)
            && set
                .runs()
                .windows(2)
                .all(|pair| pair[0].end < pair[1].start)
    }

    fn some_runs() -> impl Strategy<Value = Vec<AddressRange>> {
        prop::collection::vec((0u64..120, 0u64..12), 0..12).prop_map(|runs| {
            runs.into_iter()
                .map(|(start, len)| AddressRange::new(start, len))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn sets_of_runs_are_sets_of_pages(a in some_runs(), b in some_runs()) {
            let naive = |runs: &[AddressRange]| -> BTreeSet<u64> {
                runs.iter().flat_map(|run| run.start..run.end).collect()
            };
            let (x, y) = (RunSet::from_runs(a.clone()), RunSet::from_runs(b.clone()));
            let (nx, ny) = (naive(&a), naive(&b));
            prop_assert_eq!(pages(&x), nx.clone());
            prop_assert_eq!(x.bytes(), nx.len() as u64);
            prop_assert_eq!(pages(&x.intersect(&y)), nx.intersection(&ny).copied().collect());
            prop_assert_eq!(pages(&x.subtract(&y)), nx.difference(&ny).copied().collect());
            prop_assert_eq!(pages(&x.union(&y)), nx.union(&ny).copied().collect());
            for set in [&x, &x.intersect(&y), &x.subtract(&y), &x.union(&y), &x.shrunk_to(8)] {
                prop_assert!(is_normal(set), "{:?}", set);
            }
            // Exactly the whole units of the set.
            let is_whole = |unit: &u64| {
                let (start, end) = (unit * 8, unit * 8 + 8);
                x.runs().iter().any(|run| run.start <= start && end <= run.end)
            };
            let units: BTreeSet<u64> = (0..20)
                .filter(is_whole)
                .flat_map(|unit| unit * 8..unit * 8 + 8)
                .collect();
            prop_assert_eq!(pages(&x.shrunk_to(8)), units);
        }
    }

    #[test]
    fn the_end_of_the_address_space_does_not_overflow() {
        assert_eq!(AddressRange::new(u64::MAX - 5, 100).end, u64::MAX);
        assert_eq!(
            AddressRange {
                start: u64::MAX - 5,
                end: u64::MAX
            }
            .shrunk_to(4096),
            None
        );
    }
}
