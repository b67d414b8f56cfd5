// SPDX-License-Identifier: Apache-2.0
//! One zone of a node: its free frames, watermarks, lowmem reserve and allocation batch.

use agewise_kernel::reclaim::watermark::Watermarks;
use agewise_kernel::world::ZoneState;

/// Frames of one 2 MiB block.
pub(super) const BLOCK: u32 = 512;

/// Names of the zones, lowest first.
pub const ZONE_NAMES: [&str; 4] = ["DMA", "DMA32", "Normal", "Movable"];

/// How far an allocation may dip into a zone's reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// Keep the low watermark and, under the fair policy, the zone's turn: the first attempt.
    Fair,
    /// Keep the low watermark.
    Low,
    /// Keep the min watermark: after waking kswapd.
    Min,
    /// Take anything available: reclaimers and victims of the OOM killer.
    None,
}

/// One zone of a node.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    /// First frame.
    start: u32,
    /// Frames it has.
    managed: u32,
    /// Frames that were freed; they are reused first.
    returned: Vec<u32>,
    /// Frames from this one on were never allocated.
    untouched: u32,
    marks: Watermarks,
    reserve: [u64; 4],
    /// Pages it may still provide in this round of the fair policy (`NR_ALLOC_BATCH`); far below 0
    /// if the other zones had none to give.
    batch: i64,
    /// Whether its batch is used up (`ZONE_FAIR_DEPLETED`).
    depleted: bool,
    /// Pages allocated so far.
    allocated: u64,
}

impl Zone {
    /// A zone of unused frames; its first batch is the whole zone, as after boot.
    pub(super) fn new(start: u32, managed: u32, reserve: [u64; 4]) -> Zone {
        Zone {
            start,
            managed,
            untouched: start,
            reserve,
            batch: managed.into(),
            ..Zone::default()
        }
    }

    pub(super) fn set_marks(&mut self, marks: Watermarks) {
        self.marks = marks;
    }

    /// The frame after its last one.
    pub(super) fn end(&self) -> u32 {
        self.start + self.managed
    }

    pub(super) fn contains(&self, frame: u32) -> bool {
        (self.start..self.end()).contains(&frame)
    }

    pub fn managed_pages(&self) -> u64 {
        self.managed.into()
    }

    /// Free pages.
    pub fn free(&self) -> u64 {
        self.returned.len() as u64 + u64::from(self.end() - self.untouched)
    }

    /// Pages allocated so far.
    pub fn allocated_pages(&self) -> u64 {
        self.allocated
    }

    /// Rest of the batch of the fair policy.
    pub fn batch_pages(&self) -> i64 {
        self.batch
    }

    /// Whether it is skipped until the next round of the fair policy.
    pub fn is_depleted(&self) -> bool {
        self.depleted
    }

    /// The zone as the policies see it.
    pub fn state(&self) -> ZoneState {
        ZoneState {
            managed_pages: self.managed.into(),
            free_pages: self.free(),
            min_pages: self.marks.min_pages,
            low_pages: self.marks.low_pages,
            high_pages: self.marks.high_pages,
            reserve_pages: self.reserve,
        }
    }

    /// Pages that a request with this `highest` usable zone must leave free.
    pub(super) fn keep(&self, reserve: Reserve, highest: usize) -> u64 {
        let mark_pages = match reserve {
            Reserve::Fair | Reserve::Low => self.marks.low_pages,
            Reserve::Min => self.marks.min_pages,
            Reserve::None => return 0,
        };
        mark_pages + self.reserve[highest.min(3)]
    }

    /// Allocates a frame; there must be a free one.
    pub(super) fn take(&mut self) -> u32 {
        self.allocated += 1;
        self.returned.pop().unwrap_or_else(|| {
            self.untouched += 1;
            self.untouched - 1
        })
    }

    /// Allocates an aligned block that was never used, if `keep` frames stay free.
    pub(super) fn take_block(&mut self, keep: u64) -> Option<u32> {
        let first = self.untouched.next_multiple_of(BLOCK);
        let fits = first
            .checked_add(BLOCK)
            .is_some_and(|end| end <= self.end());
        if !fits || self.free() < keep + u64::from(first - self.untouched + BLOCK) {
            return None;
        }
        self.returned.extend(self.untouched..first);
        self.untouched = first + BLOCK;
        self.allocated += u64::from(BLOCK);
        Some(first)
    }

    pub(super) fn give_back(&mut self, frame: u32) {
        self.returned.push(frame);
    }

    /// Counts allocated pages against the batch.
    pub(super) fn use_batch(&mut self, pages: u32) {
        self.batch -= i64::from(pages);
        self.depleted |= self.batch <= 0;
    }

    /// Starts a new round: the batch is the distance between the low and high watermarks
    /// (`reset_alloc_batches`).
    pub(super) fn reset_batch(&mut self) {
        self.batch = (self.marks.high_pages - self.marks.low_pages) as i64;
        self.depleted = false;
    }

    pub(super) fn footprint_bytes(&self) -> usize {
        self.returned.capacity() * 4
    }
}
