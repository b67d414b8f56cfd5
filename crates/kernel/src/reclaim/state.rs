// SPDX-License-Identifier: Apache-2.0
//! Reclaim state kept between calls.

use super::MAX_RECLAIM_RETRIES;
use crate::folio::Pfn;
use crate::ids::MemcgId;

/// Reclaim state of a node (`pg_data_t`).
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// Consecutive runs of kswapd that reclaimed nothing. At [`MAX_RECLAIM_RETRIES`] the node is
    /// hopeless: kswapd stays asleep and direct reclaimers are not throttled.
    pub kswapd_failures: u32,
    /// Pages scanned here since one was last freed (`NR_PAGES_SCANNED`), with lists per zone.
    pub scanned_since_free: u64,
    /// The current chunk, kept to save allocations.
    pub(crate) chunk: Vec<Pfn>,
}

impl NodeState {
    /// Whether kswapd has given up (`kswapd_failures >= MAX_RECLAIM_RETRIES`).
    #[inline]
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.kswapd_failures >= MAX_RECLAIM_RETRIES
    }
}

/// Reclaim state of a lruvec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LruvecState {
    /// Where the last partial walk of the cgroups below stopped.
    pub cursor: TreeCursor,
    /// A cgroup reclaim saw only folios under writeback (`LRUVEC_CGROUP_CONGESTED`).
    pub cgroup_congested: bool,
    /// kswapd saw only folios under writeback (`LRUVEC_NODE_CONGESTED`).
    pub node_congested: bool,
}

/// Progress of partial walks below a cgroup on a node. Reclaimers share it: each continues where
/// the previous one stopped, so that all cgroups share the pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeCursor {
    /// The cgroup visited last; [`MemcgId::NONE`] before the first.
    pub(super) position: MemcgId,
    /// Number of completed walks.
    pub(super) round: u64,
}

impl Default for TreeCursor {
    fn default() -> Self {
        TreeCursor {
            position: MemcgId::NONE,
            round: 0,
        }
    }
}
