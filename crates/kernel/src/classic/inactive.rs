// SPDX-License-Identifier: Apache-2.0
//! Reclaim from the tail of an inactive list.

use super::active::put_back;
use super::cost::note_cost;
use super::isolate::isolate;
use super::lists::List;
use crate::folio::FolioType;
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::shrink_folios::shrink_folios;
use crate::reclaim::{ScanControl, Seen};
use crate::tracepoint::Tracepoint;
use crate::world::World;

/// Reclaims from up to one chunk of an inactive list (`shrink_inactive_list`). Returns the number
/// of pages reclaimed.
pub fn shrink_inactive<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    list: List,
    nr_to_scan: u64,
    sc: &mut ScanControl,
) -> u64 {
    let folio_type = list.folio_type();
    let node = lru.lruvecs[lruvec.index()].node;
    lru.drain_cpu(sc.cpu);
    let mut chunk = std::mem::take(&mut lru.nodes[node.index()].chunk);
    let isolated = isolate(lru, lruvec, list, nr_to_scan, sc, &mut chunk);
    world.trace(&isolated.tracepoint(list, nr_to_scan, sc));
    lru.lruvecs[lruvec.index()]
        .events
        .count_scan(sc.reclaimer, folio_type, isolated.scanned_pages);
    let mut reclaimed = 0;
    if isolated.taken_pages > 0 {
        let outcome = shrink_folios(lru, world, lruvec, sc, &mut chunk, false);
        reclaimed = outcome.reclaimed;
        for &pfn in &chunk {
            put_back(lru, pfn, sc.cpu);
        }
        let rotated = isolated.scanned_pages - reclaimed;
        note_cost(lru, lruvec, folio_type, outcome.pageouts, rotated);
        if outcome.seen.unqueued_dirty == isolated.taken_pages {
            world.wake_flusher(node);
            // Later kernels judge the whole pass, and only kswapd sets this flag.
            lru.node_flags[node.index()].dirty |=
                lru.classic.dirty_stays_inactive && sc.is_global();
        }
        world.trace(&Tracepoint::ShrinkInactive {
            node,
            nr_scanned: isolated.scanned_pages,
            outcome,
            priority: sc.priority,
            folio_type,
        });
        remember(
            &mut sc.seen,
            &outcome.seen,
            folio_type,
            isolated.taken_pages,
        );
    }
    lru.nodes[node.index()].chunk = chunk;
    reclaimed
}

/// Adds the folio states of one chunk to those of the pass.
fn remember(pass: &mut Seen, chunk: &Seen, folio_type: FolioType, taken_pages: u64) {
    pass.dirty += chunk.dirty;
    pass.unqueued_dirty += chunk.unqueued_dirty;
    pass.congested += chunk.congested;
    pass.writeback += chunk.writeback;
    pass.immediate += chunk.immediate;
    pass.taken += taken_pages;
    if folio_type == FolioType::File {
        pass.file_taken += taken_pages;
    }
}
