// SPDX-License-Identifier: Apache-2.0
//! Moving the folios of a removed cgroup to its parent.

use super::aging::inc_max_seq;
use super::{GENERATIONS_MAX, NR_ZONES};
use crate::folio::{FolioList, FolioType};
use crate::ids::LruvecId;
use crate::lru::Lru;

/// Moves all folios of a removed cgroup's lruvec to its parent's (`lru_gen_reparent_memcg`, 7.2):
/// the parent is aged without a walk until both types have all generations, then each list is
/// appended to the tail of the same slot. Generation fields do not change.
pub(crate) fn reparent(lru: &mut Lru, from: LruvecId, to: LruvecId, now_ns: u64) {
    let lists = lru.lruvecs[from.index()].mglru.lists.iter().flatten();
    let is_empty = lists.flatten().all(FolioList::is_empty);
    // The kernel ages the parent of every removed cgroup while the multi-gen LRU is on.
    if is_empty && !lru.mode.is_multi_gen() {
        return;
    }
    let parent = &lru.lruvecs[to.index()];
    let swappiness = lru.memcgs[parent.memcg.index()].swappiness;
    while FolioType::ALL
        .iter()
        .any(|&t| !lru.lruvecs[to.index()].mglru.is_full(t))
    {
        inc_max_seq(lru, to, swappiness, now_ns);
    }
    if is_empty {
        return;
    }
    lru.lruvecs[to.index()].mglru.adopted = true;
    for slot in 0..GENERATIONS_MAX {
        for t in 0..2 {
            for zone in 0..NR_ZONES {
                let child = &mut lru.lruvecs[from.index()].mglru;
                let mut list = std::mem::take(&mut child.lists[slot][t][zone]);
                let nr_pages = std::mem::take(&mut child.nr_pages[slot][t][zone]);
                lru.adopt(&list, to);
                let parent = &mut lru.lruvecs[to.index()].mglru;
                parent.nr_pages[slot][t][zone] += nr_pages;
                parent.lists[slot][t][zone].append_tail(&mut lru.folios, &mut list);
            }
        }
    }
}
