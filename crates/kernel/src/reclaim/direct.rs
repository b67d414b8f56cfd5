// SPDX-License-Identifier: Apache-2.0
//! Direct reclaim: by an allocation that found no free page (`try_to_free_pages`).

use super::memcg_limit::do_try_to_free_pages;
use super::{Reclaimer, SWAP_CLUSTER_MAX, ScanControl};
use crate::ids::{MemcgId, NodeId};
use crate::lru::Lru;
use crate::tracepoint::Tracepoint;
use crate::world::World;

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
/// The world counts `allocstall`.
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
