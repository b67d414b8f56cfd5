// SPDX-License-Identifier: Apache-2.0
//! Direct reclaim: by an allocation that found no free page (`try_to_free_pages`).

use super::memcg_limit::do_try_to_free_pages;
use super::{Reclaimer, SWAP_CLUSTER_MAX, ScanControl};
use crate::ids::{MemcgId, NodeId};
use crate::lru::Lru;
use crate::tracepoint::Tracepoint;
use crate::world::{World, ZoneState};

/// An allocation that reclaims.
#[derive(Clone, Copy, Debug)]
pub struct DirectRequest {
    /// log2 of the pages it needs.
    pub order: u32,
    /// Highest zone it may use.
    pub reclaim_idx: usize,
    /// Whether I/O is allowed.
    pub io_allowed: bool,
    /// CPU of the caller.
    pub cpu: usize,
    /// Node it prefers.
    pub node: NodeId,
}

/// Reclaims one cluster for an allocation, at priorities from 12 to 0. Returns the pages reclaimed.
/// The world counts `allocstall` and calls [`must_wait_for_kswapd`] first.
pub fn try_to_free_pages<W: World>(lru: &mut Lru, world: &mut W, request: DirectRequest) -> u64 {
    let mut sc = ScanControl {
        order: request.order,
        reclaim_idx: request.reclaim_idx,
        io_allowed: request.io_allowed,
        cpu: request.cpu,
        local_node: request.node,
        ..ScanControl::new(Reclaimer::Direct, MemcgId::ROOT, SWAP_CLUSTER_MAX)
    };
    world.trace(&Tracepoint::begin(&sc));
    let reclaimed = do_try_to_free_pages(lru, world, &mut sc);
    world.trace(&Tracepoint::end(&sc, reclaimed));
    reclaimed
}

/// Whether free memory has fallen to half of the reserves, so that user tasks wait for kswapd
/// instead of reclaiming (`allow_direct_reclaim`). Never on a hopeless node, where they would wait
/// forever. Zones above NORMAL do not count.
#[must_use]
pub fn must_wait_for_kswapd(lru: &Lru, node: NodeId, zones: &[ZoneState; 4]) -> bool {
    const ZONE_NORMAL: usize = 2;
    if lru.nodes[node.index()].is_hopeless() {
        return false;
    }
    let usable = zones[..=ZONE_NORMAL]
        .iter()
        .filter(|zone| zone.managed_pages > 0);
    let (reserve, free) = usable.fold((0, 0), |(reserve, free), zone| {
        (reserve + zone.min_pages, free + zone.free_pages)
    });
    reserve > 0 && free <= reserve / 2
}
