// SPDX-License-Identifier: Apache-2.0
//! What the policies need from their world.
//!
//! The engine owns policy: folio flags, lists, generations, counters, the order of memory cgroups.
//! The world owns mechanism: page tables, the reverse map, devices, limits, time. Every method
//! returns a fact or carries out a decision; none makes decisions. The main implementation is the
//! lab's simulated machine; tests have small ones.

use crate::folio::{Flag, FolioTable, Pfn};
use crate::ids::{MemcgId, MmId, NodeId};
use crate::page_table::{Mapping, Pmd, Vma};
pub use crate::reclaim::Throttle;
use crate::tracepoint::Tracepoint;
use crate::work::Work;

/// Memory protection of a cgroup in a reclaim pass over a target, in pages
/// (`mem_cgroup_protection`), as effective along the hierarchy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Protection {
    /// Effective `memory.min`.
    pub min_pages: u64,
    /// Effective `memory.low`.
    pub low_pages: u64,
    /// Pages charged to the cgroup and its descendants.
    pub usage_pages: u64,
}

/// The result of an attempt to write a dirty folio out (`pageout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageoutOutcome {
    /// Written before the call returned (zram): the folio is clean now.
    Written,
    /// Under writeback; when it ends, the world clears the flag and notifies the engine.
    Writeback,
    /// Failed permanently: activate the folio.
    Activate,
}

/// Free memory and watermarks of one zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneState {
    /// Managed pages; 0 means the zone does not exist.
    pub managed_pages: u64,
    /// Free pages.
    pub free_pages: u64,
    /// `min` watermark.
    pub min_pages: u64,
    /// `low` watermark.
    pub low_pages: u64,
    /// `high` watermark.
    pub high_pages: u64,
    /// Pages beyond the watermark that requests for a higher zone must leave free, by the highest
    /// zone they can use (`lowmem_reserve`).
    pub reserve_pages: [u64; 4],
}

/// Facts that the engine requests, and decisions that it passes on. `folios` is passed where the
/// world must read flags or keep them (`Mapped`, `Dirty`, `Writeback`, `Swapcache`) in sync with
/// its own state.
pub trait World {
    /// The clock, in ns.
    fn now_ns(&self) -> u64;

    // ---- address spaces

    /// The VMA that contains `vpn`, or the next one above it.
    fn vma_from(&self, mm: MmId, vpn: u64) -> Option<Vma>;

    /// What maps the 2 MiB range of `vpn`.
    fn pmd(&mut self, mm: MmId, vpn: u64) -> Pmd<'_>;

    /// Accessed bit of the non-leaf entry above the range of `vpn`.
    fn pmd_young(&self, mm: MmId, vpn: u64) -> bool;

    /// Clears the accessed bit of the non-leaf entry above the range of `vpn`.
    fn clear_pmd_young(&mut self, mm: MmId, vpn: u64);

    /// The first `vpn' >= vpn` (aligned to 2 MiB if greater than `vpn`) below `end_vpn` whose range
    /// is not `Pmd::None`. Lets a walk skip holes of any size cheaply.
    fn next_mapped(&self, mm: MmId, vpn: u64, end_vpn: u64) -> Option<u64>;

    // ---- reverse map

    /// The `index`-th mapping of the folio, in rmap order.
    fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping>;

    // ---- what becomes of an isolated folio

    /// Allocates a swap slot for an anon folio, as many in a row for a huge one, and adds it to the
    /// swap cache (sets `Swapcache`, `Dirty`). Returns false if swap is full or in pieces, or the
    /// cgroup's swap limit is reached.
    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool;

    /// Whether swap is so full that pages in memory should not occupy a slot too, in the machine or
    /// for the cgroup (`mem_cgroup_swap_full`).
    fn swap_is_full(&self, _memcg: MemcgId) -> bool {
        false
    }

    /// Removes a folio that no leaf refers to by its slot from the swap cache, frees the slot and
    /// marks the folio dirty (`folio_free_swap`).
    fn free_swap(&mut self, _folios: &mut FolioTable, _pfn: Pfn) {}

    /// Splits a folio of 2 MiB that nobody else holds: each of its pages has the same owner, and
    /// leaves with the same accessed and dirty bits (`split_folio_to_list`). The engine copies the
    /// flags. Returns false if it stays whole.
    fn split(&mut self, _: &FolioTable, _pfn: Pfn) -> bool {
        false
    }

    /// Removes all mappings (clears `Mapped`, moves PTE dirty bits to the folio). Returns false if
    /// one could not be removed.
    fn unmap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool;

    /// A page table has a dirty bit for the folio: sets `Dirty` and accounts for it
    /// (`folio_mark_dirty`).
    fn mark_dirty(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        folios[pfn].set(Flag::Dirty);
    }

    /// Writes a dirty, unmapped folio out.
    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome;

    /// A folio whose write has ended by now, with the time counted that `work` took. The world has
    /// cleared `Writeback`, and keeps folios to itself that nobody uses any more. Reclaim asks
    /// again and again while it works: in a kernel, devices interrupt it.
    fn next_written(&mut self, _folios: &mut FolioTable, _work: &Work) -> Option<Pfn> {
        None
    }

    /// Removes the folio from the page or swap cache and leaves `shadow` in its place, uncharges
    /// the folio and frees its frame. `shadow` is opaque to the world and is passed back on a
    /// refault.
    fn free_evicted(&mut self, folios: &mut FolioTable, pfn: Pfn, shadow: u64);

    /// The slower node to which cold folios of a node are moved instead of being freed
    /// (`next_demotion_node`, if `numa/demotion_enabled`).
    fn demotion_target(&self, _node: NodeId) -> Option<NodeId> {
        None
    }

    /// Moves the contents of an isolated folio, with its mappings and its place in the page or swap
    /// cache, into free memory of another node, and frees its frame. Returns the new frame and its
    /// zone, or None if the node has no room: it does not reclaim, but wakes the kswapd of the node
    /// (`alloc_demote_folio`). The engine moves the flags.
    fn migrate(&mut self, _: &FolioTable, _pfn: Pfn, _target: NodeId) -> Option<(Pfn, usize)> {
        None
    }

    /// Wakes the flusher: all folios that reclaim just saw were dirty and not queued.
    fn wake_flusher(&mut self, node: NodeId);

    // ---- limits and space

    /// Effective protection of `memcg` when `target` is being reclaimed (root for global reclaim).
    fn protection(&self, target: MemcgId, memcg: MemcgId) -> Protection;

    /// Free swap that a cgroup may still use, in pages; 0 without swap.
    fn swap_free_pages(&self, memcg: MemcgId) -> u64;

    /// Whether the machine has any swap, full or not (`total_swap_pages`).
    fn has_swap(&self) -> bool {
        self.swap_free_pages(MemcgId::ROOT) > 0
    }

    /// Zones of a reclaim node, DMA first; absent zones have no managed pages. With lists per zone,
    /// a reclaim node is one zone, and only its entry is set.
    fn zones(&self, node: NodeId) -> [ZoneState; 4];

    /// Pages of a reclaim node that are dirty or under writeback, where a page that is both counts
    /// twice (`NR_ZONE_WRITE_PENDING`). Dirty pages of the swap cache do not count.
    /// A world without devices has none.
    fn write_pending_pages(&self, _node: NodeId) -> u64 {
        0
    }

    /// Runs the slab and shadow shrinkers of a cgroup on a node once at this priority, as the
    /// kernel does after each lruvec. Returns the freed objects counted as reclaimed pages.
    fn shrink_slab(&mut self, memcg: MemcgId, node: NodeId, priority: u32) -> u64;

    /// Makes the reclaimer sleep (congestion, no progress) for at most
    /// `timeout_ns`.
    fn throttle(&mut self, node: NodeId, reason: Throttle, timeout_ns: u64);

    /// Kills a task to make room (`min_ttl`, or if nothing can be reclaimed). Returns false if the
    /// OOM lock could not be taken or there is no task to kill.
    fn oom_kill(&mut self, memcg: MemcgId) -> bool;

    /// Reclaim passed a tracepoint: at most once per call, list or batch, never per page.
    #[inline]
    fn trace(&mut self, _tracepoint: &Tracepoint) {}
}
