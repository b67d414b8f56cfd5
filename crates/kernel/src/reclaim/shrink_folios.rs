// SPDX-License-Identifier: Apache-2.0
//! Handling isolated folios (`shrink_folio_list`), shared by both LRUs.

use crate::folio::{Flag, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::{Lru, Mode};
use crate::reclaim::migration::{demote, demotion_target};
use crate::reclaim::references::{self, References};
use crate::reclaim::split;
use crate::reclaim::{BatchOutcome, Reclaimer, ScanControl, Seen};
use crate::world::{PageoutOutcome, World};

/// What to do with one folio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Freed.
    Freed,
    /// Back to the lists unchanged.
    Keep,
    /// Back to the lists, active.
    Activate,
    /// To be moved to a slower node.
    Demote,
}

/// What applies to all folios of a batch.
#[derive(Clone, Copy)]
struct Rules {
    /// Folios go whether they were referenced or not. Nobody has scanned them, and they do not
    /// count as stolen (`reclaim_folio_list`).
    ignore_references: bool,
    /// Folios move to a slower node instead of being freed.
    demotes: bool,
}

/// Reclaims from a batch of isolated folios, oldest first. On return the batch contains the
/// survivors in the same order, with `Active` set on those to activate. On a node with a slower one
/// below it, folios move there instead of being freed; those that cannot are reclaimed, except by
/// proactive reclaim, and come last in the batch. The pages of a folio that had to be split follow
/// each other. Counts `pgsteal` (unless it ignores references), `pgactivate` and `sc.nr_scanned`;
/// the caller counts `sc.nr_reclaimed` and `pgscan`.
pub fn shrink_folios<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    batch: &mut Vec<Pfn>,
    ignore_references: bool,
) -> BatchOutcome {
    let mut outcome = BatchOutcome::default();
    let node = lru.lruvecs[lruvec.index()].node;
    let target = demotion_target(lru, world, node, sc);
    let mut rules = Rules {
        ignore_references,
        demotes: target.is_some(),
    };
    let mut leaving = shrink_each(lru, world, sc, batch, rules, &mut outcome);
    if let Some(target) = target {
        outcome.reclaimed += demote(lru, world, lruvec, sc, target, &mut leaving);
        if sc.reclaimer != Reclaimer::Proactive {
            rules.demotes = false;
            shrink_each(lru, world, sc, &mut leaving, rules, &mut outcome);
        }
        batch.append(&mut leaving);
    }
    outcome
}

/// Decides on each folio of a batch, in which the survivors stay. Returns those to be moved to a
/// slower node.
fn shrink_each<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &mut ScanControl,
    batch: &mut Vec<Pfn>,
    rules: Rules,
    outcome: &mut BatchOutcome,
) -> Vec<Pfn> {
    let mut leaving = Vec::new();
    let mut tails = Vec::new();
    let (mut next, mut kept) = (0, 0);
    while let Some(&pfn) = batch.get(next) {
        next += 1;
        lru.end_writes(world, sc.cpu);
        match shrink_folio(lru, world, sc, pfn, rules, &mut tails, outcome) {
            Fate::Freed => {}
            Fate::Demote => leaving.push(pfn),
            Fate::Keep | Fate::Activate => {
                batch[kept] = pfn;
                kept += 1;
            }
        }
        if !tails.is_empty() {
            batch.splice(next..next, tails.drain(..));
        }
    }
    lru.end_writes(world, sc.cpu);
    batch.truncate(kept);
    leaving
}

/// Decides on one folio and counts it. If it had to be split, it is its first page now, and the
/// others are in `tails`.
fn shrink_folio<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &mut ScanControl,
    pfn: Pfn,
    rules: Rules,
    tails: &mut Vec<Pfn>,
    outcome: &mut BatchOutcome,
) -> Fate {
    let folio = &lru.folios[pfn];
    let (mut nr_pages, folio_type) = (folio.nr_pages(), folio.folio_type());
    let lruvec = folio.lruvec;
    let fate = decide(lru, world, sc, pfn, rules, tails, outcome);
    if !tails.is_empty() {
        nr_pages = 1;
    }
    if fate == Fate::Activate {
        free_scarce_swap(lru, world, pfn);
    }
    let events = &mut lru.lruvecs[lruvec.index()].events;
    match fate {
        Fate::Freed => {
            outcome.reclaimed += nr_pages;
            if !rules.ignore_references {
                events.count_steal(sc.reclaimer, folio_type, nr_pages);
            }
        }
        Fate::Activate if !lru.folios[pfn].has(Flag::Mlocked) => {
            lru.folios[pfn].set(Flag::Active);
            outcome.activated[folio_type.index()] += nr_pages;
            events.pgactivate += nr_pages;
        }
        Fate::Activate | Fate::Keep | Fate::Demote => {}
    }
    fate
}

/// A folio that stays in use gives its swap slot back if swap is scarce, or if it is locked.
fn free_scarce_swap<W: World>(lru: &mut Lru, world: &mut W, pfn: Pfn) {
    let folio = &lru.folios[pfn];
    let memcg = lru.lruvecs[folio.lruvec.index()].memcg;
    if folio.has(Flag::Swapcache) && (folio.has(Flag::Mlocked) || world.swap_is_full(memcg)) {
        world.free_swap(&mut lru.folios, pfn);
    }
}

/// Decides on one folio, in the order of the kernel's tests.
fn decide<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &mut ScanControl,
    pfn: Pfn,
    rules: Rules,
    tails: &mut Vec<Pfn>,
    outcome: &mut BatchOutcome,
) -> Fate {
    let folio = &lru.folios[pfn];
    if folio.has(Flag::Locked) {
        return Fate::Keep;
    }
    sc.nr_scanned += folio.nr_pages();
    if folio.has_any(Flag::Mlocked as u32 | Flag::Unevictable as u32) {
        return Fate::Activate;
    }
    let mapped = folio.has(Flag::Mapped);
    // Before 6.14, a walk that finds an isolated folio accessed sets this flag.
    if lru.mode.is_multi_gen()
        && lru.mglru.profile.first_sighting_promotes
        && !rules.ignore_references
        && mapped
        && folio.has(Flag::Referenced)
    {
        return Fate::Keep;
    }
    count_dirty(folio, &mut outcome.seen);
    if folio.has(Flag::Writeback) {
        return under_writeback(lru, sc, pfn, &mut outcome.seen);
    }
    let references = if rules.ignore_references {
        References::Reclaim
    } else {
        references::check(lru, world, pfn, sc)
    };
    match references {
        References::Activate => Fate::Activate,
        References::Keep => {
            outcome.ref_keep += lru.folios[pfn].nr_pages();
            Fate::Keep
        }
        References::Reclaim | References::ReclaimClean if rules.demotes => Fate::Demote,
        References::Reclaim | References::ReclaimClean => {
            let clean_only = references == References::ReclaimClean;
            reclaim(lru, world, sc, pfn, clean_only, tails, outcome)
        }
    }
}

/// Dirty and writeback states only count for file folios (`folio_check_dirty_writeback`).
fn count_dirty(folio: &crate::folio::Folio, seen: &mut Seen) {
    if folio.folio_type() == FolioType::Anon {
        return;
    }
    let nr_pages = folio.nr_pages();
    let (dirty, writeback) = (folio.has(Flag::Dirty), folio.has(Flag::Writeback));
    if dirty || writeback {
        seen.dirty += nr_pages;
    }
    if dirty && !writeback {
        seen.unqueued_dirty += nr_pages;
    }
    if writeback && folio.has(Flag::Reclaim) {
        seen.congested += nr_pages;
    }
}

/// A folio under writeback is not waited for: it is marked, and rotated to the tail when writeback
/// ends.
fn under_writeback(lru: &mut Lru, sc: &ScanControl, pfn: Pfn, seen: &mut Seen) -> Fate {
    let folio = &mut lru.folios[pfn];
    let node = lru.lruvecs[folio.lruvec.index()].node;
    let nr_pages = folio.nr_pages();
    if sc.reclaimer == Reclaimer::Kswapd
        && folio.has(Flag::Reclaim)
        && lru.node_flags[node.index()].writeback
    {
        seen.immediate += nr_pages;
    } else {
        folio.set(Flag::Reclaim);
        seen.writeback += nr_pages;
    }
    out_of_the_way(lru)
}

/// Where to put a folio that can only be freed after it has been written.
fn out_of_the_way(lru: &Lru) -> Fate {
    if lru.mode == Mode::Classic && lru.classic.dirty_stays_inactive {
        Fate::Keep
    } else {
        Fate::Activate
    }
}

/// The remaining steps for an unused folio: swap, unmap, write, free.
fn reclaim<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &mut ScanControl,
    pfn: Pfn,
    clean_only: bool,
    tails: &mut Vec<Pfn>,
    outcome: &mut BatchOutcome,
) -> Fate {
    let folio = &lru.folios[pfn];
    if folio.has(Flag::Swapbacked) && !folio.has(Flag::Swapcache) {
        if !sc.io_allowed {
            return Fate::Keep;
        }
        if !enter_swap(lru, world, sc, pfn, tails) {
            return Fate::Activate;
        }
    }
    if lru.folios[pfn].has(Flag::Mapped) {
        lru.work.unmaps += 1;
        if !world.unmap(&mut lru.folios, pfn) {
            outcome.unmap_fail += lru.folios[pfn].nr_pages();
            return Fate::Activate;
        }
    }
    let folio = &lru.folios[pfn];
    let referenced_elsewhere = folio.has(Flag::BatchPending);
    if folio.has(Flag::Dirty)
        && let Some(fate) = write(lru, world, sc, pfn, clean_only, outcome)
    {
        return fate;
    }
    if referenced_elsewhere {
        return Fate::Keep;
    }
    let shadow = lru.eviction_shadow(pfn, sc.target);
    world.free_evicted(&mut lru.folios, pfn, shadow);
    Fate::Freed
}

/// Adds an anon folio to the swap cache. A huge one for which swap has no room in one piece is
/// split, and its pages go one by one; one that could not be split because somebody else holds it
/// is not even tried.
fn enter_swap<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &mut ScanControl,
    pfn: Pfn,
    tails: &mut Vec<Pfn>,
) -> bool {
    let folio = &lru.folios[pfn];
    let lruvec = folio.lruvec;
    if folio.order() > 0 && folio.has(Flag::BatchPending) {
        return false;
    }
    if world.add_to_swap(&mut lru.folios, pfn) {
        return true;
    }
    let pages = split::pages(&lru.folios, pfn);
    if !split::split(lru, world, pfn) {
        return false;
    }
    tails.extend(pages.skip(1));
    // They count as scanned when their turn comes.
    sc.nr_scanned -= tails.len() as u64;
    lru.lruvecs[lruvec.index()].events.thp_swpout_fallback += 1;
    world.add_to_swap(&mut lru.folios, pfn)
}

/// Writes a dirty folio; returns `None` if it is now clean and can be freed.
fn write<W: World>(
    lru: &mut Lru,
    world: &mut W,
    sc: &ScanControl,
    pfn: Pfn,
    clean_only: bool,
    outcome: &mut BatchOutcome,
) -> Option<Fate> {
    let folio = &mut lru.folios[pfn];
    if folio.folio_type() == FolioType::File {
        let node = lru.lruvecs[folio.lruvec.index()].node;
        let kswapd_may = lru.mglru.profile.kswapd_writes_files
            && sc.reclaimer == Reclaimer::Kswapd
            && folio.has(Flag::Reclaim)
            && lru.node_flags[node.index()].dirty;
        if !kswapd_may {
            // The flusher writes it; then it is rotated to the tail.
            folio.set(Flag::Reclaim);
            return Some(out_of_the_way(lru));
        }
    }
    let referenced_elsewhere = folio.has(Flag::BatchPending);
    if clean_only || !sc.io_allowed || referenced_elsewhere {
        return Some(Fate::Keep);
    }
    folio.set(Flag::Reclaim);
    let (lruvec, nr_pages) = (folio.lruvec, folio.nr_pages());
    let result = world.pageout(&mut lru.folios, pfn);
    if result == PageoutOutcome::Activate {
        lru.folios[pfn].clear(Flag::Reclaim);
        return Some(Fate::Activate);
    }
    outcome.pageouts += nr_pages;
    lru.lruvecs[lruvec.index()].events.thp_swpout += u64::from(nr_pages > 1);
    if result == PageoutOutcome::Writeback {
        return Some(Fate::Keep);
    }
    lru.folios[pfn].clear(Flag::Reclaim);
    None
}
