// SPDX-License-Identifier: Apache-2.0
//! Per-CPU batches between the accesses and the lists (`struct cpu_fbatches`, `mm/swap.c`).
//!
//! A folio waits in a batch of 31; the 31st drains it, itself included, and so does the start of
//! every shrink of a lruvec. Flags are read when the batch is drained, not when the folio joined.

use crate::folio::Pfn;

/// Capacity of a batch in folios (`PAGEVEC_SIZE`).
pub const BATCH_SIZE: usize = 31;

/// A batch. A folio freed while it waits leaves its slot empty, as in the kernel, where the batch
/// still holds the last reference.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    folios: [Pfn; BATCH_SIZE],
    len: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Batch {
            folios: [Pfn::NONE; BATCH_SIZE],
            len: 0,
        }
    }
}

impl Batch {
    /// Appends a folio and returns whether the batch is now full.
    #[inline]
    pub(crate) fn push(&mut self, pfn: Pfn) -> bool {
        self.folios[self.len] = pfn;
        self.len += 1;
        self.len == BATCH_SIZE
    }

    /// Empties the slot of a folio.
    pub(crate) fn forget(&mut self, pfn: Pfn) {
        for slot in &mut self.folios[..self.len] {
            if *slot == pfn {
                *slot = Pfn::NONE;
            }
        }
    }

    /// Number of slots in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no folio waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the folio waits in this batch.
    #[must_use]
    pub fn contains(&self, pfn: Pfn) -> bool {
        self.folios[..self.len].contains(&pfn)
    }

    /// The folios that wait.
    pub fn iter(&self) -> impl Iterator<Item = Pfn> {
        let folios = self.folios[..self.len].iter().copied();
        folios.filter(|pfn| pfn.is_some())
    }
}

/// The batches of one CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuBatches {
    /// New folios not yet on a list.
    pub add: Batch,
    /// Folios to rotate to the tail after writeback.
    pub rotate: Batch,
    /// Folios to deactivate (cold advice).
    pub deactivate: Batch,
    /// Folios to activate.
    pub activate: Batch,
}

impl CpuBatches {
    /// The batches of folios that are on a list meanwhile.
    #[inline]
    #[must_use]
    pub fn of_listed(&self) -> [&Batch; 3] {
        [&self.rotate, &self.deactivate, &self.activate]
    }
}
