// SPDX-License-Identifier: Apache-2.0
//! Charging pages to a cgroup at its limit (`try_charge_memcg`), kernel memory included.

use agewise_kernel::ids::{MemcgId, MmId};
use agewise_kernel::reclaim::charge::{CHARGE_BATCH, ChargeRetry, ChargeStep};
use agewise_kernel::reclaim::{MAX_RECLAIM_RETRIES, SWAP_CLUSTER_MAX};
use agewise_kernel::world::World;

use super::{Machine, ProcessId};

/// A failed charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeError {
    /// The limit was reached, and the caller gives up (readahead).
    OverLimit,
    /// The charging process was killed.
    Killed,
}

/// How hard a charge tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Until the OOM killer has made room.
    Normal,
    /// One round of reclaim (`__GFP_NORETRY`).
    NoRetry,
    /// Not at all: a 2 MiB page without `madvise`, since `madvise` is the default of `defrag` (no
    /// `__GFP_DIRECT_RECLAIM`).
    NoReclaim,
}

impl Machine {
    /// Charges `pages` to `memcg` for `process`.
    pub(super) fn charge(
        &mut self,
        process: ProcessId,
        memcg: MemcgId,
        pages: u64,
        effort: Effort,
    ) -> Result<(), ChargeError> {
        let cpu = self.sys.cpu;
        let mut batch = CHARGE_BATCH.max(pages);
        let mut retry = ChargeRetry::new(pages, effort == Effort::NoRetry);
        loop {
            if self.sys.memcgs.consume_stock(cpu, memcg, pages) {
                return Ok(());
            }
            let over = match self.sys.memcgs.try_charge(memcg, batch) {
                Ok(()) => break,
                Err(over) => over,
            };
            if batch > pages {
                batch = pages;
                continue;
            }
            if effort == Effort::NoReclaim {
                return Err(ChargeError::OverLimit);
            }
            self.sys.memcgs[over].events.max += 1;
            let reclaimed = self.reclaim_at_limit(process, over, pages);
            // Work that reclaim started or waited for (writeback, the flusher) may have made room
            // since.
            if self.sys.now_ns >= self.sys.events.next_ns() {
                self.run_events();
            }
            if !self.is_alive(process) {
                return Err(ChargeError::Killed);
            }
            let mut step = retry.after_reclaim(self.sys.memcgs.margin(over), reclaimed);
            if step == ChargeStep::Oom {
                step = retry.after_oom(self.memcg_oom(over));
                if !self.is_alive(process) {
                    return Err(ChargeError::Killed);
                }
            }
            match step {
                ChargeStep::DrainStocks => self.sys.memcgs.drain_stocks(over),
                ChargeStep::Fail if effort == Effort::NoRetry => {
                    return Err(ChargeError::OverLimit);
                }
                ChargeStep::Fail => {
                    // Nobody to kill: the limit gives way.
                    self.sys.memcgs.charge(memcg, pages);
                    return Ok(());
                }
                ChargeStep::Retry | ChargeStep::Oom => {}
            }
        }
        if batch > pages {
            self.sys.memcgs.refill_stock(cpu, memcg, batch - pages);
        }
        self.handle_over_high(process, memcg, batch);
        Ok(())
    }

    /// Lets the OOM killer make room in a cgroup. Returns whether it found a victim.
    pub(super) fn memcg_oom(&mut self, memcg: MemcgId) -> bool {
        self.sys.memcgs[memcg].events.oom += 1;
        let killed = self.sys.oom_kill(memcg);
        self.end_victims();
        killed
    }

    /// Applies `memory.high`: reclaims the excess, again and again while that helps or for 16 more
    /// rounds, and slows down tasks that stay above it (`mem_cgroup_handle_over_high`).
    fn handle_over_high(&mut self, process: ProcessId, memcg: MemcgId, pages: u64) {
        let memcgs = &self.sys.memcgs;
        let is_over = |at: MemcgId| memcgs[at].usage_pages > memcgs[at].limits.high_pages;
        if !memcgs.ancestry(memcg).any(is_over) {
            return;
        }
        let mut retries = MAX_RECLAIM_RETRIES;
        let mut wanted = pages;
        let delay_ns = loop {
            let (reclaimed, delay_ns) = self.reclaim_high(process, memcg, pages, wanted);
            if delay_ns == 0 || !self.is_alive(process) {
                return;
            }
            if reclaimed == 0 {
                if retries == 0 {
                    break delay_ns;
                }
                retries -= 1;
            }
            wanted = SWAP_CLUSTER_MAX;
        };
        let start_ns = self.sys.now_ns;
        self.sys.wait_until(start_ns + delay_ns);
        self.note_stall(process, start_ns);
    }

    /// Reclaims `wanted` pages from each cgroup above `memory.high`, from `memcg` up. Returns the
    /// pages reclaimed, and the delay of a task that has charged `pages` for what is still above.
    fn reclaim_high(
        &mut self,
        process: ProcessId,
        memcg: MemcgId,
        pages: u64,
        wanted: u64,
    ) -> (u64, u64) {
        let ancestry: Vec<MemcgId> = self.sys.memcgs.ancestry(memcg).collect();
        let mut reclaimed = 0;
        for &at in &ancestry {
            let group = &mut self.sys.memcgs[at];
            if group.usage_pages > group.limits.high_pages {
                group.events.high += 1;
                reclaimed += self.reclaim_at_limit(process, at, wanted);
            }
        }
        let delays = ancestry.iter().map(|&at| self.high_delay_ns(at, pages));
        (reclaimed, delays.max().unwrap_or(0))
    }

    /// `calculate_high_delay`: grows with the square of the relative overage, at most 2 s.
    fn high_delay_ns(&self, memcg: MemcgId, pages: u64) -> u64 {
        const SECOND_NS: u128 = 1_000_000_000;
        let group = &self.sys.memcgs[memcg];
        let high = group.limits.high_pages.max(1);
        let overage = (u128::from(group.usage_pages.saturating_sub(high)) << 20) / u128::from(high);
        let penalty_ns = ((overage * overage * SECOND_NS) >> 20) >> 14;
        let penalty_ns = penalty_ns * u128::from(pages) / u128::from(CHARGE_BATCH);
        if penalty_ns <= SECOND_NS / 100 {
            return 0;
        }
        penalty_ns.min(2 * SECOND_NS) as u64
    }

    /// Charges kernel objects of `bytes` bytes in total.
    pub(super) fn charge_objects(
        &mut self,
        process: ProcessId,
        memcg: MemcgId,
        bytes: u64,
    ) -> Result<(), ChargeError> {
        let pages = self.sys.memcgs.object_needs_pages(memcg, bytes);
        if pages > 0 {
            self.charge(process, memcg, pages, Effort::Normal)?;
        }
        self.sys.memcgs.add_object(memcg, bytes, pages);
        Ok(())
    }

    /// Charges the kernel memory that a process brings along when it moves into a cgroup.
    ///
    /// The reference kernels charge 4848 bytes of objects (7.2: 4800) and keep 3 pages for them.
    pub fn charge_process_objects(&mut self, process: ProcessId) {
        const OBJECT_BYTES: u64 = 4848;
        let memcg = self.memcg_of_mm(process.mm());
        let charged = self.charge_objects(process, memcg, OBJECT_BYTES);
        debug_assert!(charged.is_ok(), "a new process finds its limit used up");
        // The object stock of the CPU that made them holds one more page.
        self.sys.memcgs.charge(memcg, 1);
    }

    /// Charges the objects of a new cgroup to its parent (`mem_cgroup_alloc`), and puts the rest of
    /// the batch into the parent's stock.
    ///
    /// With one CPU, 6.12 charges 3088 bytes of objects and 4560 of per-CPU memory, 7.2 4112 and
    /// 5904. In 7.2 the stock keeps what is left of the batch, so the sum is the same.
    pub fn charge_cgroup_objects(&mut self, parent: MemcgId) {
        const OBJECT_BYTES: u64 = 3088 + 4560;
        let (cpu, memcgs) = (self.sys.cpu, &mut self.sys.memcgs);
        let pages = memcgs.object_needs_pages(parent, OBJECT_BYTES);
        if !memcgs.consume_stock(cpu, parent, pages) {
            memcgs.charge(parent, CHARGE_BATCH);
            memcgs.refill_stock(cpu, parent, CHARGE_BATCH - pages);
        }
        memcgs.add_object(parent, OBJECT_BYTES, pages);
    }

    /// Charges pages of kernel memory that live as long as the cgroup.
    pub fn charge_kernel_pages(&mut self, memcg: MemcgId, pages: u64) {
        self.sys.memcgs.charge(memcg, pages);
    }

    /// Makes the page tables above a leaf, charged one page each. False if the process was killed
    /// meanwhile.
    pub(super) fn make_tables(&mut self, process: ProcessId, vpn: u64) -> bool {
        let mm = process.mm();
        if self.sys.tables.missing(mm, vpn).last == 0 {
            return true;
        }
        if !self.make_upper_tables(process, vpn) || !self.charge_tables(process, 1) {
            return false;
        }
        self.sys.tables.make_leaf(mm, vpn);
        true
    }

    /// Makes the page tables above the last level. False if the process was killed meanwhile.
    pub(super) fn make_upper_tables(&mut self, process: ProcessId, vpn: u64) -> bool {
        let mm = process.mm();
        let missing = self.sys.tables.missing(mm, vpn).upper;
        // The upper tables of the first range came with the program, before it was charged here.
        let first = self.sys.spaces[mm].table_pages == 0;
        if !first && !self.charge_tables(process, missing.into()) {
            return false;
        }
        self.sys.tables.make_pmd(mm, vpn);
        true
    }

    /// Charges page tables. False if the process was killed meanwhile.
    pub(super) fn charge_tables(&mut self, process: ProcessId, pages: u64) -> bool {
        let mm = process.mm();
        let memcg = self.memcg_of_mm(mm);
        for _ in 0..pages {
            if self.charge(process, memcg, 1, Effort::Normal).is_err() {
                return false;
            }
            self.sys.memcgs[memcg].table_pages += 1;
            self.sys.spaces[mm].table_pages += 1;
        }
        true
    }

    /// Uncharges page tables of an address space.
    pub(super) fn uncharge_tables(&mut self, mm: MmId, pages: u64) {
        let memcg = self.memcg_of_mm(mm);
        self.sys.spaces[mm].table_pages -= pages;
        self.sys.memcgs[memcg].table_pages -= pages;
        self.sys.memcgs.uncharge(memcg, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::MapOptions;
    use super::super::config::Policy;
    use super::super::device::DeviceKind;
    use super::super::{Limits, Machine, MachineConfig, SwapConfig};
    use super::*;

    #[test]
    fn who_is_far_above_high_reclaims_on_before_it_sleeps() {
        for (swap_pages, sleeps) in [(1 << 14, false), (0, true)] {
            let mut machine = Machine::new(MachineConfig {
                swap: Some(SwapConfig::new(DeviceKind::Zram, swap_pages)),
                ..MachineConfig::new(1 << 14)
            });
            let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let process = machine.add_process(memcg);
            let first = machine.map(process, &MapOptions::anon(4000)).unwrap();
            for vpn in first..first + 3000 {
                machine.access(process, vpn, true);
            }
            machine.sys.memcgs[memcg].limits.high_pages = 1000;
            let start_ns = machine.now_ns();
            for vpn in first + 3000..first + 3000 + CHARGE_BATCH {
                machine.access(process, vpn, true);
            }
            let passed_ns = machine.now_ns() - start_ns;
            assert_eq!(passed_ns > 1_000_000_000, sleeps, "{passed_ns}");
            let usage = machine.sys.memcgs[memcg].usage_pages;
            assert_eq!(usage > 1200, sleeps, "{usage}");
        }
    }

    /// A CPU has stocks of seven cgroups under 7.2, and of one before.
    #[test]
    fn cgroups_cost_their_parent_memory_and_7_2_keeps_the_rest_of_the_batch() {
        for (policy, wanted) in [("classic:6.12", 6), ("classic:7.2", CHARGE_BATCH)] {
            let mut machine = Machine::new(MachineConfig {
                policy: Policy::parse(policy).unwrap(),
                ..MachineConfig::new(1 << 14)
            });
            let parent = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let children = ["m0", "m1", "m2"].map(|name| {
                let child = machine.add_memcg(parent, name, Limits::default());
                machine.charge_cgroup_objects(parent);
                child
            });
            for child in children {
                let process = machine.add_process(child);
                let first = machine.map(process, &MapOptions::anon(1)).unwrap();
                machine.access(process, first, true);
            }
            let below = children.map(|child| machine.usage_pages(child));
            let own = machine.usage_pages(parent) - below.iter().sum::<u64>();
            assert_eq!(own, wanted, "{policy}");
        }
    }
}
