// SPDX-License-Identifier: Apache-2.0
//! What both LRUs share: the control block of a reclaim call, the fate of isolated folios, and the
//! loops over priorities (memory cgroup limit, direct, kswapd).

pub(crate) mod references;
pub mod shrink_folios;

use crate::ids::MemcgId;

/// `DEF_PRIORITY`: a first pass looks at 1/4096 of a list.
pub const DEF_PRIORITY: u32 = 12;

/// `SWAP_CLUSTER_MAX`: pages a reclaim call asks for, and the classic LRU's chunk.
pub const SWAP_CLUSTER_MAX: u64 = 32;

/// Who reclaims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimer {
    /// The node's background thread.
    Kswapd,
    /// An allocation that found no free page.
    Direct,
    /// A charge at a cgroup's limit.
    MemcgLimit,
    /// `memory.reclaim`, debugfs or another proactive request.
    Proactive,
}

/// One reclaim call (`struct scan_control`).
#[derive(Clone, Debug)]
pub struct ScanControl {
    /// Who reclaims.
    pub reclaimer: Reclaimer,
    /// Root of the subtree that is reclaimed; [`MemcgId::ROOT`] for global reclaim.
    pub target: MemcgId,
    /// Pages wanted.
    pub nr_to_reclaim: u64,
    /// Pages reclaimed so far in this call.
    pub nr_reclaimed: u64,
    /// Pages scanned so far at this priority.
    pub nr_scanned: u64,
    /// Current priority, `DEF_PRIORITY` down to 0.
    pub priority: u32,
    /// Order of the allocation behind the call.
    pub order: u32,
    /// Highest usable zone, 0..=3.
    pub reclaim_idx: usize,
    /// Swap may be used.
    pub may_swap: bool,
    /// Mapped folios may be unmapped.
    pub may_unmap: bool,
    /// Dirty anon may be written.
    pub may_writepage: bool,
    /// I/O is allowed (`__GFP_IO`).
    pub io_allowed: bool,
    /// Overrides swappiness, 0..=201 (`memory.reclaim swappiness=`, debugfs).
    pub swappiness: Option<u32>,
    /// `memory.low` is ignored in this pass.
    pub memcg_low_reclaim: bool,
    /// Something was skipped because of `memory.low`.
    pub memcg_low_skipped: bool,
    /// Visit the whole hierarchy before giving up.
    pub memcg_full_walk: bool,
    /// CPU whose batches are drained.
    pub cpu: usize,
    /// Classic LRU: the pass's scan balance.
    pub classic: crate::classic::ScanBalance,
    /// What the isolated folios of this call looked like.
    pub seen: Seen,
}

impl ScanControl {
    /// Whether the whole machine is reclaimed, not one cgroup (`root_reclaim`).
    #[inline]
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.target == MemcgId::ROOT
    }
}

/// States of isolated folios, in pages (`sc->nr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Dirty.
    pub dirty: u64,
    /// Dirty and not queued for writeback.
    pub unqueued_dirty: u64,
    /// Under writeback and marked for immediate reclaim.
    pub congested: u64,
    /// Under writeback.
    pub writeback: u64,
    /// Met again under writeback although marked for immediate reclaim.
    pub immediate: u64,
    /// File pages taken.
    pub file_taken: u64,
    /// Pages taken.
    pub taken: u64,
}
