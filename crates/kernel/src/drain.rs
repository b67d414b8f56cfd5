// SPDX-License-Identifier: Apache-2.0
//! How folios join the batches, and move from them to the lists (`mm/swap.c`).

use crate::batch::{Batch, CpuBatches};
use crate::folio::{Flag, Pfn};
use crate::lru::Lru;

impl Lru {
    pub(crate) fn batch_add(&mut self, cpu: usize, pfn: Pfn) {
        if self.cpus[cpu].add.push(pfn) {
            self.drain_add(cpu);
        }
    }

    /// Queues an activation (`folio_activate`); does nothing if the folio is active or on no list.
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

    /// Removes a folio that is being freed from its batch.
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
        let batch = std::mem::take(&mut self.cpus[cpu].add);
        self.work.lru_locks += 1;
        for pfn in batch.iter() {
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
        for pfn in self.take_listed(cpu, |of| &mut of.rotate).iter() {
            if self.is_listed(pfn) {
                self.list_del(pfn);
                self.folios[pfn].clear(Flag::Active);
                self.list_add(pfn, true);
                let nr_pages = self.folios[pfn].nr_pages();
                self.events_of(pfn).pgrotated += nr_pages;
            }
        }
    }

    fn drain_deactivate(&mut self, cpu: usize) {
        let any = self.mode.is_multi_gen();
        for pfn in self.take_listed(cpu, |of| &mut of.deactivate).iter() {
            if self.is_listed(pfn) && (any || self.folios[pfn].has(Flag::Active)) {
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
        for pfn in self.take_listed(cpu, |of| &mut of.activate).iter() {
            if self.is_listed(pfn) && !self.folios[pfn].has(Flag::Active) {
                self.list_del(pfn);
                self.folios[pfn].set(Flag::Active);
                self.list_add(pfn, false);
                let nr_pages = self.folios[pfn].nr_pages();
                self.events_of(pfn).pgactivate += nr_pages;
            }
        }
    }

    /// Empties a batch of folios that are on a list. They wait no longer, unless another such batch
    /// has them too.
    fn take_listed(&mut self, cpu: usize, of: fn(&mut CpuBatches) -> &mut Batch) -> Batch {
        let taken = std::mem::take(of(&mut self.cpus[cpu]));
        if taken.is_empty() {
            return taken;
        }
        for pfn in taken.iter() {
            self.folios[pfn].clear(Flag::BatchPending);
        }
        for batch in self.cpus.iter().flat_map(CpuBatches::of_listed) {
            for pfn in batch.iter() {
                self.folios[pfn].set(Flag::BatchPending);
            }
        }
        taken
    }

    /// Whether a folio is still on a list and evictable.
    fn is_listed(&self, pfn: Pfn) -> bool {
        let folio = &self.folios[pfn];
        folio.has(Flag::Lru) && !folio.has(Flag::Unevictable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folio::FolioType;
    use crate::ids::{MemcgId, NodeId};
    use crate::{AddContext, LruConfig, Mode};

    #[test]
    fn a_freed_folio_leaves_every_batch() {
        let mut lru = Lru::new(LruConfig {
            frames: 1,
            nodes: 1,
            cpus: 2,
            mode: Mode::Classic,
            now_ns: 0,
            seed: 1,
            mglru: Default::default(),
            classic: Default::default(),
        });
        let pfn = Pfn(0);
        let lruvec = lru.lruvec_id(MemcgId::ROOT, NodeId(0));
        lru.folios.start(pfn, FolioType::Anon, 2, 0, lruvec);
        let context = AddContext {
            cpu: 0,
            fault_with_recency: false,
            reclaiming: false,
        };
        lru.folio_add(pfn, context);
        lru.drain_all();
        lru.batch_activate(0, pfn);
        lru.batch_rotate(1, pfn);
        lru.drain_activate(0);
        assert!(lru.folios[pfn].has(Flag::BatchPending));
        lru.folio_removed(pfn);
        assert!(lru.cpus[1].rotate.iter().next().is_none());
    }
}
