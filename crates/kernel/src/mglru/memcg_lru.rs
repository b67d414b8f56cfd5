// SPDX-License-Identifier: Apache-2.0
//! The order in which global reclaim visits cgroups: a per-node LRU of lruvecs in three
//! generations of eight bins, picked at random so that reclaimers spread (6.3 to 7.2).

use crate::ids::{LruvecId, MemcgId};

/// `MEMCG_NR_GENS`: an old, a young, and one so that a stale read of the old does not name the young.
const MEMCG_NR_GENS: usize = 3;

/// `MEMCG_NR_BINS`.
pub(super) const MEMCG_NR_BINS: usize = 8;

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

    /// Whether a generation has no lruvec.
    pub(super) fn is_empty(&self, generation: usize) -> bool {
        self.bins[generation].iter().all(Vec::is_empty)
    }
}
