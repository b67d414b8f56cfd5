// SPDX-License-Identifier: Apache-2.0
//! What both LRUs share: the control block of a reclaim call, the fate of isolated folios, and the
//! loops over priorities (memory cgroup limit, direct, kswapd).

mod background_aging;
pub mod charge;
pub mod chosen;
pub mod direct;
pub mod kswapd;
pub mod kswapd_zones;
mod lruvec;
pub mod memcg_limit;
pub mod node;
pub mod oom;
pub(crate) mod references;
pub mod scope;
pub mod shrink_folios;
mod state;
pub mod throttle;
pub mod tree;
pub mod watermark;
mod zone_facts;

pub use state::{LruvecState, NodeState, TreeCursor};

use crate::ids::{MemcgId, NodeId};

/// `DEF_PRIORITY`: a first pass looks at 1/4096 of a list.
pub const DEF_PRIORITY: u32 = 12;

/// `SWAP_CLUSTER_MAX`: pages a reclaim call asks for, and the classic LRU's chunk.
pub const SWAP_CLUSTER_MAX: u64 = 32;

/// `MAX_RECLAIM_RETRIES`: fruitless rounds before a caller gives up.
pub const MAX_RECLAIM_RETRIES: u32 = 16;

/// Index of the highest zone.
pub const TOP_ZONE: usize = 3;

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
    /// Node the reclaimer runs on: visited first.
    pub local_node: NodeId,
    /// Classic LRU: the pass's scan balance.
    pub classic: crate::classic::ScanBalance,
    /// What the isolated folios of this call looked like.
    pub seen: Seen,
}

impl ScanControl {
    /// A call that may do everything: unmap, swap, write and I/O.
    #[must_use]
    pub fn new(reclaimer: Reclaimer, target: MemcgId, nr_to_reclaim: u64) -> ScanControl {
        ScanControl {
            reclaimer,
            target,
            nr_to_reclaim,
            nr_reclaimed: 0,
            nr_scanned: 0,
            priority: DEF_PRIORITY,
            order: 0,
            reclaim_idx: TOP_ZONE,
            may_swap: true,
            may_unmap: true,
            may_writepage: true,
            io_allowed: true,
            swappiness: None,
            memcg_low_reclaim: false,
            memcg_low_skipped: false,
            memcg_full_walk: false,
            cpu: 0,
            local_node: NodeId(0),
            classic: crate::classic::ScanBalance::default(),
            seen: Seen::default(),
        }
    }

    /// Reclaim below one cgroup, not of the machine (`cgroup_reclaim`).
    #[inline]
    #[must_use]
    pub fn is_cgroup_reclaim(&self) -> bool {
        matches!(self.reclaimer, Reclaimer::MemcgLimit | Reclaimer::Proactive)
    }

    /// Whether the whole machine is reclaimed, not one cgroup (`root_reclaim`).
    #[inline]
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.target == MemcgId::ROOT
    }

    /// Whether the node's background thread reclaims.
    #[inline]
    #[must_use]
    pub fn is_kswapd(&self) -> bool {
        self.reclaimer == Reclaimer::Kswapd
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

/// The result of a batch, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOutcome {
    /// Freed.
    pub reclaimed: u64,
    /// Written out, successfully or not yet.
    pub pageouts: u64,
    /// Survived as active, by type.
    pub activated: [u64; 2],
    /// Kept because they had been referenced.
    pub ref_keep: u64,
    /// Could not be unmapped.
    pub unmap_fail: u64,
    /// What they looked like; `taken` and `file_taken` are the caller's.
    pub seen: Seen,
}

/// Why a reclaimer sleeps (`enum vmscan_throttle_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// Waits for writeback.
    Writeback,
    /// Too many folios are isolated.
    Isolated,
    /// No progress at priority 1.
    NoProgress,
    /// The node is congested.
    Congested,
}
