// SPDX-License-Identifier: Apache-2.0
//! Pages of 2 MiB that stop being one: unmapped into swap entries, or split into their pages.

use agewise_kernel::folio::{FolioTable, Pfn};
use agewise_kernel::page_table::{Mapping, PAGES_PER_PMD, Pte};

use super::frames::Owner;
use super::page_tables::{COPY_ON_WRITE, swap_entry};
use super::system::System;

impl System {
    /// Replaces a 2 MiB leaf with a table of swap entries, or removes it.
    pub(super) fn unmap_huge(&mut self, folios: &mut FolioTable, pfn: Pfn, mapping: Mapping) {
        let Some(leaf) = self.tables.unmap_huge(mapping.mm, mapping.vpn) else {
            return;
        };
        let folio_type = folios[pfn].folio_type();
        self.spaces[mapping.mm].resident_pages[folio_type.index()] -= PAGES_PER_PMD;
        if let Owner::Swap { slot } = self.frames.owner(pfn) {
            for page in 0..PAGES_PER_PMD as u32 {
                self.swap[slot + page].references += 1;
                *self
                    .tables
                    .make_leaf(mapping.mm, mapping.vpn + u64::from(page)) = swap_entry(slot + page);
            }
            self.spaces[mapping.mm].swapped_pages += PAGES_PER_PMD;
        } else if leaf.dirty() {
            self.set_dirty(folios, pfn);
        }
    }

    /// Makes the frames of an anonymous 2 MiB page pages of their own, mapped and in the swap cache
    /// as it was. Unlike Linux since 6.12, which frees those that contain only zeros: the lab knows
    /// no contents.
    pub(super) fn split_page(&mut self, pfn: Pfn, pages: u32) {
        let mut index = 0;
        while let Some(mapping) = self.frames.mapping(pfn, index) {
            index += 1;
            self.split_leaf(mapping, pages);
        }
        for page in 1..pages {
            let frame = Pfn(pfn.0 + page);
            self.residency.moved(pfn, frame);
            if let Owner::Swap { slot } = self.frames.owner(pfn) {
                let slot = slot + page;
                self.frames.set_owner(frame, Owner::Swap { slot });
                self.swap[slot].leave_cache(None);
                self.swap[slot].enter_cache(frame);
            }
        }
    }

    /// Replaces a 2 MiB leaf with the table that came with it, whose leaves have its bits.
    fn split_leaf(&mut self, mapping: Mapping, pages: u32) {
        let Some(whole) = self.tables.unmap_huge(mapping.mm, mapping.vpn) else {
            return;
        };
        for page in 0..pages {
            let frame = Pfn(whole.pfn().0 + page);
            let vpn = mapping.vpn + u64::from(page);
            let mut leaf = Pte::map(frame);
            leaf.touch(whole.dirty());
            if !whole.young() {
                leaf.test_clear_young();
            }
            leaf.0 |= whole.0 & COPY_ON_WRITE;
            *self.tables.make_leaf(mapping.mm, vpn) = leaf;
            if page > 0 {
                let mm = mapping.mm;
                self.frames.add_mapping(frame, Mapping { mm, vpn });
            }
        }
    }
}
