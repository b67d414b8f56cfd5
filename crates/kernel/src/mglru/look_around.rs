// SPDX-License-Identifier: Apache-2.0
//! Look-around: rmap examines the neighbours of each accessed entry it finds
//! (`lru_gen_look_around`). It is the only feedback from eviction to aging.

use crate::folio::{Flag, FolioTable, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::page_table::{Mapping, PAGES_PER_PMD, Pte, PteTable, Vma};
use crate::world::World;

use super::MIN_LRU_BATCH;
use super::profile::Profile;
use super::settings::Walk;

/// A table is worth a walk if one in this many of its entries is young: one per cache line
/// (`suitable_to_scan`, x86 and arm64).
const ENTRIES_PER_YOUNG: u64 = 8;

/// Whether a table, or the examined window of it, is worth a walk.
#[inline]
pub(super) fn is_dense(total: u64, young: u64) -> bool {
    young * ENTRIES_PER_YOUNG >= total
}

/// The entries around `vpn` to examine: the part of the table within the VMA, limited to 64
/// entries. `None` if that is a single entry.
fn window(vma: &Vma, vpn: u64) -> Option<std::ops::Range<u64>> {
    let table = vpn - vpn % PAGES_PER_PMD;
    let start = table.max(vma.start_vpn);
    let end = (table + PAGES_PER_PMD).min(vma.end_vpn);
    let half = MIN_LRU_BATCH / 2;
    match end - start {
        1 => None,
        ..=MIN_LRU_BATCH => Some(start..end),
        _ if vpn - start < half => Some(start..start + MIN_LRU_BATCH),
        _ if end - vpn < half => Some(end - MIN_LRU_BATCH..end),
        _ => Some(vpn - half..vpn + half),
    }
}

/// Clears the accessed bits around an entry that was found accessed, and treats the folios there as
/// accessed too. `pfn` is the isolated folio mapped by that entry, whose bit is already cleared.
pub(crate) fn look_around(
    lru: &mut Lru,
    table: &mut PteTable,
    vma: &Vma,
    mapping: Mapping,
    pfn: Pfn,
    cpu: usize,
) {
    let Some(window) = window(vma, mapping.vpn) else {
        return;
    };
    let lruvec = lru.folios[pfn].lruvec;
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let max_seq = state.max_seq;
    let youngest = state.slot(max_seq);
    let total = window.end - window.start;
    let mut young = 1;
    let first = (window.start % PAGES_PER_PMD) as usize;
    let profile = lru.mglru.profile;
    for pte in &mut table[first..first + total as usize] {
        let Some(neighbour) = sighted(&lru.folios, &profile, pte, lruvec, vma, true) else {
            continue;
        };
        pte.test_clear_young();
        young += 1;
        note_dirty(lru, *pte, neighbour);
        let folio = &mut lru.folios[neighbour];
        if lru.mglru_machine.walk.present {
            if profile.sighted_by_walk(folio) {
                promote(
                    &mut lru.folios,
                    &mut lru.mglru_machine.walk,
                    neighbour,
                    youngest,
                );
            }
        } else {
            let is_youngest = folio.generation() == Some(youngest);
            if profile.sighted_by_rmap(folio, is_youngest) && !is_youngest {
                lru.batch_activate(cpu, neighbour);
            }
        }
    }
    lru.work.pte_checks += total;
    if is_dense(total, young) {
        let state = &mut lru.lruvecs[lruvec.index()].mglru;
        state.filters.insert(max_seq, mapping.mm, mapping.vpn);
    }
}

/// The folio mapped by a young entry, if it belongs to the lruvec and may be promoted.
#[inline]
pub(super) fn sighted(
    folios: &FolioTable,
    profile: &Profile,
    pte: &Pte,
    lruvec: LruvecId,
    vma: &Vma,
    may_swap: bool,
) -> Option<Pfn> {
    if !pte.young() || pte.is_special() {
        return None;
    }
    let pfn = pte.pfn();
    let folio = &folios[pfn];
    if folio.lruvec != lruvec {
        return None;
    }
    let fits = if profile.first_sighting_promotes {
        // An anon page in a file mapping (a private copy) only counts if it could be swapped.
        may_swap || !vma.file || folio.folio_type() == FolioType::File
    } else {
        folio.generation().is_some()
    };
    fits.then_some(pfn)
}

/// Sets the generation field of a folio to the youngest generation; eviction will move it to that
/// list. The change of the sizes is collected in the walk object (`update_batch_size`).
#[inline]
pub(super) fn promote(folios: &mut FolioTable, walk: &mut Walk, pfn: Pfn, youngest: u32) {
    let folio = &mut folios[pfn];
    let old = folio.generation().expect("only listed folios are promoted");
    if old == youngest {
        return;
    }
    folio.set_generation(Some(youngest));
    walk.count_move(folio, old, youngest);
}

/// Records a folio whose dirty bit is only in the page table. Anon folios outside the swap cache
/// need no mark: they are written when they are swapped out.
#[inline]
pub(super) fn note_dirty(lru: &mut Lru, pte: Pte, pfn: Pfn) {
    let folio = &lru.folios[pfn];
    let needs_mark = folio.folio_type() == FolioType::File || folio.has(Flag::Swapcache);
    if pte.dirty() && needs_mark && !folio.has(Flag::Dirty) {
        lru.mglru_machine.dirtied.push(pfn);
    }
}

/// Passes the folios found dirty in page tables to the world.
pub(crate) fn report_dirtied<W: World>(lru: &mut Lru, world: &mut W) {
    while let Some(pfn) = lru.mglru_machine.dirtied.pop() {
        world.mark_dirty(&mut lru.folios, pfn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vma(start_vpn: u64, end_vpn: u64) -> Vma {
        Vma {
            start_vpn,
            end_vpn,
            ..Vma::default()
        }
    }

    #[test]
    fn the_window_stays_in_table_and_vma() {
        let wide = vma(0, 1 << 20);
        assert_eq!(window(&wide, 512), Some(512..576));
        assert_eq!(window(&wide, 512 + 31), Some(512..576));
        assert_eq!(window(&wide, 512 + 32), Some(512..576));
        assert_eq!(window(&wide, 512 + 33), Some(513..577));
        assert_eq!(window(&wide, 1023), Some(960..1024));
        assert_eq!(window(&vma(600, 640), 610), Some(600..640));
        assert_eq!(window(&vma(600, 601), 600), None);
        assert_eq!(window(&vma(1000, 2000), 1023), Some(1000..1024));
    }
}
