// SPDX-License-Identifier: Apache-2.0
//! Pages in the swap cache, and what becomes of their slots.

use agewise_kernel::folio::{Flag, FolioTable, Pfn};
use agewise_kernel::ids::MemcgId;

use super::frames::Owner;
use super::system::System;

impl System {
    /// Whether a leaf still refers to a slot of this page, which is in the swap cache.
    pub fn is_named_by_leaves(&self, folios: &FolioTable, pfn: Pfn) -> bool {
        match self.frames.owner(pfn) {
            Owner::Swap { slot } => {
                let end = slot + folios[pfn].nr_pages() as u32;
                (slot..end).any(|slot| self.swap[slot].references > 0)
            }
            Owner::None | Owner::File { .. } => false,
        }
    }

    /// Removes a page from the swap cache and frees slots that are no longer needed.
    pub(super) fn leave_swap_cache(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let Owner::Swap { slot } = self.frames.owner(pfn) else {
            return;
        };
        self.frames.set_owner(pfn, Owner::None);
        folios[pfn].clear(Flag::Swapcache);
        for page in slot..slot + folios[pfn].nr_pages() as u32 {
            self.swap[page].leave_cache(None);
            self.release_slot(page);
        }
    }

    /// Frees a swap slot if nothing needs it any more.
    pub fn release_slot(&mut self, slot: u32) {
        if let Some(memcg) = self.swap.release_if_unused(slot) {
            self.memcgs.charge_swap(memcg, -1);
            if let Some(store) = &mut self.compressed {
                store.release_page(&mut self.frames);
            }
        }
    }

    pub(super) fn allocate_slots(&mut self, pfn: Pfn, memcg: MemcgId, pages: u64) -> Option<u32> {
        if pages == 1 {
            self.swap.allocate(pfn, memcg)
        } else {
            self.swap.allocate_run(pfn, memcg, pages as u32)
        }
    }
}
