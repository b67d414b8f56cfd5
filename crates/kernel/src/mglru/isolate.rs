// SPDX-License-Identifier: Apache-2.0
//! Isolating folios for eviction from the tail of the oldest generation: sorts away those that do
//! not belong there (`scan_folios`, `sort_folio`, `isolate_folio`).

use crate::folio::{Flag, FolioList, FolioTable, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::{Lru, Lruvec};
use crate::reclaim::ScanControl;
use crate::tracepoint::Tracepoint;

use super::aging::inc_generation;
use super::insert::{del_folio, relist};
use super::settings::Settings;
use super::{MIN_LRU_BATCH, MIN_NR_GENS, NR_ZONES};

/// The result of a scan of one type, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scan {
    /// Looked at.
    pub examined: u64,
    /// Isolated.
    pub isolated: u64,
    /// Put back, because this reclaimer could do nothing with them.
    pub skipped: u64,
    /// Whether the budget ran out before the lists did.
    pub exhausted: bool,
}

impl Scan {
    pub(super) fn tracepoint(
        &self,
        folio_type: FolioType,
        budget: u64,
        sc: &ScanControl,
    ) -> Tracepoint {
        Tracepoint::Isolate {
            highest_zone: sc.reclaim_idx,
            order: sc.order,
            nr_requested: budget,
            nr_scanned: self.examined,
            nr_skipped: self.skipped,
            nr_taken: self.isolated,
            folio_type,
            active: false,
        }
    }
}

/// The result of sorting a folio at the tail.
enum Sorted {
    /// Moved elsewhere.
    Moved,
    /// A candidate for isolation.
    Candidate,
}

/// Scans the oldest generation of a type and appends the isolated folios to `batch`, oldest first.
/// Tiers above `threshold` are protected; at most `budget` folios are examined.
pub(super) fn scan_folios(
    lru: &mut Lru,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    folio_type: FolioType,
    threshold: usize,
    budget: u64,
    batch: &mut Vec<Pfn>,
) -> Scan {
    let Lru {
        folios,
        lruvecs,
        mglru: settings,
        work,
        ..
    } = lru;
    let lruvec = &mut lruvecs[lruvec.index()];
    let mut scan = Scan::default();
    if lruvec.mglru.nr_gens(folio_type) == MIN_NR_GENS as u64 {
        return scan;
    }
    let t = folio_type.index();
    let slot = lruvec.mglru.slot(lruvec.mglru.min_seq[t]) as usize;
    let mut sorted = 0;
    let mut remaining = budget;
    for back in 0..NR_ZONES {
        let zone = (sc.reclaim_idx + NR_ZONES - back) % NR_ZONES;
        let mut skipped = FolioList::default();
        let skipped_before = scan.skipped;
        loop {
            let pfn = lruvec.mglru.lists[slot][t][zone].tail();
            if !pfn.is_some() {
                break;
            }
            let nr_pages = folios[pfn].nr_pages();
            scan.examined += nr_pages;
            work.list_moves += 1;
            if let Sorted::Moved = sort(folios, lruvec, settings, sc, pfn, threshold) {
                sorted += nr_pages;
            } else if isolate(folios, lruvec, settings, sc, pfn) {
                batch.push(pfn);
                scan.isolated += nr_pages;
            } else {
                lruvec.mglru.lists[slot][t][zone].remove(folios, pfn);
                skipped.push_head(folios, pfn);
                scan.skipped += nr_pages;
            }
            remaining -= 1;
            if remaining == 0 || scan.isolated.max(scan.skipped - skipped_before) >= MIN_LRU_BATCH {
                break;
            }
        }
        if !skipped.is_empty() {
            let list = &mut lruvec.mglru.lists[slot][t][zone];
            skipped.append_tail(folios, list);
            *list = skipped;
        }
        if remaining == 0 || scan.isolated >= MIN_LRU_BATCH {
            break;
        }
    }
    scan.exhausted = remaining == 0;
    lruvec.events.count_refill(sc.reclaimer, sorted);
    lruvec
        .events
        .count_scan(sc.reclaimer, folio_type, scan.isolated);
    if folio_type == FolioType::File {
        sc.seen.file_taken += scan.isolated;
    }
    sc.seen.taken += scan.isolated;
    scan
}

/// Moves a folio to where it belongs, unless that is the oldest generation.
fn sort(
    folios: &mut FolioTable,
    lruvec: &mut Lruvec,
    settings: &Settings,
    sc: &ScanControl,
    pfn: Pfn,
    threshold: usize,
) -> Sorted {
    let profile = &settings.profile;
    let folio = &folios[pfn];
    let (folio_type, zone) = (folio.folio_type(), folio.zone());
    let t = folio_type.index();
    let here = lruvec.mglru.slot(lruvec.mglru.min_seq[t]);
    if folio.has(Flag::Mlocked) {
        del_folio(folios, lruvec, pfn, true);
        folios[pfn].set(Flag::Unevictable);
        lruvec.unevictable.push_head(folios, pfn);
        return Sorted::Moved;
    }
    let slot = folio.generation().expect("listed folio has a generation");
    if slot != here {
        // It was promoted by a walk, which does not move it between lists.
        relist(folios, &mut lruvec.mglru, pfn, slot, false);
        return Sorted::Moved;
    }
    let tier = profile.tier(folio);
    if tier > threshold || profile.always_protected(folio) {
        if profile.counts_as_protected(folio) {
            let state = &mut lruvec.mglru;
            let hist = state.history_slot(state.min_seq[t], settings.history);
            state.control.current[hist][t].protected[tier] += folio.nr_pages();
        }
        let next = inc_generation(folios, lruvec, profile, pfn);
        relist(
            folios,
            &mut lruvec.mglru,
            pfn,
            next,
            !profile.protect_to_head,
        );
        return Sorted::Moved;
    }
    if zone > sc.reclaim_idx {
        let next = inc_generation(folios, lruvec, profile, pfn);
        relist(folios, &mut lruvec.mglru, pfn, next, true);
        return Sorted::Moved;
    }
    let waits = folio.has_any(Flag::Writeback as u32 | Flag::Locked as u32)
        || folio_type == FolioType::File && folio.has(Flag::Dirty);
    if profile.sorts_dirty && waits {
        folios[pfn].set(Flag::Reclaim);
        let next = inc_generation(folios, lruvec, profile, pfn);
        relist(folios, &mut lruvec.mglru, pfn, next, false);
        return Sorted::Moved;
    }
    Sorted::Candidate
}

/// Takes a folio off its list for reclaim; returns false if this reclaimer could do nothing with
/// it.
fn isolate(
    folios: &mut FolioTable,
    lruvec: &mut Lruvec,
    settings: &Settings,
    sc: &ScanControl,
    pfn: Pfn,
) -> bool {
    let profile = &settings.profile;
    let folio = &mut folios[pfn];
    if profile.isolation_needs_io && !sc.io_allowed {
        let unswapped = folio.has(Flag::Swapbacked) && !folio.has(Flag::Swapcache);
        if folio.has(Flag::Dirty) || unswapped {
            return false;
        }
    }
    if !folio.test_clear(Flag::Lru) {
        return false;
    }
    profile.isolated(folio);
    del_folio(folios, lruvec, pfn, true);
    true
}
