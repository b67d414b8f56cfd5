// SPDX-License-Identifier: Apache-2.0
//! The rule combined with the multi-gen LRU. This is our own design, since that part of the series
//! is not public.
//!
//! Generations show the time since an eviction only in steps of whole generations. Here the shadow
//! also has the eviction count, which gives the page's depth in the shadow LRU. The oldest
//! generation stands for the inactive side. A page read back through a file descriptor from a depth
//! that the rule accepts enters the generation above the oldest one, which is evicted from next, as
//! part of the working set. Faults keep their own rule, which is even more lenient. The controller
//! counts refaults as before.

use super::Rule;
use crate::classic::workingset::age_nonresident;
use crate::classic::{Counts, List};
use crate::folio::{Flag, FolioType, Pfn};
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::mglru::State;
use crate::world::World;

/// Bits of a token used for the generation and the usage count: 10 and 2 with four tiers.
pub(crate) const TOKEN_BITS: u32 = 12;

/// Bits above them for the eviction count.
const AGE_BITS: u32 = crate::shadow::TOKEN_BITS - TOKEN_BITS;

/// Evictions required per promoted page: a third throttle, against a storm of refaults that would
/// fill memory with pages used once. An eighth of an evicted generation may come back promoted.
const EVICTIONS_PER_PROMOTION: u64 = 8;

/// Adds the eviction count to a token, and counts this eviction.
pub(crate) fn age(
    lru: &mut Lru,
    lruvec: LruvecId,
    folio_type: FolioType,
    pages: u64,
    token: u64,
) -> u64 {
    let order = bucket_order(lru);
    let generations = u64::from(lru.mglru.profile.generations);
    let state = &mut lru.lruvecs[lruvec.index()];
    state.classic.holes.evicted(pages);
    let generation = state.mglru.total_pages(folio_type) / generations;
    let credit = &mut state.promotion_credit.evicted_pages[folio_type.index()];
    *credit = (*credit + pages).min(generation);
    let age = state.classic.nonresident_age >> order;
    age_nonresident(lru, lruvec, pages);
    (token & mask(TOKEN_BITS)) | ((age & mask(AGE_BITS)) << TOKEN_BITS)
}

/// Promotes a folio that came back with `token` if the rule says so. It is not yet on a list.
pub(crate) fn promote<W: World>(lru: &mut Lru, world: &W, rule: Rule, pfn: Pfn, token: u64) {
    let folio = &lru.folios[pfn];
    let (lruvec, pages, folio_type) = (folio.lruvec, folio.nr_pages(), folio.folio_type());
    let order = bucket_order(lru);
    let state = &mut lru.lruvecs[lruvec.index()];
    let now = state.classic.nonresident_age >> order;
    let distance = (now.wrapping_sub(token >> TOKEN_BITS) & mask(AGE_BITS)) << order;
    let distance = rule.effective_distance(distance, &state.classic.holes);
    state.classic.holes.returned(pages);
    let free_swap = world.swap_free_pages(state.memcg) > 0;
    if !rule.activates(distance, folio_type, &sizes(&state.mglru), free_swap) {
        return;
    }
    let credit = &mut state.promotion_credit.evicted_pages[folio_type.index()];
    let Some(left) = credit.checked_sub(pages * EVICTIONS_PER_PROMOTION) else {
        return;
    };
    *credit = left;
    state.events.workingset_activate[folio_type.index()] += pages;
    let refs_max = lru.mglru.profile.refs_max();
    let folio = &mut lru.folios[pfn];
    folio.set(Flag::Promoted);
    folio.set(Flag::Workingset);
    folio.set_refs(refs_max.min(2));
}

/// List sizes of a lruvec, with the oldest generation as the inactive lists, since only its pages
/// are next to be evicted. (Counting only the two youngest generations as active would work for
/// anon, but pages read through file descriptors never enter them in 7.2.)
fn sizes(state: &State) -> Counts {
    let mut sizes = Counts::default();
    for folio_type in FolioType::ALL {
        let oldest = state.pages_of(state.min_seq[folio_type.index()], folio_type);
        sizes.pages[List::new(folio_type, false).index()] = oldest;
        sizes.pages[List::new(folio_type, true).index()] = state.total_pages(folio_type) - oldest;
    }
    sizes
}

/// Low bits of the count that do not fit; 0 for up to 32 GiB of frames.
fn bucket_order(lru: &Lru) -> u32 {
    let frame_bits = usize::BITS - lru.folios.len().leading_zeros();
    (frame_bits + 1).saturating_sub(AGE_BITS)
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}
