// SPDX-License-Identifier: Apache-2.0
//! An access source with made-up pages, for tests of everything that uses an [`AccessSource`].

use std::collections::BTreeMap;

use agewise_policy::table::TableBits;

use super::{
    Abilities, AccessError, AccessSource, AddressRange, Batch, Entries, Leaf, LeafRun, Resolution,
    SightSink, TABLE_BYTES, TableSight, Target, check_ranges, covered,
};

/// One table of a fake address space.
#[derive(Clone, Copy, Debug)]
pub struct FakeTable {
    /// The page bits it shows.
    pub bits: TableBits,
    /// The kind of entry that maps it.
    pub leaf: Leaf,
}

/// Address spaces kept in maps, which a test can fill, scan and make fail.
#[derive(Debug, Default)]
pub struct FakeSource {
    spaces: BTreeMap<u32, BTreeMap<u64, FakeTable>>,
    failures: BTreeMap<u32, fn(u32) -> AccessError>,
    unreadable: Vec<u64>,
}

impl FakeSource {
    /// Creates a source without any process.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the table at `va` (2 MiB aligned) of process `pid`.
    pub fn set(&mut self, pid: u32, va: u64, table: FakeTable) {
        self.spaces
            .entry(pid)
            .or_default()
            .insert(va & !(TABLE_BYTES - 1), table);
    }

    /// Changes the table at `va` in place; does nothing if there is none.
    pub fn update(&mut self, pid: u32, va: u64, change: impl FnOnce(&mut FakeTable)) {
        if let Some(table) = self
            .spaces
            .get_mut(&pid)
            .and_then(|space| space.get_mut(&va))
        {
            change(table);
        }
    }

    /// Makes every later scan of `pid` fail with `error`.
    pub fn fail(&mut self, pid: u32, error: fn(u32) -> AccessError) {
        self.failures.insert(pid, error);
    }
}

impl FakeSource {
    /// Shows the tables of a range.
    fn show_range(
        &self,
        space: &BTreeMap<u64, FakeTable>,
        (index, range): (usize, AddressRange),
        sink: &mut dyn SightSink,
    ) {
        let first = range.start & !(TABLE_BYTES - 1);
        let mut tables = space.range(first..range.end).peekable();
        while let Some((&va, table)) = tables.next() {
            if self.unreadable.contains(&va) {
                sink.unreadable(AddressRange {
                    start: va.max(range.start),
                    end: (va + TABLE_BYTES).min(range.end),
                });
                continue;
            }
            let covered = covered(va, range);
            let bits = table.bits.within(&covered);
            let sight = TableSight {
                va,
                range: index,
                leaf: table.leaf,
                covered,
                bits: &bits,
                seen_ns: 0,
                entries: Entries::Unknown,
            };
            if table.leaf != Leaf::Huge || !covered.is_full() || !bits.present.is_full() {
                sink.table(&sight);
                continue;
            }
            let mut alike = 1;
            let is_alike = |at: u64, next: &FakeTable, alike: u64| {
                at == va + alike * TABLE_BYTES
                    && at + TABLE_BYTES <= range.end
                    && !self.unreadable.contains(&at)
                    && (next.leaf, next.bits) == (table.leaf, table.bits)
            };
            while tables
                .next_if(|(at, next)| is_alike(**at, next, alike))
                .is_some()
            {
                alike += 1;
            }
            sink.leaves(&LeafRun::new(sight, alike, None));
        }
    }
}

impl AccessSource for FakeSource {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            resolution: Resolution::Page,
            pfn: false,
        }
    }

    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError> {
        check_ranges(ranges)?;
        if let Some(error) = self.failures.get(&target.pid) {
            return Err(error(target.pid));
        }
        let space = self
            .spaces
            .get(&target.pid)
            .ok_or(AccessError::NoSuchProcess { pid: target.pid })?;
        for (index, range) in ranges.iter().enumerate() {
            self.show_range(space, (index, *range), sink);
        }
        sink.batch_end(&Batch::default());
        Ok(0)
    }
}
