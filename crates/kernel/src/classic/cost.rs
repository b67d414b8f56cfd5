// SPDX-License-Identifier: Apache-2.0
//! Recent cost of reclaiming each type, from which the scan balance is computed.

use super::stats;
use crate::folio::FolioType;
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::SWAP_CLUSTER_MAX;

/// Adds `io_pages` of I/O and `rotated_pages` of fruitless scanning to the cost of a type, in a
/// lruvec and all its ancestors. Each of them then halves both costs once if their sum exceeds a
/// quarter of its pages (`lru_note_cost`).
pub fn note_cost(
    lru: &mut Lru,
    lruvec: LruvecId,
    folio_type: FolioType,
    io_pages: u64,
    rotated_pages: u64,
) {
    let cost = io_pages * SWAP_CLUSTER_MAX + rotated_pages;
    if cost == 0 && !lru.classic.zero_cost_decays {
        return;
    }
    let mut next = Some(lruvec);
    while let Some(id) = next {
        let total_pages = stats::counts(lru, id).total_pages();
        let costs = &mut lru.lruvecs[id.index()].classic.cost;
        costs[folio_type.index()] += cost;
        decay(costs, total_pages);
        next = parent_lruvec(lru, id);
    }
}

/// Halves both costs if their sum exceeds a quarter of the lruvec.
fn decay(costs: &mut [u64; 2], total_pages: u64) {
    if costs[0] + costs[1] > total_pages / 4 {
        for cost in costs {
            *cost /= 2;
        }
    }
}

/// The lruvec of the parent cgroup on the same node.
#[inline]
pub(super) fn parent_lruvec(lru: &Lru, lruvec: LruvecId) -> Option<LruvecId> {
    let lruvec = &lru.lruvecs[lruvec.index()];
    let parent = lru.memcgs[lruvec.memcg.index()].parent;
    Some(lru.memcgs.get(parent.index())?.lruvecs[lruvec.node.index()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_halved_once_above_a_quarter() {
        let mut costs = [500, 500];
        decay(&mut costs, 4000);
        assert_eq!(costs, [500, 500]);
        costs[0] += 1;
        decay(&mut costs, 4000);
        assert_eq!(costs, [250, 250]);
        let mut far_above = [9000, 1];
        decay(&mut far_above, 4000);
        assert_eq!(far_above, [4500, 0]);
    }
}
