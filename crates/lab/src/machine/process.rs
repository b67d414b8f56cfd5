// SPDX-License-Identifier: Apache-2.0
//! Processes: their address space, and the effects of mapping, forking and exiting on memory.

use std::ops::Range;
use std::sync::Arc;

use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{MemcgId, MmId, NodeId};
use agewise_kernel::page_table::{Mapping, PAGES_PER_PMD, Pte};
use agewise_kernel::reclaim::TOP_ZONE;

use super::address_space::{Backing, MapOptions};
use super::page_tables::{COPY_ON_WRITE, swap_slot};
use super::{Access, Machine};

/// A process of the machine. Ids are not reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub(super) MmId);

impl ProcessId {
    pub(super) fn mm(self) -> MmId {
        self.0
    }

    /// The id as an index.
    pub fn index(self) -> usize {
        self.0.index()
    }
}

/// Counters of a process (`getrusage`, `/proc/PID/io`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessStats {
    /// Faults that read from a device.
    pub major_faults: u64,
    /// Other faults.
    pub minor_faults: u64,
    /// Pages read from devices on its behalf.
    pub read_pages: u64,
}

/// Per-process state of the machine outside the address space.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub stats: ProcessStats,
    /// Node its memory comes from.
    pub node: u32,
    /// Node of the next page of the page cache, if memory is interleaved (`il_prev`).
    pub next_node: u32,
    /// Highest zone its memory may come from.
    pub highest_zone: usize,
    /// Name shown in trace events.
    pub name: Arc<str>,
}

/// What a new page is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Anonymous memory at this page, or with huge pages this block, of the address space.
    Address(u64),
    Cache,
}

impl Purpose {
    pub fn folio_type(self) -> FolioType {
        match self {
            Purpose::Address(_) => FolioType::Anon,
            Purpose::Cache => FolioType::File,
        }
    }
}

impl Machine {
    /// The node that a new page should come from: with interleaved memory the one that follows from
    /// its address (`interleave_nid`), for the page cache the next one (`interleave_nodes`).
    pub(super) fn preferred_node(&mut self, process: ProcessId, purpose: Purpose) -> NodeId {
        let process = &mut self.processes[process.index()];
        let nodes = self.config.all_nodes();
        match purpose {
            _ if !self.config.interleave => NodeId(process.node),
            Purpose::Address(place) => NodeId((place % u64::from(nodes)) as u32),
            Purpose::Cache => {
                let node = process.next_node;
                process.next_node = (node + 1) % nodes;
                NodeId(node)
            }
        }
    }

    /// Starts a process with an empty address space in a cgroup.
    pub fn add_process(&mut self, memcg: MemcgId) -> ProcessId {
        let mm = self.sys.spaces.add(memcg);
        self.sys.tables.add_mm(mm);
        self.lru.mm_add(mm, memcg);
        self.lru.mm_scheduled(mm);
        self.sys.memcgs[memcg].tasks += 1;
        self.processes.push(Process {
            stats: ProcessStats::default(),
            node: mm.0 % self.config.nodes.max(1),
            next_node: 0,
            highest_zone: TOP_ZONE,
            name: "task".into(),
        });
        ProcessId(mm)
    }

    /// Whether the process still runs.
    pub fn is_alive(&self, process: ProcessId) -> bool {
        self.sys.spaces[process.mm()].alive
    }

    /// Restricts the memory of a process to zones up to `highest_zone` (0 DMA to 3 MOVABLE), like
    /// that of a driver that cannot address higher zones.
    pub fn restrict_zone(&mut self, process: ProcessId, highest_zone: usize) {
        self.processes[process.index()].highest_zone = highest_zone.min(TOP_ZONE);
    }

    /// Counters of the process.
    pub fn process_stats(&self, process: ProcessId) -> ProcessStats {
        self.processes[process.index()].stats
    }

    /// The file and its page mapped at `vpn`; None if the memory is anonymous.
    pub fn file_page(&self, process: ProcessId, vpn: u64) -> Option<(u32, u32)> {
        let range = self.sys.spaces.find(process.mm(), vpn)?;
        match range.backing {
            Backing::Anon => None,
            Backing::File { file, first_page } => {
                Some((file, first_page + (vpn - range.vma.start_vpn) as u32))
            }
        }
    }

    /// Pages of the range that holds `vpn`; none if it is not mapped.
    pub fn range_of(&self, process: ProcessId, vpn: u64) -> Range<u64> {
        let range = self.sys.spaces.find(process.mm(), vpn);
        range.map_or(0..0, |range| range.vma.start_vpn..range.vma.end_vpn)
    }

    /// Maps memory; returns the first page number, or None if the address space is full.
    pub fn map(&mut self, process: ProcessId, options: &MapOptions) -> Option<u64> {
        self.sys.spaces.map(process.mm(), options)
    }

    /// Unmaps the range that starts at `start_vpn`. Returns false if there is none.
    pub fn unmap(&mut self, process: ProcessId, start_vpn: u64) -> bool {
        // Pages transfer their accessed bits as the range says, so it goes last.
        self.discard(process, start_vpn) && self.sys.spaces.unmap(process.mm(), start_vpn).is_some()
    }

    /// Frees what is mapped in the range that starts at `start_vpn`, and keeps the range
    /// (`MADV_DONTNEED`). Returns false if there is none.
    pub fn discard(&mut self, process: ProcessId, start_vpn: u64) -> bool {
        let mm = process.mm();
        let found = self.sys.spaces.find(mm, start_vpn);
        let Some(range) = found.filter(|range| range.vma.start_vpn == start_vpn) else {
            return false;
        };
        self.zap(mm, range.vma.start_vpn, range.vma.end_vpn);
        true
    }

    /// Ends a process and frees its memory.
    pub fn exit(&mut self, process: ProcessId) {
        let mm = process.mm();
        if !self.sys.spaces[mm].alive {
            return;
        }
        self.sys.now_ns += self.config.cost.process_ns;
        let ranges = self.sys.spaces.ranges(mm).to_vec();
        for range in ranges {
            self.zap(mm, range.vma.start_vpn, range.vma.end_vpn);
        }
        self.lru.mm_del(mm);
        self.sys.tables.free_mm(mm);
        let memcg = self.sys.spaces[mm].memcg;
        self.uncharge_tables(mm, self.sys.spaces[mm].table_pages);
        self.sys.memcgs[memcg].tasks -= 1;
        self.sys.spaces.end(mm);
        for group in &mut self.sys.stalls.groups {
            group.forget(mm.0);
        }
    }

    /// Ends the processes the OOM killer chose.
    pub(super) fn end_victims(&mut self) {
        while let Some(mm) = self.sys.victims.pop() {
            self.exit(ProcessId(mm));
        }
    }

    /// Forks a process: private memory is shared until one of the two writes to it. 2 MiB leaves
    /// are copied at once, into small pages.
    pub fn fork(&mut self, parent: ProcessId) -> Option<ProcessId> {
        self.sys.now_ns += self.config.cost.process_ns;
        let memcg = self.memcg_of_mm(parent.mm());
        let child = self.add_process(memcg);
        self.processes[child.index()].name = Arc::clone(&self.processes[parent.index()].name);
        self.sys.spaces.copy_ranges(parent.mm(), child.mm());
        for start_vpn in self.sys.tables.ranges(parent.mm()) {
            if self.sys.tables.huge_leaf(parent.mm(), start_vpn).is_some() {
                for vpn in start_vpn..start_vpn + PAGES_PER_PMD {
                    if self.access(child, vpn, true) == Access::Killed {
                        return None;
                    }
                }
                continue;
            }
            if !self.make_tables(child, start_vpn) {
                self.exit(child);
                return None;
            }
            for vpn in start_vpn..start_vpn + PAGES_PER_PMD {
                self.copy_leaf(parent.mm(), child.mm(), vpn);
            }
        }
        Some(child)
    }

    fn copy_leaf(&mut self, parent: MmId, child: MmId, vpn: u64) {
        let Some(leaf) = self.sys.tables.leaf(parent, vpn).filter(|leaf| leaf.0 != 0) else {
            return;
        };
        if let Some(slot) = swap_slot(leaf) {
            self.sys.swap[slot].references += 1;
            self.sys.spaces[child].swapped_pages += 1;
            *self.sys.tables.make_leaf(child, vpn) = leaf;
            return;
        }
        let mut shared = leaf;
        if !shared.is_special() {
            let pfn = leaf.pfn();
            let folio_type = self.lru.folios[pfn].folio_type();
            if folio_type == FolioType::Anon {
                shared = Pte(leaf.0 | COPY_ON_WRITE);
                if let Some(parents) = self.sys.tables.leaf_mut(parent, vpn) {
                    *parents = shared;
                }
            }
            self.sys.frames.add_mapping(pfn, Mapping { mm: child, vpn });
            self.sys.spaces[child].resident_pages[folio_type.index()] += 1;
        }
        *self.sys.tables.make_leaf(child, vpn) = shared;
    }

    /// Removes everything mapped between two pages.
    fn zap(&mut self, mm: MmId, start_vpn: u64, end_vpn: u64) {
        let mut at = start_vpn;
        while let Some(vpn) = self.sys.tables.next_mapped(mm, at, end_vpn) {
            let first = vpn / PAGES_PER_PMD * PAGES_PER_PMD;
            at = first + PAGES_PER_PMD;
            if let Some(leaf) = self.sys.tables.huge_leaf(mm, vpn) {
                self.sys.tables.unmap_huge(mm, vpn);
                self.drop_mapping(mm, first, leaf, PAGES_PER_PMD);
                self.uncharge_tables(mm, 1);
                continue;
            }
            for vpn in vpn..at.min(end_vpn) {
                self.zap_leaf(mm, vpn);
            }
        }
    }

    fn zap_leaf(&mut self, mm: MmId, vpn: u64) {
        let Some(place) = self.sys.tables.leaf_mut(mm, vpn) else {
            return;
        };
        let leaf = std::mem::take(place);
        if let Some(slot) = swap_slot(leaf) {
            self.sys.spaces[mm].swapped_pages -= 1;
            self.drop_slot_reference(slot);
        } else if leaf.present() && !leaf.is_special() {
            self.drop_mapping(mm, vpn, leaf, 1);
        }
    }

    /// Drops a leaf's reference to a slot; the last one frees the page and the slot.
    pub(super) fn drop_slot_reference(&mut self, slot: u32) {
        self.sys.swap[slot].references -= 1;
        let cached = self.sys.swap[slot].cached();
        if cached.is_some()
            && !self.sys.is_named_by_leaves(&self.lru.folios, cached)
            && self.sys.frames.mapcount(cached) == 0
            && !self.lru.folios[cached].has(Flag::Writeback)
        {
            self.free_anon(cached);
            return;
        }
        self.sys.release_slot(slot);
    }

    fn drop_mapping(&mut self, mm: MmId, vpn: u64, leaf: Pte, pages: u64) {
        let pfn = leaf.pfn();
        let folio_type = self.lru.folios[pfn].folio_type();
        self.sys.spaces[mm].resident_pages[folio_type.index()] -= pages;
        let last = self.sys.frames.remove_mapping(pfn, Mapping { mm, vpn });
        if last {
            self.lru.folios[pfn].clear(Flag::Mapped);
        }
        if folio_type == FolioType::File {
            if leaf.dirty() {
                self.sys.set_dirty(&mut self.lru.folios, pfn);
            }
            let recency = self
                .sys
                .spaces
                .find(mm, vpn)
                .is_none_or(|range| !range.vma.no_recency);
            if leaf.young() && recency {
                self.lru.mark_accessed(pfn, self.sys.cpu);
            }
        } else if last
            && !self.lru.folios[pfn].has(Flag::Writeback)
            && !self.sys.is_named_by_leaves(&self.lru.folios, pfn)
        {
            self.free_anon(pfn);
        }
    }

    /// Frees an anonymous page that no process maps, and its swap slot.
    pub(super) fn free_anon(&mut self, pfn: Pfn) {
        self.lru.folio_removed(pfn);
        self.sys.leave_swap_cache(&mut self.lru.folios, pfn);
        self.sys.free_frame(&mut self.lru.folios, pfn);
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::{Advice, MapOptions};
    use super::super::{Limits, Machine, MachineConfig};
    use agewise_kernel::folio::{Flag, Pfn};
    use agewise_kernel::ids::MemcgId;

    /// Pages of a range that is accessed at random do not count as accessed when it goes.
    #[test]
    fn unmapping_passes_accesses_on_as_the_range_was_advised() {
        for (advice, referenced) in [(Advice::Normal, 10), (Advice::Random, 0)] {
            let mut machine = Machine::new(MachineConfig::new(1 << 14));
            let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let process = machine.add_process(memcg);
            let file = machine.add_file(10, memcg, Advice::Random);
            let options = MapOptions {
                advice,
                ..MapOptions::file(file.0, 10)
            };
            let first = machine.map(process, &options).unwrap();
            for vpn in first..first + 10 {
                machine.access(process, vpn, false);
            }
            assert!(machine.unmap(process, first) && !machine.unmap(process, first));
            let frames = (0..1 << 14).map(|number| &machine.lru.folios[Pfn(number)]);
            let marked = frames.filter(|folio| folio.has(Flag::Referenced)).count();
            assert_eq!(marked, referenced, "{advice:?}");
        }
    }
}
