// SPDX-License-Identifier: Apache-2.0
//! The smallest world in which the policies run: one process in one cgroup at its limit, one node,
//! one zone, one file, synchronous swap.

use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId, MmId, NodeId};
use agewise_kernel::mglru;
use agewise_kernel::page_table::{Mapping, PAGES_PER_PMD, Pmd, Pte, PteTable, Vma};
use agewise_kernel::reclaim::memcg_limit::{CgroupRequest, try_to_free_mem_cgroup_pages};
use agewise_kernel::world::{PageoutOutcome, Protection, Throttle, World, ZoneState};
use agewise_kernel::{AddContext, Lru, LruConfig, Mode};

use crate::trace::{Touch, Trace, Workload};

/// The process.
pub const MM: MmId = MmId(0);

/// A page of the process or its file.
#[derive(Clone, Copy, Debug)]
pub struct Page {
    pub folio_type: FolioType,
    /// Where it is mapped, if it can be mapped.
    pub vpn: Option<u64>,
    pub pfn: Pfn,
    /// The shadow left by its eviction.
    pub shadow: Option<u64>,
}

/// The mechanism: page tables, frames, swap and page cache.
pub struct Mechanism {
    pub pages: Vec<Page>,
    pub vmas: Vec<Vma>,
    first_table: u64,
    tables: Vec<PteTable>,
    tables_young: Vec<bool>,
    page_of_frame: Vec<usize>,
    free_frames: Vec<Pfn>,
    pub now_ns: u64,
    /// Kernel pages charged to the cgroup besides page tables and page cache nodes.
    kernel_pages: usize,
    /// Existing page tables; each is charged as a page when its first entry is set.
    filled_tables: Vec<bool>,
    nr_tables: usize,
    /// Residents and shadows in each page cache node of 64 file pages.
    nodes: Vec<u32>,
    nr_nodes: usize,
    /// The range of file pages, and the number of shadow-only nodes that may be kept.
    file: std::ops::Range<usize>,
    pub shadow_nodes: Option<u64>,
    deferred: u64,
    /// Protection of every cgroup except the root.
    pub protection: Protection,
    /// Tasks killed to make room.
    pub kills: u64,
    pub flusher_wakes: u64,
}

/// The layout of a process's memory.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Number of anon pages.
    pub anon: usize,
    /// Number of file pages.
    pub file: usize,
    /// Whether the file is mapped too.
    pub mapped: bool,
    /// Whether random access is advised for the mapping.
    pub no_recency: bool,
}

/// A machine that runs a workload.
pub struct Machine {
    pub lru: Lru,
    pub world: Mechanism,
    pub memcg: MemcgId,
    capacity: usize,
    last_read: Option<u32>,
    first_anon: usize,
    first_file: usize,
    first_own: usize,
    pub misses: u64,
    pub reclaims: u64,
}

/// First page of the anon region.
pub const VPN_ANON: u64 = 512 * 16;
/// First page of the mapped file.
pub const VPN_FILE: u64 = 512 * 256;
const VPN_OWN: u64 = 512 * 400;
/// Anon pages that the program only touches between the phases.
const OWN_PAGES: usize = 2;
/// Size of a page cache node and its share of a slab.
const NODE_BYTES: usize = 584;

impl Mechanism {
    fn table(&self, vpn: u64) -> Option<usize> {
        let index = (vpn / PAGES_PER_PMD).checked_sub(self.first_table)? as usize;
        (index < self.tables.len()).then_some(index)
    }

    fn pte(&mut self, vpn: u64) -> &mut Pte {
        let table = self.table(vpn).expect("address is mapped");
        &mut self.tables[table][(vpn % PAGES_PER_PMD) as usize]
    }

    /// The shadow shrinker under multi-gen in 7.2.
    fn drop_shadows(&mut self, priority: u32) {
        let Some(keep) = self.shadow_nodes else {
            return;
        };
        let mut nodes = Vec::new();
        for start in self.file.clone().step_by(64) {
            let node = start..(start + 64).min(self.file.end);
            let pages = &self.pages[node.clone()];
            let empty = pages.iter().all(|page| !page.pfn.is_some());
            if empty && pages.iter().any(|page| page.shadow.is_some()) {
                nodes.push(node);
            }
        }
        let freeable = (nodes.len() as u64).saturating_sub(keep);
        if freeable == 0 {
            return;
        }
        let deferred = std::mem::take(&mut self.deferred);
        let delta = freeable / 2;
        let mut total = ((deferred >> priority) + delta).min(2 * freeable);
        let asked = total;
        let mut next = nodes.into_iter();
        while total >= 128 || total >= freeable {
            let batch = total.min(128);
            for node in next.by_ref().take(batch as usize) {
                let index = (node.start - self.file.start) / 64;
                self.nodes[index] = 0;
                self.nr_nodes -= 1;
                for page in &mut self.pages[node] {
                    page.shadow = None;
                }
            }
            total -= batch;
        }
        self.deferred += (deferred + delta)
            .saturating_sub(asked - total)
            .min(2 * freeable);
    }
}

impl World for Mechanism {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }

    fn vma_from(&self, _: MmId, vpn: u64) -> Option<Vma> {
        self.vmas.iter().find(|vma| vma.end_vpn > vpn).copied()
    }

    fn pmd(&mut self, _: MmId, vpn: u64) -> Pmd<'_> {
        let table = self.table(vpn);
        table.map_or(Pmd::None, |table| Pmd::Table(&mut self.tables[table]))
    }

    fn pmd_young(&self, _: MmId, vpn: u64) -> bool {
        self.table(vpn)
            .is_some_and(|table| self.tables_young[table])
    }

    fn clear_pmd_young(&mut self, _: MmId, vpn: u64) {
        if let Some(table) = self.table(vpn) {
            self.tables_young[table] = false;
        }
    }

    fn next_mapped(&self, _: MmId, vpn: u64, end_vpn: u64) -> Option<u64> {
        (vpn < end_vpn).then_some(vpn)
    }

    fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping> {
        let page = &self.pages[self.page_of_frame[pfn.index()]];
        let vpn = page.vpn.filter(|_| index == 0)?;
        Some(Mapping { mm: MM, vpn })
    }

    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        folios[pfn].set(Flag::Swapcache);
        folios[pfn].set(Flag::Dirty);
        true
    }

    fn unmap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        if let Some(vpn) = self.pages[self.page_of_frame[pfn.index()]].vpn {
            *self.pte(vpn) = Pte::default();
        }
        folios[pfn].clear(Flag::Mapped);
        true
    }

    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome {
        folios[pfn].clear(Flag::Dirty);
        PageoutOutcome::Written
    }

    fn free_evicted(&mut self, _: &mut FolioTable, pfn: Pfn, shadow: u64) {
        let page = &mut self.pages[self.page_of_frame[pfn.index()]];
        page.shadow = Some(shadow);
        page.pfn = Pfn::NONE;
        if page.folio_type == FolioType::Anon {
            // The first swapped page needs two slab pages.
            self.kernel_pages = 3;
        }
        self.free_frames.push(pfn);
    }

    fn wake_flusher(&mut self, _: NodeId) {
        self.flusher_wakes += 1;
    }

    fn protection(&self, target: MemcgId, memcg: MemcgId) -> Protection {
        if memcg == MemcgId::ROOT || memcg == target {
            Protection::default()
        } else {
            self.protection
        }
    }

    fn swap_free_pages(&self, _: MemcgId) -> u64 {
        1 << 20
    }

    fn zones(&self, _: NodeId) -> [ZoneState; 4] {
        let mut zones = [ZoneState::default(); 4];
        zones[2].managed_pages = 1 << 20;
        zones
    }

    fn shrink_slab(&mut self, _: MemcgId, _: NodeId, priority: u32) -> u64 {
        self.drop_shadows(priority);
        0
    }

    fn throttle(&mut self, _: NodeId, _: Throttle, _: u64) {}

    fn oom_kill(&mut self, _: MemcgId) -> bool {
        self.kills += 1;
        true
    }
}

impl Machine {
    /// A machine for a workload in a cgroup of `capacity` pages, kernel memory included;
    /// `no_recency` advises random access.
    pub fn new(
        workload: &Workload,
        settings: mglru::Settings,
        capacity: usize,
        no_recency: bool,
    ) -> Machine {
        use crate::trace::Pattern::{FileUniform, FileZipf, Mixed, MmapZipf};
        let (anon, file) = match workload.pattern {
            Mixed => (workload.hot, workload.pages),
            FileZipf | FileUniform | MmapZipf => (0, workload.pages),
            _ => (workload.pages, 0),
        };
        let mapped = workload.pattern == MmapZipf;
        let layout = Layout {
            anon: anon as usize,
            file: file as usize,
            mapped,
            no_recency,
        };
        Machine::with_layout(layout, settings, capacity)
    }

    /// A machine with both kinds of memory and the file mapped.
    pub fn of_profile(
        profile: mglru::Profile,
        reschedule_chance: f64,
        [anon, file]: [usize; 2],
        capacity: usize,
    ) -> Machine {
        let settings = mglru::Settings {
            profile,
            reschedule_chance,
            ..mglru::Settings::default()
        };
        let layout = Layout {
            anon,
            file,
            mapped: true,
            no_recency: false,
        };
        Machine::with_layout(layout, settings, capacity)
    }

    /// A machine with a process of a given layout.
    pub fn with_layout(layout: Layout, settings: mglru::Settings, capacity: usize) -> Machine {
        let (anon, file, mapped) = (layout.anon, layout.file, layout.mapped);
        let page = |folio_type, vpn| Page {
            folio_type,
            vpn,
            pfn: Pfn::NONE,
            shadow: None,
        };
        let mut pages: Vec<Page> = Vec::new();
        pages.extend((0..anon).map(|i| page(FolioType::Anon, Some(VPN_ANON + i as u64))));
        pages.extend(
            (0..file).map(|i| page(FolioType::File, mapped.then_some(VPN_FILE + i as u64))),
        );
        pages.extend((0..OWN_PAGES).map(|i| page(FolioType::Anon, Some(VPN_OWN + i as u64))));
        let vma = |start_vpn: u64, pages: usize, is_file: bool, no_recency: bool| Vma {
            start_vpn,
            end_vpn: start_vpn + pages as u64,
            file: is_file,
            no_recency,
            ..Vma::default()
        };
        let anon_vma = (anon > 0).then(|| vma(VPN_ANON, anon, false, false));
        let file_vma = mapped.then(|| vma(VPN_FILE, file, true, layout.no_recency));
        let own_vma = Some(vma(VPN_OWN, OWN_PAGES, false, false));
        let vmas = [anon_vma, file_vma, own_vma]
            .into_iter()
            .flatten()
            .collect();
        let frames = u32::try_from(capacity).expect("small machine");
        let first_table = VPN_ANON / PAGES_PER_PMD;
        let tables = (VPN_OWN / PAGES_PER_PMD + 1 - first_table) as usize;
        // The program's own page table was charged elsewhere.
        let mut filled_tables = vec![false; tables];
        filled_tables[tables - 1] = true;
        let shadow_nodes = (!settings.profile.shadow_limit_counts_lists && file > 0).then_some(4);
        let mut lru = Lru::new(LruConfig {
            frames,
            nodes: 1,
            cpus: 1,
            mode: Mode::MultiGen,
            now_ns: 0,
            seed: 1,
            mglru: settings,
            classic: Default::default(),
        });
        let memcg = lru.memcg_online(MemcgId::ROOT, 60, 0);
        lru.mm_add(MM, memcg);
        Machine {
            lru,
            world: Mechanism {
                pages,
                vmas,
                first_table,
                tables: vec![[Pte::default(); 512]; tables],
                tables_young: vec![false; tables],
                page_of_frame: vec![usize::MAX; frames as usize],
                free_frames: (0..frames).rev().map(Pfn).collect(),
                now_ns: 0,
                kernel_pages: 1,
                filled_tables,
                nr_tables: 0,
                nodes: vec![0; file.div_ceil(64)],
                nr_nodes: 0,
                file: anon..anon + file,
                shadow_nodes,
                deferred: 0,
                flusher_wakes: 0,
                protection: Protection::default(),
                kills: 0,
            },
            memcg,
            capacity,
            last_read: None,
            first_anon: 0,
            first_file: anon,
            first_own: anon + file,
            misses: 0,
            reclaims: 0,
        }
    }

    pub fn lruvec(&self) -> LruvecId {
        self.lru.lruvec_id(self.memcg, NodeId(0))
    }

    /// Pages charged: user pages, page tables, nodes of the file's page cache, and a few others.
    fn usage(&self) -> usize {
        let world = &self.world;
        let user = world.page_of_frame.len() - world.free_frames.len();
        let node_pages = (world.nr_nodes * NODE_BYTES).div_ceil(4096);
        user + world.nr_tables + node_pages + world.kernel_pages
    }

    /// Charges one page: reclaims while the cgroup is full.
    fn charge(&mut self) {
        let mut rounds = 0;
        while self.usage() >= self.capacity {
            self.reclaim();
            rounds += 1;
            assert!(rounds < 40, "out of memory");
        }
    }

    /// One reclaim call at the limit: priorities 12 to 0 until 32 pages are reclaimed.
    pub fn reclaim(&mut self) -> u64 {
        self.reclaims += 1;
        self.lru.mm_scheduled(MM);
        let request = CgroupRequest::limit(self.memcg, 0, NodeId(0));
        try_to_free_mem_cgroup_pages(&mut self.lru, &mut self.world, request)
    }

    /// Makes a page resident; `fault`: by a page fault with recency.
    fn bring_in(&mut self, index: usize, fault: bool) {
        self.charge();
        let pfn = self.world.free_frames.pop().expect("a free frame");
        self.world.page_of_frame[pfn.index()] = index;
        let page = &mut self.world.pages[index];
        page.pfn = pfn;
        let shadow = page.shadow.take();
        let folio_type = page.folio_type;
        if folio_type == FolioType::File && shadow.is_none() {
            let node = &mut self.world.nodes[(index - self.first_file) / 64];
            self.world.nr_nodes += usize::from(*node == 0);
            *node += 1;
        }
        let lruvec = self.lruvec();
        self.lru.folios.start(pfn, folio_type, 2, 0, lruvec);
        // A page from zram goes through the swap cache in 7.2, but bypasses it in 6.12.
        let through_cache = folio_type == FolioType::Anon
            && shadow.is_some()
            && self.lru.mglru.profile.name == "7.2";
        if through_cache {
            self.lru.folios[pfn].set(Flag::Swapcache);
        }
        if let Some(shadow) = shadow {
            self.lru.refault(&self.world, pfn, shadow, fault);
        }
        let context = AddContext {
            cpu: 0,
            fault_with_recency: fault,
            reclaiming: false,
        };
        self.lru.folio_add(pfn, context);
        self.lru.folios[pfn].clear(Flag::Swapcache);
    }

    fn access_mapped(&mut self, index: usize) {
        let page = self.world.pages[index];
        let vpn = page.vpn.expect("page can be mapped");
        if !self.world.pte(vpn).present() {
            let vma = self.world.vma_from(MM, vpn).expect("page is in a VMA");
            if !page.pfn.is_some() {
                if page.folio_type == FolioType::File || page.shadow.is_some() {
                    self.misses += 1;
                }
                self.bring_in(index, !vma.no_recency);
            }
            let pfn = self.world.pages[index].pfn;
            // A page found in the swap cache or page cache only needs to be mapped.
            *self.world.pte(vpn) = Pte::map(pfn);
            let table = self.world.table(vpn).expect("page is mapped");
            if !std::mem::replace(&mut self.world.filled_tables[table], true) {
                self.world.nr_tables += 1;
            }
            self.lru.folios[pfn].set(Flag::Mapped);
        }
        self.world.pte(vpn).touch(false);
        let table = self.world.table(vpn).expect("page is mapped");
        self.world.tables_young[table] = true;
    }

    /// Performs one touch.
    pub fn access(&mut self, touch: Touch) {
        match touch {
            Touch::Anon(page) => self.access_mapped(self.first_anon + page as usize),
            Touch::Mapped(page) => self.access_mapped(self.first_file + page as usize),
            Touch::Read(page) => {
                let index = self.first_file + page as usize;
                if !self.world.pages[index].pfn.is_some() {
                    self.misses += 1;
                    self.bring_in(index, false);
                }
                if self.last_read != Some(page) {
                    let pfn = self.world.pages[index].pfn;
                    self.lru.mark_accessed(pfn, 0);
                }
                self.last_read = Some(page);
            }
        }
    }

    /// Frees a page for good, as munmap or truncation does.
    pub fn remove(&mut self, index: usize) {
        let page = &mut self.world.pages[index];
        let pfn = std::mem::replace(&mut page.pfn, Pfn::NONE);
        page.shadow = None;
        if let Some(vpn) = page.vpn {
            *self.world.pte(vpn) = Pte::default();
        }
        self.lru.folio_removed(pfn);
        self.world.free_frames.push(pfn);
        if index >= self.first_file && index < self.first_own {
            let node = &mut self.world.nodes[(index - self.first_file) / 64];
            *node -= 1;
            self.world.nr_nodes -= usize::from(*node == 0);
        }
    }

    fn access_own(&mut self) {
        for index in self.first_own..self.first_own + OWN_PAGES {
            self.access_mapped(index);
        }
    }

    pub fn populate(&mut self, trace: &Trace) {
        self.access_own();
        for touch in trace.populate() {
            self.access(touch);
        }
        self.access_own();
    }

    pub fn run(&mut self, trace: &mut Trace, touches: u64) {
        for t in 0..touches {
            let touch = trace.touch(t);
            self.access(touch);
        }
        self.access_own();
    }

    /// The page in a frame.
    pub fn page_of(&self, pfn: Pfn) -> usize {
        self.world.page_of_frame[pfn.index()]
    }

    /// Checks the invariants of the lruvec.
    pub fn verify(&self) {
        let lruvec = self.lruvec();
        let state = &self.lru.lruvecs[lruvec.index()].mglru;
        if let Err(broken) = state.verify(&self.lru.folios, lruvec) {
            panic!("{broken}");
        }
    }

    /// Scanned, stolen and sorted pages so far.
    pub fn counts(&self) -> [u64; 3] {
        let events = &self.lru.lruvecs[self.lruvec().index()].events;
        [events.scanned(), events.stolen(), events.pgrefill]
    }
}
