// SPDX-License-Identifier: Apache-2.0
//! List sizes as most decisions see them: through the statistics tree of the memory cgroups.
//!
//! Readers of `lruvec_page_state` see the value of the last flush, summed over the subtree. A
//! periodic work item flushes every two seconds, and reading `memory.stat` flushes too; the
//! rate-limited flush in the reclaim and refault paths only acts if the periodic one is late. The
//! world calls [`flush_stats`] in both cases. Between two flushes the inactive test, the refault
//! test, cache trimming and the decay of costs run on stale values.

use super::lists::{Counts, List};
use crate::ids::LruvecId;
use crate::lru::Lru;

/// Updates the flushed copies of the whole tree. Cost: linear in the number of lruvecs.
pub fn flush_stats(lru: &mut Lru) {
    for id in 0..lru.lruvecs.len() {
        lru.lruvecs[id].classic.flushed = own_counts(lru, id);
    }
    // Parents have lower ids than their children, so one descending pass sums every subtree.
    for memcg in (0..lru.memcgs.len()).rev() {
        let parent = lru.memcgs[memcg].parent.index();
        if parent >= lru.memcgs.len() {
            continue;
        }
        for node in 0..lru.memcgs[memcg].lruvecs.len() {
            let own = lru.memcgs[memcg].lruvecs[node].index();
            let above = lru.memcgs[parent].lruvecs[node].index();
            let counts = lru.lruvecs[own].classic.flushed;
            lru.lruvecs[above].classic.flushed.add(&counts);
        }
    }
}

/// Sizes and activations as decisions read them: flushed, or exact if so configured.
#[inline]
#[must_use]
pub fn counts(lru: &Lru, lruvec: LruvecId) -> Counts {
    if lru.classic.exact_stats {
        exact_counts(lru, lruvec)
    } else {
        lru.lruvecs[lruvec.index()].classic.flushed
    }
}

/// Current sizes and activations of a subtree.
#[must_use]
pub fn exact_counts(lru: &Lru, lruvec: LruvecId) -> Counts {
    let mut sum = own_counts(lru, lruvec.index());
    let (memcg, node) = {
        let lruvec = &lru.lruvecs[lruvec.index()];
        (lruvec.memcg.index(), lruvec.node.index())
    };
    for &child in &lru.memcgs[memcg].children {
        let child = lru.memcgs[child.index()].lruvecs[node];
        sum.add(&exact_counts(lru, child));
    }
    sum
}

fn own_counts(lru: &Lru, lruvec: usize) -> Counts {
    let lruvec = &lru.lruvecs[lruvec];
    Counts {
        pages: List::ALL.map(|list| lruvec.classic.total_pages(list)),
        activations: lruvec.events.workingset_activate,
    }
}
