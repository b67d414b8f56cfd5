// SPDX-License-Identifier: Apache-2.0
//! A look at the accessed bits of some ranges that changes none of them, to find what is present
//! right now.

use agewise_policy::table::PageSet;

use super::runs::RunSet;
use crate::access::{
    AccessError, AccessSource, AddressRange, Leaf, PAGE_BYTES, SightSink, TableSight, Target,
};

/// The pages a look collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Present pages.
    Present,
    /// Present pages not accessed since their accessed bits were last cleared.
    Untouched,
}

/// The pages a look found, by the size in which they are mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Mapped page by page.
    pub base: RunSet,
    /// Mapped as huge pages.
    pub huge: RunSet,
    /// Bytes found in each of the ranges.
    pub range_bytes: Vec<u64>,
}

impl Found {
    /// Total bytes found.
    pub fn bytes(&self) -> u64 {
        self.range_bytes.iter().sum()
    }

    /// Pages of both sizes.
    pub fn all(&self) -> RunSet {
        if self.huge.is_empty() {
            self.base.clone()
        } else {
            self.base.union(&self.huge)
        }
    }
}

/// Looks at `ranges` (ascending) of a process. `source` must distinguish single pages
/// ([`crate::access::Resolution::Page`]) and must not clear as it reads, or the next scan would
/// miss what this look has seen.
///
/// # Errors
/// The process is gone, or its page tables cannot be read.
pub fn look(
    source: &mut dyn AccessSource,
    target: &Target,
    ranges: &[AddressRange],
    wanted: Wanted,
) -> Result<Found, AccessError> {
    let mut sink = Collector {
        wanted,
        found: Found {
            range_bytes: vec![0; ranges.len()],
            ..Found::default()
        },
    };
    if !ranges.is_empty() {
        source.scan(target, ranges, &mut sink)?;
    }
    Ok(sink.found)
}

struct Collector {
    wanted: Wanted,
    found: Found,
}

impl SightSink for Collector {
    fn table(&mut self, sight: &TableSight<'_>) {
        // A call moves less than such a leaf, and would split it.
        if sight.leaf == Leaf::Giant {
            return;
        }
        let mut pages: PageSet = sight.bits.present;
        if self.wanted == Wanted::Untouched {
            pages = pages.without(&sight.bits.young);
        }
        let found = &mut self.found;
        let runs = if sight.leaf == Leaf::Page {
            &mut found.base
        } else {
            &mut found.huge
        };
        let mut bytes = 0;
        for run in runs_in(&pages, sight.va) {
            bytes += run.len();
            runs.push(run);
        }
        if let Some(sum) = found.range_bytes.get_mut(sight.range) {
            *sum += bytes;
        }
    }
}

/// The pages of the table at `va`, as runs.
fn runs_in(pages: &PageSet, va: u64) -> impl Iterator<Item = AddressRange> + '_ {
    pages.runs().map(move |run| {
        let start = va + run.start as u64 * PAGE_BYTES;
        AddressRange::new(start, run.len() as u64 * PAGE_BYTES)
    })
}

#[cfg(test)]
mod tests {
    use agewise_policy::table::TableBits;

    use super::*;
    use crate::access::fake::{FakeSource, FakeTable};

    const TABLE: u64 = 2 << 20;

    #[test]
    fn sizes_and_ranges_are_kept_apart() {
        let mut source = FakeSource::new();
        for (table, leaf) in [(1, Leaf::Page), (2, Leaf::Huge)] {
            let mut bits = TableBits {
                present: PageSet::ALL,
                ..TableBits::default()
            };
            bits.young[0] = if leaf == Leaf::Page { 0b110 } else { 0 };
            source.set(7, table * TABLE, FakeTable { bits, leaf });
        }
        let range = |start, end| AddressRange { start, end };
        let ranges = [
            range(TABLE, TABLE + 8 * PAGE_BYTES),
            range(TABLE + 8 * PAGE_BYTES, 3 * TABLE),
        ];
        let mut find = |wanted| look(&mut source, &Target::by_pid(7), &ranges, wanted).unwrap();
        let found = find(Wanted::Untouched);
        let (base, huge) = (found.base.runs(), found.huge.runs());
        assert_eq!(
            base,
            [
                AddressRange::new(TABLE, PAGE_BYTES),
                AddressRange::new(TABLE + 3 * PAGE_BYTES, 509 * PAGE_BYTES)
            ]
        );
        assert_eq!(huge, [AddressRange::new(2 * TABLE, TABLE)]);
        assert_eq!(
            found.range_bytes,
            [6 * PAGE_BYTES, 504 * PAGE_BYTES + TABLE]
        );
        assert_eq!(found.all().bytes(), found.bytes());
        assert_eq!(find(Wanted::Present).bytes(), 2 * TABLE);
    }

    #[test]
    fn nothing_asked_for_is_not_looked_at() {
        let mut source = FakeSource::new();
        source.fail(7, |pid| AccessError::Changed { pid });
        let found = look(&mut source, &Target::by_pid(7), &[], Wanted::Present).unwrap();
        assert_eq!(found, Found::default());
    }
}
