// SPDX-License-Identifier: Apache-2.0
//! Per-CPU batches between the accesses and the lists (`struct cpu_fbatches`, `mm/swap.c`).
//!
//! A folio waits in a batch of 31; the 31st drains it, itself included, and so does the start of
//! every shrink of a lruvec. Flags are read when the batch is drained, not when the folio joined.

use crate::folio::{Flag, Pfn};
use crate::lru::Lru;

/// Folios a batch holds (`PAGEVEC_SIZE`).
pub const BATCH_SIZE: usize = 31;

/// One batch. A folio freed while it waits leaves its place empty, as in the kernel, where the
/// batch still holds the last reference.
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
    /// Appends a folio and tells whether the batch is full now.
    #[inline]
    fn push(&mut self, pfn: Pfn) -> bool {
        self.folios[self.len] = pfn;
        self.len += 1;
        self.len == BATCH_SIZE
    }

    /// Empties the batch into a copy.
    #[inline]
    fn take(&mut self) -> impl Iterator<Item = Pfn> + use<> {
        let len = std::mem::take(&mut self.len);
        self.folios
            .into_iter()
            .take(len)
            .filter(|pfn| pfn.is_some())
    }

    fn forget(&mut self, pfn: Pfn) {
        for slot in &mut self.folios[..self.len] {
            if *slot == pfn {
                *slot = Pfn::NONE;
            }
        }
    }

    /// Places taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the folio waits here.
    #[must_use]
    pub fn contains(&self, pfn: Pfn) -> bool {
        self.folios[..self.len].contains(&pfn)
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

impl Lru {
    pub(crate) fn batch_add(&mut self, cpu: usize, pfn: Pfn) {
        if self.cpus[cpu].add.push(pfn) {
            self.drain_add(cpu);
        }
    }

    /// Queues an activation (`folio_activate`): nothing happens to a folio that is active or on no
    /// list.
    pub(crate) fn batch_activate(&mut self, cpu: usize, pfn: Pfn) {
        let folio = &mut self.folios[pfn];
        if folio.has_any(Flag::Active as u32 | Flag::Unevictable as u32) || !folio.has(Flag::Lru) {
            return;
        }
        folio.set(Flag::BatchPending);
        if self.cpus[cpu].activate.push(pfn) {
            self.drain_activate(cpu);
        }
    }

    pub(crate) fn batch_deactivate(&mut self, cpu: usize, pfn: Pfn) {
        self.folios[pfn].set(Flag::BatchPending);
        if self.cpus[cpu].deactivate.push(pfn) {
            self.drain_deactivate(cpu);
        }
    }

    pub(crate) fn batch_rotate(&mut self, cpu: usize, pfn: Pfn) {
        self.folios[pfn].set(Flag::BatchPending);
        if self.cpus[cpu].rotate.push(pfn) {
            self.drain_rotate(cpu);
        }
    }

    /// Forgets a folio that is being freed.
    pub(crate) fn batch_forget(&mut self, pfn: Pfn) {
        let folio = &mut self.folios[pfn];
        let pending = folio.test_clear(Flag::BatchPending);
        if pending || !folio.has(Flag::Lru) {
            for batches in &mut self.cpus {
                batches.add.forget(pfn);
                batches.rotate.forget(pfn);
                batches.deactivate.forget(pfn);
                batches.activate.forget(pfn);
            }
        }
    }

    /// Drains all batches of a CPU (`lru_add_drain`).
    pub fn drain_cpu(&mut self, cpu: usize) {
        self.drain_add(cpu);
        self.drain_rotate(cpu);
        self.drain_deactivate(cpu);
        self.drain_activate(cpu);
    }

    /// Drains all batches of all CPUs (`lru_add_drain_all`).
    pub fn drain_all(&mut self) {
        for cpu in 0..self.cpus.len() {
            self.drain_cpu(cpu);
        }
    }

    fn drain_add(&mut self, cpu: usize) {
        let batch = self.cpus[cpu].add.take();
        self.work.lru_locks += 1;
        for pfn in batch {
            let folio = &mut self.folios[pfn];
            if folio.has(Flag::Mlocked) {
                folio.clear(Flag::Active);
                folio.set(Flag::Unevictable);
            }
            folio.set(Flag::Lru);
            self.list_add(pfn, false);
        }
    }

    fn drain_rotate(&mut self, cpu: usize) {
        for pfn in self.cpus[cpu].rotate.take() {
            if self.takes_turn(pfn) {
                self.list_del(pfn);
                self.folios[pfn].clear(Flag::Active);
                self.list_add(pfn, true);
                let nr_pages = self.folios[pfn].nr_pages();
                self.events_of(pfn).pgrotated += nr_pages;
            }
        }
    }

    fn drain_deactivate(&mut self, cpu: usize) {
        for pfn in self.cpus[cpu].deactivate.take() {
            let any = self.mode.is_multi_gen();
            if self.takes_turn(pfn) && (any || self.folios[pfn].has(Flag::Active)) {
                self.list_del(pfn);
                self.folios[pfn].clear(Flag::Active);
                self.folios[pfn].clear(Flag::Referenced);
                self.list_add(pfn, false);
                let nr_pages = self.folios[pfn].nr_pages();
                self.events_of(pfn).pgdeactivate += nr_pages;
            }
        }
    }

    fn drain_activate(&mut self, cpu: usize) {
        for pfn in self.cpus[cpu].activate.take() {
            if self.takes_turn(pfn) && !self.folios[pfn].has(Flag::Active) {
                self.list_del(pfn);
                self.folios[pfn].set(Flag::Active);
                self.list_add(pfn, false);
                let nr_pages = self.folios[pfn].nr_pages();
                self.events_of(pfn).pgactivate += nr_pages;
            }
        }
    }

    /// Ends the wait of a folio; whether it is still on a list and evictable.
    fn takes_turn(&mut self, pfn: Pfn) -> bool {
        let folio = &mut self.folios[pfn];
        folio.clear(Flag::BatchPending);
        folio.has(Flag::Lru) && !folio.has(Flag::Unevictable)
    }

    /// The event counters of the lruvec a folio is charged to.
    pub(crate) fn events_of(&mut self, pfn: Pfn) -> &mut crate::work::Events {
        &mut self.lruvecs[self.folios[pfn].lruvec.index()].events
    }
}
