// SPDX-License-Identifier: Apache-2.0
//! Reclaiming folios chosen by the caller: `MADV_PAGEOUT`.

use crate::folio::{Flag, Pfn};
use crate::lru::Lru;
use crate::reclaim::shrink_folios::shrink_folios;
use crate::reclaim::{Reclaimer, ScanControl};
use crate::world::World;

/// Reclaims the folios regardless of their references (`reclaim_pages`, Linux 6.12: each is
/// isolated from its list, and put back if it cannot be reclaimed). Where writing takes time,
/// folios are unmapped and written now, and freed later by a second call or by reclaim. As in the
/// kernel, neither `pgscan` nor `pgsteal` counts them. Returns the pages freed by type, anon and
/// file.
pub fn reclaim_chosen<W: World>(
    lru: &mut Lru,
    world: &mut W,
    cpu: usize,
    folios: &[Pfn],
) -> [u64; 2] {
    lru.drain_all();
    let mut chosen: Vec<Pfn> = Vec::with_capacity(folios.len());
    for &pfn in folios {
        let folio = &lru.folios[pfn];
        if folio.has(Flag::Lru) && !folio.has(Flag::Unevictable) {
            lru.list_del(pfn);
            lru.folios[pfn].clear(Flag::Lru);
            chosen.push(pfn);
        }
    }
    // Counters belong to the lruvec of each folio.
    chosen.sort_by_key(|&pfn| lru.folios[pfn].lruvec.index());
    let mut freed = [0; 2];
    for batch in chosen
        .chunk_by(|&a, &b| lru.folios[a].lruvec == lru.folios[b].lruvec)
        .map(<[Pfn]>::to_vec)
        .collect::<Vec<_>>()
    {
        let lruvec = lru.folios[batch[0]].lruvec;
        let mut sc = ScanControl::new(Reclaimer::Proactive, crate::ids::MemcgId::ROOT, u64::MAX);
        sc.cpu = cpu;
        sc.no_demotion = true;
        let before = pages_by_type(lru, &batch);
        let mut left = batch;
        shrink_folios(lru, world, lruvec, &mut sc, &mut left, true);
        let after = pages_by_type(lru, &left);
        for (sum, (before, after)) in freed.iter_mut().zip(before.into_iter().zip(after)) {
            *sum += before - after;
        }
        lru.work.lru_locks += 2;
        for pfn in left {
            lru.folios[pfn].set(Flag::Lru);
            if lru.folios[pfn].has(Flag::Mlocked) {
                lru.folios[pfn].set(Flag::Unevictable);
                lru.folios[pfn].clear(Flag::Active);
            }
            lru.list_add(pfn, false);
        }
    }
    freed
}

fn pages_by_type(lru: &Lru, folios: &[Pfn]) -> [u64; 2] {
    let mut pages = [0; 2];
    for &pfn in folios {
        let folio = &lru.folios[pfn];
        pages[folio.folio_type().index()] += folio.nr_pages();
    }
    pages
}
