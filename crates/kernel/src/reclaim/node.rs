// SPDX-License-Identifier: Apache-2.0
//! One pass over a node: reclaims from its cgroups in tree order, and reacts to the states of the
//! folios it sees.

use super::throttle::throttle;
use super::tree::TreeWalk;
use super::watermark::node_is_balanced;
use super::zone_facts;
use super::{ScanControl, Seen};
use crate::classic::balance;
use crate::ids::{MemcgId, NodeId};
use crate::lru::{Lru, Mode};
use crate::mglru;
use crate::world::{Throttle, World};

/// Reclaims from a node at the priority of `sc` (`shrink_node`).
pub fn shrink_node<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    sc.seen = Seen::default();
    lru.end_writes(world, sc.cpu);
    let (before, scanned) = (sc.nr_reclaimed, sc.nr_scanned);
    if lru.mode != Mode::Classic && sc.is_global() {
        mglru::shrink_node(lru, world, node, sc);
        if lru.mode != Mode::Switching {
            if sc.nr_reclaimed > before {
                revive_kswapd(lru, world, node, sc);
            }
            return;
        }
    }
    if lru.mode != Mode::MultiGen {
        balance::prepare(lru, world, node, sc);
    }
    shrink_cgroups(lru, world, node, sc);
    flag_and_throttle(lru, world, node, sc);
    let state = &mut lru.nodes[node.index()];
    state.scanned_since_free = if sc.nr_reclaimed > before {
        0
    } else {
        // Multi-gen subtracts folios that it retries, not all of which were counted.
        state.scanned_since_free + sc.nr_scanned.saturating_sub(scanned)
    };
    if sc.nr_reclaimed > before {
        revive_kswapd(lru, world, node, sc);
    } else if sc.classic.cache_trim_mode {
        sc.classic.cache_trim_mode_failed = true;
    }
}

/// Reclaims from each unprotected cgroup below the target (`shrink_node_memcgs`). Limit and direct
/// reclaim stop as soon as they have enough and leave the rest to the next caller; kswapd and a
/// caller that found nothing visit all cgroups.
fn shrink_cgroups<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    let partial = !sc.is_kswapd() && !sc.memcg_full_walk;
    let mut walk = if partial {
        TreeWalk::partial(sc.target, node)
    } else {
        TreeWalk::full(sc.target)
    };
    let mut slab_reclaimed = 0;
    let shrinks_slab = zone_facts::shrinks_slab(lru, world, node, sc);
    while let Some(memcg) = walk.next(lru) {
        if is_protected(lru, world, memcg, sc) {
            continue;
        }
        let lruvec = lru.lruvec_id(memcg, node);
        lru.shrink_lruvec(world, lruvec, sc);
        if shrinks_slab {
            slab_reclaimed += world.shrink_slab(memcg, node, sc.priority);
        }
        if partial && sc.nr_reclaimed >= sc.nr_to_reclaim {
            break;
        }
    }
    // Slab pages do not belong to a particular cgroup: they only count in global reclaim.
    if sc.is_global() {
        sc.nr_reclaimed += slab_reclaimed;
    }
}

/// Whether to skip a cgroup: below `memory.min`, or below `memory.low` while other cgroups can
/// still be reclaimed. Protection only applies to reclaim from above.
fn is_protected<W: World>(lru: &mut Lru, world: &W, memcg: MemcgId, sc: &mut ScanControl) -> bool {
    if memcg == sc.target || memcg == MemcgId::ROOT {
        return false;
    }
    let protection = world.protection(sc.target, memcg);
    if protection.below_min() {
        return true;
    }
    if !protection.below_low() {
        return false;
    }
    if sc.memcg_low_reclaim {
        lru.memcgs[memcg.index()].low_events += 1;
        return false;
    }
    sc.memcg_low_skipped = true;
    true
}

/// Flags the node or the target by the folios seen, and throttles the reclaimer if all of them are
/// waiting for writeback.
fn flag_and_throttle<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &ScanControl) {
    let seen = sc.seen;
    let target = lru.lruvec_id(sc.target, node).index();
    if sc.is_kswapd() {
        let flags = &mut lru.node_flags[node.index()];
        // Cleared when kswapd goes to sleep with the node balanced.
        flags.writeback |= seen.writeback > 0 && seen.writeback == seen.taken;
        if lru.mglru.profile.kswapd_writes_files && !lru.classic.dirty_stays_inactive {
            flags.dirty |= seen.unqueued_dirty == seen.file_taken;
        }
        if seen.immediate > 0 {
            throttle(lru, world, node, Throttle::Writeback);
        }
    }
    let congested = seen.dirty > 0 && seen.dirty == seen.congested;
    let state = &mut lru.lruvecs[target].reclaim;
    state.cgroup_congested |= congested && sc.is_cgroup_reclaim();
    state.node_congested |= congested && sc.is_kswapd();
    if !sc.is_kswapd() && (state.cgroup_congested || state.node_congested) {
        throttle(lru, world, node, Throttle::Congested);
    }
}

/// Marks a node with reclaim progress as not hopeless. In 7.2 the node must also be balanced: a
/// little progress by others does not start kswapd again.
fn revive_kswapd<W: World>(lru: &mut Lru, world: &W, node: NodeId, sc: &ScanControl) {
    if !lru.classic.balanced_node_revives_kswapd
        || node_is_balanced(&world.zones(node), sc.order, sc.reclaim_idx)
    {
        lru.nodes[node.index()].kswapd_failures = 0;
    }
}
