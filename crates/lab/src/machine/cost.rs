// SPDX-License-Identifier: Apache-2.0
//! The CPU cost model: what each operation of the policies and of the fault path costs.
//!
//! | operation | ns | source |
//! |---|---|---|
//! | access that hits | 100 | most are in a cache: below the 300 ns of the emulation rules |
//! | minor fault | 1000 | emulation rules (fault entry, allocation, mapping) |
//! | leaf entry checked by a walk | 5 | emulation rules; a mere read from eBPF took 1.1 ns |
//! | non-leaf entry | 5 | as a leaf |
//! | reverse-map visit | 60 | emulation rules |
//! | list move | 20 | emulation rules |
//! | unmap | 300 | emulation rules |
//! | TLB flush | 500 | emulation rules; the remote part grows with the CPUs the process runs on |
//! | LRU lock, uncontended | 20 | an atomic exchange on a line another CPU wrote last |
//! | check of a further zone | 3 | a compare on a line that is shared but rarely written |
//! | allocation batch | 5 | a per-CPU counter written, its shared sum read, a flag tested |
//! | batch of a zone set anew | 20 | an atomic add with interrupts off, and a flag cleared |
//! | access to slow memory, in addition | 150 | Optane and CXL, see below |
//! | 2 MiB page split | 175000 | measured, Linux 6.18: `MADV_COLD` of one of its pages |
//! | page moved to another node | 1500 | an estimate: 4 KiB at 4 GB/s, and its mapping |
//! | kdamond wakes | 2000 | timer and two context switches |
//! | kdamond finds a folio | 30 | a reference taken and dropped: two atomic operations |
//! | read() of a page | 500 | system call and copy of 4 KiB |
//! | flush at a refault | 0 | Linux 5.15 alone; 0.8 ms in profiles of 12 servers on 48 CPUs |
//! | pause after it | 0 | the flushes of the CPUs that the lab leaves out |
//!
//! Slow memory: Optane takes 169 to 305 ns a read where DRAM takes 81 to 101 (Izraelevitz et al.,
//! 2019), CXL memory 70 to 250 ns more than DRAM (Li et al., ASPLOS 2023; Sun et al., MICRO 2023).
//! Pages that move are unmapped and flushed from TLBs at the prices above, besides their own.
//!
//! Calibration: with these prices the eviction of an anonymous page to zram costs 6 us for the
//! device and 0.5 to 0.8 us for the policy, against 7 us a page measured for paging out to zram
//! (lz4) on a 2-core machine with Linux 6.18.

use agewise_kernel::work::Work;

use super::alloc_work::AllocWork;

/// Costs of operations, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostModel {
    /// An access that finds its page mapped.
    pub hit_ns: u64,
    /// A fault, without device and reclaim.
    pub fault_ns: u64,
    /// A page read or written through a file descriptor, without device.
    pub file_io_ns: u64,
    /// A leaf entry examined.
    pub pte_check_ns: u64,
    /// A non-leaf entry examined.
    pub pmd_check_ns: u64,
    /// A mapping visited through the reverse map.
    pub rmap_visit_ns: u64,
    pub list_move_ns: u64,
    /// An unmapping.
    pub unmap_ns: u64,
    /// A TLB flush on the local CPU.
    pub tlb_flush_ns: u64,
    /// A TLB flush on each other CPU.
    pub tlb_remote_ns: u64,
    /// Taking the LRU lock uncontended.
    pub lru_lock_ns: u64,
    /// Flushing the statistics of all cgroups at a refault under the classic LRU.
    pub refault_flush_ns: u64,
    /// How long no other flush begins after one has ended.
    pub refault_flush_pause_ns: u64,
    /// Creating or ending a process.
    pub process_ns: u64,
    /// Comparing the watermark of a zone, or testing its flag.
    pub zone_check_ns: u64,
    /// Writing and comparing a zone's allocation batch.
    pub batch_update_ns: u64,
    /// Resetting a zone's allocation batch.
    pub batch_reset_ns: u64,
    /// An access to the slow node, in addition to any other price.
    pub slow_ns: u64,
    /// Copying a page to another node and mapping it there.
    pub page_move_ns: u64,
    /// Splitting a 2 MiB page.
    pub split_ns: u64,
    /// kdamond wakes and goes to sleep.
    pub damon_wakeup_ns: u64,
    /// kdamond finds the folio of an address.
    pub damon_lookup_ns: u64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            hit_ns: 100,
            fault_ns: 1_000,
            file_io_ns: 500,
            pte_check_ns: 5,
            pmd_check_ns: 5,
            rmap_visit_ns: 60,
            list_move_ns: 20,
            unmap_ns: 300,
            tlb_flush_ns: 500,
            tlb_remote_ns: 500,
            lru_lock_ns: 20,
            refault_flush_ns: 0,
            refault_flush_pause_ns: 0,
            process_ns: 50_000,
            zone_check_ns: 3,
            batch_update_ns: 5,
            batch_reset_ns: 20,
            slow_ns: 150,
            page_move_ns: 1_500,
            split_ns: 175_000,
            damon_wakeup_ns: 2_000,
            damon_lookup_ns: 30,
        }
    }
}

impl CostModel {
    /// No operation costs anything: for replays at a measured speed.
    pub const FREE: CostModel = CostModel {
        hit_ns: 0,
        fault_ns: 0,
        file_io_ns: 0,
        pte_check_ns: 0,
        pmd_check_ns: 0,
        rmap_visit_ns: 0,
        list_move_ns: 0,
        unmap_ns: 0,
        tlb_flush_ns: 0,
        tlb_remote_ns: 0,
        lru_lock_ns: 0,
        refault_flush_ns: 0,
        refault_flush_pause_ns: 0,
        process_ns: 0,
        zone_check_ns: 0,
        batch_update_ns: 0,
        batch_reset_ns: 0,
        slow_ns: 0,
        page_move_ns: 0,
        split_ns: 0,
        damon_wakeup_ns: 0,
        damon_lookup_ns: 0,
    };

    /// CPU time of policy work on a machine with `cpus` CPUs.
    pub fn price(&self, work: &Work, cpus: usize) -> u64 {
        let flush_ns = self.tlb_flush_ns + self.tlb_remote_ns * (cpus as u64 - 1);
        [
            work.pte_checks * self.pte_check_ns,
            work.pmd_checks * self.pmd_check_ns,
            work.rmap_visits * self.rmap_visit_ns,
            work.unmaps * self.unmap_ns,
            work.tlb_flushes * flush_ns,
            work.page_moves * self.page_move_ns,
            work.splits * self.split_ns,
            self.price_locked(work),
        ]
        .iter()
        .sum()
    }

    /// CPU time of choosing a zone, beyond a look at the first one.
    pub fn price_zone_choice(&self, work: &AllocWork) -> u64 {
        (work.further_zone_checks + work.depleted_skips) * self.zone_check_ns
            + work.batch_updates * self.batch_update_ns
            + work.batch_resets * self.batch_reset_ns
    }

    /// The part spent under the LRU lock, while no other task can work on the lists.
    pub fn price_locked(&self, work: &Work) -> u64 {
        work.list_moves * self.list_move_ns + work.lru_locks * self.lru_lock_ns
    }
}

/// Work done between two readings of the counters.
pub fn difference(after: &Work, before: &Work) -> Work {
    Work {
        pte_checks: after.pte_checks - before.pte_checks,
        pmd_checks: after.pmd_checks - before.pmd_checks,
        rmap_visits: after.rmap_visits - before.rmap_visits,
        list_moves: after.list_moves - before.list_moves,
        unmaps: after.unmaps - before.unmaps,
        tlb_flushes: after.tlb_flushes - before.tlb_flushes,
        page_moves: after.page_moves - before.page_moves,
        splits: after.splits - before.splits,
        lru_locks: after.lru_locks - before.lru_locks,
        agings: after.agings - before.agings,
        mm_walks: after.mm_walks - before.mm_walks,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evicting_an_anonymous_page_costs_what_was_measured() {
        let model = CostModel::default();
        let work = Work {
            rmap_visits: 1,
            list_moves: 2,
            unmaps: 1,
            lru_locks: 1,
            ..Work::default()
        };
        assert!((400..900).contains(&model.price(&work, 1)));
        assert_eq!(CostModel::FREE.price(&work, 4), 0);
    }
}
