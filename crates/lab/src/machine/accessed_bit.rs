// SPDX-License-Identifier: Apache-2.0
//! Processors without a hardware accessed bit (`arch_has_hw_pte_young()` is false, such as arm64
//! before 8.1).
//!
//! As in Linux 6.12 and later: the first access through an entry whose bit is clear is a minor
//! fault that sets it (`handle_pte_fault` and `huge_pmd_set_accessed`, counted by
//! `handle_mm_fault`); a write that faults anyway sets it on the way (`do_wp_page`). New entries
//! are accessed (`set_pte_range` with `pte_sw_mkyoung`). The multi-gen LRU does not walk page
//! tables (`should_walk_mmu`), but rmap still looks around an accessed entry
//! (`lru_gen_look_around` does not ask), and each bit it clears costs such a fault. Entries of
//! tables have no bits either. Dirty bits stay the hardware's.

use agewise_kernel::ids::MmId;

use super::{Access, Machine, ProcessId};

impl Machine {
    /// Whether an access to a page will fault because the bit of its entry is clear.
    pub(super) fn needs_accessed_fault(&self, mm: MmId, vpn: u64) -> bool {
        let tables = &self.sys.tables;
        let leaf = tables.leaf(mm, vpn).or_else(|| tables.huge_leaf(mm, vpn));
        leaf.is_some_and(|leaf| leaf.present() && !leaf.young())
    }

    /// The fault of such an access; the bit is set already.
    #[cold]
    pub(super) fn accessed_fault(&mut self, process: ProcessId) -> Access {
        self.sys.now_ns += self.config.cost.fault_ns;
        self.count_fault(process, Access::Minor);
        Access::Minor
    }
}

#[cfg(test)]
mod tests {
    use agewise_kernel::ids::MemcgId;
    use agewise_kernel::page_table::PAGES_PER_PMD;

    use super::super::address_space::MapOptions;
    use super::super::{Limits, MachineConfig, Policy};
    use super::*;

    fn machine(policy: &str, hw_accessed_bit: bool) -> Machine {
        Machine::new(MachineConfig {
            policy: Policy::parse(policy).unwrap(),
            hw_accessed_bit,
            ..MachineConfig::new(1 << 14)
        })
    }

    fn clear(machine: &mut Machine, mm: MmId, vpn: u64) {
        let leaf = machine.sys.tables.leaf_mut(mm, vpn).expect("a small page");
        assert!(leaf.test_clear_young());
    }

    #[test]
    fn the_first_access_through_a_clear_bit_is_a_minor_fault() {
        for hardware in [true, false] {
            let mut machine = machine("mglru", hardware);
            let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let process = machine.add_process(memcg);
            let vpn = machine.map(process, &MapOptions::anon(8)).unwrap();
            let bit = match hardware {
                true => Access::Hit,
                false => Access::Minor,
            };
            // The zero page, the first write and the entry it makes: both are accessed.
            assert_eq!(machine.access(process, vpn, false), Access::Minor);
            assert_eq!(machine.access(process, vpn, false), Access::Hit);
            assert_eq!(machine.access(process, vpn, true), Access::Minor);
            assert_eq!(machine.access(process, vpn, true), Access::Hit);
            clear(&mut machine, process.mm(), vpn);
            let (faults, begun_ns) = (machine.sys.counters.pgfault, machine.sys.now_ns);
            assert_eq!(machine.access(process, vpn, false), bit);
            let cost = &machine.config.cost;
            let price_ns = if hardware { 0 } else { cost.fault_ns };
            assert_eq!(machine.sys.now_ns - begun_ns, cost.hit_ns + price_ns);
            let counted = machine.sys.counters.pgfault - faults;
            assert_eq!(counted, u64::from(!hardware));
            assert_eq!(machine.access(process, vpn, false), Access::Hit);
            // A write that faults because the page is shared after a fork faults once.
            machine.fork(process).unwrap();
            clear(&mut machine, process.mm(), vpn);
            assert_eq!(machine.access(process, vpn, true), Access::Minor);
            assert_eq!(machine.sys.counters.pgfault - faults, counted + 1);
            assert_eq!(machine.access(process, vpn, true), Access::Hit);
        }
    }

    #[test]
    fn a_huge_page_has_one_bit() {
        let mut machine = machine("mglru", false);
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(memcg);
        let options = MapOptions {
            huge: true,
            ..MapOptions::anon(PAGES_PER_PMD)
        };
        let vpn = machine.map(process, &options).unwrap();
        assert_eq!(machine.access(process, vpn, true), Access::Minor);
        assert_eq!(machine.access(process, vpn + 1, true), Access::Hit);
        machine.sys.tables.clear_pmd_young(process.mm(), vpn);
        assert_eq!(machine.access(process, vpn + 2, true), Access::Minor);
        assert_eq!(machine.access(process, vpn + 1, true), Access::Hit);
    }

    #[test]
    fn generations_open_without_walks_and_the_file_says_so() {
        const ENABLED: &str = "/sys/kernel/mm/lru_gen/enabled";
        for (policy, hardware, enabled, walks) in [
            ("mglru:7.2", true, "0x0007\n", 1),
            ("mglru:7.2", false, "0x0001\n", 0),
            ("mglru:6.12", false, "0x0001\n", 0),
            ("mglru:v6", false, "1\n", 0),
        ] {
            let mut machine = machine(policy, hardware);
            let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
            let process = machine.add_process(memcg);
            let vpn = machine.map(process, &MapOptions::anon(8)).unwrap();
            machine.access(process, vpn, true);
            // Writing what was never read back must not switch walks on.
            machine.write_file(ENABLED, b"y").unwrap();
            assert_eq!(machine.read_file(ENABLED).unwrap(), enabled, "{policy}");
            let before = machine.lru.work;
            machine.age_generations(memcg);
            let work = machine.lru.work;
            assert_eq!(work.agings - before.agings, 1, "{policy}");
            assert_eq!(work.mm_walks - before.mm_walks, walks, "{policy}");
        }
    }
}
