// SPDX-License-Identifier: Apache-2.0
//! Differences of the classic LRU between kernels and runs.

use crate::reclaim::scope::ListScope;
use crate::refault_distance::Rule;

/// Settings of the classic LRU that differ between kernels and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether lists are per node or per zone (Linux up to 4.7).
    pub list_scope: ListScope,
    /// Decisions use current sizes, as if statistics were flushed all the time. Off in every
    /// kernel; shows the effect of the lag.
    pub exact_stats: bool,
    /// Factor applied to sizes before the inactive target is computed, for machines simulated at a
    /// fraction of their size; 1 for none.
    pub size_scale: u64,
    /// A cost of zero still triggers the decay of the balance (6.12); 7.2 returns before it.
    pub zero_cost_decays: bool,
    /// Entries that one isolation may skip because of their zone before it takes ineligible pages
    /// like any other (`SWAP_CLUSTER_MAX_SKIPPED`, 7.2). `None`: no limit (6.12).
    pub max_zone_skips: Option<u64>,
    /// If kswapd gave up a node, it resumes only when the node is balanced (7.2), not as soon as
    /// anything is reclaimed there (6.12).
    pub balanced_node_revives_kswapd: bool,
    /// Pages found dirty or under writeback stay on the inactive list and are scanned again; a
    /// chunk with nothing else lets kswapd write (Linux up to 4.10). Later kernels move them to the
    /// active list until the flusher has written them.
    pub dirty_stays_inactive: bool,
    /// Direct reclaim sleeps for a tick on a congested node, and if it makes no progress. Linux up
    /// to 5.15 sleeps only while a device reports congestion, which block devices with several
    /// queues never do.
    pub progress_waits: bool,
    /// Bits for the age in a shadow, by type.
    pub timestamp_bits: [u32; 2],
    /// Decides refaults by the refault-distance rework instead of the mainline test.
    pub refault_distance: Option<Rule>,
    /// Low bits of the age that do not fit into a shadow and are dropped, by type.
    pub bucket_order: [u32; 2],
}

impl Settings {
    /// Linux 7.2.
    #[must_use]
    pub const fn linux_7_2() -> Settings {
        Settings {
            list_scope: ListScope::Node,
            dirty_stays_inactive: false,
            progress_waits: true,
            exact_stats: false,
            size_scale: 1,
            zero_cost_decays: false,
            max_zone_skips: Some(32 << 10),
            balanced_node_revives_kswapd: true,
            timestamp_bits: [31, 36],
            bucket_order: [0, 0],
            refault_distance: None,
        }
    }

    /// Linux 6.12.
    #[must_use]
    pub const fn linux_6_12() -> Settings {
        Settings {
            zero_cost_decays: true,
            max_zone_skips: None,
            balanced_node_revives_kswapd: false,
            timestamp_bits: [36, 36],
            ..Settings::linux_7_2()
        }
    }

    /// Sets how much of the age is dropped on a machine of `total_pages` pages (`workingset_init`):
    /// the number of bits by which its page numbers exceed the shadow's.
    #[must_use]
    pub fn for_memory(mut self, total_pages: u64) -> Settings {
        let page_bits = u64::BITS - total_pages.saturating_sub(1).leading_zeros();
        self.bucket_order = self
            .timestamp_bits
            .map(|bits| page_bits.saturating_sub(bits));
        self
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings::linux_7_2()
    }
}
