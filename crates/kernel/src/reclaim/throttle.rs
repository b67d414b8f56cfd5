// SPDX-License-Identifier: Apache-2.0
//! When a reclaimer sleeps, and for how long (`reclaim_throttle`).

use super::ScanControl;
use super::zone_facts::reclaimable_pages;
use crate::ids::NodeId;
use crate::lru::Lru;
use crate::world::{Throttle, World};

/// A timer tick of the reference kernels (`CONFIG_HZ=250`), in ns.
pub const TICK_NS: u64 = 4_000_000;

/// The longest sleep for a reason, in ns; it ends early if the reason no longer applies.
#[must_use]
pub fn timeout_ns(reason: Throttle) -> u64 {
    match reason {
        Throttle::Writeback => 100_000_000,
        Throttle::NoProgress | Throttle::Congested => TICK_NS,
    }
}

/// Makes the reclaimer sleep, unless it would wait for progress that no sleep will bring.
pub fn throttle<W: World>(lru: &Lru, world: &mut W, node: NodeId, reason: Throttle) {
    let for_progress = matches!(reason, Throttle::NoProgress | Throttle::Congested);
    if for_progress && !progress_is_waited_for(lru, world, node) {
        return;
    }
    world.throttle(node, reason, timeout_ns(reason));
}

/// Whether tasks wait for progress on a node (`skip_throttle_noprogress`): not on a hopeless one,
/// and only if more than half as many pages are waiting to be written as could be reclaimed. Before
/// 5.16 no task waited on any node.
fn progress_is_waited_for<W: World>(lru: &Lru, world: &W, node: NodeId) -> bool {
    lru.classic.progress_waits
        && !lru.nodes[node.index()].is_hopeless()
        && 2 * world.write_pending_pages(node) > reclaimable_pages(lru, world, node)
}

/// Called after each priority of a direct reclaim (`consider_reclaim_throttle`): waits for progress
/// before the last priority, if there was none.
pub fn consider<W: World>(lru: &Lru, world: &mut W, node: NodeId, sc: &ScanControl) {
    if !sc.is_kswapd() && !sc.is_cgroup_reclaim() && sc.priority == 1 && sc.nr_reclaimed == 0 {
        throttle(lru, world, node, Throttle::NoProgress);
    }
}
