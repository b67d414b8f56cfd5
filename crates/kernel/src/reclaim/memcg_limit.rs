// SPDX-License-Identifier: Apache-2.0
//! The loop over priorities that limit, direct and proactive reclaim share, and reclaim from one
//! cgroup.

use super::node::shrink_node;
use super::throttle;
use super::zone_facts;
use super::{DEF_PRIORITY, MAX_RECLAIM_RETRIES, Reclaimer, SWAP_CLUSTER_MAX, ScanControl};
use crate::classic::balance::snapshot_refaults;
use crate::ids::{MemcgId, NodeId};
use crate::lru::Lru;
use crate::tracepoint::Tracepoint;
use crate::world::World;

/// A request to reclaim from a cgroup and its descendants.
#[derive(Clone, Copy, Debug)]
pub struct CgroupRequest {
    /// The cgroup at its limit, or the one given by the caller.
    pub memcg: MemcgId,
    /// Pages wanted; at least one cluster is tried.
    pub nr_pages: u64,
    /// Limit or proactive reclaim ([`Reclaimer::Proactive`]).
    pub reclaimer: Reclaimer,
    /// Swap may be used.
    pub may_swap: bool,
    /// I/O is allowed.
    pub io_allowed: bool,
    /// Overrides the cgroups' swappiness, 0..=201.
    pub swappiness: Option<u32>,
    /// CPU of the caller.
    pub cpu: usize,
    /// Node of the caller, which is visited first.
    pub node: NodeId,
}

impl CgroupRequest {
    /// The request of a charge of one page that hit the limit of `memcg`.
    #[must_use]
    pub fn limit(memcg: MemcgId, cpu: usize, node: NodeId) -> CgroupRequest {
        CgroupRequest {
            memcg,
            nr_pages: 1,
            reclaimer: Reclaimer::MemcgLimit,
            may_swap: true,
            io_allowed: true,
            swappiness: None,
            cpu,
            node,
        }
    }
}

/// Reclaims from a cgroup (`try_to_free_mem_cgroup_pages`). Returns the pages reclaimed, which may
/// be fewer or slightly more than requested.
pub fn try_to_free_mem_cgroup_pages<W: World>(
    lru: &mut Lru,
    world: &mut W,
    request: CgroupRequest,
) -> u64 {
    let nr_to_reclaim = request.nr_pages.max(SWAP_CLUSTER_MAX);
    let mut sc = ScanControl {
        may_swap: request.may_swap,
        io_allowed: request.io_allowed,
        swappiness: request.swappiness,
        cpu: request.cpu,
        local_node: request.node,
        ..ScanControl::new(request.reclaimer, request.memcg, nr_to_reclaim)
    };
    world.trace(&Tracepoint::begin(&sc));
    let reclaimed = do_try_to_free_pages(lru, world, &mut sc);
    world.trace(&Tracepoint::end(&sc, reclaimed));
    reclaimed
}

/// Runs priorities from 12 to 0 until enough is reclaimed (`do_try_to_free_pages`). If nothing was
/// reclaimed, it retries with a walk over all cgroups, with forced deactivation if active pages
/// were skipped, and ignoring `memory.low` if that protected something. Returns the pages
/// reclaimed.
pub fn do_try_to_free_pages<W: World>(lru: &mut Lru, world: &mut W, sc: &mut ScanControl) -> u64 {
    loop {
        run_priorities(lru, world, sc);
        for node in 0..lru.nodes.len() {
            let node = node_id(node);
            snapshot_refaults(lru, sc.target, node);
            if sc.is_cgroup_reclaim() {
                let target = lru.lruvec_id(sc.target, node);
                lru.lruvecs[target.index()].reclaim.cgroup_congested = false;
            }
        }
        if sc.nr_reclaimed > 0 || !prepare_retry(sc) {
            return sc.nr_reclaimed;
        }
    }
}

/// Runs once from the first to the last priority, each over all nodes, the local one first.
fn run_priorities<W: World>(lru: &mut Lru, world: &mut W, sc: &mut ScanControl) {
    let nodes = node_id(lru.nodes.len()).0;
    let scope = lru.classic.list_scope;
    sc.priority = DEF_PRIORITY;
    loop {
        sc.nr_scanned = 0;
        let mut first = None;
        for i in 0..nodes {
            let node = scope.visit(sc.local_node, i, nodes);
            let usable = |zone: &crate::world::ZoneState| zone.managed_pages > 0;
            if !world.zones(node)[..=sc.reclaim_idx].iter().any(usable) {
                continue;
            }
            if zone_facts::is_given_up(lru, world, node, sc) {
                continue;
            }
            first.get_or_insert(node);
            shrink_node(lru, world, node, sc);
        }
        if let Some(node) = first {
            throttle::consider(lru, world, node, sc);
        }
        if sc.nr_reclaimed >= sc.nr_to_reclaim || sc.priority == 0 {
            return;
        }
        // The multi-gen LRU may have started at a lower one.
        sc.priority -= 1;
    }
}

/// Prepares the next retry after a run that reclaimed nothing; returns false if there is none.
fn prepare_retry(sc: &mut ScanControl) -> bool {
    if !sc.memcg_full_walk {
        sc.memcg_full_walk = true;
        true
    } else if sc.classic.skipped_deactivate {
        sc.classic.force_deactivate = true;
        sc.classic.skipped_deactivate = false;
        true
    } else if sc.memcg_low_skipped {
        sc.classic.force_deactivate = false;
        sc.memcg_low_reclaim = true;
        sc.memcg_low_skipped = false;
        true
    } else {
        false
    }
}

pub(super) fn node_id(index: usize) -> NodeId {
    NodeId(u32::try_from(index).expect("fewer than 2^32 nodes"))
}

/// A proactive request that reclaimed less than requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reclaimed {reclaimed_pages} of {asked_pages} pages: nothing more can be reclaimed now")]
pub struct ShortOfTarget {
    /// Pages reclaimed.
    pub reclaimed_pages: u64,
    /// Pages requested.
    pub asked_pages: u64,
}

/// Reclaims `nr_pages` from a cgroup as a write to `memory.reclaim` does: a quarter of the
/// remainder at a time, until 17 attempts have reclaimed nothing.
///
/// # Errors
///
/// [`ShortOfTarget`] (`EAGAIN` in the kernel) if less could be reclaimed.
pub fn reclaim_proactively<W: World>(
    lru: &mut Lru,
    world: &mut W,
    request: CgroupRequest,
) -> Result<u64, ShortOfTarget> {
    let mut retries = MAX_RECLAIM_RETRIES;
    let mut reclaimed = 0;
    while reclaimed < request.nr_pages {
        if retries == 0 {
            lru.drain_all();
        }
        let step = CgroupRequest {
            nr_pages: (request.nr_pages - reclaimed) / 4,
            reclaimer: Reclaimer::Proactive,
            ..request
        };
        let got = try_to_free_mem_cgroup_pages(lru, world, step);
        reclaimed += got;
        if got == 0 {
            if retries == 0 {
                return Err(ShortOfTarget {
                    reclaimed_pages: reclaimed,
                    asked_pages: request.nr_pages,
                });
            }
            retries -= 1;
        }
    }
    Ok(reclaimed)
}
