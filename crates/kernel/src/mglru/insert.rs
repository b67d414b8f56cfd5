// SPDX-License-Identifier: Apache-2.0
//! Putting folios on generation lists and taking them off.

use crate::folio::{Flag, FolioTable, Pfn};
use crate::lru::Lruvec;

use super::generation::State;
use super::profile::Profile;

/// Puts a folio into the generation given by its flags (`lru_gen_add_folio`). With `rotate` it goes
/// to the tail, because reclaim is waiting for it.
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
    let slot = state.slot(seq);
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

/// Takes a folio off its list (`lru_gen_del_folio`). Unless `reclaiming`, a folio of the two
/// youngest generations becomes active, so that it returns as young.
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
