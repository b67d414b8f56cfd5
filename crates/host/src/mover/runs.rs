// SPDX-License-Identifier: Apache-2.0
//! Sets of pages as sorted runs of addresses.

use crate::access::AddressRange;

/// Addresses `start..end` of one address space. Not empty; its creator aligns it to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
}

impl Run {
    /// Creates a run of `bytes` from `start`.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(bytes),
        }
    }

    /// Length in bytes.
    pub fn bytes(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// The part made of whole `unit`s (a power of two), or `None`: partial units are cut off.
    pub fn shrunk_to(self, unit: u64) -> Option<Self> {
        debug_assert!(unit.is_power_of_two());
        let start = self.start.checked_add(unit - 1)? & !(unit - 1);
        let end = self.end & !(unit - 1);
        (start < end).then_some(Self { start, end })
    }

    fn common(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }
}

/// A set of pages: runs in ascending order that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSet(Vec<Run>);

impl RunSet {
    /// Builds the set from runs in any order, overlapping or not; drops empty ones.
    pub fn from_runs(runs: impl IntoIterator<Item = Run>) -> Self {
        let mut runs: Vec<Run> = runs.into_iter().filter(|run| run.start < run.end).collect();
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
    pub fn push(&mut self, run: Run) {
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
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// The runs as ranges of addresses, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = AddressRange> + '_ {
        self.0.iter().map(|run| AddressRange {
            start: run.start,
            end: run.end,
        })
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Total length in bytes.
    pub fn bytes(&self) -> u64 {
        self.0
            .iter()
            .map(|run| run.bytes())
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
                rest.push(Run {
                    start,
                    end: cut.start.max(start),
                });
                start = cut.end;
                if start >= run.end {
                    break;
                }
            }
            rest.push(Run {
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

    /// Shrinks each run to whole units; see [`Run::shrunk_to`].
    pub fn shrunk_to(&self, unit: u64) -> Self {
        Self(
            self.0
                .iter()
                .filter_map(|run| run.shrunk_to(unit))
                .collect(),
        )
    }
}

impl FromIterator<Run> for RunSet {
    fn from_iter<I: IntoIterator<Item = Run>>(runs: I) -> Self {
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

    fn some_runs() -> impl Strategy<Value = Vec<Run>> {
        prop::collection::vec((0u64..120, 0u64..12), 0..12).prop_map(|runs| {
            runs.into_iter()
                .map(|(start, len)| Run::new(start, len))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn sets_of_runs_are_sets_of_pages(a in some_runs(), b in some_runs()) {
            let naive = |runs: &[Run]| -> BTreeSet<u64> {
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
            let units: BTreeSet<u64> = (0..20)
                .filter(|unit| x.runs().iter().any(|r| r.start <= unit * 8 && unit * 8 + 8 <= r.end))
                .flat_map(|unit| unit * 8..unit * 8 + 8)
                .collect();
            prop_assert_eq!(pages(&x.shrunk_to(8)), units);
        }
    }

    #[test]
    fn the_end_of_the_address_space_does_not_overflow() {
        assert_eq!(Run::new(u64::MAX - 5, 100).end, u64::MAX);
        assert_eq!(
            Run {
                start: u64::MAX - 5,
                end: u64::MAX
            }
            .shrunk_to(4096),
            None
        );
    }
}
