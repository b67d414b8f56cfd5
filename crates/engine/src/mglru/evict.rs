// SPDX-License-Identifier: Apache-2.0
//! Evicting from the oldest generation.

use crate::ids::{LruvecId, NodeId};
use crate::lru::Lru;
use crate::reclaim::ScanControl;
use crate::world::World;

/// Reclaims from one lruvec for a cgroup's limit or a proactive request
/// (`lru_gen_shrink_lruvec`).
pub(crate) fn shrink_lruvec<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) {
    lru.drain_cpu(sc.cpu);
    let _ = (world, lruvec);
}

/// Global reclaim from a node at the priority of `sc`: cgroups in the order of the memcg LRU
/// (`lru_gen_shrink_node`).
pub fn shrink_node<W: World>(lru: &mut Lru, world: &mut W, node: NodeId, sc: &mut ScanControl) {
    lru.drain_cpu(sc.cpu);
    let _ = (world, node);
}
