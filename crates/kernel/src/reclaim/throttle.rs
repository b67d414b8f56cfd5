// SPDX-License-Identifier: Apache-2.0
//! When a reclaimer sleeps, and for how long (`reclaim_throttle`).

use super::ScanControl;
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

/// Makes the reclaimer sleep. On a hopeless node no task waits for progress that will not come, and
/// before 5.16 no task did so on any node.
pub fn throttle<W: World>(lru: &Lru, world: &mut W, node: NodeId, reason: Throttle) {
    let waits_for_progress = matches!(reason, Throttle::NoProgress | Throttle::Congested);
    let never = lru.nodes[node.index()].is_hopeless() || !lru.classic.progress_waits;
    if waits_for_progress && never {
        return;
    }
    world.throttle(node, reason, timeout_ns(reason));
}

/// Called after each priority of a direct reclaim (`consider_reclaim_throttle`): waits for progress
/// before the last priority, if there was none.
pub fn consider<W: World>(lru: &Lru, world: &mut W, node: NodeId, sc: &ScanControl) {
    if !sc.is_kswapd() && !sc.is_cgroup_reclaim() && sc.priority == 1 && sc.nr_reclaimed == 0 {
        throttle(lru, world, node, Throttle::NoProgress);
    }
}
