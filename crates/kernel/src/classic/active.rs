// SPDX-License-Identifier: Apache-2.0
//! Deactivation: moving the oldest active pages to the inactive list.

use super::cost::note_cost;
use super::isolate::isolate;
use super::lists::List;
use super::workingset::age_activation;
use crate::folio::{Flag, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::{ScanControl, references};
use crate::tracepoint::Tracepoint;
use crate::world::World;

/// Scans up to one chunk of an active list (`shrink_active_list`). Pages move to the inactive list
/// with accessed bits cleared, whatever their previous state, and are workingset from now on. Only
/// executable file mappings that were used stay active. The referenced flag survives, so a page
/// once activated by reclaim needs only one more access to be activated again.
pub fn shrink_active<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    list: List,
    nr_to_scan: u64,
    sc: &ScanControl,
) {
    lru.drain_cpu(sc.cpu);
    let node = lru.lruvecs[lruvec.index()].node.index();
    let mut chunk = std::mem::take(&mut lru.nodes[node].chunk);
    let isolated = isolate(lru, lruvec, list, nr_to_scan, sc, &mut chunk);
    world.trace(&isolated.tracepoint(list, nr_to_scan, sc));
    let events = &mut lru.lruvecs[lruvec.index()].events;
    events.count_refill(sc.reclaimer, isolated.scanned_pages);
    let mut rotated_pages = 0;
    let mut deactivated_pages = 0;
    for &pfn in &chunk {
        if lru.folios[pfn].has(Flag::Mlocked) {
            continue;
        }
        let accessed = references::accessed(lru, world, pfn, sc);
        let folio = &mut lru.folios[pfn];
        if accessed.young > 0 && accessed.exec && folio.folio_type() == FolioType::File {
            rotated_pages += folio.nr_pages();
        } else {
            folio.clear(Flag::Active);
            folio.set(Flag::Workingset);
            deactivated_pages += folio.nr_pages();
        }
    }
    // Those that stay active come first; both groups keep their order, oldest first.
    for stays in [true, false] {
        for &pfn in &chunk {
            if !lru.folios[pfn].has(Flag::Lru) && lru.folios[pfn].has(Flag::Active) == stays {
                put_back(lru, pfn, sc.cpu);
            }
        }
    }
    lru.lruvecs[lruvec.index()].events.pgdeactivate += deactivated_pages;
    if rotated_pages > 0 {
        note_cost(lru, lruvec, list.folio_type(), 0, rotated_pages);
    }
    lru.nodes[node].chunk = chunk;
    world.trace(&Tracepoint::ShrinkActive {
        node: lru.lruvecs[lruvec.index()].node,
        nr_taken: isolated.taken_pages,
        nr_rotated: rotated_pages,
        nr_deactivated: deactivated_pages,
        priority: sc.priority,
        folio_type: list.folio_type(),
    });
}

/// Puts an isolated folio back on the list given by its flags (`move_folios_to_lru`); activations
/// advance the age of the lruvec.
pub(super) fn put_back(lru: &mut Lru, pfn: Pfn, cpu: usize) {
    let folio = &mut lru.folios[pfn];
    if folio.has(Flag::Mlocked) {
        lru.batch_add(cpu, pfn);
        return;
    }
    folio.set(Flag::Lru);
    let (lruvec, pages, active) = (folio.lruvec, folio.nr_pages(), folio.has(Flag::Active));
    lru.list_add(pfn, false);
    if active {
        age_activation(lru, lruvec, pages);
    }
}
