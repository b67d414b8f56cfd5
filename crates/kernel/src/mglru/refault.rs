// SPDX-License-Identifier: Apache-2.0
//! Shadows of evicted folios, and what their return means (`lru_gen_eviction`, `lru_gen_refault`).

use crate::folio::{Flag, Pfn};
use crate::lru::Lru;
use crate::refault_distance::multi_gen;
use crate::shadow::Shadow;
use crate::world::World;

use super::ablation::Part;
use super::profile::UsageCount;

/// Counts an eviction and packs what a refault needs: the oldest generation and the usage count.
pub(crate) fn eviction_shadow(lru: &mut Lru, pfn: Pfn) -> u64 {
    let profile = lru.mglru.profile;
    let folio = &lru.folios[pfn];
    let lruvec_id = folio.lruvec;
    let nr_pages = folio.nr_pages();
    let lruvec = &mut lru.lruvecs[lruvec_id.index()];
    let folio_type = folio.folio_type();
    let t = folio_type.index();
    let uses = profile.uses(folio);
    let min_seq = lruvec.mglru.min_seq[t];
    let slot = lruvec.mglru.history_slot(min_seq, lru.mglru.history);
    lruvec.mglru.control.current[slot][t].evicted[profile.tier(folio)] += nr_pages;
    let token = (min_seq << profile.refs_width()) | u64::from(uses.saturating_sub(1));
    let mut shadow = Shadow {
        node: lruvec.node,
        memcg: lruvec.memcg,
        token: token & mask(profile.token_bits(folio_type)),
        workingset: match profile.usage {
            UsageCount::WorkingsetSecond => uses > 0,
            UsageCount::WorkingsetLast => folio.has(Flag::Workingset),
        },
    };
    if lru.mglru.refault_distance.is_some() {
        shadow.token = multi_gen::age(lru, lruvec_id, folio_type, nr_pages, shadow.token);
    }
    shadow.pack()
}

/// Handles the refault of an evicted page: counts it, and restores its usage count if the page was
/// gone for fewer generations than the profile's window. `in_fault`: by a page fault with recency.
pub(crate) fn refault<W: World>(lru: &mut Lru, world: &W, pfn: Pfn, shadow: u64, in_fault: bool) {
    let shadow = Shadow::unpack(shadow);
    let lruvec = &mut lru.lruvecs[lru.folios[pfn].lruvec.index()];
    if !shadow.names(lruvec.memcg) || shadow.node != lruvec.node {
        return;
    }
    restore(lru, pfn, shadow, in_fault);
    if let Some(rule) = lru.mglru.refault_distance
        && !in_fault
    {
        multi_gen::promote(lru, world, rule, pfn, shadow.token);
    }
}

/// Counts the refault and restores the usage count.
fn restore(lru: &mut Lru, pfn: Pfn, shadow: Shadow, in_fault: bool) {
    let profile = lru.mglru.profile;
    let ablation = lru.mglru.ablation;
    let folio = &mut lru.folios[pfn];
    let lruvec = &mut lru.lruvecs[folio.lruvec.index()];
    let folio_type = folio.folio_type();
    let t = folio_type.index();
    let nr_pages = folio.nr_pages();
    lruvec.events.workingset_refault[t] += nr_pages;

    let token_bits = match lru.mglru.refault_distance {
        Some(_) => multi_gen::TOKEN_BITS,
        None => profile.token_bits(folio_type),
    };
    // The refs field is at the low end of a token.
    let refs_width = profile.refs_width();
    let seq_bits = token_bits - refs_width;
    let evicted_seq = (shadow.token & mask(token_bits)) >> refs_width;
    let state = &lruvec.mglru;
    let window = profile
        .refault_window
        .filter(|_| !ablation.lacks(Part::RefaultWindow));
    let recent = match window {
        Some(window) => seq_distance(state.max_seq, evicted_seq, seq_bits) < window,
        None => seq_distance(state.min_seq[t], evicted_seq, seq_bits) == 0,
    };
    if !recent {
        return;
    }

    let refs = (shadow.token & mask(refs_width)) as u32;
    let slot = state.history_slot(state.min_seq[t], lru.mglru.history);
    let counters = &mut lruvec.mglru.control.current[slot][t];
    match profile.usage {
        UsageCount::WorkingsetSecond => {
            let uses = refs + u32::from(shadow.workingset);
            counters.refaulted[profile.tier_of(uses, false)] += nr_pages;
            lruvec.events.workingset_activate[t] += nr_pages;
            if (in_fault || uses >= profile.refs_max()) && !ablation.lacks(Part::Restore) {
                folio.set(Flag::Workingset);
                folio.set_refs(profile.refs_max());
                lruvec.events.workingset_restore[t] += nr_pages;
            }
        }
        UsageCount::WorkingsetLast => {
            counters.refaulted[profile.tier_of(refs + 1, shadow.workingset)] += nr_pages;
            if ablation.lacks(Part::Restore) {
                return;
            }
            if shadow.workingset {
                folio.set(Flag::Workingset);
                lruvec.events.workingset_restore[t] += nr_pages;
                if in_fault {
                    lruvec.events.workingset_activate[t] += nr_pages;
                }
            } else {
                folio.set_refs(refs);
            }
        }
    }
}

/// Distance of two sequence numbers given their low bits, modulo the width. The kernel takes a
/// plain difference and misjudges at each wrap-around.
fn seq_distance(seq: u64, evicted_seq: u64, bits: u32) -> u64 {
    let forward = seq.wrapping_sub(evicted_seq) & mask(bits);
    forward.min(forward.wrapping_neg() & mask(bits))
}

fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_survives_the_wrap_of_the_token() {
        for bits in [29, 34] {
            let wrap = 1u64 << bits;
            for seq in [5, wrap - 1, wrap, wrap + 2, 3 * wrap + 1] {
                for back in 0..4 {
                    assert_eq!(seq_distance(seq, (seq - back) & mask(bits), bits), back);
                }
            }
        }
        assert_eq!(
            seq_distance(3, 4, 29),
            1,
            "an eviction is never from the future by much"
        );
    }
}
