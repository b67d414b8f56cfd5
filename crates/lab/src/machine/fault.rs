// SPDX-License-Identifier: Apache-2.0
//! Page faults: anonymous memory, swap, mapped files, copy on write.

use agewise_kernel::AddContext;
use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::profile::UsageCount;
use agewise_kernel::page_table::{Mapping, PAGES_PER_PMD, Pte, Vma};
use agewise_kernel::world::World;

use super::address_space::{Backing, Range};
use super::charge::{ChargeError, Effort};
use super::device::Direction;
use super::frames::Owner;
use super::page_cache::Entry;
use super::page_tables::{COPY_ON_WRITE, swap_slot};
use super::process::Purpose;
use super::swap::swap_place;
use super::{Access, Machine, ProcessId};

impl Machine {
    /// Handles a fault; the access is complete when it returns.
    #[cold]
    #[inline(never)]
    pub(super) fn fault(
        &mut self,
        process: ProcessId,
        vpn: u64,
        write: bool,
        protected: bool,
    ) -> Access {
        let mm = process.mm();
        let Some(range) = self.sys.spaces.find(mm, vpn) else {
            return Access::Invalid;
        };
        self.sys.now_ns += self.config.cost.fault_ns;
        let access = if protected {
            self.write_fault(process, vpn, range)
        } else if let Some(access) = self.huge_fault(process, vpn, range) {
            access
        } else if !self.make_tables(process, vpn) {
            Access::Killed
        } else {
            match self.sys.tables.leaf(mm, vpn).and_then(swap_slot) {
                Some(slot) => self.swap_fault(process, vpn, write, range, slot),
                None => match range.backing {
                    Backing::Anon => self.anon_fault(process, vpn, write, range),
                    Backing::File { file, first_page } => {
                        let index = first_page + (vpn - range.vma.start_vpn) as u32;
                        self.file_fault(process, vpn, write, range, file, index)
                    }
                },
            }
        };
        self.count_fault(process, access);
        access
    }

    pub(super) fn count_fault(&mut self, process: ProcessId, access: Access) {
        let stats = &mut self.processes[process.index()].stats;
        match access {
            Access::Major => {
                stats.major_faults += 1;
                self.sys.counters.pgmajfault += 1;
                self.sys.counters.pgfault += 1;
            }
            Access::Minor => {
                stats.minor_faults += 1;
                self.sys.counters.pgfault += 1;
            }
            Access::Hit | Access::Invalid | Access::Killed => {}
        }
    }

    fn add_context(&self, fault_with_recency: bool) -> AddContext {
        AddContext {
            cpu: self.sys.cpu,
            fault_with_recency,
            reclaiming: false,
        }
    }

    /// Allocates and charges a frame; its folio is initialized and on no list.
    pub(super) fn new_page(
        &mut self,
        process: ProcessId,
        memcg: MemcgId,
        purpose: Purpose,
        effort: Effort,
    ) -> Result<Pfn, ChargeError> {
        let node = self.preferred_node(process, purpose);
        let folio_type = purpose.folio_type();
        let (pfn, zone) = self.allocate_frame(process, node)?;
        if let Err(error) = self.charge(process, memcg, 1, effort) {
            self.sys.frames.free(pfn);
            return Err(error);
        }
        let lruvec = self.lru.lruvec_id(memcg, self.reclaim_node_of(pfn, zone));
        self.lru.folios.start(pfn, folio_type, zone, 0, lruvec);
        self.sys.residency.loaded(pfn, self.sys.now_ns);
        self.sys.memcgs[memcg].resident_pages[folio_type.index()] += 1;
        Ok(pfn)
    }

    /// The reclaim node whose lists hold the page of a frame.
    fn reclaim_node_of(&self, pfn: Pfn, zone: usize) -> NodeId {
        let node = if self.config.all_nodes() == 1 {
            NodeId(0)
        } else {
            self.sys.frames.node_of(pfn)
        };
        self.sys.list_scope.reclaim_node(node, zone)
    }

    fn map_page(&mut self, process: ProcessId, vpn: u64, pfn: Pfn, write: bool, shared: bool) {
        let mm = process.mm();
        let mut leaf = Pte::map(pfn);
        leaf.touch(write);
        if shared {
            leaf.0 |= COPY_ON_WRITE;
        }
        *self.sys.tables.make_leaf(mm, vpn) = leaf;
        self.sys.frames.add_mapping(pfn, Mapping { mm, vpn });
        self.lru.folios[pfn].set(Flag::Mapped);
        let folio_type = self.lru.folios[pfn].folio_type();
        self.sys.spaces[mm].resident_pages[folio_type.index()] += 1;
    }

    fn anon_fault(&mut self, process: ProcessId, vpn: u64, write: bool, range: Range) -> Access {
        if !write {
            let zero_page = Pte(Pte::special().0 | COPY_ON_WRITE);
            *self.sys.tables.make_leaf(process.mm(), vpn) = zero_page;
            return Access::Minor;
        }
        let memcg = self.memcg_of_mm(process.mm());
        let Ok(pfn) = self.new_page(process, memcg, Purpose::Address(vpn), Effort::Normal) else {
            return Access::Killed;
        };
        self.enter_lists(pfn, &range.vma);
        self.map_page(process, vpn, pfn, true, false);
        Access::Minor
    }

    /// Adds a new page to the lists, or makes it unevictable in a locked range.
    fn enter_lists(&mut self, pfn: Pfn, vma: &Vma) {
        if vma.locked {
            self.lru.folios[pfn].set(Flag::Mlocked);
        }
        let context = self.add_context(!vma.no_recency);
        self.lru.folio_add(pfn, context);
    }

    /// Maps a whole 2 MiB page if the range, the frames and the limit allow it; None if a small
    /// page must be used instead (`do_huge_pmd_anonymous_page`).
    fn huge_fault(&mut self, process: ProcessId, vpn: u64, range: Range) -> Option<Access> {
        let mm = process.mm();
        let first = vpn / PAGES_PER_PMD * PAGES_PER_PMD;
        let fits = first >= range.vma.start_vpn && first + PAGES_PER_PMD <= range.vma.end_vpn;
        let missing = self.sys.tables.missing(mm, vpn).last > 0;
        if !range.huge || !fits || range.backing != Backing::Anon || !missing {
            return None;
        }
        if !self.make_upper_tables(process, vpn) {
            return Some(Access::Killed);
        }
        let node = self.preferred_node(process, Purpose::Address(vpn / PAGES_PER_PMD));
        let highest = self.processes[process.index()].highest_zone;
        let (pfn, zone) = self.sys.frames.allocate_huge(node, highest)?;
        let memcg = self.memcg_of_mm(mm);
        let charged = self.charge(process, memcg, PAGES_PER_PMD, Effort::NoReclaim);
        // As in the kernel, the leaf comes with the table it would be split into.
        if charged.is_err() || !self.charge_tables(process, 1) {
            for page in 0..PAGES_PER_PMD as u32 {
                self.sys.frames.free(Pfn(pfn.0 + page));
            }
            charged.ok()?;
            self.sys.memcgs.uncharge(memcg, PAGES_PER_PMD);
            return Some(Access::Killed);
        }
        let lruvec = self.lru.lruvec_id(memcg, self.reclaim_node_of(pfn, zone));
        self.lru.folios.start(pfn, FolioType::Anon, zone, 9, lruvec);
        self.sys.residency.loaded(pfn, self.sys.now_ns);
        self.sys.memcgs[memcg].resident_pages[0] += PAGES_PER_PMD;
        self.enter_lists(pfn, &range.vma);
        let mut leaf = Pte::map(pfn);
        leaf.touch(true);
        self.sys.tables.map_huge(mm, first, leaf);
        self.sys.frames.add_mapping(pfn, Mapping { mm, vpn: first });
        self.lru.folios[pfn].set(Flag::Mapped);
        self.sys.spaces[mm].resident_pages[0] += PAGES_PER_PMD;
        Some(Access::Minor)
    }

    /// Handles a fault on a swapped-out page (`do_swap_page`).
    fn swap_fault(
        &mut self,
        process: ProcessId,
        vpn: u64,
        write: bool,
        range: Range,
        slot: u32,
    ) -> Access {
        let cached = self.sys.swap[slot].cached();
        if cached.is_some() && self.lru.folios[cached].order() > 0 {
            return self.copy_out_of_huge(process, vpn, &range.vma);
        }
        let (pfn, access) = if cached.is_some() {
            (cached, Access::Minor)
        } else {
            match self.swap_in(process, vpn, slot, &range.vma) {
                Ok(pfn) => (pfn, Access::Major),
                Err(_) => return Access::Killed,
            }
        };
        self.sys.swap[slot].references -= 1;
        self.sys.spaces[process.mm()].swapped_pages -= 1;
        let alone = self.sys.swap[slot].references == 0 && self.sys.frames.mapcount(pfn) == 0;
        self.map_page(process, vpn, pfn, write, !alone);
        let synchronous = self
            .sys
            .swap_device
            .as_ref()
            .is_some_and(|device| device.model.synchronous);
        let memcg = || self.sys.memcg_of(&self.lru.folios, pfn);
        if synchronous || (write && alone) || self.sys.swap_is_full(memcg()) {
            self.sys.free_swap(&mut self.lru.folios, pfn);
        }
        access
    }

    /// Copies a small page out of a 2 MiB page that is still in the swap cache, since the lab does
    /// not map parts of a large page.
    fn copy_out_of_huge(&mut self, process: ProcessId, vpn: u64, vma: &Vma) -> Access {
        let memcg = self.memcg_of_mm(process.mm());
        let Ok(copy) = self.new_page(process, memcg, Purpose::Address(vpn), Effort::Normal) else {
            return Access::Killed;
        };
        let leaf = self.sys.tables.leaf(process.mm(), vpn);
        self.enter_lists(copy, vma);
        self.map_page(process, vpn, copy, true, false);
        // Making room may have reclaimed the large page, but the leaf still refers to the slot.
        if let Some(slot) = leaf.and_then(swap_slot) {
            self.sys.spaces[process.mm()].swapped_pages -= 1;
            self.drop_slot_reference(slot);
        }
        Access::Minor
    }

    pub(super) fn swap_in(
        &mut self,
        process: ProcessId,
        vpn: u64,
        slot: u32,
        vma: &Vma,
    ) -> Result<Pfn, ChargeError> {
        let memcg = self.charged_memcg(self.sys.swap[slot].memcg);
        let pfn = self.new_page(process, memcg, Purpose::Address(vpn), Effort::Normal)?;
        let recency = !vma.no_recency;
        self.sys.frames.set_owner(pfn, Owner::Swap { slot });
        let shadow = self.sys.swap[slot].enter_cache(pfn);
        let through_cache = self.lru.mglru.profile.usage == UsageCount::WorkingsetLast
            || self.sys.swap[slot].references > 1
            || !self.swap_is_synchronous();
        if through_cache {
            self.lru.folios[pfn].set(Flag::Swapcache);
        }
        if let Some(shadow) = shadow {
            self.refault(pfn, shadow, recency);
        }
        self.enter_lists(pfn, vma);
        self.lru.folios[pfn].set(Flag::Swapcache);
        self.sys.counters.pswpin += 1;
        self.read_page(process, pfn, swap_place(slot), true);
        Ok(pfn)
    }

    fn swap_is_synchronous(&self) -> bool {
        self.sys
            .swap_device
            .as_ref()
            .is_some_and(|device| device.model.synchronous)
    }

    /// The cgroup charged for a page once charged to `memcg`: the nearest that still exists.
    fn charged_memcg(&self, memcg: MemcgId) -> MemcgId {
        self.sys
            .memcgs
            .ancestry(memcg)
            .find(|&at| self.sys.memcgs[at].online)
            .unwrap_or(MemcgId::ROOT)
    }

    /// Reads a page from its device and waits for it. Reading a page of the working set again
    /// counts as a stall.
    pub(super) fn read_page(&mut self, process: ProcessId, pfn: Pfn, place: u64, swap: bool) {
        let start_ns = self.sys.now_ns;
        let Some(device) = self.sys.disk(swap) else {
            return;
        };
        let done_ns = device.submit(start_ns, Direction::Read, place);
        if device.model.synchronous {
            self.sys.now_ns = self.sys.now_ns.max(done_ns);
        } else {
            self.sys.wait_until(done_ns);
        }
        self.processes[process.index()].stats.read_pages += 1;
        if self.lru.folios[pfn].has(Flag::Workingset) {
            self.note_stall(process, start_ns);
        } else {
            self.first_read_ns += self.sys.now_ns - start_ns;
        }
    }

    fn file_fault(
        &mut self,
        process: ProcessId,
        vpn: u64,
        write: bool,
        range: Range,
        file: u32,
        index: u32,
    ) -> Access {
        if index >= self.sys.files[file as usize].cache.len() {
            return Access::Invalid;
        }
        self.note_file_access(file, index..index + 1);
        let recency = !range.vma.no_recency;
        let (pfn, access) = match self.sys.files[file as usize].cache.get(index) {
            Entry::Present(pfn) => (pfn, Access::Minor),
            Entry::Empty | Entry::Shadow(_) => {
                match self.read_into_cache(process, file, index, recency, recency) {
                    Ok(pfn) => (pfn, Access::Major),
                    Err(_) => return Access::Killed,
                }
            }
        };
        if write && !range.vma.shared {
            let memcg = self.memcg_of_mm(process.mm());
            let Ok(copy) = self.new_page(process, memcg, Purpose::Address(vpn), Effort::Normal)
            else {
                return Access::Killed;
            };
            self.enter_lists(copy, &range.vma);
            self.map_page(process, vpn, copy, true, false);
            return access;
        }
        if write {
            if !self.add_buffer_head(process, pfn) {
                return Access::Killed;
            }
            self.sys.set_dirty(&mut self.lru.folios, pfn);
        }
        // The first write to a clean page of a shared mapping faults, so that the page is known as
        // dirty.
        self.map_page(process, vpn, pfn, write, !write);
        if write {
            // `fault_dirty_shared_page`
            self.balance_dirty_pages(process);
        }
        access
    }

    /// Handles a write to a read-only leaf: the zero page, a page shared after fork, a page of a
    /// private mapping, or a clean page of a shared mapping.
    fn write_fault(&mut self, process: ProcessId, vpn: u64, range: Range) -> Access {
        let mm = process.mm();
        let Some(leaf) = self.sys.tables.leaf(mm, vpn) else {
            return Access::Invalid;
        };
        if !leaf.is_special() {
            let pfn = leaf.pfn();
            let anon = self.lru.folios[pfn].folio_type() == FolioType::Anon;
            let shared_file = !anon && range.vma.shared;
            let alone = anon && self.sys.frames.mapcount(pfn) == 1 && !self.slot_is_shared(pfn);
            if shared_file || alone {
                if shared_file {
                    if !self.add_buffer_head(process, pfn) {
                        return Access::Killed;
                    }
                    self.sys.set_dirty(&mut self.lru.folios, pfn);
                }
                if let Some(place) = self.sys.tables.leaf_mut(mm, vpn) {
                    place.0 &= !COPY_ON_WRITE;
                    place.touch(true);
                }
                if shared_file {
                    // `fault_dirty_shared_page`
                    self.balance_dirty_pages(process);
                }
                return Access::Minor;
            }
        }
        let memcg = self.memcg_of_mm(mm);
        let Ok(copy) = self.new_page(process, memcg, Purpose::Address(vpn), Effort::Normal) else {
            return Access::Killed;
        };
        // Reclaim may have evicted the original while it made room for the copy.
        let original = self.sys.tables.leaf_mut(mm, vpn).map(std::mem::take);
        match original {
            Some(leaf) if leaf.present() && !leaf.is_special() => {
                self.drop_original(process, vpn, leaf);
            }
            Some(leaf) => {
                if let Some(slot) = swap_slot(leaf) {
                    self.sys.spaces[mm].swapped_pages -= 1;
                    self.drop_slot_reference(slot);
                }
            }
            None => {}
        }
        self.enter_lists(copy, &range.vma);
        self.map_page(process, vpn, copy, true, false);
        Access::Minor
    }

    fn drop_original(&mut self, process: ProcessId, vpn: u64, leaf: Pte) {
        let mm = process.mm();
        let pfn = leaf.pfn();
        let folio_type = self.lru.folios[pfn].folio_type();
        self.sys.spaces[mm].resident_pages[folio_type.index()] -= 1;
        if self.sys.frames.remove_mapping(pfn, Mapping { mm, vpn }) {
            self.lru.folios[pfn].clear(Flag::Mapped);
            let unused = folio_type == FolioType::Anon && !self.slot_is_shared(pfn);
            if unused && !self.lru.folios[pfn].has(Flag::Writeback) {
                self.free_anon(pfn);
            }
        }
    }

    fn slot_is_shared(&self, pfn: Pfn) -> bool {
        self.sys.is_named_by_leaves(&self.lru.folios, pfn)
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::MapOptions;
    use super::super::{Limits, MachineConfig};
    use super::*;

    #[test]
    fn no_room_is_made_for_a_huge_page_and_each_brings_a_table() {
        let mut machine = Machine::new(MachineConfig::new(1 << 14));
        let limits = Limits {
            max_pages: 2 * PAGES_PER_PMD,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", limits);
        let process = machine.add_process(memcg);
        let options = MapOptions {
            huge: true,
            ..MapOptions::anon(2 * PAGES_PER_PMD)
        };
        let first = machine.map(process, &options).unwrap();
        let second = first + PAGES_PER_PMD;
        let tables = |machine: &Machine| machine.sys.memcgs[memcg].table_pages;
        let resident = |machine: &Machine| machine.sys.memcgs[memcg].resident_pages[0];
        assert_eq!(machine.access(process, first + 7, true), Access::Minor);
        assert_eq!((resident(&machine), tables(&machine)), (512, 1));
        // The second one would exceed the limit by one page, or by its table.
        assert_eq!(machine.access(process, second, true), Access::Minor);
        assert_eq!((resident(&machine), tables(&machine)), (513, 2));
        assert_eq!(machine.memcg_events(memcg).scanned(), 0);
        let mm = process.mm();
        assert!(machine.sys.tables.huge_leaf(mm, first).is_some());
        assert!(machine.sys.tables.huge_leaf(mm, second).is_none());
        // Discarding a huge page frees its table too; the other table stays.
        machine.discard(process, first);
        assert_eq!((resident(&machine), tables(&machine)), (0, 1));
        assert_eq!(machine.check(), Ok(()));
        machine.exit(process);
        machine.sys.memcgs.drain_stocks(memcg);
        assert_eq!(machine.sys.memcgs[memcg].usage_pages, 0);
    }
}
