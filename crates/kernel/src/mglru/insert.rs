// SPDX-License-Identifier: Apache-2.0
//! Putting folios on generation lists and taking them off.

use crate::folio::{Flag, FolioList, FolioTable, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::{Lru, Lruvec};

use super::generation::State;
use super::profile::Profile;
use super::{MAX_NR_GENS, MAX_SWAPPINESS, NR_ZONES, aging, generation_of};

/// Puts a folio into the generation its flags earn it (`lru_gen_add_folio`). `rotate`: at the tail,
/// because reclaim waits for it.
#[inline]
pub fn add_folio(
    folios: &mut FolioTable,
    lruvec: &mut Lruvec,
    profile: &Profile,
    pfn: Pfn,
    rotate: bool,
) {
    let state = &mut lruvec.mglru;
    let folio = &mut folios[pfn];
    debug_assert!(folio.generation().is_none(), "folio is in a generation");
    let seq = profile.insertion_seq(folio, state.max_seq, state.min_seq, rotate);
    let promoted = folio.test_clear(Flag::Promoted);
    let oldest = state.min_seq[folio.folio_type().index()];
    let seq = seq.max(oldest + u64::from(promoted));
    let slot = generation_of(seq);
    profile.settle(folio);
    folio.set_generation(Some(slot));
    folio.set_list_slot(slot);
    let (folio_type, zone) = (folio.folio_type().index(), folio.zone());
    state.nr_pages[slot as usize][folio_type][zone] += folio.nr_pages().cast_signed();
    let list = &mut state.lists[slot as usize][folio_type][zone];
    if rotate {
        list.push_tail(folios, pfn);
    } else {
        list.push_head(folios, pfn);
    }
}

/// Takes a folio off its list (`lru_gen_del_folio`). Unless it is `reclaiming`, one from the two
/// youngest generations becomes active, so that it comes back young.
#[inline]
pub fn del_folio(folios: &mut FolioTable, lruvec: &mut Lruvec, pfn: Pfn, reclaiming: bool) {
    let state = &mut lruvec.mglru;
    let folio = &mut folios[pfn];
    let slot = folio.generation().expect("folio is in a generation");
    if !reclaiming && state.is_active(slot) {
        folio.set(Flag::Active);
    }
    folio.set_generation(None);
    let list_slot = folio.list_slot() as usize;
    let (folio_type, zone) = (folio.folio_type().index(), folio.zone());
    state.nr_pages[slot as usize][folio_type][zone] -= folio.nr_pages().cast_signed();
    state.lists[list_slot][folio_type][zone].remove(folios, pfn);
}

/// Moves a folio to the list of a slot.
#[inline]
pub(super) fn relist(folios: &mut FolioTable, state: &mut State, pfn: Pfn, slot: u32, tail: bool) {
    let folio = &mut folios[pfn];
    let from = folio.list_slot() as usize;
    folio.set_list_slot(slot);
    let (t, zone) = (folio.folio_type().index(), folio.zone());
    state.lists[from][t][zone].remove(folios, pfn);
    let list = &mut state.lists[slot as usize][t][zone];
    if tail {
        list.push_tail(folios, pfn);
    } else {
        list.push_head(folios, pfn);
    }
}

/// Moves all folios of a removed cgroup's lruvec to its parent's (`lru_gen_reparent_memcg`, 7.2):
/// the parent is aged without a walk until both types have every generation, then each list is
/// appended to the tail of the same slot. Generation fields stay as they are.
pub(crate) fn reparent(lru: &mut Lru, from: LruvecId, to: LruvecId, now_ns: u64) {
    let child = &lru.lruvecs[from.index()].mglru;
    if child
        .lists
        .iter()
        .flatten()
        .flatten()
        .all(FolioList::is_empty)
    {
        return;
    }
    while FolioType::ALL
        .iter()
        .any(|&t| lru.lruvecs[to.index()].mglru.nr_gens(t) < MAX_NR_GENS as u64)
    {
        aging::inc_max_seq(lru, to, MAX_SWAPPINESS, now_ns);
    }
    for slot in 0..MAX_NR_GENS {
        for t in 0..2 {
            for zone in 0..NR_ZONES {
                let child = &mut lru.lruvecs[from.index()].mglru;
                let mut list = std::mem::take(&mut child.lists[slot][t][zone]);
                let nr_pages = std::mem::take(&mut child.nr_pages[slot][t][zone]);
                lru.adopt(&list, to);
                let parent = &mut lru.lruvecs[to.index()].mglru;
                parent.nr_pages[slot][t][zone] += nr_pages;
                parent.lists[slot][t][zone].append_tail(&mut lru.folios, &mut list);
            }
        }
    }
}
