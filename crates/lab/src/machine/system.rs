// SPDX-License-Identifier: Apache-2.0
//! The mechanism of the machine: everything the policies act on, and the [`World`] they see.

use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId, MmId, NodeId};
use agewise_kernel::page_table::{Mapping, Pmd, Pte, Vma};
use agewise_kernel::reclaim::oom::badness;
use agewise_kernel::reclaim::scope::ListScope;
use agewise_kernel::tracepoint::Tracepoint;
use agewise_kernel::work::Work;
use agewise_kernel::world::{PageoutOutcome, Protection, Throttle, World, ZoneState};

use super::address_space::AddressSpaces;
use super::config::MachineConfig;
use super::counters::Counters;
use super::device::Device;
use super::events::EventQueue;
use super::frames::{Frames, Owner};
use super::memcg::{Memcgs, UNLIMITED};
use super::page_cache::{Entry, NODE_BYTES, PageCache};
use super::page_tables::{PageTables, swap_entry};
use super::residency::Residency;
use super::stall::{Pressure, Stalls};
use super::swap::Swap;
use super::tracing::Tracer;
use super::work_clock::WorkClock;
use super::zram::CompressedStore;

/// Which page count limits the shadow-only nodes of a cgroup (`count_shadow_nodes`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShadowLimit {
    /// Pages on its lists plus slab pages.
    Lists,
    /// Slab pages alone: the effect of 7.2 under the multi-gen LRU, because the per-zone counters
    /// that it reads do not include the generations' pages.
    SlabOnly,
}

/// One open file: its cache, and what the kernel keeps per open file.
pub struct File {
    /// Pages in memory and shadows.
    pub cache: PageCache,
    /// Position of its first page on the file device.
    pub first_block: u64,
    /// Whether read-ahead is used.
    pub readahead: bool,
    /// Page that holds the last byte of the previous read through the descriptor.
    pub last_read: Option<u32>,
    /// The cgroup charged for its tree nodes: the one that made the first of them.
    pub memcg: MemcgId,
}

/// The mechanism of the machine.
pub struct System {
    /// The clock, in ns.
    pub now_ns: u64,
    /// Time that passes while reclaim works.
    pub(super) clock: WorkClock,
    /// Events due later.
    pub events: EventQueue,
    /// Page tables of all address spaces.
    pub tables: PageTables,
    /// Mapped ranges of all address spaces.
    pub spaces: AddressSpaces,
    /// Page frames.
    pub frames: Frames,
    /// Swap slots.
    pub swap: Swap,
    /// Swap device; None if the machine has no swap.
    pub swap_device: Option<Device>,
    /// The memory zram itself takes.
    pub compressed: Option<CompressedStore>,
    /// Device of the files.
    pub file_device: Device,
    /// Whether swap lies on the file device too; `swap_device` then serves nothing.
    pub swap_on_file_disk: bool,
    /// Open files.
    pub files: Vec<File>,
    /// Cgroup counters.
    pub memcgs: Memcgs,
    /// Cgroup of each lruvec.
    pub lruvec_memcg: Vec<MemcgId>,
    /// Which page count limits shadow nodes.
    pub shadow_limit: ShadowLimit,
    pub counters: Counters,
    /// Memory pressure of the cgroups.
    pub stalls: Stalls,
    /// Records what reclaim does, event by event.
    pub tracer: Option<Box<Tracer>>,
    /// Processes chosen by the OOM killer, which the machine has yet to end.
    pub victims: Vec<MmId>,
    /// Whether everything dirty is to be written, because reclaim met only dirty pages.
    pub flush_everything: bool,
    pub dirty_file_pages: u64,
    /// Pages of each node that are dirty or under writeback (`NR_ZONE_WRITE_PENDING`).
    pub(super) write_pending_pages: Vec<u64>,
    /// File pages in the order in which they became dirty.
    pub dirty_queue: std::collections::VecDeque<Pfn>,
    /// Whether the page in each frame has a buffer head; empty until the first one does.
    pub(super) buffer_heads: Vec<bool>,
    /// The node that reclaim of the others moves pages to.
    pub(super) demotion_target: Option<NodeId>,
    /// Scope of the LRU lists.
    pub list_scope: ListScope,
    /// Residency of pages; recorded only if the machine's zones were given.
    pub residency: Residency,
    /// The CPU that runs now.
    pub cpu: usize,
    /// Time the running operation waited for devices or slept, in ns.
    pub waited_ns: u64,
}

impl System {
    /// The mechanism of a machine at time 0.
    pub fn new(config: &MachineConfig) -> System {
        let mut frames = Frames::new(
            &config.zone_pages(),
            config.min_free_kbytes,
            config.watermark_scale_factor,
        );
        frames.set_fair(config.policy.arrangement.is_fair());
        if config.slow_pages > 0 {
            frames.set_slow(config.slow_pages);
        }
        System {
            now_ns: 0,
            clock: WorkClock::new(config.cost, config.cpus),
            events: EventQueue::default(),
            tables: PageTables::default(),
            spaces: AddressSpaces::default(),
            frames,
            swap: Swap::new(config.swap.map_or(0, |swap| swap.pages)),
            swap_device: config.swap.map(|swap| Device::new(swap.device)),
            swap_on_file_disk: config.swap.is_some_and(|swap| swap.on_file_disk),
            compressed: config
                .swap
                .and_then(|swap| swap.compression)
                .map(CompressedStore::new),
            file_device: Device::new(config.file_device),
            files: Vec::new(),
            memcgs: Memcgs::new(config.cpus, config.policy.kernel.stock_slots),
            lruvec_memcg: Vec::new(),
            shadow_limit: ShadowLimit::Lists,
            counters: Counters::default(),
            stalls: Stalls {
                groups: vec![Pressure::default()],
            },
            tracer: None,
            victims: Vec::new(),
            flush_everything: false,
            dirty_file_pages: 0,
            write_pending_pages: vec![0; config.zone_pages().len()],
            dirty_queue: std::collections::VecDeque::new(),
            buffer_heads: Vec::new(),
            demotion_target: config.slow_node().filter(|_| config.demotion),
            list_scope: config.policy.arrangement.list_scope(),
            residency: Residency::new(if config.zones.is_some() {
                config.all_pages()
            } else {
                0
            }),
            cpu: 0,
            waited_ns: 0,
        }
    }

    /// The cgroup a folio is charged to.
    #[inline]
    pub fn memcg_of(&self, folios: &FolioTable, pfn: Pfn) -> MemcgId {
        self.lruvec_memcg[folios[pfn].lruvec.index()]
    }

    /// The cgroup of a lruvec.
    #[inline]
    pub fn memcg_of_lruvec(&self, lruvec: LruvecId) -> MemcgId {
        self.lruvec_memcg[lruvec.index()]
    }

    /// Waits until `at_ns`.
    pub fn wait_until(&mut self, at_ns: u64) {
        if at_ns > self.now_ns {
            self.waited_ns += at_ns - self.now_ns;
            self.now_ns = at_ns;
        }
    }

    /// Stores `entry` in a file's cache and accounts for tree nodes that are added or freed. New
    /// nodes must have been charged before.
    pub fn set_cache_entry(&mut self, file: u32, index: u32, entry: Entry) {
        let memcg = self.files[file as usize].memcg;
        let cache = &mut self.files[file as usize].cache;
        let freed = cache.set(index, entry).freed;
        let node = cache.node(index);
        let only_shadows = node.only_shadows();
        let was_listed = std::mem::replace(&mut node.listed, only_shadows);
        match (was_listed, only_shadows) {
            (false, true) => {
                let first = index / 64 * 64;
                self.memcgs.list_shadow_node(memcg, file, first);
            }
            (true, false) => self.memcgs[memcg].shadow_node_count -= 1,
            _ => {}
        }
        if freed > 0 {
            self.memcgs
                .free_objects(memcg, u64::from(freed) * NODE_BYTES);
        }
    }

    /// Drops up to `limit` of the oldest shadow-only nodes of a cgroup.
    fn drop_shadow_nodes(&mut self, memcg: MemcgId, limit: u64) -> u64 {
        let mut dropped = 0;
        while dropped < limit {
            let Some((file, first)) = self.memcgs[memcg].shadow_nodes.pop_front() else {
                break;
            };
            let node = self.files[file as usize].cache.node(first);
            if !node.listed {
                continue; // It came back into use after it was listed.
            }
            node.listed = false;
            let freed = self.files[file as usize].cache.drop_shadows(first).freed;
            self.memcgs[memcg].shadow_node_count -= 1;
            self.memcgs
                .free_objects(memcg, u64::from(freed) * NODE_BYTES);
            dropped += 1;
        }
        self.memcgs[memcg].shadow_nodes_dropped += dropped;
        dropped
    }

    fn unmap_leaf(&mut self, folios: &mut FolioTable, pfn: Pfn, mapping: Mapping) {
        let entry = match self.frames.owner(pfn) {
            Owner::Swap { slot } => {
                self.swap[slot].references += 1;
                self.spaces[mapping.mm].swapped_pages += 1;
                swap_entry(slot)
            }
            _ => Pte::default(),
        };
        let folio_type = folios[pfn].folio_type();
        if let Some(leaf) = self.tables.leaf_mut(mapping.mm, mapping.vpn) {
            debug_assert!(leaf.present() && leaf.pfn() == pfn);
            let dirty = leaf.dirty();
            *leaf = entry;
            if dirty {
                self.set_dirty(folios, pfn);
            }
        }
        self.spaces[mapping.mm].resident_pages[folio_type.index()] -= 1;
    }

    /// Frees and uncharges a page's frame after its contents are gone.
    pub fn free_frame(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let memcg = self.memcg_of(folios, pfn);
        let pages = folios[pfn].nr_pages();
        let folio_type = folios[pfn].folio_type();
        debug_assert!(!folios[pfn].has(Flag::Lru), "a freed page is on a list");
        self.clear_dirty(folios, pfn);
        self.memcgs[memcg].resident_pages[folio_type.index()] -= pages;
        self.memcgs.uncharge(memcg, pages);
        self.free_buffer_head(memcg, pfn);
        let zone = folios[pfn].zone();
        for page in 0..pages as u32 {
            self.frames.free(Pfn(pfn.0 + page));
        }
        // The frame must not keep flags of its former page.
        folios.start(pfn, FolioType::File, zone, 0, LruvecId::NONE);
    }
}

impl World for System {
    #[inline]
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn vma_from(&self, mm: MmId, vpn: u64) -> Option<Vma> {
        self.spaces.from(mm, vpn).map(|range| range.vma)
    }

    fn pmd(&mut self, mm: MmId, vpn: u64) -> Pmd<'_> {
        self.tables.pmd(mm, vpn)
    }

    fn pmd_young(&self, mm: MmId, vpn: u64) -> bool {
        self.tables.pmd_young(mm, vpn)
    }

    fn clear_pmd_young(&mut self, mm: MmId, vpn: u64) {
        self.tables.clear_pmd_young(mm, vpn);
    }

    fn next_mapped(&self, mm: MmId, vpn: u64, end_vpn: u64) -> Option<u64> {
        self.tables.next_mapped(mm, vpn, end_vpn)
    }

    #[inline]
    fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping> {
        self.frames.mapping(pfn, index)
    }

    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        let memcg = self.memcg_of(folios, pfn);
        let pages = folios[pfn].nr_pages();
        if self.swap_free_pages(memcg) < pages {
            return false;
        }
        let Some(slot) = self.allocate_slots(pfn, memcg, pages) else {
            return false;
        };
        self.memcgs.charge_swap(memcg, pages as i64);
        self.frames.set_owner(pfn, Owner::Swap { slot });
        folios[pfn].set(Flag::Swapcache);
        folios[pfn].set(Flag::Dirty);
        true
    }

    fn swap_is_full(&self, memcg: MemcgId) -> bool {
        self.swap.used() > self.swap.capacity() / 2 || self.memcgs.swap_is_half_used(memcg)
    }

    fn free_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        if !folios[pfn].has(Flag::Writeback) && !self.is_named_by_leaves(folios, pfn) {
            self.leave_swap_cache(folios, pfn);
            folios[pfn].set(Flag::Dirty);
        }
    }

    fn split(&mut self, folios: &FolioTable, pfn: Pfn) -> bool {
        self.split_page(pfn, folios[pfn].nr_pages() as u32);
        true
    }

    fn unmap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        let huge = folios[pfn].order() > 0;
        while let Some(mapping) = self.frames.mapping(pfn, 0) {
            if huge {
                self.unmap_huge(folios, pfn, mapping);
            } else {
                self.unmap_leaf(folios, pfn, mapping);
            }
            self.frames.remove_mapping(pfn, mapping);
        }
        folios[pfn].clear(Flag::Mapped);
        true
    }

    fn mark_dirty(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        self.set_dirty(folios, pfn);
    }

    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome {
        self.write_out(folios, pfn)
    }

    fn next_written(&mut self, folios: &mut FolioTable, work: &Work) -> Option<Pfn> {
        self.take_written(folios, work)
    }

    fn free_evicted(&mut self, folios: &mut FolioTable, pfn: Pfn, shadow: u64) {
        let pages = folios[pfn].nr_pages() as u32;
        match self.frames.owner(pfn) {
            Owner::File { file, index } => {
                for page in 0..pages {
                    self.set_cache_entry(file, index + page, Entry::Shadow(shadow));
                }
            }
            Owner::Swap { slot } => {
                for page in slot..slot + pages {
                    self.swap[page].leave_cache(Some(shadow));
                    self.release_slot(page);
                }
            }
            Owner::None => {}
        }
        self.residency.evicted(
            pfn,
            folios[pfn].zone(),
            folios[pfn].folio_type(),
            self.now_ns,
        );
        folios[pfn].clear(Flag::Swapcache);
        self.free_frame(folios, pfn);
    }

    fn demotion_target(&self, node: NodeId) -> Option<NodeId> {
        let node_lists = self.list_scope == ListScope::Node;
        self.demotion_target.filter(|&at| at != node && node_lists)
    }

    fn migrate(&mut self, of: &FolioTable, pfn: Pfn, target: NodeId) -> Option<(Pfn, usize)> {
        self.move_page(of, pfn, target)
    }

    fn wake_flusher(&mut self, _node: NodeId) {
        self.start_flusher();
    }

    fn protection(&self, target: MemcgId, memcg: MemcgId) -> Protection {
        self.memcgs.protection(target, memcg)
    }

    fn swap_free_pages(&self, memcg: MemcgId) -> u64 {
        if self.swap_device.is_none() {
            return 0;
        }
        match self.memcgs.swap_margin(memcg) {
            UNLIMITED => self.swap.free().into(),
            margin => margin.min(self.swap.free().into()),
        }
    }

    fn has_swap(&self) -> bool {
        self.swap_device.is_some()
    }

    fn zones(&self, reclaim_node: NodeId) -> [ZoneState; 4] {
        let (node, zone) = self.list_scope.place(reclaim_node);
        let zones = self.frames.zones(node);
        match zone {
            None => zones,
            Some(own) => std::array::from_fn(|zone| {
                if zone == own {
                    zones[zone]
                } else {
                    ZoneState::default()
                }
            }),
        }
    }

    fn write_pending_pages(&self, reclaim_node: NodeId) -> u64 {
        let (node, _) = self.list_scope.place(reclaim_node);
        self.write_pending_pages[node.index()]
    }

    /// The shadow shrinker (`count_shadow_nodes`, `scan_shadow_nodes`), following the usual rule
    /// for a shrinker without seeks: it scans half of the excess plus deferred work shifted by the
    /// priority, in batches of 128.
    fn shrink_slab(&mut self, memcg: MemcgId, _node: NodeId, priority: u32) -> u64 {
        const BATCH: u64 = 128;
        self.counters.slab_calls += 1;
        let group = &self.memcgs[memcg];
        if group.shadow_node_count == 0 {
            return 0;
        }
        let slab_pages = group.slab_bytes / agewise_policy::table::PAGE_BYTES;
        let pages = match self.shadow_limit {
            ShadowLimit::Lists => slab_pages + group.resident_pages.iter().sum::<u64>(),
            ShadowLimit::SlabOnly => slab_pages,
        };
        let excess = group.shadow_node_count.saturating_sub(pages / 8);
        if excess == 0 {
            return 0;
        }
        let deferred = std::mem::take(&mut self.memcgs[memcg].shrinker_deferred);
        let delta = excess / 2;
        let mut left = ((deferred >> priority) + delta).min(2 * excess);
        let mut scanned = 0;
        while left >= BATCH || left >= excess {
            let batch = left.min(BATCH);
            if batch == 0 {
                break;
            }
            self.drop_shadow_nodes(memcg, batch);
            left -= batch;
            scanned += batch;
            self.counters.slabs_scanned += batch;
        }
        let next = (deferred + delta).saturating_sub(scanned).min(2 * excess);
        self.memcgs[memcg].shrinker_deferred += next;
        // Freed slab pages count as progress for global reclaim only; the lab leaves them out.
        0
    }

    fn throttle(&mut self, node: NodeId, reason: Throttle, timeout_ns: u64) {
        let until_ns = self.now_ns + timeout_ns;
        // A page whose writeback ends wakes the tasks that wait for it.
        let until_ns = match reason {
            Throttle::Writeback => until_ns.min(self.events.next_ns().max(self.now_ns)),
            Throttle::NoProgress | Throttle::Congested => until_ns,
        };
        let delayed_ns = until_ns - self.now_ns;
        self.wait_until(until_ns);
        self.trace(&Tracepoint::Throttled {
            node,
            timeout_ns,
            delayed_ns,
            reason,
        });
    }

    fn oom_kill(&mut self, memcg: MemcgId) -> bool {
        if !self.victims.is_empty() {
            return false; // One at a time: the last victim has not exited yet.
        }
        let total_pages = self.frames.len().into();
        let points = |mm: &MmId| {
            let space = &self.spaces[*mm];
            let resident = space.resident_pages.iter().sum();
            badness(
                resident,
                space.swapped_pages,
                space.table_pages,
                0,
                total_pages,
            )
        };
        let victim = self
            .spaces
            .ids()
            .filter(|&mm| {
                let space = &self.spaces[mm];
                space.alive && self.memcgs.is_descendant(space.memcg, memcg)
            })
            .max_by_key(|mm| (points(mm), std::cmp::Reverse(*mm)));
        let Some(victim) = victim else {
            return false;
        };
        let owner = self.spaces[victim].memcg;
        self.memcgs[owner].events.oom_kill += 1;
        self.counters.oom_kill += 1;
        self.victims.push(victim);
        true
    }

    #[inline]
    fn trace(&mut self, tracepoint: &Tracepoint) {
        if let Some(tracer) = &mut self.tracer {
            tracer.add(self.now_ns, self.cpu, tracepoint);
        }
    }
}
