// SPDX-License-Identifier: Apache-2.0
//! The refault test: whether a refaulting page would have stayed in memory had the inactive list
//! been a little longer (`mm/workingset.c`).

use super::cost::{note_cost, parent_lruvec};
use super::lists::List;
use super::stats;
use crate::folio::{Flag, FolioType, Pfn};
use crate::ids::{LruvecId, MemcgId};
use crate::lru::Lru;
use crate::shadow::Shadow;
use crate::world::World;

/// Advances the age of a lruvec and its ancestors by `pages` evicted or activated
/// (`workingset_age_nonresident`).
#[inline]
pub fn age_nonresident(lru: &mut Lru, lruvec: LruvecId, pages: u64) {
    let mut next = Some(lruvec);
    while let Some(id) = next {
        lru.lruvecs[id.index()].classic.nonresident_age += pages;
        next = parent_lruvec(lru, id);
    }
}

/// Advances the age of a lruvec and its ancestors on an activation, unless only evictions count
/// (`workingset_activation`).
#[inline]
pub fn age_activation(lru: &mut Lru, lruvec: LruvecId, pages: u64) {
    let rule = lru.classic.refault_distance;
    if rule.is_none_or(|rule| rule.activations_age) {
        age_nonresident(lru, lruvec, pages);
    }
}

/// Returns the shadow of a folio about to be evicted by a reclaim of `target`, and advances the age
/// for the eviction (`workingset_eviction`).
#[must_use]
pub fn eviction_shadow(lru: &mut Lru, pfn: Pfn, target: MemcgId) -> u64 {
    let folio = &lru.folios[pfn];
    let (pages, workingset) = (folio.nr_pages(), folio.has(Flag::Workingset));
    let folio_type = folio.folio_type().index();
    let node = lru.lruvecs[folio.lruvec.index()].node;
    let lruvec = lru.memcgs[target.index()].lruvecs[node.index()];
    let age = lru.lruvecs[lruvec.index()].classic.nonresident_age;
    age_nonresident(lru, lruvec, pages);
    lru.lruvecs[lruvec.index()].classic.holes.evicted(pages);
    let stored = age >> lru.classic.bucket_order[folio_type];
    Shadow {
        workingset,
        node,
        memcg: target,
        token: stored & mask(lru.classic.timestamp_bits[folio_type]),
    }
    .pack()
}

/// Handles a folio that came back from `shadow` and is not yet on a list: counts the refault, and
/// makes the folio active if its distance says that it belongs to the working set
/// (`workingset_refault`).
pub fn refault(lru: &mut Lru, world: &impl World, pfn: Pfn, shadow: u64) {
    let folio = &lru.folios[pfn];
    let (lruvec, pages, folio_type) = (folio.lruvec, folio.nr_pages(), folio.folio_type());
    lru.lruvecs[lruvec.index()].events.workingset_refault[folio_type.index()] += pages;
    let shadow = Shadow::unpack(shadow);
    let recent = is_recent(lru, world, shadow, folio_type);
    if let Some(evicting) = evicting_lruvec(lru, shadow) {
        lru.lruvecs[evicting.index()].classic.holes.returned(pages);
    }
    if !recent {
        return;
    }
    lru.folios[pfn].set(Flag::Active);
    age_activation(lru, lruvec, pages);
    lru.lruvecs[lruvec.index()].events.workingset_activate[folio_type.index()] += pages;
    if shadow.workingset {
        lru.folios[pfn].set(Flag::Workingset);
        note_cost(lru, lruvec, folio_type, pages, 0);
        lru.lruvecs[lruvec.index()].events.workingset_restore[folio_type.index()] += pages;
    }
}

/// The lruvec from which a page was evicted; `None` if its cgroup was removed.
fn evicting_lruvec(lru: &Lru, shadow: Shadow) -> Option<LruvecId> {
    let memcg = lru.memcgs.get(shadow.memcg.index())?;
    memcg
        .lruvecs
        .get(shadow.node.index())
        .copied()
        .filter(|_| memcg.online)
}

/// Whether the page would still be in memory if all pages it competes with were gone
/// (`workingset_test_recent`), or what the refault-distance rule says.
#[must_use]
pub fn is_recent(lru: &Lru, world: &impl World, shadow: Shadow, folio_type: FolioType) -> bool {
    let Some(lruvec) = evicting_lruvec(lru, shadow) else {
        return false;
    };
    let counts = stats::counts(lru, lruvec);
    let free_swap = world.swap_free_pages(shadow.memcg) > 0;
    let state = &lru.lruvecs[lruvec.index()].classic;
    let distance = distance(
        state.nonresident_age,
        shadow.token,
        lru.classic.bucket_order[folio_type.index()],
        lru.classic.timestamp_bits[folio_type.index()],
    );
    if let Some(rule) = lru.classic.refault_distance {
        let distance = rule.effective_distance(distance, &state.holes);
        return rule.activates(distance, folio_type, &counts, free_swap);
    }
    let mut size = counts.pages(List::ActiveFile);
    if folio_type == FolioType::Anon {
        size += counts.pages(List::InactiveFile);
    }
    if free_swap {
        size += counts.pages(List::ActiveAnon);
        if folio_type == FolioType::File {
            size += counts.pages(List::InactiveAnon);
        }
    }
    distance <= size
}

/// Pages evicted or activated since the age was stored; wraps at the width of the shadow.
#[must_use]
pub fn distance(now: u64, stored: u64, bucket_order: u32, timestamp_bits: u32) -> u64 {
    now.wrapping_sub(stored << bucket_order) & mask(timestamp_bits)
}

fn mask(bits: u32) -> u64 {
    u64::MAX >> (u64::BITS - bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_wraps_with_the_width() {
        assert_eq!(distance(1000, 400, 0, 36), 600);
        // The counter has exceeded the range of eight bits.
        assert_eq!(distance(260, 250, 0, 8), 10);
        assert_eq!(distance(512, 250, 0, 8), 6);
        // The bits dropped by the bucket order make pages look farther away, by less than a bucket.
        assert_eq!(distance(1007, 1000 >> 3, 3, 36), 7);
        assert_eq!(distance(1007, 1006 >> 3, 3, 36), 7);
    }
}
