// SPDX-License-Identifier: Apache-2.0
//! The age map: how long ago every page of an address space was last seen accessed, one byte a
//! page.
//!
//! It is laid out like the page tables it mirrors: 512 bytes for a last-level table, nothing for
//! a range that is not mapped, and nothing but a header for a table whose pages all have the same
//! age (a 2 MiB leaf, a buffer written in one go). A byte is the page's generation as a seven-bit
//! [`Label`], and a bit for a page that went to swap, whose label then says how old it was when
//! it left.
//!
//! Facts come a table at a time as words of bits ([`TableBits`]); sizes of generations are kept
//! as they change, so a histogram costs nothing per page. A second byte a page (decayed access
//! frequency) would be a second [`Slab`](store::Slab) of leaves beside the first.

mod leaf;
mod look;
mod query;
mod store;

pub use look::{Facts, Look, LookCounts, OutOfOrder, Part};
pub use query::{PageState, RangeSizes, Run};

use crate::generations::{ByType, GENERATIONS_MAX, Generations, LABELS, Label, Relabel, Sizes};
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
    parts: Vec<Sizes>,
    returned: Box<Sizes>,
}

impl AgeMap {
    /// A map of an address space that existed before anyone looked. What its first look finds is
    /// *unseen*: at least as old as the observation, until it is seen accessed. Ages are told
    /// apart up to `horizon_ms` (the last bound of the histograms asked for).
    pub fn new(now_ms: u64, horizon_ms: u64) -> Self {
        Self::with_capacity(now_ms, horizon_ms, GENERATIONS_MAX)
    }

    /// The same with fewer generations than a byte can tell apart.
    pub fn with_capacity(now_ms: u64, horizon_ms: u64, generations: usize) -> Self {
        AgeMap {
            generations: Generations::new(now_ms, generations, horizon_ms),
            store: Store::new(),
            look: 0,
            newborn: false,
            swapped: [0; 2],
            parts: Vec::new(),
            returned: Box::new([[0; 2]; LABELS]),
        }
    }

    /// A map of a process that started at `birth_ms`, while its target was being observed: no
    /// page of it can be older.
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

    /// Present pages of one part of the last look ([`Facts::parts`]), by label and type.
    pub fn part_sizes(&self, part: Part) -> Option<&Sizes> {
        self.parts.get(usize::from(part))
    }

    /// Pages that the last look found accessed, present before or in swap, by the label they had
    /// until then: how long memory that is accessed had been idle. To be read before
    /// [`advance`](Self::advance).
    pub fn returned(&self) -> &Sizes {
        &self.returned
    }

    /// Begins a look at the whole address space. What it does not report is gone.
    pub fn look(&mut self) -> Look<'_> {
        Look::begin(self)
    }

    /// Closes the youngest generation at the time accessed bits were cleared, after a look.
    pub fn advance(&mut self, now_ms: u64) {
        if let Some(relabel) = self.generations.advance(now_ms) {
            self.relabel(&relabel);
        }
    }

    /// Page slots of the tables the map holds.
    pub fn page_slots(&self) -> u64 {
        (self.store.tables.len() * PAGES_PER_TABLE) as u64
    }

    /// Bytes of memory the map takes.
    pub fn memory_bytes(&self) -> usize {
        self.store.memory_bytes() + (2 + self.parts.len()) * size_of::<Sizes>() + size_of::<Self>()
    }

    /// Whether what a look finds has an age at all.
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
            let mut sizes: Sizes = [[0; 2]; LABELS];
            for (label, by_type) in part.iter().enumerate() {
                let target: Label = relabel[label];
                sizes[usize::from(target)][0] += by_type[0];
                sizes[usize::from(target)][1] += by_type[1];
            }
            *part = sizes;
        }
    }

    /// The bytes of a table.
    fn leaf_of(&self, table: &store::Table) -> Option<&Leaf> {
        (table.leaf != NO_LEAF).then(|| &self.store.leaves[table.leaf])
    }
}
