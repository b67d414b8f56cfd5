// SPDX-License-Identifier: Apache-2.0
//! How pages enter, leave and move up the lists.

use super::workingset::age_activation;
use crate::folio::{Flag, FolioTable, Pfn};
use crate::ids::LruvecId;
use crate::lru::{Lru, Lruvec};

/// Puts a folio on the list given by its flags (`lruvec_add_folio` of the classic LRU).
#[inline]
pub fn add_folio(folios: &mut FolioTable, lruvec: &mut Lruvec, pfn: Pfn, tail: bool) {
    lruvec.classic.add(folios, pfn, tail);
}

/// Takes a folio off the list given by its flags (`lruvec_del_folio`).
#[inline]
pub fn del_folio(folios: &mut FolioTable, lruvec: &mut Lruvec, pfn: Pfn) {
    lruvec.classic.remove(folios, pfn);
}

/// Moves all folios of a removed cgroup's lruvec to the oldest ends of its parent's lists (7.2).
pub fn reparent(lru: &mut Lru, from: LruvecId, to: LruvecId) {
    let mut state = std::mem::take(&mut lru.lruvecs[from.index()].classic);
    for list in super::List::ALL {
        let list = *state.list(list);
        lru.adopt(&list, to);
    }
    lru.lruvecs[to.index()]
        .classic
        .adopt(&mut lru.folios, &mut state);
    // Ages and costs stay with the removed cgroup.
    lru.lruvecs[from.index()].classic = state;
}

/// An access through a file descriptor, or through a mapping being removed (`folio_mark_accessed`):
/// inactive, unreferenced -> inactive, referenced -> active, unreferenced -> active, referenced.
///
/// The move to the active list waits in a batch; the referenced flag is cleared and the age
/// advances at once.
pub fn mark_accessed(lru: &mut Lru, pfn: Pfn, cpu: usize) {
    let folio = &mut lru.folios[pfn];
    // Only here: under multi-gen, the kernels do not clear the idle flag on such an access.
    folio.clear(Flag::Idle);
    if !folio.has(Flag::Referenced) {
        folio.set(Flag::Referenced);
        return;
    }
    if folio.has_any(Flag::Active as u32 | Flag::Unevictable as u32) {
        return;
    }
    folio.clear(Flag::Referenced);
    let (lruvec, pages) = (folio.lruvec, folio.nr_pages());
    if folio.has(Flag::Lru) {
        lru.batch_activate(cpu, pfn);
    } else if lru.cpus[cpu].add.contains(pfn) {
        folio.set(Flag::Active);
    }
    age_activation(lru, lruvec, pages);
}
