// SPDX-License-Identifier: Apache-2.0
//! Huge pages for which there is no room in one piece, in swap or on a slower node.

use agewise_kernel::ids::MemcgId;
use agewise_kernel::page_table::PAGES_PER_PMD;
use agewise_lab::machine::address_space::MapOptions;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::stat::Line;
use agewise_lab::machine::{Access, Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig};

const POLICIES: [&str; 5] = [
    "classic",
    "classic:6.12",
    "mglru:7.2",
    "mglru:6.12",
    "mglru:v6",
];
const BLOCK: u64 = PAGES_PER_PMD;

fn machine(policy: &str, swap_pages: u32, slow_pages: u32) -> Machine {
    Machine::new(MachineConfig {
        policy: Policy::parse(policy).unwrap(),
        swap: Some(SwapConfig::new(DeviceKind::Pmem, swap_pages)),
        slow_pages,
        demotion: slow_pages > 0,
        stat_flush_ns: 0,
        ..MachineConfig::new(1 << 14)
    })
}

fn group(machine: &mut Machine, name: &str, swap_max_pages: u64) -> (MemcgId, ProcessId) {
    let limits = Limits {
        swap_max_pages,
        ..Limits::default()
    };
    let memcg = machine.add_memcg(MemcgId::ROOT, name, limits);
    (memcg, machine.add_process(memcg))
}

/// Maps this many huge pages and writes to them; their accessed bits are clear afterwards.
fn fill_huge(machine: &mut Machine, process: ProcessId, blocks: u64) -> u64 {
    let options = MapOptions {
        huge: true,
        ..MapOptions::anon(blocks * BLOCK)
    };
    let first = machine.map(process, &options).unwrap();
    for vpn in first..first + blocks * BLOCK {
        machine.access(process, vpn, true);
    }
    machine.clear_accessed_bits(process);
    first
}

fn value(lines: &[Line], name: &str) -> Option<u64> {
    let line = lines.iter().find(|(known, _)| *known == name)?;
    Some(line.1)
}

/// Huge pages swapped whole, those split instead, and all that were split.
fn swap_outs(machine: &Machine) -> [u64; 3] {
    let lines = machine.vmstat();
    ["thp_swpout", "thp_swpout_fallback", "thp_split_page"].map(|name| value(&lines, name).unwrap())
}

#[test]
fn a_huge_page_goes_to_swap_whole_if_there_is_room() {
    for policy in POLICIES {
        let mut machine = machine(policy, 4096, 0);
        let (memcg, process) = group(&mut machine, "t", u64::MAX);
        fill_huge(&mut machine, process, 4);
        let _ = machine.reclaim_memcg(memcg, BLOCK, None);
        let [whole, fallback, split] = swap_outs(&machine);
        assert!(whole > 0 && fallback == 0 && split == 0, "{policy}");
        assert_eq!(machine.counters().pswpout, whole * BLOCK, "{policy}");
        machine.check().unwrap();
    }
}

#[test]
fn a_huge_page_beyond_the_swap_limit_is_split() {
    for policy in POLICIES {
        let mut machine = machine(policy, 4096, 0);
        let (memcg, process) = group(&mut machine, "t", 300);
        let first = fill_huge(&mut machine, process, 4);
        let _ = machine.reclaim_memcg(memcg, 200, None);
        machine.check().unwrap();
        let [whole, fallback, split] = swap_outs(&machine);
        assert_eq!((whole, fallback), (0, split), "{policy}");
        assert!((1..=4).contains(&split), "{policy}: {split}");
        let swapped = machine.counters().pswpout;
        assert!((200..=300).contains(&swapped), "{policy}: {swapped}");
        let pages = first..first + 4 * BLOCK;
        let resident = pages
            .clone()
            .filter(|&vpn| machine.frame_of(process, vpn).is_some());
        assert_eq!(resident.count() as u64, 4 * BLOCK - swapped, "{policy}");
        let lines = machine.memory_stat(memcg);
        let expected = (policy != "mglru:v6").then_some(fallback);
        assert_eq!(value(&lines, "thp_swpout_fallback"), expected, "{policy}");
        // Each page is still there, in memory or in swap, and can be written.
        let faults = pages.filter(|&vpn| machine.access(process, vpn, true) == Access::Major);
        assert_eq!(faults.count() as u64, swapped, "{policy}");
        machine.check().unwrap();
    }
}

#[test]
fn swap_in_pieces_has_no_room_for_a_huge_page() {
    for policy in POLICIES {
        let mut machine = machine(policy, 1024, 0);
        // Every second page of a program that used all of swap is needed no more.
        let (small, other) = group(&mut machine, "small", u64::MAX);
        let first = machine.map(other, &MapOptions::anon(2000)).unwrap();
        for vpn in first..first + 2000 {
            machine.access(other, vpn, true);
        }
        machine.clear_accessed_bits(other);
        let _ = machine.reclaim_memcg(small, 1024, None);
        for vpn in (first..first + 2000).step_by(2) {
            machine.access(other, vpn, true);
        }
        machine.check().unwrap();
        let (memcg, process) = group(&mut machine, "huge", u64::MAX);
        fill_huge(&mut machine, process, 2);
        let before = machine.counters().pswpout;
        let _ = machine.reclaim_memcg(memcg, 300, None);
        let [whole, fallback, _] = swap_outs(&machine);
        assert!(whole == 0 && fallback > 0, "{policy}: {whole}, {fallback}");
        assert!(machine.counters().pswpout - before >= 300, "{policy}");
        machine.check().unwrap();
    }
}

#[test]
fn a_node_without_a_free_block_takes_the_pages_of_a_huge_page() {
    for policy in ["classic", "mglru:7.2", "mglru:6.12"] {
        // The slow node has less than one block.
        let mut machine = machine(policy, 4096, 500);
        let (memcg, process) = group(&mut machine, "t", u64::MAX);
        let first = fill_huge(&mut machine, process, 4);
        let _ = machine.reclaim_memcg(memcg, 200, None);
        machine.check().unwrap();
        let lines = machine.vmstat();
        let split = value(&lines, "thp_migration_split").unwrap();
        assert!(split > 0, "{policy}");
        assert_eq!(value(&lines, "thp_swpout_fallback"), Some(0), "{policy}");
        let demoted = machine.memcg_events(memcg).demoted();
        assert!((200..500).contains(&demoted), "{policy}: {demoted}");
        let slow = (first..first + 4 * BLOCK)
            .filter(|&vpn| machine.frame_of(process, vpn) >= Some(1 << 14));
        assert_eq!(slow.count() as u64, demoted, "{policy}");
        assert_eq!(machine.counters().pswpout, 0, "{policy}");
    }
}
