// SPDX-License-Identifier: Apache-2.0
//! List sizes as most decisions see them: through the statistics tree of the memory cgroups.
//!
//! Readers of `lruvec_page_state` see the value of the last flush, summed over the subtree. A
//! periodic work flushes every two seconds and a reader of `memory.stat` flushes too; the
//! rate-limited flush of the reclaim and refault paths acts only if the periodic one is late. The
//! world calls [`flush_stats`] when either happens. Between two flushes the inactive test, the
//! refault test, cache trimming and the decay of costs run open loop.

use super::lists::{Counts, List};
use crate::ids::LruvecId;
use crate::lru::Lru;

/// Brings the flushed copies of the whole tree up to date. Cost: linear in lruvecs.
pub fn flush_stats(lru: &mut Lru) {
    for id in 0..lru.lruvecs.len() {
        lru.lruvecs[id].classic.flushed = own_counts(lru, id);
    }
    // Children are made after their parents, so one pass from the youngest sums every subtree.
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

/// Sizes and activations as decisions read them: flushed, or exact if so set.
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
