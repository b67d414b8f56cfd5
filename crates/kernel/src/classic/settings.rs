// SPDX-License-Identifier: Apache-2.0
//! Differences of the classic LRU between kernels and runs.

use crate::reclaim::scope::ListScope;
use crate::refault_distance::Rule;

/// What differs between kernels and runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whether each node has lists, or each zone (Linux up to 4.7).
    pub list_scope: ListScope,
    /// Every decision reads current sizes, as if statistics were flushed all the time. Off in every
    /// kernel; shows what the lag costs.
    pub exact_stats: bool,
    /// Bytes are multiplied by this before the inactive target is computed, for machines that are
    /// simulated at a fraction of their size. 1 for none.
    pub size_scale: u64,
    /// A cost of zero still runs the decay of the balance (6.12); 7.2 returns before it.
    pub zero_cost_decays: bool,
    /// Entries one isolation may pass over because of their zone before it takes ineligible pages
    /// like any other (`SWAP_CLUSTER_MAX_SKIPPED`, 7.2). `None`: no limit (6.12).
    pub max_zone_skips: Option<u64>,
    /// A node whose kswapd gave up gets it back only once it is balanced (7.2), not as soon as
    /// anything is reclaimed on it (6.12).
    pub balanced_node_revives_kswapd: bool,
    /// Pages that reclaim meets dirty or under writeback stay on the inactive list, to be met
    /// again, and one chunk of nothing else lets kswapd write (Linux up to 4.10). Later they go to
    /// the active list until the flusher is through with them.
    pub dirty_stays_inactive: bool,
    /// Direct reclaim sleeps for a tick on a congested node, and if it makes no progress. Linux up
    /// to 5.15 sleeps only while a device reports congestion, which block devices with several
    /// queues never do.
    pub progress_waits: bool,
    /// Bits a shadow has for the age, by type.
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

    /// Sets how much of the age is dropped on a machine of `total_pages` pages
    /// (`workingset_init`): as many bits as its page numbers have beyond the shadow's.
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
