// SPDX-License-Identifier: Apache-2.0
//! Taking a chunk of folios off the tail of a list.

use super::lists::List;
use crate::folio::{Flag, FolioList, Pfn};
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::ScanControl;
use crate::tracepoint::Tracepoint;

/// Pages scanned and taken by one isolation.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Isolated {
    /// Scanned, including those in unusable zones.
    pub scanned_pages: u64,
    /// Taken.
    pub taken_pages: u64,
    /// Skipped because of their zone.
    skipped_pages: u64,
}

impl Isolated {
    pub(super) fn tracepoint(&self, list: List, nr_to_scan: u64, sc: &ScanControl) -> Tracepoint {
        Tracepoint::Isolate {
            highest_zone: sc.reclaim_idx,
            order: sc.order,
            nr_requested: nr_to_scan,
            nr_scanned: self.scanned_pages,
            nr_skipped: self.skipped_pages,
            nr_taken: self.taken_pages,
            folio_type: list.folio_type(),
            active: list.is_active(),
        }
    }
}

/// Takes up to `nr_to_scan` pages off the tail of a list into `chunk`, oldest first
/// (`isolate_lru_folios`). Folios in zones above the reclaim index move to the head without
/// counting.
pub(super) fn isolate(
    lru: &mut Lru,
    lruvec: LruvecId,
    list: List,
    nr_to_scan: u64,
    sc: &ScanControl,
    chunk: &mut Vec<Pfn>,
) -> Isolated {
    let mut isolated = Isolated::default();
    chunk.clear();
    let max_skips = lru.classic.max_zone_skips.unwrap_or(u64::MAX);
    let folios = &mut lru.folios;
    let lruvec = &mut lru.lruvecs[lruvec.index()];
    let mut skipped = FolioList::default();
    let mut taken_by_zone = [0; 4];
    let mut used = 0;
    while used < nr_to_scan {
        let source = lruvec.classic.list_mut(list);
        let pfn = source.tail();
        if !pfn.is_some() {
            break;
        }
        let (zone, pages) = (folios[pfn].zone(), folios[pfn].nr_pages());
        isolated.scanned_pages += pages;
        source.remove(folios, pfn);
        if zone > sc.reclaim_idx && u64::from(skipped.len()) < max_skips {
            skipped.push_head(folios, pfn);
            lruvec.events.pgscan_skip[zone] += pages;
            isolated.skipped_pages += pages;
            continue;
        }
        used += pages;
        folios[pfn].clear(Flag::Lru);
        taken_by_zone[zone] += pages;
        isolated.taken_pages += pages;
        chunk.push(pfn);
    }
    if !skipped.is_empty() {
        lruvec.classic.splice_head(folios, list, &mut skipped);
    }
    lruvec.classic.account_taken(list, &taken_by_zone);
    lru.work.list_moves += chunk.len() as u64;
    lru.work.lru_locks += 1;
    isolated
}
