// SPDX-License-Identifier: Apache-2.0
//! One round of eviction: choose type and tiers, isolate, reclaim, put back (`evict_folios`).

use crate::folio::{Flag, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::shrink_folios::shrink_folios;
use crate::reclaim::{BatchOutcome, ScanControl};
use crate::tracepoint::Tracepoint;
use crate::world::World;

use super::ablation::Part;
use super::aging::{evictable, evictable_min_seq, try_inc_min_seq};
use super::control::ControlPosition;
use super::isolate::{Scan, scan_folios};
use super::profile::{TypeChoice, UsageCount};
use super::{MAX_LRU_BATCH, MAX_SWAPPINESS, MIN_NR_GENS};

/// What to evict: a type, and the tier threshold if it was computed with the choice of the type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    folio_type: FolioType,
    threshold: Option<usize>,
}

/// How a batch was isolated.
#[derive(Clone, Copy)]
struct Isolated {
    folio_type: FolioType,
    /// Pages scanned for it.
    nr_scanned: u64,
}

/// Evicts once; returns the number of pages examined, 0 if there was no progress. For `Rounds`
/// profiles: up to 64 folios isolated out of 4096 examined.
pub(super) fn evict_round<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    swappiness: u32,
) -> u64 {
    let mut choice = choose(lru, lruvec, sc, swappiness);
    let mut batch = std::mem::take(&mut lru.mglru_machine.isolated);
    let mut scanned = 0;
    lru.work.lru_locks += 1;
    for _ in 0..evictable_types(swappiness) {
        let found = scan(lru, lruvec, sc, choice, MAX_LRU_BATCH, &mut batch);
        if found.examined > 0 {
            world.trace(&found.tracepoint(choice.folio_type, MAX_LRU_BATCH, sc));
        }
        if found.isolated > 0 || found.exhausted {
            scanned = found.examined;
            break;
        }
        choice = other(choice);
    }
    let Lru { lruvecs, mglru, .. } = lru;
    let state = &mut lruvecs[lruvec.index()];
    scanned += u64::from(try_inc_min_seq(state, mglru, swappiness));
    let leading = if swappiness > 0 {
        FolioType::Anon
    } else {
        FolioType::File
    };
    let is_out = match mglru.profile.file_may_lead {
        true => out_of_generations(lru, lruvec, swappiness),
        false => state.mglru.nr_gens(leading) == MIN_NR_GENS as u64,
    };
    if is_out {
        scanned = 0;
    }
    let isolated = Isolated {
        folio_type: choice.folio_type,
        nr_scanned: scanned,
    };
    reclaim_batch(lru, world, lruvec, sc, isolated, &mut batch);
    lru.mglru_machine.isolated = batch;
    scanned
}

/// Evicts once; returns the number of pages examined, at most `budget`.
pub(super) fn evict_batch<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    swappiness: u32,
    budget: u64,
) -> u64 {
    let Lru { lruvecs, mglru, .. } = lru;
    try_inc_min_seq(&mut lruvecs[lruvec.index()], mglru, swappiness);
    let mut choice = choose(lru, lruvec, sc, swappiness);
    let mut batch = std::mem::take(&mut lru.mglru_machine.isolated);
    let mut scanned = 0;
    lru.work.lru_locks += 1;
    for _ in 0..evictable_types(swappiness) {
        let found = scan(lru, lruvec, sc, choice, budget, &mut batch);
        if found.examined > 0 {
            world.trace(&found.tracepoint(choice.folio_type, budget, sc));
        }
        scanned += found.examined;
        if found.isolated > 0 {
            break;
        }
        if found.examined == 0 {
            choice = other(choice);
        }
    }
    if scanned > 0 {
        let Lru { lruvecs, mglru, .. } = lru;
        try_inc_min_seq(&mut lruvecs[lruvec.index()], mglru, swappiness);
    }
    let isolated = Isolated {
        folio_type: choice.folio_type,
        nr_scanned: scanned,
    };
    reclaim_batch(lru, world, lruvec, sc, isolated, &mut batch);
    lru.mglru_machine.isolated = batch;
    scanned
}

/// Number of types that may be evicted, which is how often an eviction tries.
fn evictable_types(swappiness: u32) -> usize {
    let types = FolioType::ALL.into_iter();
    types.filter(|&of| evictable(of, swappiness)).count()
}

fn other(choice: Choice) -> Choice {
    Choice {
        folio_type: choice.folio_type.other(),
        threshold: None,
    }
}

fn scan(
    lru: &mut Lru,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    choice: Choice,
    budget: u64,
    batch: &mut Vec<Pfn>,
) -> Scan {
    let threshold = if lru.mglru.ablation.lacks(Part::Protection) {
        usize::from(lru.mglru.profile.tiers) - 1
    } else {
        choice.threshold.unwrap_or_else(|| {
            let state = &lru.lruvecs[lruvec.index()].mglru;
            let oldest = state.min_seq[choice.folio_type.index()];
            let slot = state.history_slot(oldest, lru.mglru.history);
            state
                .control
                .tier_threshold(&lru.mglru.profile, slot, choice.folio_type, None)
        })
    };
    scan_folios(lru, lruvec, sc, choice.folio_type, threshold, budget, batch)
}

/// The type to evict from (`get_type_to_scan`).
pub(super) fn choose(lru: &Lru, lruvec: LruvecId, sc: &ScanControl, swappiness: u32) -> Choice {
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let [min_anon, min_file] = state.min_seq;
    let by_tier_zero = lru.mglru.profile.type_choice == TypeChoice::TierZero;
    let obvious = match swappiness {
        0 => Some(FolioType::File),
        _ if by_tier_zero && min_anon < min_file => Some(FolioType::Anon),
        1 => Some(FolioType::File),
        MAX_SWAPPINESS.. => Some(FolioType::Anon),
        _ if by_tier_zero && !sc.io_allowed => Some(FolioType::File),
        _ => None,
    };
    if let Some(folio_type) = obvious {
        return Choice {
            folio_type,
            threshold: None,
        };
    }
    let gain = |folio_type| match folio_type {
        FolioType::Anon => u64::from(swappiness),
        FolioType::File => u64::from(MAX_SWAPPINESS - swappiness),
    };
    let profile = &lru.mglru.profile;
    let tiers = match by_tier_zero {
        true => 1,
        false => usize::from(profile.tiers),
    };
    let slot = |folio_type: FolioType| {
        state.history_slot(state.min_seq[folio_type.index()], lru.mglru.history)
    };
    let position = |folio_type: FolioType| -> ControlPosition {
        state.control.position(
            profile,
            slot(folio_type),
            folio_type,
            0..tiers,
            gain(folio_type),
        )
    };
    let folio_type = if position(FolioType::Anon).tolerates(&position(FolioType::File)) {
        FolioType::File
    } else {
        FolioType::Anon
    };
    // Before 6.14, the tiers of the chosen type are compared with tier 0 of the other one.
    let threshold = by_tier_zero.then(|| {
        state.control.tier_threshold(
            profile,
            slot(folio_type),
            folio_type,
            Some((position(folio_type.other()), gain(folio_type))),
        )
    });
    Choice {
        folio_type,
        threshold,
    }
}

/// Reclaims isolated folios and puts the survivors back. A survivor that is clean and unmapped by
/// now has missed its rotation at the end of writeback, and is tried once more.
fn reclaim_batch<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    isolated: Isolated,
    batch: &mut Vec<Pfn>,
) {
    if batch.is_empty() {
        return;
    }
    let taken = batch.iter().map(|&pfn| lru.folios[pfn].nr_pages()).sum();
    let mut retried = std::mem::take(&mut lru.mglru_machine.retried);
    let outcome = shrink_folios(lru, world, lruvec, sc, batch, false);
    account(lru, world, lruvec, sc, taken, &outcome);
    trace_batch(lru, world, lruvec, sc, isolated, outcome);
    put_back(
        lru,
        lruvec,
        sc,
        isolated.folio_type,
        batch,
        Some(&mut retried),
    );
    if !retried.is_empty() {
        let outcome = shrink_folios(lru, world, lruvec, sc, &mut retried, false);
        account(lru, world, lruvec, sc, 0, &outcome);
        trace_batch(lru, world, lruvec, sc, isolated, outcome);
        put_back(lru, lruvec, sc, isolated.folio_type, &mut retried, None);
    }
    lru.mglru_machine.retried = retried;
}

/// Adds up the results of a batch, and wakes the flusher if all of it was dirty and unqueued.
fn account<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    taken: u64,
    outcome: &BatchOutcome,
) {
    sc.nr_reclaimed += outcome.reclaimed;
    sc.seen.dirty += outcome.seen.dirty;
    sc.seen.unqueued_dirty += outcome.seen.unqueued_dirty;
    sc.seen.congested += outcome.seen.congested;
    sc.seen.writeback += outcome.seen.writeback;
    sc.seen.immediate += outcome.seen.immediate;
    if lru.mglru.profile.flusher_per_batch && taken > 0 && outcome.seen.unqueued_dirty == taken {
        world.wake_flusher(lru.lruvecs[lruvec.index()].node);
    }
}

/// A retry of some folios reports the same scan count again, as in the kernel.
fn trace_batch<W: World>(
    lru: &Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &ScanControl,
    isolated: Isolated,
    outcome: BatchOutcome,
) {
    world.trace(&Tracepoint::ShrinkInactive {
        node: lru.lruvecs[lruvec.index()].node,
        nr_scanned: isolated.nr_scanned,
        outcome,
        priority: sc.priority,
        folio_type: isolated.folio_type,
    });
}

/// Puts survivors back where they belong, but never in the oldest generation. With `retry`, folios
/// that may have missed their rotation are returned in it instead.
fn put_back(
    lru: &mut Lru,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    folio_type: FolioType,
    batch: &mut Vec<Pfn>,
    mut retry: Option<&mut Vec<Pfn>>,
) {
    lru.work.lru_locks += 1;
    for pfn in batch.drain(..) {
        let folio = &mut lru.folios[pfn];
        if folio.has(Flag::Mlocked) {
            folio.set(Flag::Unevictable);
            folio.clear(Flag::Active);
        } else if let Some(retry) = retry.as_deref_mut().filter(|_| may_retry(lru, pfn)) {
            let nr_pages = lru.folios[pfn].nr_pages();
            sc.nr_scanned = sc.nr_scanned.saturating_sub(nr_pages);
            retry.push(pfn);
            continue;
        } else {
            reject(lru, lruvec, folio_type, pfn);
        }
        lru.folios[pfn].set(Flag::Lru);
        lru.list_add(pfn, false);
    }
    let state = &mut lru.lruvecs[lruvec.index()].mglru;
    lru.mglru_machine.walk.flush(state);
}

/// Whether a survivor may have missed its rotation at the end of writeback.
fn may_retry(lru: &Lru, pfn: Pfn) -> bool {
    let folio = &lru.folios[pfn];
    let mut busy =
        Flag::Active as u32 | Flag::Mapped as u32 | Flag::Dirty as u32 | Flag::Writeback as u32;
    if lru.mglru.profile.usage == UsageCount::WorkingsetSecond {
        busy |= Flag::Referenced as u32 | Flag::Locked as u32;
    }
    !folio.has_any(busy)
}

/// Marks a survivor so that it does not return to the oldest generation.
fn reject(lru: &mut Lru, lruvec: LruvecId, folio_type: FolioType, pfn: Pfn) {
    let profile = lru.mglru.profile;
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let folio = &mut lru.folios[pfn];
    match profile.usage {
        UsageCount::WorkingsetSecond => {
            let waits = folio.has(Flag::Reclaim)
                && folio.has_any(Flag::Dirty as u32 | Flag::Writeback as u32);
            if !waits {
                profile.clear_uses(folio);
                folio.set(Flag::Active);
            }
        }
        UsageCount::WorkingsetLast => {
            let seq = profile.insertion_seq(folio, state.max_seq, state.min_seq, false);
            if seq == state.min_seq[folio_type.index()] {
                profile.clear_uses(folio);
                folio.set(Flag::Active);
            }
        }
    }
}

/// Whether nothing can be evicted without aging.
#[inline]
pub(super) fn out_of_generations(lru: &Lru, lruvec: LruvecId, swappiness: u32) -> bool {
    let state = &lru.lruvecs[lruvec.index()].mglru;
    evictable_min_seq(state.min_seq, swappiness) + MIN_NR_GENS as u64 > state.max_seq
}

#[cfg(test)]
mod tests {
    use super::super::ablation::Ablation;
    use super::super::insert::add_folio;
    use super::super::machine_for_tests;
    use super::*;
    use crate::folio::FolioList;
    use crate::ids::MemcgId;
    use crate::lru::Mode;
    use crate::reclaim::Reclaimer;

    /// A machine of three frames.
    fn machine(profile: &str) -> Lru {
        machine_for_tests::machine(profile, 3, 1, Mode::MultiGen)
    }

    #[test]
    fn older_anon_generations_and_no_io_decide_the_type_before_6_14_only() {
        let chosen = |profile: &str, min_seq: [u64; 2], refaults: u64, io_allowed| {
            let mut lru = machine(profile);
            let state = &mut lru.lruvecs[0].mglru;
            state.min_seq = min_seq;
            for slot in &mut state.control.current {
                slot[FolioType::File.index()].refaulted[0] = refaults;
            }
            let mut sc = ScanControl::new(Reclaimer::Direct, MemcgId::ROOT, 32);
            sc.io_allowed = io_allowed;
            choose(&lru, LruvecId(0), &sc, 60).folio_type
        };
        let (anon, file) = (FolioType::Anon, FolioType::File);
        for (profile, older_anon, no_io) in [
            ("v6", anon, file),
            ("6.12", anon, file),
            ("6.14", file, anon),
            ("7.2", file, anon),
        ] {
            assert_eq!(chosen(profile, [1, 1], 0, true), file, "{profile}");
            assert_eq!(chosen(profile, [1, 2], 0, true), older_anon, "{profile}");
            // File pages come back, anon pages do not.
            assert_eq!(chosen(profile, [1, 1], 10_000, true), anon, "{profile}");
            assert_eq!(chosen(profile, [1, 1], 10_000, false), no_io, "{profile}");
        }
    }

    /// The pages of a file that a scan of the oldest generation moves to the next, in the order in
    /// which they are there, oldest first. Each was read `reads` times, and pages of tier 2 come
    /// back after each eviction.
    fn protected(profile: &str, without: Ablation, reads: usize) -> Vec<u32> {
        let mut lru = machine(profile);
        lru.mglru.ablation = without;
        let profile = lru.mglru.profile;
        let (folios, lruvec) = (&mut lru.folios, &mut lru.lruvecs[0]);
        for pfn in (0..3).map(Pfn) {
            folios.start(pfn, FolioType::File, 2, 0, LruvecId(0));
            // At the tail of the oldest generation.
            add_folio(folios, lruvec, &profile, pfn, true);
            for _ in 0..reads {
                profile.mark_accessed(&mut folios[pfn]);
            }
        }
        for slot in &mut lruvec.mglru.control.current {
            let file = &mut slot[FolioType::File.index()];
            (file.evicted[2], file.refaulted[2]) = (1000, 1000);
        }
        let mut sc = ScanControl::new(Reclaimer::Direct, MemcgId::ROOT, 32);
        let choice = Choice {
            folio_type: FolioType::File,
            threshold: None,
        };
        scan(&mut lru, LruvecId(0), &mut sc, choice, 64, &mut Vec::new());
        let state = &lru.lruvecs[0].mglru;
        let next = state.slot(state.min_seq[FolioType::File.index()] + 1);
        let list = &state.lists[next as usize][FolioType::File.index()][2];
        let first = Some(list.tail()).filter(|pfn| pfn.is_some());
        let newer = |pfn: &Pfn| Some(FolioList::newer(&lru.folios, *pfn)).filter(|p| p.is_some());
        std::iter::successors(first, newer)
            .map(|pfn| pfn.0)
            .collect()
    }

    /// `sort_folio` moves them to the old end of the next generation up to 6.12, and to its young
    /// end since 6.14.
    #[test]
    fn what_comes_back_is_protected_at_the_end_that_the_kernel_chooses() {
        // The scan starts with the last one.
        let (old_end, young_end) = ([0, 1, 2], [2, 1, 0]);
        for (profile, order) in [
            ("v6", old_end),
            ("6.12", old_end),
            ("6.14", young_end),
            ("7.2", young_end),
        ] {
            assert_eq!(protected(profile, Ablation::NONE, 3), order, "{profile}");
            let read_once = protected(profile, Ablation::NONE, 1);
            assert_eq!(read_once, [], "{profile}: tier 0");
            let unprotected = protected(profile, Part::Protection.into(), 3);
            assert_eq!(unprotected, [], "{profile}: without protection");
        }
    }
}
