// SPDX-License-Identifier: Apache-2.0
//! Shared by both LRUs: the control block of a reclaim call, the handling of isolated folios, and
//! the loops over priorities (memory cgroup limit, direct, kswapd).

mod background_aging;
pub mod charge;
pub mod chosen;
pub mod counters_profile;
pub mod direct;
pub mod kswapd;
pub mod kswapd_zones;
mod lruvec;
pub mod memcg_limit;
pub mod migration;
pub mod migration_profile;
pub mod node;
pub mod oom;
pub(crate) mod references;
pub mod scope;
pub mod shrink_folios;
mod split;
mod state;
pub mod throttle;
pub mod tree;
pub mod watermark;
mod zone_facts;

pub use state::{LruvecState, NodeState, TreeCursor};

use crate::ids::{MemcgId, NodeId};

/// `DEF_PRIORITY`: the first pass scans 1/4096 of a list.
pub const DEF_PRIORITY: u32 = 12;

/// `SWAP_CLUSTER_MAX`: pages that a reclaim call requests, and the classic LRU's chunk.
pub const SWAP_CLUSTER_MAX: u64 = 32;

/// `MAX_RECLAIM_RETRIES`: fruitless rounds before a caller gives up.
pub const MAX_RECLAIM_RETRIES: u32 = 16;

/// Index of the highest zone.
pub const TOP_ZONE: usize = 3;

/// The origin of a reclaim call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaimer {
    /// kswapd.
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
    /// I/O is allowed (`__GFP_IO`).
    pub io_allowed: bool,
    /// Nothing is moved to a slower node instead of being reclaimed (`MADV_PAGEOUT`).
    pub no_demotion: bool,
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
    /// Node the reclaimer runs on, which is visited first.
    pub local_node: NodeId,
    /// Classic LRU: the pass's scan balance.
    pub classic: crate::classic::ScanBalance,
    /// States of the folios isolated by this call.
    pub seen: Seen,
}

impl ScanControl {
    /// A call with all permissions: swap and I/O.
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
            io_allowed: true,
            no_demotion: false,
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

    /// Whether a cgroup is reclaimed, not the machine (`cgroup_reclaim`).
    #[inline]
    #[must_use]
    pub fn is_cgroup_reclaim(&self) -> bool {
        matches!(self.reclaimer, Reclaimer::MemcgLimit | Reclaimer::Proactive)
    }

    /// Whether the whole machine is reclaimed, not a cgroup (`root_reclaim`).
    #[inline]
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.target == MemcgId::ROOT
    }

    /// Whether kswapd reclaims.
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
    /// Under writeback again, although marked for immediate reclaim.
    pub immediate: u64,
    /// File pages isolated.
    pub file_taken: u64,
    /// Pages isolated.
    pub taken: u64,
}

/// The result of a batch, in pages.
#[derive(Clone, Copy, Debug, Default)]
pub struct BatchOutcome {
    /// Freed.
    pub reclaimed: u64,
    /// Writes started, complete or not.
    pub pageouts: u64,
    /// Kept as active, by type.
    pub activated: [u64; 2],
    /// Kept because they had been referenced.
    pub ref_keep: u64,
    /// Could not be unmapped.
    pub unmap_fail: u64,
    /// States of the folios; `taken` and `file_taken` are set by the caller.
    pub seen: Seen,
}

/// Why a reclaimer sleeps (`enum vmscan_throttle_state`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// Waits for writeback.
    Writeback,
    /// No progress at priority 1.
    NoProgress,
    /// The node is congested.
    Congested,
}
