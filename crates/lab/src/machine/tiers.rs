// SPDX-License-Identifier: Apache-2.0
//! The slow node: what its accesses cost, and how pages move to and from it.

use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::NodeId;
use agewise_kernel::page_table::{PAGES_PER_PMD, Pmd, Pte};
use agewise_kernel::reclaim::TOP_ZONE;

use super::events::Event;
use super::frames::Owner;
use super::page_cache::Entry;
use super::system::System;
use super::zone::Reserve;
use super::{Machine, MachineConfig};

impl MachineConfig {
    /// Nodes with and without CPUs.
    pub fn all_nodes(&self) -> u32 {
        self.nodes.max(1) + u32::from(self.slow_pages > 0)
    }

    /// Page frames of all nodes.
    pub fn all_pages(&self) -> u32 {
        self.pages.saturating_add(self.slow_pages)
    }

    /// The node without CPUs, which is the last one.
    pub fn slow_node(&self) -> Option<NodeId> {
        (self.slow_pages > 0).then(|| NodeId(self.nodes.max(1)))
    }
}

impl Machine {
    /// Accounts for an access to a page in this frame.
    pub(super) fn pay_for_distance(&mut self, pfn: Option<Pfn>) {
        if pfn.is_some_and(|pfn| self.sys.frames.is_slow(pfn)) {
            self.sys.now_ns += self.config.cost.slow_ns;
            self.sys.counters.slow_accesses += 1;
        }
    }
}

impl System {
    /// Room for a page that moves to `target`, without reclaim. Below the low watermark it wakes
    /// the kswapd of that node.
    fn allocate_for_move(&mut self, target: NodeId, pages: u64) -> Option<(Pfn, usize)> {
        let found = match pages {
            1 => self.frames.allocate(target, TOP_ZONE, Reserve::Low),
            _ => self.frames.allocate_huge(target, TOP_ZONE),
        };
        if found.is_some() {
            return found;
        }
        self.events.push(self.now_ns, Event::LowMemory(target));
        match pages {
            1 => self.frames.allocate(target, TOP_ZONE, Reserve::Min),
            _ => None,
        }
    }

    /// Moves a page to another node, except for what the engine knows of it.
    pub(super) fn move_page(
        &mut self,
        folios: &FolioTable,
        pfn: Pfn,
        target: NodeId,
    ) -> Option<(Pfn, usize)> {
        let folio = &folios[pfn];
        let pages = folio.nr_pages() as u32;
        let (to, zone) = self.allocate_for_move(target, pages.into())?;
        let mut index = 0;
        while let Some(mapping) = self.frames.mapping(pfn, index) {
            index += 1;
            let leaf = match self.tables.pmd(mapping.mm, mapping.vpn) {
                Pmd::None => continue,
                Pmd::Leaf(leaf) => leaf,
                Pmd::Table(table) => &mut table[(mapping.vpn % PAGES_PER_PMD) as usize],
            };
            // All bits but the frame stay, accessed and dirty among them.
            leaf.0 ^= Pte::map(pfn).0 ^ Pte::map(to).0;
        }
        match self.frames.owner(pfn) {
            Owner::None => {}
            Owner::File { file, index } => {
                for page in 0..pages {
                    let entry = Entry::Present(Pfn(to.0 + page));
                    self.set_cache_entry(file, index + page, entry);
                }
            }
            Owner::Swap { slot } => {
                for page in slot..slot + pages {
                    self.swap[page].leave_cache(None);
                    self.swap[page].enter_cache(to);
                }
            }
        }
        if folio.has(Flag::Dirty) && folio.folio_type() == FolioType::File {
            self.dirty_queue.push_back(to);
            *self.write_pending_mut(pfn) -= u64::from(pages);
            *self.write_pending_mut(to) += u64::from(pages);
        }
        if !self.buffer_heads.is_empty() {
            self.buffer_heads.swap(pfn.index(), to.index());
        }
        self.residency.moved(pfn, to);
        self.frames.take_over(pfn, to);
        for page in 0..pages {
            self.frames.free(Pfn(pfn.0 + page));
        }
        Some((to, zone))
    }
}
