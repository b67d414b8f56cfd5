// SPDX-License-Identifier: Apache-2.0
//! The state of zones that reclaim needs with lists per zone (`mm/vmscan.c` of 4.6).

use super::scope::{ListScope, ZONES};
use super::watermark::is_above;
use super::{DEF_PRIORITY, ScanControl};
use crate::classic::List;
use crate::folio::FolioType;
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;
use crate::world::{World, ZoneState};

/// A zone is given up when its pages were scanned this many times without one being freed
/// (`zone_reclaimable`).
const FRUITLESS_ROUNDS: u64 = 6;

pub(super) fn zone_of(
    lru: &Lru,
    world: &impl World,
    node: NodeId,
    zone: usize,
) -> (NodeId, ZoneState) {
    let id = lru.classic.list_scope.reclaim_node(node, zone);
    (id, world.zones(id)[zone])
}

/// Pages of a reclaim node that scanning could free (`zone_reclaimable_pages` of its zones).
pub(super) fn reclaimable_pages(lru: &Lru, world: &impl World, node: NodeId) -> u64 {
    let anon = world.swap_free_pages(MemcgId::ROOT) > 0 || world.demotion_target(node).is_some();
    (0..lru.lruvecs.len())
        .filter(|&index| lru.lruvecs[index].node == node)
        .flat_map(|index| List::ALL.map(|list| (LruvecId(index as u32), list)))
        .filter(|(_, list)| anon || list.folio_type() == FolioType::File)
        .map(|(lruvec, list)| lru.lru_pages(lruvec, list.folio_type(), list.is_active()))
        .sum()
}

pub(super) fn is_reclaimable(lru: &Lru, world: &impl World, zone: NodeId) -> bool {
    let scanned = lru.nodes[zone.index()].scanned_since_free;
    scanned < reclaimable_pages(lru, world, zone).saturating_mul(FRUITLESS_ROUNDS)
}

/// Whether global direct reclaim skips a reclaim node: a zone scanned in vain, except at the first
/// priority, at which it is still polled. Never with lists per node.
pub(super) fn is_given_up(lru: &Lru, world: &impl World, zone: NodeId, sc: &ScanControl) -> bool {
    lru.classic.list_scope == ListScope::Zone
        && !sc.is_cgroup_reclaim()
        && sc.priority != DEF_PRIORITY
        && !is_reclaimable(lru, world, zone)
}

/// Whether the pass over a reclaim node calls the shrinkers. They belong to the node, so only the
/// highest zone that the request can use calls them (`is_classzone`).
pub(super) fn shrinks_slab(lru: &Lru, world: &impl World, zone: NodeId, sc: &ScanControl) -> bool {
    let (node, Some(own)) = lru.classic.list_scope.place(zone) else {
        return true;
    };
    let highest = (0..=sc.reclaim_idx)
        .rev()
        .find(|&zone| zone_of(lru, world, node, zone).1.managed_pages > 0);
    highest == Some(own)
}

/// Whether the kswapd of a node can rest: every zone that the request can use is above its high
/// watermark or given up (`pgdat_balanced`). For higher orders a quarter of the memory is enough.
pub(super) fn node_is_balanced(
    lru: &Lru,
    world: &impl World,
    node: NodeId,
    order: u32,
    highest: usize,
) -> bool {
    let (mut managed, mut balanced) = (0, 0);
    for index in 0..=highest.min(ZONES as usize - 1) {
        let (id, zone) = zone_of(lru, world, node, index);
        if zone.managed_pages == 0 {
            continue;
        }
        managed += zone.managed_pages;
        if !is_reclaimable(lru, world, id) || is_above(&zone, order, zone.high_pages, index) {
            balanced += zone.managed_pages;
        } else if order == 0 {
            return false;
        }
    }
    order == 0 || balanced >= managed / 4
}
