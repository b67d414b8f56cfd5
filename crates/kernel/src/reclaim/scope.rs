// SPDX-License-Identifier: Apache-2.0
//! The scope of a set of LRU lists: a node, or a zone as in Linux up to 4.7.
//!
//! Reclaim works on *reclaim nodes*, each with its own lists, scan balance, flags and counters.
//! With lists per node, these are the NUMA nodes. With lists per zone, each zone of each node is
//! one, numbered `node * 4 + zone`. Every function of the engine that takes a [`NodeId`] to reclaim
//! from then works on one zone, and the world returns only that zone from
//! [`crate::world::World::zones`]. kswapd and allocations still refer to NUMA nodes.

use crate::ids::NodeId;

/// Zones per node: DMA, DMA32, NORMAL, MOVABLE.
pub const ZONES: u32 = 4;

/// The scope of a set of lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListScope {
    /// All zones of a node (Linux 4.8 and later).
    #[default]
    Node,
    /// One zone; classic LRU only.
    Zone,
}

impl ListScope {
    /// Number of reclaim nodes on a machine with `nodes` NUMA nodes.
    #[must_use]
    pub fn reclaim_nodes(self, nodes: u32) -> u32 {
        match self {
            ListScope::Node => nodes,
            ListScope::Zone => nodes.saturating_mul(ZONES),
        }
    }

    /// The reclaim node whose lists have the pages of a zone.
    #[inline]
    #[must_use]
    pub fn reclaim_node(self, node: NodeId, zone: usize) -> NodeId {
        match self {
            ListScope::Node => node,
            ListScope::Zone => NodeId(node.0 * ZONES + (zone as u32).min(ZONES - 1)),
        }
    }

    /// The NUMA node of a reclaim node, and its zone with lists per zone.
    #[inline]
    #[must_use]
    pub fn place(self, reclaim_node: NodeId) -> (NodeId, Option<usize>) {
        match self {
            ListScope::Node => (reclaim_node, None),
            ListScope::Zone => (
                NodeId(reclaim_node.0 / ZONES),
                Some((reclaim_node.0 % ZONES) as usize),
            ),
        }
    }

    /// The reclaim node that direct reclaim of a task on `local` visits at `step`: nodes starting
    /// with the local one; zones in zonelist order, from the highest zone of each node down,
    /// regardless of the age of their pages.
    #[inline]
    #[must_use]
    pub fn visit(self, local: NodeId, step: u32, reclaim_nodes: u32) -> NodeId {
        match self {
            ListScope::Node => NodeId((local.0 + step) % reclaim_nodes.max(1)),
            ListScope::Zone => {
                let nodes = (reclaim_nodes / ZONES).max(1);
                let node = (local.0 + step / ZONES) % nodes;
                NodeId(node * ZONES + (ZONES - 1 - step % ZONES))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_numbered_within_their_node() {
        let scope = ListScope::Zone;
        assert_eq!(scope.reclaim_nodes(2), 8);
        for node in 0..2 {
            for zone in 0..4 {
                let id = scope.reclaim_node(NodeId(node), zone);
                assert_eq!(scope.place(id), (NodeId(node), Some(zone)));
            }
        }
        let whole = ListScope::Node.reclaim_node(NodeId(5), 2);
        assert_eq!(ListScope::Node.place(whole), (NodeId(5), None));
    }

    #[test]
    fn direct_reclaim_walks_the_zonelist() {
        let order: Vec<u32> = (0..8)
            .map(|step| ListScope::Zone.visit(NodeId(1), step, 8).0)
            .collect();
        assert_eq!(order, [7, 6, 5, 4, 3, 2, 1, 0]);
        let nodes: Vec<u32> = (0..3)
            .map(|step| ListScope::Node.visit(NodeId(2), step, 3).0)
            .collect();
        assert_eq!(nodes, [2, 0, 1]);
    }
}
