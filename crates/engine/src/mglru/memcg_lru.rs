// SPDX-License-Identifier: Apache-2.0
//! The order in which global reclaim visits cgroups: a per-node LRU of lruvecs in three
//! generations of eight bins, picked at random so that reclaimers spread (6.3 to 7.2).

use rand::RngExt;

use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;

/// `MEMCG_NR_GENS`: an old, a young, and one so that a stale read of the old does not name the young.
const MEMCG_NR_GENS: usize = 3;

/// `MEMCG_NR_BINS`.
pub(super) const MEMCG_NR_BINS: usize = 8;

/// What happens to a lruvec in the order (`MEMCG_LRU_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rotation {
    /// To the front of its generation: reclaim it first.
    Head,
    /// To the back of its generation: look at it once more.
    Tail,
    /// To the old generation.
    Old,
    /// To the young generation.
    Young,
}

/// Whether a lruvec was moved inside its generation (`MEMCG_LRU_NOP/HEAD/TAIL`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Segment {
    #[default]
    Default,
    Head,
    Tail,
}

/// Place of a lruvec in the order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Position {
    pub generation: usize,
    pub bin: usize,
    pub segment: Segment,
    pub listed: bool,
}

/// The order of one node.
#[derive(Clone, Debug, Default)]
pub struct MemcgLru {
    /// Generation number of the old one.
    pub(super) seq: u64,
    /// Lruvecs by generation and bin, first to be reclaimed first.
    pub(super) bins: [[Vec<LruvecId>; MEMCG_NR_BINS]; MEMCG_NR_GENS],
    /// With tree iteration: the cgroup direct reclaim visited last.
    pub(super) cursor: Option<MemcgId>,
}

impl MemcgLru {
    /// Slot of the old generation.
    pub(super) fn old(&self) -> usize {
        (self.seq % MEMCG_NR_GENS as u64) as usize
    }

    /// Slot of the young generation.
    pub(super) fn young(&self) -> usize {
        ((self.seq + 1) % MEMCG_NR_GENS as u64) as usize
    }

    fn is_empty(&self, generation: usize) -> bool {
        self.bins[generation].iter().all(Vec::is_empty)
    }
}

/// Lists the lruvecs of a new cgroup at the back of the old generation.
pub(crate) fn memcg_lru_online(lru: &mut Lru, memcg: MemcgId) {
    for lruvec in lru.memcgs[memcg.index()].lruvecs.clone() {
        let bin = lru.mglru_machine.rng.random_range(0..MEMCG_NR_BINS);
        let state = &mut lru.lruvecs[lruvec.index()];
        let order = &mut lru.memcg_lrus[state.node.index()];
        let generation = order.old();
        order.bins[generation][bin].push(lruvec);
        state.mglru.position = Position {
            generation,
            bin,
            segment: Segment::Default,
            listed: true,
        };
    }
}

/// Takes the lruvecs of a removed cgroup off the order if its folios move away, or lines them up to
/// be scraped.
pub(crate) fn memcg_lru_offline(lru: &mut Lru, memcg: MemcgId) {
    for lruvec in lru.memcgs[memcg.index()].lruvecs.clone() {
        if lru.mglru.profile.reparents_on_offline {
            unlist(lru, lruvec);
        } else {
            rotate(lru, lruvec, Rotation::Old);
        }
    }
}

/// Takes a lruvec off the order.
fn unlist(lru: &mut Lru, lruvec: LruvecId) {
    let state = &mut lru.lruvecs[lruvec.index()];
    let Position {
        generation, bin, ..
    } = state.mglru.position;
    state.mglru.position.listed = false;
    let order = &mut lru.memcg_lrus[state.node.index()];
    order.bins[generation][bin].retain(|&other| other != lruvec);
    if generation == order.old() && order.is_empty(generation) {
        order.seq += 1;
    }
}

/// A cgroup is over its soft limit on a node: it is reclaimed first (`lru_gen_soft_reclaim`).
pub fn soft_limit_exceeded(lru: &mut Lru, memcg: MemcgId, node: NodeId) {
    let lruvec = lru.lruvec_id(memcg, node);
    if lru.lruvecs[lruvec.index()].mglru.position.segment != Segment::Head {
        rotate(lru, lruvec, Rotation::Head);
    }
}

/// Moves a lruvec in the order of its node (`lru_gen_rotate_memcg`).
pub(super) fn rotate(lru: &mut Lru, lruvec: LruvecId, rotation: Rotation) {
    let bin = lru.mglru_machine.rng.random_range(0..MEMCG_NR_BINS);
    let state = &mut lru.lruvecs[lruvec.index()];
    if !state.mglru.position.listed {
        return;
    }
    let order = &mut lru.memcg_lrus[state.node.index()];
    let left = state.mglru.position;
    let (generation, segment, front) = match rotation {
        Rotation::Head => (left.generation, Segment::Head, true),
        Rotation::Tail => (left.generation, Segment::Tail, false),
        Rotation::Old => (order.old(), Segment::Default, true),
        Rotation::Young => (order.young(), Segment::Default, false),
    };
    order.bins[left.generation][left.bin].retain(|&other| other != lruvec);
    let target = &mut order.bins[generation][bin];
    if front {
        target.insert(0, lruvec);
    } else {
        target.push(lruvec);
    }
    state.mglru.position = Position {
        generation,
        bin,
        segment,
        listed: true,
    };
    if left.generation == order.old() && order.is_empty(left.generation) {
        order.seq += 1;
    }
}
