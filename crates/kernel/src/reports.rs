// SPDX-License-Identifier: Apache-2.0
//! Events that a world reports: folios added, used, advised, written, freed, evicted and refaulted.

use crate::classic;
use crate::folio::{Flag, Pfn};
use crate::ids::MemcgId;
use crate::lru::{Lru, Mode};
use crate::mglru;
use crate::world::World;

/// How a folio is added to the lists.
#[derive(Clone, Copy, Debug)]
pub struct AddContext {
    /// CPU whose batch it joins.
    pub cpu: usize,
    /// It was brought in by a page fault in a mapping with recency (`lru_gen_in_fault`).
    pub fault_with_recency: bool,
    /// Whether the task itself is reclaiming (`PF_MEMALLOC`).
    pub reclaiming: bool,
}

impl Lru {
    /// Adds a folio to the add batch (`folio_add_lru`). The world has started it
    /// ([`start`](crate::folio::FolioTable::start)) and, for a refault, passed it to
    /// [`Lru::refault`]. Its position is chosen when the batch is drained, which happens now if
    /// this folio fills it. A swap-in that frees its swap-cache entry right after mapping (zram)
    /// clears `Swapcache` after this call.
    pub fn folio_add(&mut self, pfn: Pfn, context: AddContext) {
        if self.mode.is_multi_gen() && context.fault_with_recency && !context.reclaiming {
            let profile = self.mglru.profile;
            profile.mark_faulted(&mut self.folios[pfn], self.mglru.ablation);
        }
        self.batch_add(context.cpu, pfn);
    }

    /// Reports a read, write or other access through a file descriptor, or the accessed bit of a
    /// mapping being removed (`mark_page_accessed`). The world leaves out repeated reads of one
    /// page through one open file.
    #[inline]
    pub fn mark_accessed(&mut self, pfn: Pfn, cpu: usize) {
        if self.mode == Mode::Classic {
            classic::mark_accessed(self, pfn, cpu);
        } else {
            self.mglru.profile.mark_accessed(&mut self.folios[pfn]);
        }
    }

    /// Reports that an evicted page is back in a new folio, which is not yet added; `shadow` is
    /// what its eviction left behind. `fault_with_recency` as in [`AddContext`].
    pub fn refault<W: World>(
        &mut self,
        world: &W,
        pfn: Pfn,
        shadow: u64,
        fault_with_recency: bool,
    ) {
        if self.mode == Mode::Classic {
            classic::refault(self, world, pfn, shadow);
        } else {
            mglru::refault(self, world, pfn, shadow, fault_with_recency);
        }
    }

    /// Returns the token to leave behind for a folio being evicted on behalf of `target`.
    pub fn eviction_shadow(&mut self, pfn: Pfn, target: MemcgId) -> u64 {
        if self.mode == Mode::Classic {
            classic::eviction_shadow(self, pfn, target)
        } else {
            mglru::eviction_shadow(self, pfn)
        }
    }

    /// Hot advice for one folio (`folio_activate`): it joins the active list, or the second
    /// youngest generation (the youngest if its workingset flag is set), regardless of its
    /// references.
    pub fn activate(&mut self, pfn: Pfn, cpu: usize) {
        self.batch_activate(cpu, pfn);
    }

    /// Cold advice for one folio (`folio_deactivate`).
    pub fn deactivate(&mut self, pfn: Pfn, cpu: usize) {
        let folio = &mut self.folios[pfn];
        if folio.has(Flag::Unevictable) || !folio.has(Flag::Lru) {
            return;
        }
        let skip = if self.mode == Mode::Classic {
            !folio.has(Flag::Active)
        } else {
            let state = &self.lruvecs[folio.lruvec.index()].mglru;
            let oldest = state.slot(state.min_seq[folio.folio_type().index()]);
            self.mglru.profile.deactivate_in_place(folio, oldest)
        };
        if !skip {
            self.batch_deactivate(cpu, pfn);
        }
    }

    /// A folio was freed without reclaim (munmap, exit, truncate, swap slot reused): removes it
    /// from its list or batch. Its frame may be reused afterwards.
    pub fn folio_removed(&mut self, pfn: Pfn) {
        self.batch_forget(pfn);
        let lruvec = self.folios[pfn].lruvec;
        if let Some(lruvec) = self.lruvecs.get(lruvec.index()) {
            self.nodes[lruvec.node.index()].scanned_since_free = 0;
        }
        if self.folios[pfn].test_clear(Flag::Lru) {
            self.list_del(pfn);
        }
        self.folios[pfn].clear(Flag::Active);
    }

    /// Writeback of a folio ended, and the world has cleared `Writeback`. A folio that reclaim is
    /// waiting for is rotated to the tail (`folio_rotate_reclaimable`).
    pub fn writeback_end(&mut self, pfn: Pfn, cpu: usize) {
        let folio = &mut self.folios[pfn];
        if folio.test_clear(Flag::Reclaim)
            && folio.has(Flag::Lru)
            && !folio.has_any(Flag::Locked as u32 | Flag::Dirty as u32 | Flag::Unevictable as u32)
        {
            self.batch_rotate(cpu, pfn);
        }
    }

    /// Takes notice of the writes that have ended while reclaim works, as the interrupts of devices
    /// do (`folio_end_writeback`). Folios that are isolated meanwhile miss their rotation.
    pub(crate) fn end_writes<W: World>(&mut self, world: &mut W, cpu: usize) {
        while let Some(pfn) = world.next_written(&mut self.folios, &self.work) {
            self.writeback_end(pfn, cpu);
        }
    }
}
