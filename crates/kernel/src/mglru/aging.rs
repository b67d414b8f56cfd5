// SPDX-License-Identifier: Apache-2.0
//! Moving the window of generations: `max_seq` increases after an aging, `min_seq` when the oldest
//! generation is empty.

use crate::folio::{FolioList, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::{Lru, Lruvec};

use super::insert::relist;
use super::profile::{Profile, UsageCount};
use super::settings::Settings;
use super::{MAX_SWAPPINESS, MIN_NR_GENS, NR_ZONES, SWAPPINESS_ANON_ONLY};

/// Whether a type may be evicted at this swappiness (`evictable_min_seq`,
/// `for_each_evictable_type`).
#[inline]
pub(super) fn evictable(folio_type: FolioType, swappiness: u32) -> bool {
    match folio_type {
        FolioType::Anon => swappiness > 0,
        FolioType::File => swappiness < SWAPPINESS_ANON_ONLY,
    }
}

/// Oldest generation among the evictable types.
#[inline]
pub(super) fn evictable_min_seq(min_seq: [u64; 2], swappiness: u32) -> u64 {
    FolioType::ALL
        .into_iter()
        .filter(|&t| evictable(t, swappiness))
        .map(|t| min_seq[t.index()])
        .min()
        .expect("one type is always evictable")
}

/// Moves a folio from the oldest generation to the next; the caller moves it between lists. Returns
/// its slot, which is a different one if a walk has promoted it meanwhile (`folio_inc_gen`).
#[inline]
pub(super) fn inc_generation(
    folios: &mut crate::folio::FolioTable,
    lruvec: &mut Lruvec,
    profile: &Profile,
    pfn: Pfn,
) -> u32 {
    let state = &mut lruvec.mglru;
    let folio = &mut folios[pfn];
    let t = folio.folio_type().index();
    let old = state.slot(state.min_seq[t]);
    let slot = folio.generation().expect("listed folio has a generation");
    if slot != old {
        return slot;
    }
    let new = state.slot(u64::from(old) + 1);
    folio.set_generation(Some(new));
    profile.clear_uses(folio);
    let nr_pages = folio.nr_pages().cast_signed();
    let zone = folio.zone();
    state.nr_pages[old as usize][t][zone] -= nr_pages;
    state.nr_pages[new as usize][t][zone] += nr_pages;
    new
}

/// Drains the oldest generation of a type into the next one and retires it (`inc_min_seq`). If the
/// swappiness excludes the type from eviction, its list is not walked.
fn inc_min_seq(lru: &mut Lru, lruvec: LruvecId, folio_type: FolioType, swappiness: u32) {
    let Lru {
        folios,
        lruvecs,
        mglru: settings,
        work,
        ..
    } = lru;
    let lruvec = &mut lruvecs[lruvec.index()];
    let t = folio_type.index();
    let min_seq = lruvec.mglru.min_seq[t];
    let old = lruvec.mglru.slot(min_seq) as usize;
    let hist = lruvec.mglru.history_slot(min_seq, settings.history);
    if evictable(folio_type, swappiness) {
        for zone in 0..NR_ZONES {
            loop {
                let pfn = lruvec.mglru.lists[old][t][zone].tail();
                if !pfn.is_some() {
                    break;
                }
                work.list_moves += 1;
                count_protected(lruvec, settings, &folios[pfn], hist);
                let slot = inc_generation(folios, lruvec, &settings.profile, pfn);
                relist(folios, &mut lruvec.mglru, pfn, slot, true);
            }
        }
    }
    advance_min_seq(lruvec, settings, folio_type, min_seq + 1);
}

/// Counts folios protected by a forced drain, by tier, as sorting does (7.2).
fn count_protected(
    lruvec: &mut Lruvec,
    settings: &Settings,
    folio: &crate::folio::Folio,
    hist: usize,
) {
    let profile = &settings.profile;
    if profile.usage == UsageCount::WorkingsetLast && profile.counts_as_protected(folio) {
        let t = folio.folio_type().index();
        lruvec.mglru.control.current[hist][t].protected[profile.tier(folio)] += folio.nr_pages();
    }
}

fn advance_min_seq(lruvec: &mut Lruvec, settings: &Settings, folio_type: FolioType, to: u64) {
    let state = &mut lruvec.mglru;
    let t = folio_type.index();
    let hist = state.history_slot(state.min_seq[t], settings.history);
    state
        .control
        .carry_over(&settings.profile, hist, folio_type, settings.history);
    state.min_seq[t] = to;
}

/// Retires empty generations (`try_to_inc_min_seq`). Returns whether there were any.
pub(super) fn try_inc_min_seq(lruvec: &mut Lruvec, settings: &Settings, swappiness: u32) -> bool {
    let state = &lruvec.mglru;
    let mut min_seq = state.min_seq;
    let mut found = false;
    for folio_type in FolioType::ALL {
        let t = folio_type.index();
        while evictable(folio_type, swappiness)
            && min_seq[t] + MIN_NR_GENS as u64 <= state.max_seq
            && state.lists[state.slot(min_seq[t]) as usize][t]
                .iter()
                .all(FolioList::is_empty)
        {
            min_seq[t] += 1;
            found = true;
        }
    }
    let [anon, file] = min_seq;
    let both = swappiness > 0 && swappiness <= MAX_SWAPPINESS;
    if settings.profile.file_may_lead {
        if !found {
            return false;
        }
        let spare = state.max_seq - MIN_NR_GENS as u64;
        if both && anon > spare && file < spare {
            min_seq[0] = spare;
        } else if both && file > spare && anon < spare {
            min_seq[1] = spare;
        }
    } else if both {
        min_seq[0] = anon.min(file);
        min_seq[1] = min_seq[0].max(state.min_seq[1]);
    }
    let mut advanced = false;
    for folio_type in FolioType::ALL {
        let to = min_seq[folio_type.index()];
        if to > lruvec.mglru.min_seq[folio_type.index()] {
            advance_min_seq(lruvec, settings, folio_type, to);
            advanced = true;
        }
    }
    advanced
}

/// Opens a new youngest generation (`inc_max_seq`), after making room for it.
pub(crate) fn inc_max_seq(lru: &mut Lru, lruvec: LruvecId, swappiness: u32, now_ns: u64) {
    let order = if lru.mglru.profile.usage == UsageCount::WorkingsetLast {
        [FolioType::Anon, FolioType::File]
    } else {
        [FolioType::File, FolioType::Anon]
    };
    for folio_type in order {
        if lru.lruvecs[lruvec.index()].mglru.is_full(folio_type) {
            inc_min_seq(lru, lruvec, folio_type, swappiness);
        }
    }
    lru.work.agings += 1;
    lru.work.lru_locks += 1;
    let history = lru.mglru.history;
    let state = &mut lru.lruvecs[lruvec.index()].mglru;
    let next = state.max_seq + 1;
    let slot = state.slot(next) as usize;
    if history {
        state.control.current[slot] = Default::default();
        state.walker.stats[slot] = [0; 4];
    }
    // A world that simulates CPUs one after the other may pass a time before the previous one.
    let elder_ns = state.birth_ns(state.max_seq);
    state.births_ns[slot] = now_ns.max(elder_ns);
    state.max_seq = next;
}
