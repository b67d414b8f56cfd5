// SPDX-License-Identifier: Apache-2.0
//! Heat of one address space, and the queue of its coldest pages.

use std::collections::VecDeque;
use std::ops::Range;

use super::{HEAT_DECAY, Moved, PAGE_BYTES, QUEUE_TIERS, Scanned};
use crate::heat::{Candidates, HeatMap};
use crate::table::{PageSet, TableBits};

/// Most runs handed to the mover in one go.
const RUNS_MAX: usize = 256;

/// What a scan saw of one table.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Page number of the table's first page / 512.
    pub index: u64,
    /// What its entries said.
    pub bits: TableBits,
    /// Pages that may be moved at all.
    pub movable: PageSet,
}

/// What the mover did with runs that were due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gone {
    /// Pages still present and not accessed, right before the move.
    pub idle_pages: u64,
    /// Pages that left.
    pub left_pages: u64,
    /// Calls it took.
    pub calls: u64,
}

/// Heat and queue of one address space. Pages are named by number: address / page size.
#[derive(Clone, Debug)]
pub struct HeatQueue {
    heat: HeatMap,
    /// The coldest pages, none twice: in tiers, and ascending within each.
    queue: VecDeque<Range<u64>>,
}

impl Default for HeatQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl HeatQueue {
    /// Nothing is known and nothing queued. Heat decays by [`HEAT_DECAY`] a scan.
    pub fn new() -> Self {
        HeatQueue {
            heat: HeatMap::new(HEAT_DECAY),
            queue: VecDeque::new(),
        }
    }

    /// Takes in a scan of the whole address space (tables ascending) and queues the `pages` coldest
    /// of what is movable, present and not accessed, in place of what was queued, the coldest first. A scan `counts` if
    /// accessed bits were cleared with it: heat is added; else only the queue is made anew.
    pub fn scan(&mut self, tables: &[Seen], counts: bool, pages: u64) -> Scanned {
        let mut scanned = Scanned::default();
        let mut candidates = Vec::with_capacity(tables.len());
        for table in tables {
            let bits = &table.bits;
            scanned.present_pages += bits.present.len();
            scanned.young_pages += bits.young.len();
            candidates.push(Candidates {
                index: table.index,
                pages: (table.movable & bits.present).without(&bits.young),
            });
        }
        if counts {
            let mut scan = self.heat.scan();
            for table in tables {
                scan.table(table.index, &table.bits);
            }
            scan.finish();
        }
        let tier_pages = pages.div_ceil(QUEUE_TIERS);
        let runs = self.heat.coldest_in_tiers(&candidates, pages, tier_pages);
        self.queue = runs.into();
        scanned
    }

    /// The heat of a page: accesses seen, each worth less for every scan since.
    pub fn heat(&self, page: u64) -> f64 {
        self.heat.heat(page)
    }

    /// Pages queued.
    pub fn queued_pages(&self) -> u64 {
        self.queue.iter().map(|run| run.end - run.start).sum()
    }

    /// The queue: runs of page numbers, the coldest tier first, ascending within each.
    pub fn queued(&self) -> impl Iterator<Item = &Range<u64>> {
        self.queue.iter()
    }

    /// Moves up to `pages` idle pages of the queue through `mover`, which looks again whether the
    /// pages it is handed (ascending runs) are idle. What was accessed since it was queued stays, and the next of the
    /// queue take its place, until enough were tried or the queue is empty.
    ///
    /// # Errors
    /// Those of the mover.
    pub fn move_out<E>(
        &mut self,
        pages: u64,
        mut mover: impl FnMut(&[Range<u64>]) -> Result<Gone, E>,
    ) -> Result<Moved, E> {
        let mut moved = Moved::default();
        let mut left = pages;
        while left > 0 {
            let runs = self.take(left);
            if runs.is_empty() {
                break;
            }
            let asked: u64 = runs.iter().map(|run| run.end - run.start).sum();
            let gone = mover(&runs)?;
            let idle = gone.idle_pages.min(asked);
            moved.tried_bytes += idle * PAGE_BYTES;
            moved.young_again_bytes += (asked - idle) * PAGE_BYTES;
            moved.left_bytes += gone.left_pages.min(idle) * PAGE_BYTES;
            moved.calls += gone.calls;
            left -= idle;
        }
        Ok(moved)
    }

    /// Takes runs of at most `pages` in all from the queue, ascending.
    fn take(&mut self, mut pages: u64) -> Vec<Range<u64>> {
        let mut runs = Vec::new();
        while pages > 0
            && runs.len() < RUNS_MAX
            && let Some(run) = self.queue.front_mut()
        {
            let length = (run.end - run.start).min(pages);
            pages -= length;
            runs.push(run.start..run.start + length);
            run.start += length;
            if run.start == run.end {
                self.queue.pop_front();
            }
        }
        // Across tiers addresses start anew.
        runs.sort_unstable_by_key(|run: &Range<u64>| run.start);
        runs
    }

    /// Bytes of memory that heat and queue take.
    pub fn memory_bytes(&self) -> usize {
        self.heat.memory_bytes() + self.queue.capacity() * size_of::<Range<u64>>()
    }
}
