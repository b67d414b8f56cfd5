// SPDX-License-Identifier: Apache-2.0
//! The memory of the machine as DAMON sees it: physical (mm/damon/paddr.c) or that of processes
//! (mm/damon/vaddr.c).

use agewise_damon::action::Action;
use agewise_damon::filter::{FilterKind, PageFilters};
use agewise_damon::profile::Profile;
use agewise_damon::space::{Applied, Space};
use agewise_damon::target::TargetId;
use agewise_kernel::folio::{Flag, FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, MemcgId, NodeId};
use agewise_kernel::page_table::{PAGES_PER_PMD, Pmd};
use agewise_kernel::reclaim::chosen::reclaim_chosen;
use agewise_kernel::reclaim::migration::migrate_chosen;
use agewise_policy::table::PAGE_BYTES as PAGE;

use super::super::address_space::Backing;
use super::super::page_cache::Entry;
use super::super::page_tables::swap_slot;
use super::super::{Begun, Machine, ProcessId};
use super::Watched;

/// The machine while kdamond runs.
pub(super) struct MachineSpace<'a> {
    machine: &'a mut Machine,
    profile: Profile,
    watched: &'a Watched,
    last_folio: &'a mut Vec<(Action, Pfn)>,
    /// Folios looked up since the last charge.
    lookups: u64,
    /// Start of the work that is not charged yet.
    begun: Begun,
}

impl<'a> MachineSpace<'a> {
    pub fn new(
        machine: &'a mut Machine,
        profile: Profile,
        watched: &'a Watched,
        last_folio: &'a mut Vec<(Action, Pfn)>,
    ) -> MachineSpace<'a> {
        let begun = machine.begin_work();
        MachineSpace {
            machine,
            profile,
            watched,
            last_folio,
            lookups: 0,
            begun,
        }
    }

    /// Advances the clock by the work done since the last charge.
    pub fn pay(&mut self) {
        let lookup_ns = self.machine.config.cost.damon_lookup_ns;
        self.machine.sys.now_ns += std::mem::take(&mut self.lookups) * lookup_ns;
        self.machine.charge_work(&self.begun);
        self.begun = self.machine.begin_work();
    }

    /// The folio of a frame, if it is on a list (`damon_get_folio`): not free, not isolated, not in
    /// a per-CPU batch.
    fn folio(&mut self, pfn: u64) -> Option<Pfn> {
        self.lookups += 1;
        let folios = &self.machine.lru.folios;
        let pfn = u32::try_from(pfn)
            .ok()
            .filter(|&pfn| (pfn as usize) < folios.len())?;
        let block = Pfn(pfn - pfn % PAGES_PER_PMD as u32);
        let spans = folios[block].order() > 0 && folios[block].lruvec != LruvecId::NONE;
        let head = if spans { block } else { Pfn(pfn) };
        let folio = &folios[head];
        let listed = folio.has(Flag::Lru) && !folio.has(Flag::BatchPending);
        (listed && folio.lruvec != LruvecId::NONE).then_some(head)
    }

    /// Whether the folio lock is needed and held by another task; DAMON only tries it. File pages
    /// always need it, in some kernels all mapped pages.
    fn is_contended(&self, pfn: Pfn) -> bool {
        let folio = &self.machine.lru.folios[pfn];
        let needs = self.profile.locks_anon_folios || folio.folio_type() == FolioType::File;
        needs && folio.has(Flag::Locked)
    }

    /// Clears the accessed bits of a folio's mappings, keeps them for reclaim, and marks the folio
    /// idle (`damon_folio_mkold`).
    fn make_folio_old(&mut self, pfn: Pfn) {
        let machine = &mut *self.machine;
        let mut young = false;
        let mut index = 0;
        while let Some(mapping) = machine.sys.frames.mapping(pfn, index) {
            index += 1;
            machine.lru.work.rmap_visits += 1;
            young |= match machine.sys.tables.pmd(mapping.mm, mapping.vpn) {
                Pmd::None => false,
                Pmd::Leaf(leaf) => leaf.test_clear_young(),
                Pmd::Table(table) => {
                    table[(mapping.vpn % PAGES_PER_PMD) as usize].test_clear_young()
                }
            };
        }
        let folio = &mut machine.lru.folios[pfn];
        if young {
            folio.set(Flag::Young);
        }
        folio.set(Flag::Idle);
    }

    /// Whether a folio was accessed since it was made old (`damon_folio_young`).
    fn is_folio_young(&mut self, pfn: Pfn) -> bool {
        let machine = &mut *self.machine;
        if !machine.lru.folios[pfn].has(Flag::Idle) {
            return true;
        }
        let mut index = 0;
        while let Some(mapping) = machine.sys.frames.mapping(pfn, index) {
            index += 1;
            machine.lru.work.rmap_visits += 1;
            let young = match machine.sys.tables.pmd(mapping.mm, mapping.vpn) {
                Pmd::None => false,
                Pmd::Leaf(leaf) => leaf.young(),
                Pmd::Table(table) => table[(mapping.vpn % PAGES_PER_PMD) as usize].young(),
            };
            if young {
                return true;
            }
        }
        false
    }

    /// Whether a folio matches a filter (`damos_folio_filter_match`).
    fn is_of_kind(&mut self, pfn: Pfn, kind: FilterKind) -> bool {
        match kind {
            FilterKind::Anon => self.machine.lru.folios[pfn].folio_type() == FolioType::Anon,
            FilterKind::Young => {
                let young = !self.is_contended(pfn) && self.is_folio_young(pfn);
                if young {
                    self.make_folio_old(pfn);
                }
                young
            }
        }
    }

    /// Whether the action has just handled this folio, at the end of the region to the left.
    fn met_before(&mut self, action: Action, pfn: Pfn) -> bool {
        if !self.profile.remembers_last_folio {
            return false;
        }
        match self.last_folio.iter_mut().find(|(of, _)| *of == action) {
            Some((_, last)) => std::mem::replace(last, pfn) == pfn,
            None => {
                self.last_folio.push((action, pfn));
                false
            }
        }
    }

    fn apply_physical(
        &mut self,
        start: u64,
        end: u64,
        action: Action,
        filters: &PageFilters,
    ) -> Applied {
        let mut applied = Applied::default();
        let supported = match action {
            // Counting has to look at the pages only if filters apply to it.
            Action::Stat => !filters.list.is_empty() && self.profile.stat_applies_filters,
            Action::Pageout | Action::LruPrio | Action::LruDeprio => true,
            Action::MigrateHot(node) | Action::MigrateCold(node) => {
                node < self.machine.config.all_nodes()
            }
            Action::Cold | Action::Willneed => false,
        };
        if !supported {
            return applied;
        }
        let cpu = self.machine.sys.cpu;
        let mut chosen = Vec::new();
        let mut pfn = start / PAGE;
        while pfn < end / PAGE {
            let Some(head) = self.folio(pfn) else {
                pfn += 1;
                continue;
            };
            let pages = self.machine.lru.folios[head].nr_pages();
            pfn = (u64::from(head.0) + pages).max(pfn + 1);
            if self.met_before(action, head) || !filters.passes(|kind| self.is_of_kind(head, kind))
            {
                continue;
            }
            applied.filter_passed_bytes += pages * PAGE;
            let lru = &mut self.machine.lru;
            match (action, self.profile.prio_activates) {
                (Action::LruPrio, false) => lru.mark_accessed(head, cpu),
                (Action::LruPrio, true) => lru.activate(head, cpu),
                (Action::LruDeprio, _) => lru.deactivate(head, cpu),
                (Action::Pageout, _) => {
                    lru.folios[head].clear(Flag::Referenced);
                    lru.folios[head].clear(Flag::Young);
                    chosen.push(head);
                    continue;
                }
                (Action::MigrateHot(_) | Action::MigrateCold(_), _) => {
                    chosen.push(head);
                    continue;
                }
                _ => continue,
            }
            applied.bytes += pages * PAGE;
        }
        if !chosen.is_empty() {
            applied.bytes = PAGE
                * match action {
                    Action::MigrateHot(node) | Action::MigrateCold(node) => {
                        self.migrate(&chosen, NodeId(node))
                    }
                    _ => self.reclaim(&chosen),
                };
        }
        applied
    }

    fn reclaim(&mut self, pfns: &[Pfn]) -> u64 {
        let Machine { lru, sys, .. } = &mut *self.machine;
        let cpu = sys.cpu;
        reclaim_chosen(lru, sys, cpu, pfns).iter().sum()
    }

    fn migrate(&mut self, pfns: &[Pfn], node: NodeId) -> u64 {
        let Machine { lru, sys, .. } = &mut *self.machine;
        let cpu = sys.cpu;
        let moved = migrate_chosen(lru, sys, cpu, pfns, node);
        sys.counters.migrated += moved;
        moved
    }

    fn process(&self, target: TargetId) -> Option<ProcessId> {
        match self.watched {
            Watched::Physical(_) => None,
            Watched::Virtual(processes) => processes
                .get(target.0 as usize)
                .copied()
                .filter(|&process| self.machine.is_alive(process)),
        }
    }

    /// The folio a process has mapped at a page, and whether its accessed bit is set; `clear`
    /// clears the bit.
    fn leaf(&mut self, process: ProcessId, vpn: u64, clear: bool) -> Option<(Pfn, bool)> {
        let (mm, index) = (process.mm(), (vpn % PAGES_PER_PMD) as usize);
        let leaf = match self.machine.sys.tables.pmd(mm, vpn) {
            Pmd::None => return None,
            Pmd::Leaf(leaf) => leaf,
            Pmd::Table(table) => &mut table[index],
        };
        if !leaf.present() || leaf.is_special() {
            return None;
        }
        let (pfn, young) = (leaf.pfn(), leaf.young());
        // Pages that are on no list are not sampled, and keep their bit.
        let head = self.folio(pfn.0.into())?;
        if clear {
            match self.machine.sys.tables.pmd(mm, vpn) {
                Pmd::Leaf(leaf) => leaf.test_clear_young(),
                Pmd::Table(table) => table[index].test_clear_young(),
                Pmd::None => false,
            };
        }
        Some((head, young))
    }

    /// Applies advice to a range of a process's memory (`do_madvise`). Page filters do not apply.
    fn advise(&mut self, process: ProcessId, start: u64, end: u64, action: Action) -> Applied {
        let bytes = match action {
            Action::Pageout | Action::Cold | Action::Willneed => end - start,
            Action::Stat
            | Action::LruPrio
            | Action::LruDeprio
            | Action::MigrateHot(_)
            | Action::MigrateCold(_) => return Applied::default(),
        };
        let (mut vpn, end_vpn) = (start / PAGE, end / PAGE);
        let mut chosen = Vec::new();
        while let Some(at) = self
            .machine
            .sys
            .tables
            .next_mapped(process.mm(), vpn, end_vpn)
        {
            vpn = at + 1;
            self.machine.lru.work.pte_checks += 1;
            if action == Action::Willneed {
                // Reclaim for the page is charged where it is done.
                self.pay();
                self.fetch(process, at);
                self.begun = self.machine.begin_work();
                continue;
            }
            let Some((pfn, _)) = self.leaf(process, at, false) else {
                continue;
            };
            let folio = &self.machine.lru.folios[pfn];
            let pages = folio.nr_pages();
            let whole = at.is_multiple_of(pages) && at + pages <= end_vpn;
            // Pages that others map too are left alone; a part of a large page would have to be
            // split off.
            if !whole || self.machine.sys.frames.mapcount(pfn) != 1 || folio.has(Flag::Unevictable)
            {
                continue;
            }
            vpn = at + pages;
            self.leaf(process, at, true);
            let cpu = self.machine.sys.cpu;
            let lru = &mut self.machine.lru;
            let folio = &mut lru.folios[pfn];
            folio.clear(Flag::Referenced);
            folio.clear(Flag::Young);
            if folio.has(Flag::Active) {
                folio.set(Flag::Workingset);
            }
            if action == Action::Cold {
                lru.deactivate(pfn, cpu);
            } else {
                chosen.push(pfn);
            }
        }
        self.reclaim(&chosen);
        Applied {
            bytes,
            filter_passed_bytes: bytes,
            cost_ns: 0,
        }
    }

    /// Reads a page from swap or from a mapped file, and leaves it unmapped (`madvise_willneed`).
    fn fetch(&mut self, process: ProcessId, vpn: u64) {
        let mm = process.mm();
        let Some(range) = self.machine.sys.spaces.find(mm, vpn) else {
            return;
        };
        let leaf = self.machine.sys.tables.leaf(mm, vpn);
        if let Some(slot) = leaf.and_then(swap_slot) {
            if !self.machine.sys.swap[slot].cached().is_some() {
                // The process is over its limit or was killed: advice may be ignored.
                let _ = self.machine.swap_in(process, vpn, slot, &range.vma);
            }
        } else if let Backing::File { file, first_page } = range.backing {
            let index = first_page + (vpn - range.vma.start_vpn) as u32;
            let cache = &self.machine.sys.files[file as usize].cache;
            if index < cache.len() && !matches!(cache.get(index), Entry::Present(_)) {
                let _ = self
                    .machine
                    .read_into_cache(process, file, index, false, true);
            }
        }
    }
}

impl Space for MachineSpace<'_> {
    fn now_us(&self) -> u64 {
        self.machine.sys.now_ns / 1000
    }

    fn is_physical(&self) -> bool {
        matches!(self.watched, Watched::Physical(_))
    }

    fn ranges(&mut self, target: TargetId, ranges: &mut Vec<(u64, u64)>) {
        if let Watched::Physical(range) = self.watched {
            let all = u64::from(self.machine.sys.frames.len()) * PAGE;
            let (start, end) = range.unwrap_or((0, all));
            ranges.push((start.min(all), end.min(all)));
        } else if let Some(process) = self.process(target) {
            let mapped = self.machine.sys.spaces.ranges(process.mm()).iter();
            let mapped = mapped.map(|range| (range.vma.start_vpn * PAGE, range.vma.end_vpn * PAGE));
            ranges.extend(three_ranges(&mapped.collect::<Vec<_>>()));
        }
    }

    fn make_old(&mut self, target: TargetId, addr: u64) {
        if self.is_physical() {
            if let Some(pfn) = self.folio(addr / PAGE)
                && !self.is_contended(pfn)
            {
                self.make_folio_old(pfn);
            }
        } else if let Some(process) = self.process(target)
            && let Some((pfn, young)) = self.leaf(process, addr / PAGE, true)
        {
            self.machine.lru.work.pte_checks += 1;
            let folio = &mut self.machine.lru.folios[pfn];
            if young {
                folio.set(Flag::Young);
            }
            folio.set(Flag::Idle);
        }
    }

    fn accessed(&mut self, target: TargetId, addr: u64) -> bool {
        if self.is_physical() {
            let folio = self.folio(addr / PAGE);
            return folio.is_some_and(|pfn| !self.is_contended(pfn) && self.is_folio_young(pfn));
        }
        let Some(process) = self.process(target) else {
            return false;
        };
        self.machine.lru.work.pte_checks += 1;
        self.leaf(process, addr / PAGE, false)
            .is_some_and(|(pfn, young)| young || !self.machine.lru.folios[pfn].has(Flag::Idle))
    }

    fn apply(
        &mut self,
        target: TargetId,
        start: u64,
        end: u64,
        action: Action,
        filters: &PageFilters,
    ) -> Applied {
        self.pay();
        let start_ns = self.machine.sys.now_ns;
        let mut applied = match self.process(target) {
            Some(process) => self.advise(process, start, end, action),
            None if self.is_physical() => self.apply_physical(start, end, action, filters),
            None => Applied::default(),
        };
        self.pay();
        applied.cost_ns = self.machine.sys.now_ns - start_ns;
        applied
    }

    fn free_mem_permille(&self) -> u64 {
        let frames = &self.machine.sys.frames;
        frames.total_free() * 1000 / u64::from(frames.len()).max(1)
    }

    fn active_mem_bp(&self) -> u64 {
        let pages = |active| -> u64 {
            (0..self.machine.lru.lruvecs.len() as u32)
                .flat_map(|lruvec| FolioType::ALL.map(|of| (LruvecId(lruvec), of)))
                .map(|(lruvec, of)| self.machine.lru.lru_pages(lruvec, of, active))
                .sum()
        };
        let (active, inactive) = (pages(true), pages(false));
        active * 10_000 / (active + inactive).max(1)
    }

    fn mem_psi_us(&self) -> u64 {
        self.machine.sys.stalls.groups[MemcgId::ROOT.index()].some_ns / 1000
    }
}

/// Groups mapped ranges into at most three, cut at the two largest gaps
/// (`__damon_va_three_regions`). The kernel refuses an address space with fewer gaps; a process of
/// the lab may have none.
fn three_ranges(mapped: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut gaps: Vec<(u64, usize)> = mapped
        .windows(2)
        .enumerate()
        .map(|(at, pair)| (pair[1].0 - pair[0].1, at + 1))
        .filter(|(bytes, _)| *bytes > 0)
        .collect();
    gaps.sort_unstable_by_key(|&(bytes, at)| (std::cmp::Reverse(bytes), at));
    let mut cuts: Vec<usize> = gaps.iter().take(2).map(|&(_, at)| at).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([mapped.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    starts
        .zip(ends)
        .filter(|(start, end)| start < end)
        .map(|(start, end)| (mapped[start].0, mapped[end - 1].1))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_the_two_largest_gaps() {
        let mapped = [(0, 10), (12, 20), (50, 60), (61, 70), (500, 501)];
        assert_eq!(three_ranges(&mapped), [(0, 20), (50, 70), (500, 501)]);
        assert_eq!(three_ranges(&mapped[..2]), [(0, 10), (12, 20)]);
        assert_eq!(three_ranges(&[(4, 8)]), [(4, 8)]);
        assert_eq!(three_ranges(&[]), []);
    }
}
