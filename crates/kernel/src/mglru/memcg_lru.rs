// SPDX-License-Identifier: Apache-2.0
//! The order in which global reclaim visits cgroups: a per-node LRU of lruvecs in three generations
//! of eight bins. Reclaimers start at random bins to spread (6.3 to 7.2).

use crate::ids::{LruvecId, MemcgId};

/// `MEMCG_NR_GENS`: an old and a young one, and a spare so that a stale number of the old one does
/// not refer to the young one.
const MEMCG_NR_GENS: usize = 3;

/// `MEMCG_NR_BINS`.
pub(super) const MEMCG_NR_BINS: usize = 8;

/// How a lruvec was moved within its generation (`MEMCG_LRU_NOP` or `TAIL`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Segment {
    #[default]
    Default,
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
    /// Sequence number of the old generation.
    pub(super) seq: u64,
    /// Lruvecs by generation and bin, in the order of reclaim.
    pub(super) bins: [[Vec<LruvecId>; MEMCG_NR_BINS]; MEMCG_NR_GENS],
    /// With tree iteration: the cgroup that direct reclaim visited last.
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
