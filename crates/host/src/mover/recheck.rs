// SPDX-License-Identifier: Apache-2.0
//! The second look, right before the call, because MADV_PAGEOUT evicts young pages as well
//! (mm/madvise.c, `reclaim_pages` ignores references).

use super::look::{Wanted, look};
use super::runs::RunSet;
use super::target::PageoutError;
use crate::access::{AccessSource, Target};

/// Finds the pages touched since planning, right before paging them out.
///
/// Implemented by sources that read accessed bits, and by closures.
pub trait Recheck {
    /// Returns the pages of `runs` that were not touched since they were found cold. Pages outside
    /// `runs` are ignored.
    fn idle(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError>;
}

impl<F: FnMut(&RunSet) -> Result<RunSet, PageoutError>> Recheck for F {
    fn idle(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError> {
        self(runs)
    }
}

/// Accepts the plan unchanged, for memory known to be idle for other reasons.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoRecheck;

impl Recheck for NoRecheck {
    fn idle(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError> {
        Ok(runs.clone())
    }
}

/// Looks through an access source. Pages it cannot read do not count as idle.
pub struct SourceRecheck<'a> {
    source: &'a mut dyn AccessSource,
    target: Target,
}

impl<'a> SourceRecheck<'a> {
    /// The source must distinguish pages ([`crate::access::Resolution::Page`]), and must not clear
    /// as it reads, or the next scan would miss what this look has seen.
    pub fn new(source: &'a mut dyn AccessSource, target: Target) -> Self {
        Self { source, target }
    }
}

impl Recheck for SourceRecheck<'_> {
    fn idle(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError> {
        look(self.source, &self.target, runs.runs(), Wanted::Untouched)
            .map(|found| found.all())
            .map_err(|error| PageoutError::from_source(self.target.pid, &error))
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::table::{PageSet, TableBits};

    use super::*;
    use crate::access::fake::{FakeSource, FakeTable};
    use crate::access::{AccessError, AddressRange, Leaf, PAGE_BYTES};

    fn source(present: PageSet, young: PageSet) -> FakeSource {
        let bits = TableBits {
            present,
            young,
            ..TableBits::default()
        };
        let mut source = FakeSource::new();
        source.set(
            7,
            2 << 20,
            FakeTable {
                bits,
                leaf: Leaf::Page,
            },
        );
        source
    }

    #[test]
    fn young_and_absent_pages_are_not_idle() {
        let (mut present, mut young) = (PageSet::ALL, PageSet::NONE);
        young[0] = 0b1010;
        young[7] = 1 << 63;
        present[2] = 0;
        let mut source = source(present, young);
        let mut source = SourceRecheck::new(&mut source, Target::by_pid(7));
        let at = |page: u64| (2 << 20) + page * PAGE_BYTES;
        let run = |first, end| AddressRange {
            start: at(first),
            end: at(end),
        };
        let idle = source.idle(&RunSet::from_runs([run(0, 512)])).unwrap();
        assert_eq!(
            idle.runs(),
            [run(0, 1), run(2, 3), run(4, 128), run(192, 511)]
        );
        let idle = source
            .idle(&RunSet::from_runs([run(1, 3), run(60, 70)]))
            .unwrap();
        assert_eq!(idle.runs(), [run(2, 3), run(60, 70)]);
    }

    #[test]
    fn a_target_that_is_gone_and_a_blind_eye_are_told_apart() {
        let runs = RunSet::from_runs([AddressRange::new(2 << 20, PAGE_BYTES)]);
        let mut source = source(PageSet::NONE, PageSet::NONE);
        source.fail(7, |pid| AccessError::Changed { pid });
        assert!(
            SourceRecheck::new(&mut source, Target::by_pid(7))
                .idle(&runs)
                .unwrap_err()
                .is_gone()
        );
        source.fail(7, |_| AccessError::Unsupported {
            what: "walking",
            why: "no BTF".to_owned(),
        });
        let error = SourceRecheck::new(&mut source, Target::by_pid(7))
            .idle(&runs)
            .unwrap_err();
        assert!(error.to_string().contains("no BTF"), "{error}");
        assert!(!error.is_gone());
    }
}
