// SPDX-License-Identifier: Apache-2.0
//! The lists of a lruvec, in whichever structure they are.

use crate::classic;
use crate::folio::{Flag, Pfn};
use crate::lru::Lru;
use crate::mglru;
use crate::work::Events;

impl Lru {
    /// Puts a folio on a list of its lruvec (`lruvec_add_folio` or `lruvec_add_folio_tail`). The
    /// caller maintains `Flag::Lru`.
    pub(crate) fn list_add(&mut self, pfn: Pfn, tail: bool) {
        self.work.list_moves += 1;
        let folios = &mut self.folios;
        let lruvec = &mut self.lruvecs[folios[pfn].lruvec.index()];
        if folios[pfn].has(Flag::Unevictable) {
            lruvec.unevictable.push_head(folios, pfn);
        } else if lruvec.mglru.enabled {
            mglru::add_folio(folios, lruvec, &self.mglru.profile, pfn, tail);
        } else {
            classic::add_folio(folios, lruvec, pfn, tail);
        }
    }

    /// Takes a folio off the list of its lruvec (`lruvec_del_folio`), but not for reclaim.
    pub(crate) fn list_del(&mut self, pfn: Pfn) {
        self.work.list_moves += 1;
        let folios = &mut self.folios;
        let lruvec = &mut self.lruvecs[folios[pfn].lruvec.index()];
        if folios[pfn].has(Flag::Unevictable) {
            lruvec.unevictable.remove(folios, pfn);
        } else if folios[pfn].generation().is_some() {
            mglru::del_folio(folios, lruvec, pfn, false);
        } else {
            classic::del_folio(folios, lruvec, pfn);
        }
    }

    /// The event counters of the lruvec a folio is charged to.
    pub(crate) fn events_of(&mut self, pfn: Pfn) -> &mut Events {
        &mut self.lruvecs[self.folios[pfn].lruvec.index()].events
    }
}
