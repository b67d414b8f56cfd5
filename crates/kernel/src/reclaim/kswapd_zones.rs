// SPDX-License-Identifier: Apache-2.0
//! kswapd and related checks with lists per zone (`mm/vmscan.c` of 4.6).
//!
//! The allocator starts at the highest zone. kswapd goes in the opposite direction, from the lowest
//! zone up to the highest one that is short, so that the two meet as late as possible.

use super::background_aging::age_node;
use super::node::shrink_node;
use super::scope::ZONES;
use super::watermark::is_above;
use super::zone_facts::{is_reclaimable, zone_of};
use super::{DEF_PRIORITY, SWAP_CLUSTER_MAX, ScanControl};
use crate::ids::{MemcgId, NodeId};
use crate::lru::{Lru, NodeFlags};
use crate::reclaim::scope::ListScope;
use crate::world::{World, ZoneState};

/// A zone is skipped if it exceeds its high watermark by this part of its size, or by its low
/// watermark if that is less (`KSWAPD_ZONE_BALANCE_GAP_RATIO`).
const BALANCE_GAP_RATIO: u64 = 100;

/// The result of one priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No zone is short.
    Balanced,
    /// Enough was scanned: stay at this priority.
    Enough,
    /// Too little was scanned: lower the priority value.
    TooLittle,
}

/// Finds the highest zone that is short, and clears the flags of the balanced zones above it.
fn highest_unbalanced<W: World>(
    lru: &mut Lru,
    world: &mut W,
    node: NodeId,
    sc: &mut ScanControl,
) -> Option<usize> {
    for index in (0..ZONES as usize).rev() {
        let (id, zone) = zone_of(lru, world, node, index);
        let polled = sc.priority == DEF_PRIORITY || is_reclaimable(lru, world, id);
        if zone.managed_pages == 0 || !polled {
            continue;
        }
        age_node(lru, world, id, sc);
        if !is_above(&zone, sc.order, zone.high_pages, 0) {
            return Some(index);
        }
        clear_congestion(lru, id);
    }
    None
}

fn clear_congestion(lru: &mut Lru, zone: NodeId) {
    lru.node_flags[zone.index()].dirty = false;
    let root = lru.lruvec_id(MemcgId::ROOT, zone).index();
    lru.lruvecs[root].reclaim.node_congested = false;
}

/// One priority of `balance_pgdat`: from the lowest zone to the highest that is short, with equal
/// pressure on each, except those with far more than enough.
pub(super) fn step<W: World>(
    lru: &mut Lru,
    world: &mut W,
    node: NodeId,
    sc: &mut ScanControl,
) -> Step {
    sc.nr_reclaimed = 0;
    let Some(end_zone) = highest_unbalanced(lru, world, node, sc) else {
        return Step::Balanced;
    };
    sc.reclaim_idx = end_zone;
    let mut enough = false;
    for index in 0..=end_zone {
        let (id, zone) = zone_of(lru, world, node, index);
        let polled = sc.priority == DEF_PRIORITY || is_reclaimable(lru, world, id);
        if zone.managed_pages > 0 && polled {
            enough |= shrink_zone(lru, world, (id, zone, end_zone), sc);
        }
    }
    if enough && sc.nr_reclaimed > 0 {
        Step::Enough
    } else {
        Step::TooLittle
    }
}

/// Reclaims from one zone unless it has plenty (`kswapd_shrink_zone`). Returns whether enough was
/// scanned, so that no higher effort is needed.
fn shrink_zone<W: World>(
    lru: &mut Lru,
    world: &mut W,
    (id, zone, end_zone): (NodeId, ZoneState, usize),
    sc: &mut ScanControl,
) -> bool {
    sc.nr_scanned = 0;
    sc.nr_to_reclaim = zone.high_pages.max(SWAP_CLUSTER_MAX);
    let gap = zone
        .low_pages
        .min(zone.managed_pages.div_ceil(BALANCE_GAP_RATIO));
    if is_above(&zone, sc.order, zone.high_pages + gap, end_zone) {
        return true;
    }
    shrink_node(lru, world, id, sc);
    lru.node_flags[id.index()].writeback = false;
    let index = lru.classic.list_scope.place(id).1.unwrap_or(end_zone);
    let zone = world.zones(id)[index];
    if is_reclaimable(lru, world, id) && is_above(&zone, sc.order, zone.high_pages, end_zone) {
        clear_congestion(lru, id);
    }
    sc.nr_scanned >= sc.nr_to_reclaim
}

/// Clears the congestion flags of kswapd's zones before it sleeps.
pub(super) fn calm(lru: &mut Lru, node: NodeId) {
    for zone in 0..ZONES as usize {
        let id = ListScope::Zone.reclaim_node(node, zone);
        lru.node_flags[id.index()] = NodeFlags::default();
        let root = lru.lruvec_id(MemcgId::ROOT, id).index();
        lru.lruvecs[root].reclaim.node_congested = false;
        lru.lruvecs[root].reclaim.cgroup_congested = false;
    }
}
