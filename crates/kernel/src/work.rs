// SPDX-License-Identifier: Apache-2.0
//! Event counters of the kernel, and counts of the operations that cost CPU time.

use crate::folio::FolioType;
use crate::reclaim::Reclaimer;

/// Event counters with their kernel names (`/proc/vmstat`, `memory.stat`), kept per lruvec and
/// summed for reporting. Arrays are indexed by [`FolioType::index`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Pages isolated from an LRU list for reclaim.
    pub pgscan: [u64; 2],
    /// Pages reclaimed.
    pub pgsteal: [u64; 2],
    /// Pages isolated by kswapd.
    pub pgscan_kswapd: u64,
    /// Pages isolated by direct reclaim of the machine.
    pub pgscan_direct: u64,
    /// Pages isolated at limits of cgroups.
    pub pgscan_limit: u64,
    /// Pages isolated by proactive reclaim.
    pub pgscan_proactive: u64,
    /// Pages reclaimed by kswapd.
    pub pgsteal_kswapd: u64,
    /// Pages reclaimed by direct reclaim of the machine.
    pub pgsteal_direct: u64,
    /// Pages reclaimed at limits of cgroups.
    pub pgsteal_limit: u64,
    /// Pages reclaimed by proactive reclaim.
    pub pgsteal_proactive: u64,
    /// Pages that kswapd moved to a slower node; they count as reclaimed too.
    pub pgdemote_kswapd: u64,
    /// Those of direct reclaim and at limits of cgroups.
    pub pgdemote_direct: u64,
    /// Those of proactive reclaim.
    pub pgdemote_proactive: u64,
    /// Pages scanned on active lists (classic) or sorted (multi-gen).
    pub pgrefill: u64,
    /// Those of [`Events::pgrefill`] by reclaim of cgroups, at limits and proactive.
    pub pgrefill_cgroup: u64,
    /// Pages activated.
    pub pgactivate: u64,
    /// Pages deactivated.
    pub pgdeactivate: u64,
    /// Pages rotated to the tail after writeback.
    pub pgrotated: u64,
    /// Pages skipped by isolation because of their zone, by zone.
    pub pgscan_skip: [u64; 4],
    /// Refaults of evicted pages.
    pub workingset_refault: [u64; 2],
    /// Refaults that were activated at once.
    pub workingset_activate: [u64; 2],
    /// Refaults of pages that had been workingset.
    pub workingset_restore: [u64; 2],
    /// Shadow nodes dropped by their shrinker.
    pub workingset_nodereclaim: u64,
    /// Huge folios written to swap in one piece.
    pub thp_swpout: u64,
    /// Huge folios split because swap had no room for them in one piece.
    pub thp_swpout_fallback: u64,
    /// Huge folios split because another node had no room for them in one piece.
    pub thp_migration_split: u64,
}

impl Events {
    /// Counts pages isolated for reclaim.
    #[inline]
    pub fn count_scan(&mut self, reclaimer: Reclaimer, folio_type: FolioType, pages: u64) {
        self.pgscan[folio_type.index()] += pages;
        match reclaimer {
            Reclaimer::Kswapd => self.pgscan_kswapd += pages,
            Reclaimer::Direct => self.pgscan_direct += pages,
            Reclaimer::MemcgLimit => self.pgscan_limit += pages,
            Reclaimer::Proactive => self.pgscan_proactive += pages,
        }
    }

    /// Counts pages reclaimed.
    #[inline]
    pub fn count_steal(&mut self, reclaimer: Reclaimer, folio_type: FolioType, pages: u64) {
        self.pgsteal[folio_type.index()] += pages;
        match reclaimer {
            Reclaimer::Kswapd => self.pgsteal_kswapd += pages,
            Reclaimer::Direct => self.pgsteal_direct += pages,
            Reclaimer::MemcgLimit => self.pgsteal_limit += pages,
            Reclaimer::Proactive => self.pgsteal_proactive += pages,
        }
    }

    /// Counts pages scanned on an active list, or sorted.
    #[inline]
    pub fn count_refill(&mut self, reclaimer: Reclaimer, pages: u64) {
        self.pgrefill += pages;
        match reclaimer {
            Reclaimer::Kswapd | Reclaimer::Direct => {}
            Reclaimer::MemcgLimit | Reclaimer::Proactive => self.pgrefill_cgroup += pages,
        }
    }

    /// Pages moved to a slower node.
    #[must_use]
    pub fn demoted(&self) -> u64 {
        self.pgdemote_kswapd + self.pgdemote_direct + self.pgdemote_proactive
    }

    /// Pages scanned of both types.
    #[must_use]
    pub fn scanned(&self) -> u64 {
        self.pgscan[FolioType::Anon.index()] + self.pgscan[FolioType::File.index()]
    }

    /// Pages stolen of both types.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.pgsteal[FolioType::Anon.index()] + self.pgsteal[FolioType::File.index()]
    }
}

/// Operations that cost CPU time; a world applies its cost model to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Leaf entries examined by page-table walks and look-around.
    pub pte_checks: u64,
    /// Non-leaf entries examined by page-table walks.
    pub pmd_checks: u64,
    /// Reverse-map visits: one per mapping looked up.
    pub rmap_visits: u64,
    /// Folios moved between lists, isolated or put back.
    pub list_moves: u64,
    /// Unmaps.
    pub unmaps: u64,
    /// TLB flushes.
    pub tlb_flushes: u64,
    /// Pages copied to another node.
    pub page_moves: u64,
    /// Huge folios split (`thp_split_page`).
    pub splits: u64,
    /// Times the LRU lock was taken.
    pub lru_locks: u64,
    /// Agings (increments of `max_seq`).
    pub agings: u64,
    /// Address spaces walked.
    pub mm_walks: u64,
}
