// SPDX-License-Identifier: Apache-2.0
//! Global reclaim: which cgroups of a node are reclaimed, in which order, and from which priority
//! (`lru_gen_shrink_node`, `shrink_many`, `shrink_one`).

use rand::RngExt;

use crate::folio::FolioType;
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;
use crate::reclaim::migration::demotion_target;
use crate::reclaim::{DEF_PRIORITY, Reclaimer, ScanControl};
use crate::world::World;

use super::MIN_LRU_BATCH;
use super::memcg_lru::{MEMCG_NR_BINS, Segment};
use super::memcg_rotate::{self, Rotation};
use super::profile::MemcgOrder;
use super::shrink::{evictable_pages, should_abort, swappiness, try_to_shrink};

/// Global reclaim from a node. The first pass may start at a priority below the default (sets
/// `sc.priority`); kswapd uses the count of this pass to decide when to stop.
pub fn shrink_node<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    lru.drain_cpu(sc.cpu);
    let kswapd = sc.reclaimer == Reclaimer::Kswapd;
    lru.mglru_machine.walk.present = kswapd || sc.reclaimer == Reclaimer::Proactive;
    set_initial_priority(lru, world, node, sc);
    let before = sc.nr_reclaimed;
    if kswapd {
        sc.nr_reclaimed = 0;
    }
    match lru
        .mglru
        .memcg_order
        .unwrap_or(lru.mglru.profile.memcg_order)
    {
        MemcgOrder::MemcgLru => shrink_many(lru, world, node, sc),
        MemcgOrder::Cursor => shrink_from_cursor(lru, world, node, sc),
    }
    if kswapd {
        sc.nr_reclaimed += before;
    }
    lru.mglru_machine.walk.present = false;
}

/// Starts at a lower priority if much is requested of little memory (`set_initial_priority`).
pub(super) fn set_initial_priority<W: World>(
    lru: &Lru,
    world: &W,
    node: NodeId,
    sc: &mut ScanControl,
) {
    if sc.priority != DEF_PRIORITY || sc.nr_to_reclaim < MIN_LRU_BATCH {
        return;
    }
    let swaps =
        world.swap_free_pages(MemcgId::ROOT) > 0 || demotion_target(lru, world, node, sc).is_some();
    let mut reclaimable = 0;
    for memcg in &lru.memcgs {
        let lruvec = memcg.lruvecs[node.index()];
        reclaimable += lru.lru_pages(lruvec, FolioType::File, false);
        if swaps {
            reclaimable += lru.lru_pages(lruvec, FolioType::Anon, false);
        }
    }
    let fls = |n: u64| u64::BITS - n.leading_zeros();
    let priority = fls(reclaimable).saturating_sub(1 + fls(sc.nr_to_reclaim - 1));
    sc.priority = priority.clamp(DEF_PRIORITY / 2, DEF_PRIORITY);
}

/// Reclaims from the old generation of the memcg LRU, starting at a random bin.
fn shrink_many<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    let generation = lru.memcg_lrus[node.index()].old();
    let first_bin = lru.mglru_machine.rng.random_range(0..MEMCG_NR_BINS);
    for step in 0..MEMCG_NR_BINS {
        let bin = (first_bin + step) % MEMCG_NR_BINS;
        let mut at = lru.memcg_lrus[node.index()].bins[generation][bin]
            .first()
            .copied();
        while let Some(lruvec) = at {
            let rotation = shrink_one(lru, world, lruvec, sc);
            let done = should_abort(lru, world, lruvec, sc);
            // Look up the next one before this one moves.
            let list = &lru.memcg_lrus[node.index()].bins[generation][bin];
            let place = list.iter().position(|&other| other == lruvec);
            at = place.and_then(|place| list.get(place + 1)).copied();
            if let Some(rotation) = rotation {
                memcg_rotate::rotate(lru, lruvec, rotation);
            }
            if done {
                return;
            }
        }
    }
}

/// Reclaims from one lruvec; returns how it moves in the order.
fn shrink_one<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) -> Option<Rotation> {
    let memcg = lru.lruvecs[lruvec.index()].memcg;
    let node = lru.lruvecs[lruvec.index()].node;
    let segment = lru.lruvecs[lruvec.index()].mglru.position.segment;
    let protection = world.protection(MemcgId::ROOT, memcg);
    if protection.below_min() {
        return Some(Rotation::Young);
    }
    if protection.below_low() {
        if segment != Segment::Tail {
            return Some(Rotation::Tail);
        }
        lru.memcgs[memcg.index()].low_events += 1;
    }
    let low = try_to_shrink(lru, world, lruvec, sc);
    sc.nr_reclaimed += world.shrink_slab(memcg, node, sc.priority);
    let online = lru.memcgs[memcg.index()].online;
    if low && online {
        return Some(Rotation::Young);
    }
    if !low && is_sizable(lru, world, lruvec, sc) {
        return None;
    }
    // Removed or too small: visit it once more at the end of this generation.
    Some(if segment == Segment::Tail {
        Rotation::Young
    } else {
        Rotation::Tail
    })
}

/// Whether there is anything to scan at this priority (`lruvec_is_sizable`).
pub(super) fn is_sizable<W: World>(
    lru: &Lru,
    world: &W,
    lruvec: LruvecId,
    sc: &ScanControl,
) -> bool {
    let memcg = lru.lruvecs[lruvec.index()].memcg;
    let swappiness = swappiness(lru, world, lruvec, sc);
    let pages = evictable_pages(&lru.lruvecs[lruvec.index()].mglru, swappiness);
    if lru.memcgs[memcg.index()].online {
        pages >> sc.priority > 0
    } else {
        pages > 0
    }
}

/// Tree iteration: kswapd and full walks visit every cgroup, direct reclaim continues where the
/// previous one on this node stopped.
fn shrink_from_cursor<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    let full = sc.reclaimer == Reclaimer::Kswapd || sc.memcg_full_walk;
    let start = lru.memcg_lrus[node.index()].cursor.filter(|_| !full);
    let order = lru.tree_order(MemcgId::ROOT);
    let first = start
        .and_then(|memcg| order.iter().position(|&other| other == memcg))
        .map_or(0, |place| place + 1);
    for &memcg in order.iter().cycle().skip(first).take(order.len()) {
        shrink_at_cursor(lru, world, memcg, node, sc);
        if !full {
            lru.memcg_lrus[node.index()].cursor = Some(memcg);
            if should_abort(lru, world, lru.lruvec_id(memcg, node), sc) {
                return;
            }
        }
    }
}

fn shrink_at_cursor<W: World>(
    lru: &mut Lru,
    world: &mut W,
    memcg: MemcgId,
    node: NodeId,
    sc: &mut ScanControl,
) {
    let protection = world.protection(MemcgId::ROOT, memcg);
    if protection.below_min() {
        return;
    }
    if protection.below_low() {
        if !sc.memcg_low_reclaim {
            sc.memcg_low_skipped = true;
            return;
        }
        lru.memcgs[memcg.index()].low_events += 1;
    }
    try_to_shrink(lru, world, lru.lruvec_id(memcg, node), sc);
    sc.nr_reclaimed += world.shrink_slab(memcg, node, sc.priority);
}
