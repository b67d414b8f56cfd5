// SPDX-License-Identifier: Apache-2.0
//! What reclaim remembers between calls.

use super::MAX_RECLAIM_RETRIES;
use crate::folio::Pfn;
use crate::ids::MemcgId;

/// What reclaim remembers of a node between calls (`pg_data_t`).
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// Runs of kswapd in a row that reclaimed nothing. At [`MAX_RECLAIM_RETRIES`] the node is
    /// hopeless: kswapd stays asleep and direct reclaimers are not throttled.
    pub kswapd_failures: u32,
    /// Folios off their lists in other reclaimers' hands, in pages by type.
    pub isolated_pages: [u64; 2],
    /// Pages scanned since one was last freed here (`NR_PAGES_SCANNED`), with lists per zone.
    pub scanned_since_free: u64,
    /// The chunk in work, kept to save allocations.
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

/// What reclaim remembers of a lruvec between calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LruvecState {
    /// Where the last partial walk of the cgroups below stopped.
    pub cursor: TreeCursor,
    /// A cgroup reclaim saw nothing but folios under writeback (`LRUVEC_CGROUP_CONGESTED`).
    pub cgroup_congested: bool,
    /// kswapd saw the same (`LRUVEC_NODE_CONGESTED`).
    pub node_congested: bool,
}

/// The progress of partial walks below a cgroup on a node. Reclaimers share it: each continues
/// where the last one stopped, so that all cgroups bear the pressure in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeCursor {
    /// The cgroup visited last; [`MemcgId::NONE`] before the first.
    pub(super) position: MemcgId,
    /// Times the walk reached the end.
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
