// SPDX-License-Identifier: Apache-2.0
//! A small world for tests of the policies: one process in one memory cgroup at its limit, zram for
//! swap, one CPU, and a clock that only advances by touches and faults.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod naive;
pub mod node;
pub mod trace;

use agewise_kernel::classic;
use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId, MmId, NodeId};
use agewise_kernel::page_table::{Mapping, Pmd, Pte, PteTable, Vma};
use agewise_kernel::reclaim::charge::{CHARGE_BATCH, ChargeRetry, ChargeStep};
use agewise_kernel::reclaim::memcg_limit::{CgroupRequest, try_to_free_mem_cgroup_pages};
use agewise_kernel::work::Events;
use agewise_kernel::world::{PageoutOutcome, Protection, Throttle, World, ZoneState};
use agewise_kernel::{AddContext, Lru, LruConfig, Mode};

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous memory.
    Anon,
    /// A file read through a descriptor.
    Read,
    /// A mapped file; `recency` is off under `MADV_RANDOM`.
    Mapped { recency: bool },
}

#[derive(Clone, Copy, Debug)]
enum Place {
    Untouched,
    Resident(Pfn),
    Evicted(u64),
}

/// The mechanism: frames, one page table, counters.
pub struct OneCgroup {
    places: Vec<Place>,
    owners: Vec<u32>,
    free: Vec<Pfn>,
    tables: Vec<Box<PteTable>>,
    /// The first page of each area and the kind of its pages.
    areas: Vec<(u64, Kind)>,
    usage: u64,
    stock: u64,
    limit: u64,
    now_ns: u64,
    pub has_swap: bool,
    pub pageouts: u64,
}

impl OneCgroup {
    fn kind(&self, page: u64) -> Kind {
        let area = self.areas.partition_point(|&(start, _)| start <= page);
        self.areas[area - 1].1
    }

    fn pte(&mut self, page: u64) -> &mut Pte {
        &mut self.tables[(page / 512) as usize][(page % 512) as usize]
    }
}

impl World for OneCgroup {
    fn now_ns(&self) -> u64 {
        self.now_ns
    }
    fn vma_from(&self, _: MmId, vpn: u64) -> Option<Vma> {
        let next = self.areas.partition_point(|&(start, _)| start <= vpn);
        let (start_vpn, kind) = self.areas[next - 1];
        let end = self.places.len() as u64;
        let end_vpn = self.areas.get(next).map_or(end, |area| area.0);
        if vpn >= end {
            return None;
        }
        Some(Vma {
            start_vpn,
            end_vpn,
            file: kind != Kind::Anon,
            shmem: false,
            locked: false,
            exec: false,
            shared: kind != Kind::Anon,
            no_recency: kind == Kind::Mapped { recency: false },
            special: false,
        })
    }
    fn pmd(&mut self, _: MmId, vpn: u64) -> Pmd<'_> {
        match self.tables.get_mut((vpn / 512) as usize) {
            Some(table) => Pmd::Table(table),
            None => Pmd::None,
        }
    }
    fn pmd_young(&self, _: MmId, _: u64) -> bool {
        true
    }
    fn clear_pmd_young(&mut self, _: MmId, _: u64) {}
    fn next_mapped(&self, _: MmId, vpn: u64, end_vpn: u64) -> Option<u64> {
        (vpn < end_vpn && vpn / 512 < self.tables.len() as u64).then_some(vpn)
    }
    fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping> {
        (index == 0).then(|| Mapping {
            mm: MmId(0),
            vpn: self.owners[pfn.index()].into(),
        })
    }
    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        folios[pfn].set(Flag::Swapcache);
        folios[pfn].set(Flag::Dirty);
        self.has_swap
    }
    fn unmap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool {
        let page = self.owners[pfn.index()];
        *self.pte(page.into()) = Pte::default();
        folios[pfn].clear(Flag::Mapped);
        true
    }
    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome {
        self.pageouts += 1;
        folios[pfn].clear(Flag::Dirty);
        PageoutOutcome::Written
    }
    fn free_evicted(&mut self, _: &mut FolioTable, pfn: Pfn, shadow: u64) {
        self.places[self.owners[pfn.index()] as usize] = Place::Evicted(shadow);
        self.free.push(pfn);
        self.usage -= 1;
    }
    fn wake_flusher(&mut self, _: NodeId) {}
    fn protection(&self, _: MemcgId, _: MemcgId) -> Protection {
        Protection::default()
    }
    fn swap_free_pages(&self, _: MemcgId) -> u64 {
        if self.has_swap { 1 << 17 } else { 0 }
    }
    fn zones(&self, _: NodeId) -> [ZoneState; 4] {
        let zone = ZoneState {
            managed_pages: 1 << 18,
            free_pages: 1 << 17,
            min_pages: 1 << 10,
            low_pages: 1 << 11,
            high_pages: 1 << 12,
            ..ZoneState::default()
        };
        [zone, zone, zone, ZoneState::default()]
    }
    fn shrink_slab(&mut self, _: MemcgId, _: NodeId, _: u32) -> u64 {
        0
    }
    fn throttle(&mut self, _: NodeId, _: Throttle, _: u64) {}
    fn oom_kill(&mut self, _: MemcgId) -> bool {
        true
    }
}

/// The speed of the machine and the flushes of its statistics.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    pub fault_ns: u64,
    pub touch_ns: u64,
    /// Time of the next periodic flush.
    pub next_flush_ns: u64,
    pub flush_period_ns: u64,
}

impl Timing {
    /// Without periodic flushes.
    pub fn without_flush() -> Timing {
        Timing {
            fault_ns: 0,
            touch_ns: 0,
            next_flush_ns: u64::MAX,
            flush_period_ns: 0,
        }
    }
}

/// The process was killed because its cgroup could not be reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomKill;

/// A process in a cgroup.
pub struct Sim {
    pub lru: Lru,
    pub world: OneCgroup,
    pub timing: Timing,
    /// Number of refaults.
    pub refaults: u64,
    /// Number of pages touched for the first time.
    pub first_touches: u64,
    /// Number of reclaim rounds.
    pub reclaims: u64,
    last_read: Option<u64>,
}

pub const MEMCG: MemcgId = MemcgId(1);
pub const LRUVEC: LruvecId = LruvecId(1);

impl Sim {
    /// A cgroup limited to `limit` pages and a process with the given areas, sized in pages.
    pub fn new(mode: Mode, classic: classic::Settings, limit: u64, areas: &[(u64, Kind)]) -> Sim {
        let frames = u32::try_from(limit).unwrap() + 1;
        let mut lru = Lru::new(LruConfig {
            frames,
            nodes: 1,
            cpus: 1,
            mode,
            now_ns: 0,
            seed: 1,
            mglru: Default::default(),
            classic,
        });
        assert_eq!(lru.memcg_online(MemcgId::ROOT, 60, 0), MEMCG);
        lru.mm_add(MmId(0), MEMCG);
        let mut starts = Vec::new();
        let mut end = 0;
        for &(pages, kind) in areas {
            starts.push((end, kind));
            end += pages.next_multiple_of(512);
        }
        let world = OneCgroup {
            places: vec![Place::Untouched; end as usize],
            owners: vec![u32::MAX; frames as usize],
            free: (0..frames).rev().map(Pfn).collect(),
            tables: (0..end / 512)
                .map(|_| Box::new([Pte::default(); 512]))
                .collect(),
            areas: starts,
            usage: 0,
            stock: 0,
            limit,
            now_ns: 0,
            has_swap: true,
            pageouts: 0,
        };
        Sim {
            lru,
            world,
            timing: Timing::without_flush(),
            refaults: 0,
            first_touches: 0,
            reclaims: 0,
            last_read: None,
        }
    }

    /// First page of the `index`-th area.
    pub fn area(&self, index: usize) -> u64 {
        self.world.areas[index].0
    }

    pub fn usage(&self) -> u64 {
        self.world.usage
    }

    pub fn events(&self) -> Events {
        self.lru.lruvecs[LRUVEC.index()].events
    }

    /// Resets the counts at the start of a phase.
    pub fn reset_counts(&mut self) {
        self.refaults = 0;
        self.first_touches = 0;
        self.reclaims = 0;
        self.lru.lruvecs[LRUVEC.index()].events.pgscan = [0; 2];
        self.lru.lruvecs[LRUVEC.index()].events.pgsteal = [0; 2];
        self.lru.lruvecs[LRUVEC.index()].events.pgrefill = 0;
        self.lru.lruvecs[LRUVEC.index()].events.pgactivate = 0;
    }

    fn pass_time(&mut self, ns: u64) {
        self.world.now_ns += ns;
        while self.world.now_ns >= self.timing.next_flush_ns {
            self.timing.next_flush_ns += self.timing.flush_period_ns;
            classic::flush_stats(&mut self.lru);
        }
    }

    /// Charges one page of kernel or user memory.
    pub fn charge(&mut self) -> Result<(), OomKill> {
        let world = &mut self.world;
        if world.stock == 0 && world.usage + CHARGE_BATCH <= world.limit {
            world.usage += CHARGE_BATCH;
            world.stock = CHARGE_BATCH;
        }
        let mut retry = ChargeRetry::new(1, false);
        loop {
            let world = &mut self.world;
            if world.stock > 0 {
                world.stock -= 1;
                return Ok(());
            }
            if world.usage < world.limit {
                world.usage += 1;
                return Ok(());
            }
            self.reclaims += 1;
            let request = CgroupRequest::limit(MEMCG, 0, NodeId(0));
            let reclaimed = try_to_free_mem_cgroup_pages(&mut self.lru, world, request);
            let room = world.limit - world.usage;
            match retry.after_reclaim(room, reclaimed) {
                ChargeStep::Retry => {}
                ChargeStep::DrainStocks => {
                    world.usage -= std::mem::take(&mut world.stock);
                }
                ChargeStep::Oom | ChargeStep::Fail => return Err(OomKill),
            }
        }
    }

    /// One access to a page.
    pub fn touch(&mut self, page: u64) -> Result<(), OomKill> {
        self.pass_time(self.timing.touch_ns);
        let kind = self.world.kind(page);
        let resident = match self.world.places[page as usize] {
            Place::Resident(pfn) => {
                if kind != Kind::Read {
                    self.world.pte(page).touch(false);
                }
                pfn
            }
            place => self.fault(page, kind, place)?,
        };
        if kind == Kind::Read {
            if self.last_read != Some(page) {
                self.lru.mark_accessed(resident, 0);
            }
            self.last_read = Some(page);
        }
        Ok(())
    }

    fn fault(&mut self, page: u64, kind: Kind, place: Place) -> Result<Pfn, OomKill> {
        self.charge()?;
        let pfn = self.world.free.pop().expect("a frame for a charged page");
        self.world.owners[pfn.index()] = u32::try_from(page).unwrap();
        let folio_type = match kind {
            Kind::Anon => FolioType::Anon,
            Kind::Read | Kind::Mapped { .. } => FolioType::File,
        };
        self.lru.folios.start(pfn, folio_type, 0, 0, LRUVEC);
        let fault_with_recency = matches!(kind, Kind::Anon | Kind::Mapped { recency: true });
        match place {
            Place::Evicted(shadow) => {
                self.refaults += 1;
                self.lru
                    .refault(&self.world, pfn, shadow, fault_with_recency);
            }
            _ => self.first_touches += 1,
        }
        self.world.places[page as usize] = Place::Resident(pfn);
        if kind != Kind::Read {
            *self.world.pte(page) = Pte::map(pfn);
            self.lru.folios[pfn].set(Flag::Mapped);
        }
        self.lru.folio_add(
            pfn,
            AddContext {
                cpu: 0,
                fault_with_recency,
                reclaiming: false,
            },
        );
        self.pass_time(self.timing.fault_ns);
        Ok(pfn)
    }

    /// Cold advice for a page.
    pub fn deactivate(&mut self, page: u64) {
        if let Place::Resident(pfn) = self.world.places[page as usize] {
            self.lru.deactivate(pfn, 0);
        }
    }

    /// The process frees a page.
    pub fn free(&mut self, page: u64) {
        if let Place::Resident(pfn) = self.world.places[page as usize] {
            self.lru.folio_removed(pfn);
            *self.world.pte(page) = Pte::default();
            self.world.places[page as usize] = Place::Untouched;
            self.world.free.push(pfn);
            self.world.usage -= 1;
        }
    }

    /// The page in a resident folio.
    pub fn page_of(&self, pfn: Pfn) -> u64 {
        self.world.owners[pfn.index()].into()
    }

    /// Number of pages in memory.
    pub fn resident_pages(&self) -> usize {
        let resident = |place: &&Place| matches!(place, Place::Resident(_));
        self.world.places.iter().filter(resident).count()
    }
}
