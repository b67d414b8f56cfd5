// SPDX-License-Identifier: Apache-2.0
//! Thrashing prevention: kill a task rather than evict recently used memory (`lru_gen_age_node`).

use crate::folio::FolioType;
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;
use crate::reclaim::ScanControl;
use crate::world::World;

use super::aging::evictable_min_seq;
use super::global::{is_sizable, set_initial_priority};
use super::profile::AgingRule;
use super::shrink::{aging_due, swappiness};
use super::walk::age;
use super::{jiffies, msecs_to_jiffies};

/// kswapd's step before each priority: kills a task if every evictable generation on the node is
/// younger than `min_ttl_ms`. Returns whether it did. v6 also ages every cgroup here.
pub fn age_node<W: World>(
    lru: &mut Lru,
    world: &mut W,
    node: NodeId,
    sc: &mut ScanControl,
) -> bool {
    set_initial_priority(lru, world, node, sc);
    let order = lru.tree_order(MemcgId::ROOT);
    if lru.mglru.profile.kswapd_ages_all {
        for &memcg in &order {
            let lruvec = lru.lruvec_id(memcg, node);
            let swappiness = swappiness(lru, world, lruvec, sc);
            if aging_due(lru, lruvec, sc, swappiness) {
                age(lru, world, lruvec, swappiness, false);
            }
        }
    }
    if lru.mglru.min_ttl_ms == 0 {
        return false;
    }
    let reclaimable = order.iter().any(|&memcg| {
        let lruvec = lru.lruvec_id(memcg, node);
        is_old_enough(lru, world, lruvec, sc)
    });
    !reclaimable && world.oom_kill(MemcgId::ROOT)
}

/// Whether a lruvec has evictable memory that was not used for `min_ttl_ms`
/// (`lruvec_is_reclaimable`).
fn is_old_enough<W: World>(lru: &Lru, world: &W, lruvec: LruvecId, sc: &ScanControl) -> bool {
    let state = &lru.lruvecs[lruvec.index()];
    if world.protection(MemcgId::ROOT, state.memcg).below_min() {
        return false;
    }
    if !is_sizable(lru, world, lruvec, sc) {
        return false;
    }
    let min_seq = state.mglru.min_seq;
    let oldest = match lru.mglru.profile.aging {
        AgingRule::SpareGeneration => {
            evictable_min_seq(min_seq, swappiness(lru, world, lruvec, sc))
        }
        AgingRule::Ratio | AgingRule::RatioByFile => min_seq[FolioType::File.index()],
    };
    let min_ttl = msecs_to_jiffies(lru.mglru.min_ttl_ms);
    jiffies(state.mglru.birth_ns(oldest)) + min_ttl < jiffies(world.now_ns())
}
