// SPDX-License-Identifier: Apache-2.0
//! What the policies need from their world.
//!
//! The engine owns policy: folio flags, lists, generations, counters, the order of memory cgroups.
//! The world owns mechanism: page tables, the reverse map, devices, limits, time. Every method
//! states a fact or carries out a decision; none decides. The lab's simulated machine is the main
//! implementation; tests bring small ones.

use crate::folio::{Flag, FolioTable, Pfn};
use crate::ids::{MemcgId, MmId, NodeId};
use crate::page_table::{Mapping, Pmd, Vma};
pub use crate::reclaim::Throttle;
use crate::tracepoint::Tracepoint;

/// Memory protection of a cgroup as seen from the target of a reclaim pass, in pages
/// (`mem_cgroup_protection`). Already made effective along the hierarchy.
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
    /// Could not be started now: keep.
    Keep,
    /// Failed for good: activate.
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
    /// What requests that could use a higher zone leave free beyond the watermark, by the highest
    /// zone they can use (`lowmem_reserve`).
    pub reserve_pages: [u64; 4],
}

/// Facts requested from, and decisions passed to, the world. `folios` is passed where the world has
/// to read or keep flags (`Mapped`, `Dirty`, `Writeback`, `Swapcache`) in step with its own state.
pub trait World {
    /// The clock, in ns.
    fn now_ns(&self) -> u64;

    // ---- address spaces

    /// The VMA that holds `vpn`, or the next one above it.
    fn vma_from(&self, mm: MmId, vpn: u64) -> Option<Vma>;

    /// What covers the 2 MiB range of `vpn`.
    fn pmd(&mut self, mm: MmId, vpn: u64) -> Pmd<'_>;

    /// Accessed bit of the non-leaf entry above the range of `vpn`.
    fn pmd_young(&self, mm: MmId, vpn: u64) -> bool;

    /// Clears the accessed bit of the non-leaf entry above the range of `vpn`.
    fn clear_pmd_young(&mut self, mm: MmId, vpn: u64);

    /// First `vpn' >= vpn` (aligned to 2 MiB if greater than `vpn`) below `end_vpn` whose range is
    /// not `Pmd::None`. Lets a walk skip holes of any size cheaply.
    fn next_mapped(&self, mm: MmId, vpn: u64, end_vpn: u64) -> Option<u64>;

    /// Whether the mm can be read-locked now; false makes a walk skip it (contention).
    fn try_lock_mm(&mut self, mm: MmId) -> bool;

    /// Whether the table that covers `vpn` can be locked now.
    fn try_lock_table(&mut self, _mm: MmId, _vpn: u64) -> bool {
        true
    }

    // ---- reverse map

    /// The `index`-th place where the folio is mapped, in rmap order.
    fn mapping(&self, pfn: Pfn, index: usize) -> Option<Mapping>;

    /// Whether the reverse map of the folio can be locked now; false makes reclaim keep it.
    fn try_lock_rmap(&mut self, _pfn: Pfn) -> bool {
        true
    }

    // ---- what becomes of an isolated folio

    /// Gives an anon folio a swap slot and puts it in the swap cache (sets `Swapcache`, `Dirty`).
    /// False when swap is full or the cgroup's swap limit is reached.
    fn add_to_swap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool;

    /// Removes every mapping (clears `Mapped`, moves PTE dirty bits to the folio). False when one
    /// could not be removed.
    fn unmap(&mut self, folios: &mut FolioTable, pfn: Pfn) -> bool;

    /// A page table said the folio is dirty: sets `Dirty` and accounts for it (`folio_mark_dirty`).
    fn mark_dirty(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        folios[pfn].set(Flag::Dirty);
    }

    /// Writes a dirty, unmapped folio out.
    fn pageout(&mut self, folios: &mut FolioTable, pfn: Pfn) -> PageoutOutcome;

    /// Takes the folio out of page or swap cache, leaving `shadow` in its place, uncharges it and
    /// frees its frame. `shadow` is opaque to the world and comes back at refault.
    fn free_evicted(&mut self, folios: &mut FolioTable, pfn: Pfn, shadow: u64);

    /// Wakes the flusher: everything reclaim just saw was dirty and not queued.
    fn wake_flusher(&mut self, node: NodeId);

    // ---- limits and space

    /// Effective protection of `memcg` when `target` is being reclaimed (root for global reclaim).
    fn protection(&self, target: MemcgId, memcg: MemcgId) -> Protection;

    /// Free swap a cgroup may still use, in pages; 0 without swap.
    fn swap_free_pages(&self, memcg: MemcgId) -> u64;

    /// Whether the machine has any swap, full or not (`total_swap_pages`).
    fn has_swap(&self) -> bool {
        self.swap_free_pages(MemcgId::ROOT) > 0
    }

    /// Zones of a reclaim node, DMA first; absent zones have no managed pages. Where each zone has
    /// lists of its own, a reclaim node is one zone and only its place is filled.
    fn zones(&self, node: NodeId) -> [ZoneState; 4];

    /// Runs the slab and shadow shrinkers of a cgroup on a node once, as after each lruvec at this
    /// priority, given what was scanned. Returns objects freed counted as reclaimed pages.
    fn shrink_slab(&mut self, memcg: MemcgId, node: NodeId, priority: u32) -> u64;

    /// A reclaimer sleeps (congestion, too many isolated, no progress) for at most `timeout_ns`.
    fn throttle(&mut self, node: NodeId, reason: Throttle, timeout_ns: u64);

    /// What the tasks sleeping for `reason` on this node wait for has happened: they may continue.
    fn wake_throttled(&mut self, _node: NodeId, _reason: Throttle) {}

    /// Kills a task to make room (`min_ttl`, or no reclaim possible). False if the OOM lock could
    /// not be taken or there is no task to kill.
    fn oom_kill(&mut self, memcg: MemcgId) -> bool;

    /// Reclaim passed a tracepoint: once a call, a list or a batch, never once a page.
    #[inline]
    fn trace(&mut self, _tracepoint: &Tracepoint) {}
}
