// SPDX-License-Identifier: Apache-2.0
//! Invariants that hold between operations, for tests and debugging.

use std::collections::BTreeMap;

use agewise_kernel::batch::CpuBatches;
use agewise_kernel::classic::List;
use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId};
use agewise_kernel::page_table::{PAGES_PER_PMD, Pte};

use super::Machine;
use super::frames::Owner;
use super::page_cache::Entry;
use super::page_tables::swap_slot;

impl Machine {
    /// Checks that frames, mappings, swap slots, page cache, charges and lists agree.
    ///
    /// # Errors
    /// The first disagreement, in words.
    pub fn check(&self) -> Result<(), String> {
        let swapped = self.check_mappings()?;
        self.check_slots(&swapped)?;
        self.check_cache()?;
        self.check_charges()?;
        self.check_written()?;
        self.check_lists()?;
        self.check_events()
    }

    /// Nothing is stolen that was not scanned. Pages chosen by a caller come back without having
    /// been stolen.
    fn check_events(&self) -> Result<(), String> {
        let events = self.memcg_events(MemcgId::ROOT);
        let by_reclaimer = [
            [events.pgsteal_kswapd, events.pgscan_kswapd],
            [events.pgsteal_direct, events.pgscan_direct],
            [events.pgsteal_limit, events.pgscan_limit],
            [events.pgsteal_proactive, events.pgscan_proactive],
        ];
        let stolen: u64 = by_reclaimer.iter().map(|[stolen, _]| stolen).sum();
        let scanned: u64 = by_reclaimer.iter().map(|[_, scanned]| scanned).sum();
        let sums_agree = events.stolen() == stolen && events.scanned() == scanned;
        let at_most =
            |few: &[u64; 2], many: &[u64; 2]| few.iter().zip(many).all(|(few, many)| few <= many);
        let plausible = by_reclaimer
            .iter()
            .all(|[stolen, scanned]| stolen <= scanned)
            && at_most(&events.pgsteal, &events.pgscan)
            && at_most(&events.workingset_activate, &events.workingset_refault)
            && at_most(&events.workingset_restore, &events.workingset_refault);
        match sums_agree && plausible {
            true => Ok(()),
            false => Err(format!("events contradict each other: {events:?}")),
        }
    }

    /// Pages that are dirty or under writeback are counted on their node, dirty ones of files in
    /// their cgroup.
    fn check_written(&self) -> Result<(), String> {
        let mut found = vec![0; self.sys.frames.nodes()];
        let mut dirty_pages = vec![0; self.sys.memcgs.len()];
        let mut under_writeback = 0;
        for pfn in (0..self.sys.frames.len()).map(Pfn) {
            let folio = &self.lru.folios[pfn];
            let dirty = folio.has(Flag::Dirty) && folio.folio_type() == FolioType::File;
            let states = u64::from(dirty) + u64::from(folio.has(Flag::Writeback));
            under_writeback += u64::from(folio.has(Flag::Writeback));
            found[self.sys.frames.node_of(pfn).index()] += states * folio.nr_pages();
            if dirty {
                dirty_pages[self.sys.memcg_of_lruvec(folio.lruvec).index()] += folio.nr_pages();
            }
        }
        for (index, &found) in dirty_pages.iter().enumerate() {
            let group = &self.sys.memcgs[MemcgId(index as u32)];
            if group.dirty_pages != found {
                let (path, kept) = (&group.path, group.dirty_pages);
                return Err(format!("{path}: {found} dirty pages, {kept} kept"));
            }
        }
        let kept = self.sys.clock.under_writeback;
        if kept != under_writeback {
            return Err(format!("{under_writeback} pages are written, {kept} kept"));
        }
        let kept = &self.sys.write_pending_pages;
        if *kept != found {
            return Err(format!("{found:?} pages are to be written, {kept:?} kept"));
        }
        Ok(())
    }

    /// Checks that leaves and the reverse map agree. Returns how many leaves refer to each swap
    /// slot.
    fn check_mappings(&self) -> Result<BTreeMap<u32, u32>, String> {
        let mut swapped = BTreeMap::new();
        let mut mapped: BTreeMap<u32, usize> = BTreeMap::new();
        for mm in self.sys.spaces.ids() {
            let mut resident = [0, 0];
            let mut note = |leaf: Pte, pages: u64| {
                let pfn = leaf.pfn();
                *mapped.entry(pfn.0).or_default() += 1;
                resident[self.lru.folios[pfn].folio_type().index()] += pages;
            };
            for start_vpn in self.sys.tables.ranges(mm) {
                if let Some(leaf) = self.sys.tables.huge_leaf(mm, start_vpn) {
                    note(leaf, PAGES_PER_PMD);
                    continue;
                }
                for vpn in start_vpn..start_vpn + PAGES_PER_PMD {
                    match self.sys.tables.leaf(mm, vpn) {
                        Some(leaf) if leaf.present() && !leaf.is_special() => note(leaf, 1),
                        Some(leaf) => {
                            if let Some(slot) = swap_slot(leaf) {
                                *swapped.entry(slot).or_default() += 1;
                            }
                        }
                        None => {}
                    }
                }
            }
            let kept = self.sys.spaces[mm].resident_pages;
            if self.sys.spaces[mm].alive && kept != resident {
                return Err(format!("mm {}: {resident:?} mapped, {kept:?} kept", mm.0));
            }
        }
        for frame in 0..self.sys.frames.len() {
            let found = mapped.get(&frame).copied().unwrap_or(0);
            let kept = self.sys.frames.mapcount(Pfn(frame));
            if found != kept || self.lru.folios[Pfn(frame)].has(Flag::Mapped) != (kept > 0) {
                return Err(format!("frame {frame}: mapped {found} times, {kept} kept"));
            }
        }
        Ok(swapped)
    }

    fn check_slots(&self, named: &BTreeMap<u32, u32>) -> Result<(), String> {
        for (&slot, &leaves) in named {
            if self.sys.swap[slot].references != leaves {
                let kept = self.sys.swap[slot].references;
                return Err(format!(
                    "slot {slot}: named by {leaves} leaves, {kept} kept"
                ));
            }
        }
        let in_cache = (0..self.sys.frames.len())
            .filter_map(|frame| match self.sys.frames.owner(Pfn(frame)) {
                Owner::Swap { slot } => Some((slot, self.lru.folios[Pfn(frame)].nr_pages())),
                Owner::None | Owner::File { .. } => None,
            })
            .flat_map(|(slot, pages)| slot..slot + pages as u32)
            .filter(|slot| !named.contains_key(slot));
        let used = named.len() + in_cache.count();
        if used != self.sys.swap.used() as usize {
            let kept = self.sys.swap.used();
            return Err(format!("{used} slots are needed, {kept} are used"));
        }
        Ok(())
    }

    fn check_cache(&self) -> Result<(), String> {
        for (number, file) in self.sys.files.iter().enumerate() {
            for index in 0..file.cache.len() {
                let Entry::Present(pfn) = file.cache.get(index) else {
                    continue;
                };
                let expected = Owner::File {
                    file: number as u32,
                    index,
                };
                if self.sys.frames.owner(pfn) != expected {
                    return Err(format!(
                        "file {number} page {index} is not in frame {}",
                        pfn.0
                    ));
                }
            }
        }
        Ok(())
    }

    /// Pages in memory, and nothing else, are charged to the cgroup of their lruvec.
    fn check_charges(&self) -> Result<(), String> {
        let mut resident = vec![[0u64; 2]; self.sys.memcgs.len()];
        let mut in_use = 0;
        for frame in 0..self.sys.frames.len() {
            let folio = &self.lru.folios[Pfn(frame)];
            if folio.lruvec == LruvecId::NONE {
                continue;
            }
            let memcg = self.sys.memcg_of_lruvec(folio.lruvec);
            resident[memcg.index()][folio.folio_type().index()] += folio.nr_pages();
            in_use += folio.nr_pages();
        }
        for (index, &found) in resident.iter().enumerate() {
            let group = &self.sys.memcgs[MemcgId(index as u32)];
            if group.resident_pages != found {
                let (path, kept) = (&group.path, group.resident_pages);
                return Err(format!("{path}: {found:?} pages in memory, {kept:?} kept"));
            }
        }
        let compressed = self
            .sys
            .compressed
            .as_ref()
            .map_or(0, |store| store.used_frames() as u64);
        let free = self.sys.frames.total_free();
        if in_use + compressed + free != u64::from(self.sys.frames.len()) {
            return Err(format!(
                "{in_use} frames in use, {compressed} compressed, {free} free of {}",
                self.sys.frames.len()
            ));
        }
        let root = &self.sys.memcgs[MemcgId::ROOT];
        if root.usage_pages < in_use {
            return Err(format!("{in_use} pages, {} charged", root.usage_pages));
        }
        Ok(())
    }

    /// The zones' lists add up to the lruvecs' lists, and no batch is larger than its zone.
    fn check_zones(&self) -> Result<(), String> {
        let zones = self.zones();
        for list in List::ALL {
            let by_zone: u64 = zones.iter().map(|zone| zone.lists[list.index()]).sum();
            let lruvecs = self.lru.lruvecs.iter();
            let by_lruvec: u64 = lruvecs.map(|lruvec| lruvec.classic.total_pages(list)).sum();
            if by_zone != by_lruvec {
                return Err(format!("{list:?}: {by_zone} in zones, {by_lruvec} listed"));
            }
        }
        for zone in zones {
            if zone.free > zone.managed || zone.alloc_batch > zone.managed as i64 {
                return Err(format!("more than there is: {zone:?}"));
            }
        }
        Ok(())
    }

    /// A page is on the lists of the zone or node its frame belongs to.
    fn check_place(&self, pfn: Pfn) -> Result<(), String> {
        let folio = &self.lru.folios[pfn];
        let node = self.sys.frames.node_of(pfn);
        let zone = self.sys.frames.zone_of(pfn);
        let expected = self.sys.list_scope.reclaim_node(node, zone);
        let found = self.lru.lruvecs[folio.lruvec.index()].node;
        if found == expected && folio.zone() == zone {
            return Ok(());
        }
        Err(format!(
            "frame {} of zone {zone}: zone {}, lists of {}",
            pfn.0,
            folio.zone(),
            found.0
        ))
    }

    /// Every page in memory is on a list or in a batch; lists hold nothing else.
    fn check_lists(&self) -> Result<(), String> {
        let mut on_lists = vec![0u64; self.lru.lruvecs.len()];
        for frame in 0..self.sys.frames.len() {
            let folio = &self.lru.folios[Pfn(frame)];
            if folio.has(Flag::Lru) && !folio.has(Flag::Unevictable) {
                if folio.lruvec == LruvecId::NONE {
                    return Err(format!("free frame {frame} is on a list"));
                }
                on_lists[folio.lruvec.index()] += folio.nr_pages();
                self.check_place(Pfn(frame))?;
            }
        }
        self.check_zones()?;
        for batch in self.lru.cpus.iter().flat_map(CpuBatches::of_listed) {
            let is_marked = |pfn: &Pfn| self.lru.folios[*pfn].has(Flag::BatchPending);
            if let Some(pfn) = batch.iter().find(|pfn| !is_marked(pfn)) {
                return Err(format!("frame {} waits in a batch without a mark", pfn.0));
            }
        }
        for (index, &found) in on_lists.iter().enumerate() {
            let id = LruvecId(index as u32);
            let kept: u64 = FolioType::ALL
                .into_iter()
                .flat_map(|of| [true, false].map(|active| self.lru.lru_pages(id, of, active)))
                .sum();
            if kept != found {
                return Err(format!("lruvec {index}: {found} pages listed, {kept} kept"));
            }
            self.lru.lruvecs[index]
                .mglru
                .verify(&self.lru.folios, id)
                .map_err(|error| format!("lruvec {index}: {error}"))?;
        }
        Ok(())
    }
}
