// SPDX-License-Identifier: Apache-2.0
//! A machine with nodes and cgroups but unmapped pages, for tests of the loops above a lruvec.

use agewise_kernel::classic::Settings;
use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::{MemcgId, MmId, NodeId};
use agewise_kernel::mglru;
use agewise_kernel::page_table::{Mapping, Pmd, Vma};
use agewise_kernel::work::Work;
use agewise_kernel::world::{PageoutOutcome, Protection, Throttle, World, ZoneState};
use agewise_kernel::{AddContext, Lru, LruConfig, Mode};

/// Records the policies' requests and returns prepared answers.
#[derive(Default)]
pub struct Mechanism {
    pub zones: Vec<[ZoneState; 4]>,
    pub protection: Vec<Protection>,
    pub swap_pages: u64,
    pub write_pending_pages: u64,
    pub evicted: Vec<Pfn>,
    pub written: Vec<Pfn>,
    pub throttles: Vec<(Throttle, u64)>,
    pub flusher_wakes: u64,
    pub slab_calls: Vec<(MemcgId, u32)>,
    /// Whether written pages stay under writeback.
    pub slow_device: bool,
    /// Writes that a slow device has under way before the first of them ends; none ends if not set.
    pub queue_depth: Option<usize>,
    ended: usize,
}

impl World for Mechanism {
    fn now_ns(&self) -> u64 {
        0
    }
    fn vma_from(&self, _: MmId, _: u64) -> Option<Vma> {
        None
    }
    fn pmd(&mut self, _: MmId, _: u64) -> Pmd<'_> {
        Pmd::None
    }
    fn pmd_young(&self, _: MmId, _: u64) -> bool {
        false
    }
    fn clear_pmd_young(&mut self, _: MmId, _: u64) {}
    fn next_mapped(&self, _: MmId, _: u64, _: u64) -> Option<u64> {
        None
    }
    fn mapping(&self, _: Pfn, _: usize) -> Option<Mapping> {
        None
    }
    fn split(&mut self, _: &FolioTable, _: Pfn) -> bool {
        true
    }
    /// Swap is in pieces of a page.
    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        let fits = self.swap_pages > 0 && folios[pfn].order() == 0;
        if fits {
            self.swap_pages -= 1;
            folios[pfn].set(Flag::Swapcache);
            folios[pfn].set(Flag::Dirty);
        }
        fits
    }
    fn unmap(&mut self, _: &mut FolioTable, _: Pfn) -> bool {
        true
    }
    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome {
        self.written.push(pfn);
        folios[pfn].clear(Flag::Dirty);
        if self.slow_device {
            folios[pfn].set(Flag::Writeback);
            return PageoutOutcome::Writeback;
        }
        PageoutOutcome::Written
    }
    fn next_written(&mut self, folios: &mut FolioTable, _: &Work) -> Option<Pfn> {
        if self.written.len() - self.ended <= self.queue_depth? {
            return None;
        }
        let pfn = self.written[self.ended];
        self.ended += 1;
        folios[pfn].clear(Flag::Writeback);
        Some(pfn)
    }
    fn free_evicted(&mut self, folios: &mut FolioTable, pfn: Pfn, _: u64) {
        self.evicted.push(pfn);
        self.zones[0][folios[pfn].zone()].free_pages += 1;
    }
    fn wake_flusher(&mut self, _: NodeId) {
        self.flusher_wakes += 1;
    }
    fn protection(&self, _: MemcgId, memcg: MemcgId) -> Protection {
        self.protection
            .get(memcg.index())
            .copied()
            .unwrap_or_default()
    }
    fn swap_free_pages(&self, _: MemcgId) -> u64 {
        self.swap_pages
    }
    fn zones(&self, node: NodeId) -> [ZoneState; 4] {
        self.zones[node.index()]
    }
    fn write_pending_pages(&self, _: NodeId) -> u64 {
        self.write_pending_pages
    }
    fn shrink_slab(&mut self, memcg: MemcgId, _: NodeId, priority: u32) -> u64 {
        self.slab_calls.push((memcg, priority));
        0
    }
    fn throttle(&mut self, _: NodeId, reason: Throttle, timeout_ns: u64) {
        self.throttles.push((reason, timeout_ns));
    }
    fn oom_kill(&mut self, _: MemcgId) -> bool {
        true
    }
}

/// The machine.
pub struct Machine {
    pub lru: Lru,
    pub world: Mechanism,
    /// A flag of pages that are added.
    pub new_page_flag: Option<Flag>,
    next: u32,
}

impl Machine {
    /// One node with zones of the given `(managed, free)` pages; the watermarks are 2, 4 and 6 % of
    /// the managed pages.
    pub fn new(zones: [(u64, u64); 4], classic: Settings, profile: mglru::Profile) -> Machine {
        Machine::with_mode(zones, Mode::Classic, classic, profile)
    }

    /// The same under the multi-gen LRU.
    pub fn multi_gen(zones: [(u64, u64); 4], profile: mglru::Profile) -> Machine {
        Machine::with_mode(zones, Mode::MultiGen, Settings::linux_7_2(), profile)
    }

    fn with_mode(
        zones: [(u64, u64); 4],
        mode: Mode,
        classic: Settings,
        profile: mglru::Profile,
    ) -> Machine {
        let zones = zones.map(|(managed_pages, free_pages)| ZoneState {
            managed_pages,
            free_pages,
            min_pages: managed_pages / 50,
            low_pages: managed_pages / 25,
            high_pages: managed_pages * 3 / 50,
            ..ZoneState::default()
        });
        let lru = Lru::new(LruConfig {
            frames: 1 << 16,
            nodes: 1,
            cpus: 2,
            mode,
            now_ns: 0,
            seed: 1,
            mglru: mglru::Settings {
                profile,
                ..Default::default()
            },
            classic,
        });
        let world = Mechanism {
            zones: vec![zones],
            swap_pages: 1 << 20,
            ..Mechanism::default()
        };
        Machine {
            lru,
            world,
            new_page_flag: None,
            next: 0,
        }
    }

    /// A 7.2 machine with one NORMAL zone.
    pub fn simple(managed: u64, free: u64) -> Machine {
        let zones = [(0, 0), (0, 0), (managed, free), (0, 0)];
        Machine::new(zones, Settings::linux_7_2(), mglru::profile::V7_2)
    }

    pub fn add_cgroup(&mut self, parent: MemcgId) -> MemcgId {
        self.lru.memcg_online(parent, 60, 0)
    }

    /// Adds new clean pages to the inactive list; returns the first.
    pub fn add_pages(
        &mut self,
        memcg: MemcgId,
        folio_type: FolioType,
        zone: usize,
        count: u32,
    ) -> Pfn {
        let lruvec = self.lru.lruvec_id(memcg, NodeId(0));
        let first = Pfn(self.next);
        for _ in 0..count {
            let pfn = Pfn(self.next);
            self.next += 1;
            self.lru.folios.start(pfn, folio_type, zone, 0, lruvec);
            if let Some(flag) = self.new_page_flag {
                self.lru.folios[pfn].set(flag);
            }
            self.lru.folio_add(
                pfn,
                AddContext {
                    cpu: 0,
                    fault_with_recency: false,
                    reclaiming: false,
                },
            );
        }
        self.lru.drain_all();
        first
    }

    /// Sets a flag on a run of pages.
    pub fn flag_pages(&mut self, first: Pfn, count: u32, flag: Flag) {
        for pfn in first.0..first.0 + count {
            self.lru.folios[Pfn(pfn)].set(flag);
        }
    }

    pub fn free_pages(&self) -> u64 {
        self.world.zones[0].iter().map(|zone| zone.free_pages).sum()
    }
}
