// SPDX-License-Identifier: Apache-2.0
//! Machines with a slow node: demotion, what accesses to it cost, promotion by DAMON.

use agewise_damon::action::Action;
use agewise_damon::attrs::Attrs;
use agewise_damon::monitor::Monitor;
use agewise_damon::quota::Quota;
use agewise_damon::scheme::{AccessPattern, Scheme};
use agewise_damon::target::TargetId;
use agewise_kernel::ids::MemcgId;
use agewise_lab::machine::address_space::{Advice, MapOptions};
use agewise_lab::machine::damon::Watched;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig};

const POLICIES: [&str; 4] = ["classic", "classic:6.12", "mglru:7.2", "mglru:6.12"];
const FAST: u32 = 4000;
const SLOW: u32 = 2000;

fn tiered(policy: &str, demotion: bool, swap: Option<u32>) -> MachineConfig {
    MachineConfig {
        policy: Policy::parse(policy).unwrap(),
        slow_pages: SLOW,
        demotion,
        stat_flush_ns: 0,
        swap: swap.map(|pages| SwapConfig::new(DeviceKind::Nvme, pages)),
        ..MachineConfig::new(FAST)
    }
}

fn start(config: MachineConfig, pages: u64) -> (Machine, MemcgId, ProcessId, u64) {
    let mut machine = Machine::new(config);
    let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
    let process = machine.add_process(group);
    let start_vpn = machine.map(process, &MapOptions::anon(pages)).unwrap();
    (machine, group, process, start_vpn)
}

/// How many of these pages are in fast memory, in slow memory, and in neither.
fn places(machine: &Machine, process: ProcessId, pages: std::ops::Range<u64>) -> [usize; 3] {
    let mut places = [0; 3];
    for vpn in pages {
        match machine.frame_of(process, vpn) {
            Some(0..FAST) => places[0] += 1,
            Some(_) => places[1] += 1,
            None => places[2] += 1,
        }
    }
    places
}

/// 400 hot pages in fast memory, and more cold ones than there is memory.
fn fill(machine: &mut Machine, process: ProcessId, start_vpn: u64, pages: u64) {
    for page in 0..pages {
        machine.access(process, start_vpn + page, true);
        if page % 20 == 0 {
            for hot in 0..400 {
                machine.access(process, start_vpn + hot, false);
            }
        }
    }
}

#[test]
fn cold_pages_go_to_slow_memory_and_from_there_to_swap() {
    const PAGES: u64 = 7000;
    for policy in POLICIES {
        let (mut machine, _, process, first) = start(tiered(policy, true, Some(4000)), PAGES);
        fill(&mut machine, process, first, PAGES);
        machine.check().unwrap();
        let events = machine.memcg_events(MemcgId::ROOT);
        assert!(events.demoted() > 200, "{policy}: {}", events.demoted());
        assert!(events.demoted() <= events.stolen());
        // Pages that were demoted are in no swap; what slow memory has no room for is.
        let swapped = machine.counters().pswpout;
        assert!(swapped > 500, "{policy}: {swapped}");
        let hot = places(&machine, process, first..first + 400);
        // On zram and pmem, too, 6.12 leaves the fewest: 260 and 272.
        assert!(hot[0] > 250, "{policy}: {hot:?}");
        let cold = places(&machine, process, first + 400..first + PAGES);
        assert!(cold[1] > 1400, "{policy}: {cold:?}");
        let lines = machine.vmstat();
        let line = |name| lines.iter().find(|(known, _)| *known == name).unwrap().1;
        let sum = line("pgdemote_kswapd") + line("pgdemote_direct");
        assert_eq!(sum, events.demoted(), "{policy}");
    }
}

#[test]
fn anonymous_memory_leaves_fast_memory_without_swap() {
    for policy in POLICIES {
        for demotion in [true, false] {
            let config = tiered(policy, demotion, None);
            let (mut machine, group, process, first) = start(config, 3000);
            for page in 0..3000 {
                machine.access(process, first + page, true);
            }
            machine.clear_accessed_bits(process);
            let done = machine.reclaim_memcg(group, 300, None).is_ok();
            machine.check().unwrap();
            let demoted = machine.memcg_events(group).demoted() as usize;
            let found = places(&machine, process, first..first + 3000);
            assert_eq!(found, [3000 - demoted, demoted, 0], "{policy}");
            assert_eq!((done, demoted >= 300), (demotion, demotion), "{policy}");
        }
    }
}

#[test]
fn a_request_to_reclaim_demotes_what_is_in_fast_memory() {
    for (policy, demotes) in [
        ("classic", true),
        ("mglru:6.12", true),
        ("mglru:7.2", true),
        ("mglru:v6", false),
    ] {
        let (mut machine, group, process, first) = start(tiered(policy, true, Some(4000)), 3000);
        for page in 0..3000 {
            machine.access(process, first + page, true);
        }
        machine.clear_accessed_bits(process);
        let done = machine.reclaim_memcg(group, 500, None).is_ok();
        machine.check().unwrap();
        let events = machine.memcg_events(group);
        let swapped = machine.counters().pswpout;
        if demotes {
            // Some of what came to slow memory leaves that in the same pass.
            assert!(done && events.pgdemote_proactive > 400, "{policy}");
            assert!(swapped < 100, "{policy}: {swapped}");
        } else {
            assert_eq!(events.demoted(), 0, "{policy}");
            assert!(swapped >= 500, "{policy}: {swapped}");
        }
    }
}

#[test]
fn dirty_pages_stay_dirty_where_they_go() {
    for policy in POLICIES {
        let config = tiered(policy, true, Some(4000));
        let (mut machine, group, process, first) = start(config, 7000);
        let file = machine.add_file(300, group, Advice::Normal);
        machine.write(process, file, 0, 300);
        fill(&mut machine, process, first, 7000);
        // Among what is checked: how much of each node is to be written.
        machine.check().unwrap();
        assert!(machine.memcg_events(MemcgId::ROOT).demoted() > 200);
        let start_ns = machine.now_ns();
        while machine.now_ns() < start_ns + 60_000_000_000 {
            machine.wait_ns(100_000_000);
        }
        machine.check().unwrap();
    }
}

#[test]
fn an_access_to_slow_memory_costs_more_wherever_it_is_from() {
    let (mut machine, _, process, first) = start(tiered("mglru:7.2", false, None), 5000);
    for page in 0..5000 {
        machine.access(process, first + page, true);
    }
    let slow_ns = machine.config().cost.slow_ns;
    let mut price = |vpn| {
        let before = machine.now_ns();
        machine.access(process, vpn, false);
        (machine.now_ns() - before, machine.counters().slow_accesses)
    };
    let (near_ns, before) = price(first);
    let (far_ns, after) = price(first + 4999);
    assert_eq!((far_ns, after), (near_ns + slow_ns, before + 1));
}

#[test]
fn damon_brings_hot_pages_back_to_fast_memory() {
    for policy in ["classic", "mglru:7.2", "mglru:6.12"] {
        let (mut machine, _, process, first) = start(tiered(policy, true, None), 4300);
        let start_vpn = machine.map(process, &MapOptions::anon(500)).unwrap();
        let hot = start_vpn..start_vpn + 500;
        for vpn in (first..first + 4300).chain(hot.clone()) {
            machine.access(process, vpn, true);
        }
        // What came first is freed: there is room in fast memory, and all that is used is slow.
        machine.discard(process, first);
        assert_eq!(
            places(&machine, process, hot.clone()),
            [0, 500, 0],
            "{policy}"
        );
        let accessed = AccessPattern {
            size_bytes: 0..=u64::MAX,
            nr_accesses: 1..=u32::MAX,
            age: 0..=u32::MAX,
        };
        let scheme = Scheme::new(accessed, Action::MigrateHot(0), Quota::unlimited());
        let profile = machine.config().policy.kernel.damon;
        let attrs = Attrs {
            sample_us: 1_000,
            aggr_us: 20_000,
            ..Attrs::default()
        };
        let monitor = Monitor::new(profile, attrs, &[TargetId(0)], vec![scheme], 1).unwrap();
        machine.start_damon(monitor, Watched::Physical(None));
        for _ in 0..4000 {
            machine.wait_ns(500_000);
            for vpn in hot.clone() {
                machine.access(process, vpn, false);
            }
        }
        machine.check().unwrap();
        let end = places(&machine, process, hot.clone());
        assert!(end[0] > 400, "{policy}: {end:?}");
        assert!(machine.counters().migrated >= end[0] as u64, "{policy}");
    }
}
