// SPDX-License-Identifier: Apache-2.0
//! The age map: how long ago every page of an address space was last seen accessed, one byte per
//! page.
//!
//! It is laid out like the page tables it mirrors: 512 bytes for a last-level table, nothing for a
//! range that is not mapped, and only a header for a table whose pages all have the same age (a 2
//! MiB leaf, a buffer written in one go). A byte is the page's generation as a seven-bit
//! [`Label`](crate::generations::Label), and one bit that marks a page in swap; the label is then
//! its age when it left.
//!
//! Facts arrive one table at a time as words of bits ([`TableBits`](crate::table::TableBits)). The
//! sizes of generations are updated as they change, so a histogram costs nothing per page. A second
//! byte per page (decayed access frequency) would be a second `Slab` of leaves next to the first.

mod facts;
mod leaf;
mod look;
mod query;
mod store;
mod word;

pub use facts::{Facts, Leaves, LookCounts, OutOfOrder, Part, PartSizes};
pub use look::Look;
pub use query::{PageState, RangeSizes, Run};

use crate::generations::{ByType, GENERATIONS_MAX, Generations, Relabel};
use crate::table::PAGES_PER_TABLE;
use leaf::Leaf;
use store::{NO_LEAF, Store};

/// The ages of the pages of one address space. Pages are named by number: address / page size.
#[derive(Clone, Debug)]
pub struct AgeMap {
    generations: Generations,
    store: Store,
    look: u32,
    newborn: bool,
    swapped: ByType<u64>,
    parts: Vec<PartSizes>,
}

impl AgeMap {
    /// A map of an address space that existed before observation began. Pages found by its first
    /// look are *unseen*: at least as old as the observation, until they are seen accessed. Ages
    /// are distinguished up to `horizon_ms` (the last bound of the histograms requested).
    pub fn new(now_ms: u64, horizon_ms: u64) -> Self {
        Self::with_capacity(now_ms, horizon_ms, GENERATIONS_MAX)
    }

    /// The same, with fewer generations than a byte can distinguish.
    pub fn with_capacity(now_ms: u64, horizon_ms: u64, generations: usize) -> Self {
        AgeMap {
            generations: Generations::new(now_ms, generations, horizon_ms),
            store: Store::new(),
            look: 0,
            newborn: false,
            swapped: [0; 2],
            parts: Vec::new(),
        }
    }

    /// A map of a process that started at `birth_ms`, while its target was already being observed:
    /// none of its pages can be older.
    pub fn newborn(birth_ms: u64, horizon_ms: u64) -> Self {
        AgeMap {
            newborn: true,
            ..Self::new(birth_ms, horizon_ms)
        }
    }

    /// The window of generations, with the number of present pages of each.
    pub fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Pages in swap.
    pub fn swapped(&self) -> ByType<u64> {
        self.swapped
    }

    /// Present pages of one part in the last look ([`Facts::parts`]), by label and type.
    pub fn part_sizes(&self, part: Part) -> Option<&PartSizes> {
        self.parts.get(usize::from(part))
    }

    /// Starts a look at the whole address space. Anything the look does not report is gone.
    pub fn look(&mut self) -> Look<'_> {
        Look::begin(self)
    }

    /// Closes the youngest generation at the time accessed bits were cleared, after a look.
    pub fn advance(&mut self, now_ms: u64) {
        if let Some(relabel) = self.generations.advance(now_ms) {
            self.relabel(&relabel);
        }
    }

    /// Page slots of the tables in the map.
    pub fn page_slots(&self) -> u64 {
        (self.store.tables.len() * PAGES_PER_TABLE) as u64
    }

    /// Bytes of memory the map takes.
    pub fn memory_bytes(&self) -> usize {
        let parts: usize = self.parts.iter().map(PartSizes::memory_bytes).sum();
        self.store.memory_bytes() + self.generations.memory_bytes() + parts + size_of::<Self>()
    }

    /// Whether the ages of the pages found by this look are unknown.
    fn is_first_look(&self) -> bool {
        !self.newborn && self.generations.unseen_since_ms().is_none()
    }

    fn relabel(&mut self, relabel: &Relabel) {
        let byte = |byte: u8| relabel[usize::from(byte & !leaf::SWAPPED)] | byte & leaf::SWAPPED;
        let bytes: [u8; 256] = std::array::from_fn(|i| byte(i as u8));
        for table in &mut self.store.tables {
            if table.leaf == NO_LEAF {
                table.uniform = bytes[usize::from(table.uniform)];
                continue;
            }
            for lanes in &mut self.store.leaves[table.leaf].0 {
                *lanes = u64::from_le_bytes(lanes.to_le_bytes().map(|b| bytes[usize::from(b)]));
            }
        }
        for part in &mut self.parts {
            part.relabel(relabel);
        }
    }

    /// The bytes of a table.
    fn leaf_of(&self, table: &store::Table) -> Option<&Leaf> {
        (table.leaf != NO_LEAF).then(|| &self.store.leaves[table.leaf])
    }
}
