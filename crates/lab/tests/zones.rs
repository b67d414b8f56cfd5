// SPDX-License-Identifier: Apache-2.0
//! Machines with several zones: lists per zone and per node, fair allocation, requests for low
//! zones, and residency of pages.

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::machine_run::{Plan, Run, RunError};
use agewise_lab::machine::address_space::{Advice, MapOptions};
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{
    Access, FileError, Limits, Machine, MachineConfig, Policy, SwapConfig, ZoneInfo,
};
use agewise_lab::workload::library;
use agewise_lab::workload::spec::Workload;
use proptest::prelude::*;

const ARRANGEMENTS: [&str; 4] = [
    "classic:6.12",
    "classic+zone:6.12",
    "classic+zone+fair:6.12",
    "classic+node+fair",
];

fn config(policy: &str, zones: [u32; 4], swap: Option<u32>) -> MachineConfig {
    MachineConfig {
        policy: Policy::parse(policy).unwrap(),
        zones: Some(vec![zones]),
        stat_flush_ns: 0,
        swap: swap.map(|pages| SwapConfig::new(DeviceKind::Nvme, pages)),
        ..MachineConfig::new(zones.iter().sum())
    }
}

fn zone<'a>(zones: &'a [ZoneInfo], name: &str) -> &'a ZoneInfo {
    zones.iter().find(|zone| zone.zone == name).unwrap()
}

fn plan(workload: Workload, policy: &str, settings: &[&str]) -> Plan {
    Plan {
        settings: settings.iter().map(|&text| text.to_owned()).collect(),
        ..Plan::of(workload, Policy::parse(policy).unwrap(), 1)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Touch(u8, u16, bool),
    Read(u16),
    Write(u16),
    Discard(u8),
    Exit(u8),
    Wait(u32),
}

fn steps() -> impl Strategy<Value = Vec<(Step, u8)>> {
    let step = prop_oneof![
        12 => (any::<u8>(), any::<u16>(), any::<bool>()).prop_map(|(p, v, w)| Step::Touch(p, v, w)),
        6 => any::<u16>().prop_map(Step::Read),
        4 => any::<u16>().prop_map(Step::Write),
        1 => any::<u8>().prop_map(Step::Discard),
        1 => any::<u8>().prop_map(Step::Exit),
        1 => any::<u32>().prop_map(Step::Wait),
    ];
    prop::collection::vec((step, 1u8..120), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// For any steps, no page is lost, every page is on the lists its frame belongs to, and the
    /// lists of the zones add up to those of the nodes.
    #[test]
    fn zones_and_lists_agree(
        which in 0usize..ARRANGEMENTS.len(), movable in any::<bool>(), steps in steps()
    ) {
        let zones = if movable { [16, 300, 500, 200] } else { [16, 300, 700, 0] };
        let mut machine = Machine::new(config(ARRANGEMENTS[which], zones, Some(4000)));
        let group = machine.add_memcg(MemcgId::ROOT, "group", Limits::default());
        let file = machine.add_file(1500, group, Advice::Normal);
        let mut processes = Vec::new();
        for highest in [3, 1, 2] {
            let process = machine.add_process(group);
            machine.restrict_zone(process, highest);
            let start_vpn = machine.map(process, &MapOptions::anon(700)).unwrap();
            processes.push((process, start_vpn));
        }
        let mut at = 0u32;
        for (step, times) in steps {
            for _ in 0..times {
                at = at.wrapping_mul(1_103_515_245).wrapping_add(12_345);
                let drift = u64::from(at >> 16);
                let pick = |p: u8| processes[usize::from(p) % processes.len()];
                match step {
                    Step::Touch(p, page, write) => {
                        let (process, start_vpn) = pick(p);
                        let vpn = start_vpn + (u64::from(page) + drift) % 700;
                        machine.access(process, vpn, write);
                    }
                    Step::Read(page) => {
                        let index = (u32::from(page) + drift as u32) % 1500;
                        machine.read(processes[0].0, file, index, 1);
                    }
                    Step::Write(page) => {
                        let index = (u32::from(page) + drift as u32) % 1500;
                        machine.write(processes[0].0, file, index, 1);
                    }
                    Step::Discard(p) => {
                        let (process, start_vpn) = pick(p);
                        machine.discard(process, start_vpn);
                    }
                    Step::Exit(p) => machine.exit(pick(p).0),
                    Step::Wait(us) => machine.wait_ns(u64::from(us % 100_000) * 1000),
                }
            }
            machine.check().map_err(TestCaseError::fail)?;
            let sum: u64 = machine.zones().iter().map(|zone| zone.managed).sum();
            prop_assert_eq!(sum, 1016);
        }
    }
}

#[test]
fn a_small_load_uses_the_highest_zone_unless_zones_take_turns() {
    let dma32_share = |policy: &str| {
        let mut machine = Machine::new(config(policy, [16, 4096, 12_288, 0], None));
        let process = machine.add_process(MemcgId::ROOT);
        // After boot the first batch of a zone is the whole zone: use it up once.
        for (pages, keep) in [(15_400, false), (6000, true)] {
            let start_vpn = machine.map(process, &MapOptions::anon(pages)).unwrap();
            for page in 0..pages {
                assert_eq!(
                    machine.access(process, start_vpn + page, true),
                    Access::Minor
                );
            }
            if !keep {
                machine.discard(process, start_vpn);
            }
        }
        let zones = machine.zones();
        let [dma32, normal] = ["DMA32", "Normal"].map(|name| zone(&zones, name).lists[0]);
        assert_eq!(zone(&zones, "DMA").allocated, 0);
        machine.check().unwrap();
        dma32 as f64 / (dma32 + normal) as f64
    };
    assert_eq!(dma32_share("classic:6.12"), 0.0);
    assert_eq!(dma32_share("classic+zone:6.12"), 0.0);
    for fair in ["classic+zone+fair:6.12", "classic+node+fair:6.12"] {
        let share = dma32_share(fair);
        assert!((0.1..0.5).contains(&share), "{fair}: {share}");
    }
}

#[test]
fn a_request_for_low_memory_skips_pages_of_higher_zones() {
    let mut machine = Machine::new(config("classic:6.12", [16, 1024, 3072, 0], Some(4096)));
    let high = machine.add_process(MemcgId::ROOT);
    let start_vpn = machine.map(high, &MapOptions::anon(2600)).unwrap();
    for page in 0..2600 {
        machine.access(high, start_vpn + page, true);
    }
    let low = machine.add_process(MemcgId::ROOT);
    machine.restrict_zone(low, 1);
    let start_vpn = machine.map(low, &MapOptions::anon(1400)).unwrap();
    for page in 0..1400 {
        let access = machine.access(low, start_vpn + page, true);
        assert_eq!(access, Access::Minor, "page {page}");
    }
    let zones = machine.zones();
    assert!(zone(&zones, "Normal").skipped > 0, "{zones:?}");
    let [inactive, active, ..] = zone(&zones, "Normal").lists;
    assert_eq!(inactive + active, 2600, "nothing of the zone was taken");
    assert!(machine.counters().pswpout > 300, "room was made in DMA32");
    machine.check().unwrap();
}

#[test]
fn pages_age_alike_in_all_zones_but_with_lists_per_zone_and_no_turns() {
    let aging = |policy: &str| {
        let workload = library::find("aging").unwrap();
        let mut run = Run::new(&plan(workload, policy, &[])).unwrap();
        run.run_until(u64::MAX).unwrap();
        let inverted = run.machine.residency().inversion_share();
        let spread = run.machine.residency_spread(FolioType::File).unwrap();
        (spread, inverted)
    };
    let (fair, fair_inverted) = aging("classic+zone+fair:6.12");
    let (unfair, _) = aging("classic+zone:6.12");
    let (node, node_inverted) = aging("classic:6.12");
    assert!(fair <= 0.05, "{fair}");
    assert!(node <= 0.05, "{node}");
    assert!(unfair > 0.3, "{unfair}");
    assert!(node_inverted < 0.01 && node_inverted < fair_inverted);
}

#[test]
fn a_machine_without_normal_memory_works_and_impossible_ones_are_told() {
    let mut machine = Machine::new(config("classic+zone+fair", [64, 960, 0, 0], Some(2048)));
    let process = machine.add_process(MemcgId::ROOT);
    let start_vpn = machine.map(process, &MapOptions::anon(1500)).unwrap();
    for page in 0..1500 {
        assert_eq!(
            machine.access(process, start_vpn + page, true),
            Access::Minor
        );
    }
    machine.check().unwrap();
    for (setting, expected) in [
        ("zones=dma=0,normal=0", "every zone is empty"),
        ("zones=movable=16M", "all memory is movable"),
        ("zones=dma=4M,dma32=1G", "do not fit"),
    ] {
        let workload = library::find("aging").unwrap();
        let error = Run::new(&plan(workload, "classic", &[setting]))
            .err()
            .unwrap();
        assert!(matches!(error, RunError::Zones(_)), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
    let workload = library::find("aging").unwrap();
    let error = Run::new(&plan(workload, "classic", &["nodes=2"]))
        .err()
        .unwrap();
    assert!(error.to_string().contains("those of 1 node(s)"), "{error}");
}

#[test]
fn lists_per_zone_have_no_generations() {
    let mut machine = Machine::new(config("classic+zone", [16, 300, 700, 0], None));
    let result = machine.write_file("/sys/kernel/mm/lru_gen/enabled", b"y");
    assert_eq!(result, Err(FileError::Invalid));
    let text = machine.read_file("/proc/zoneinfo").unwrap();
    for part in [
        "Node 0, zone    DMA32",
        "protection: (0, 0, 2, 2)",
        "nr_alloc_batch 300",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(
        machine.write_file("/proc/zoneinfo", b"1"),
        Err(FileError::Denied)
    );
}

#[test]
fn phases_meet_repeat_and_sync() {
    let text = r#"
        description = "a test"
        memory = "64MiB"
        settings = ["stat_flush_us=0"]
        [[file]]
        name = "data"
        size = "4MiB"
        [[process]]
        name = "writer"
        count = 2
        [[process.area]]
        name = "data"
        file = "data"
        own = true
        [[process.area]]
        name = "heap"
        size = "1MiB"
        [[process.phase]]
        touches = 1000
        sync = true
        stream = [{ area = "data", order = "scan", write = 1.0 }]
        [[process.phase]]
        together = true
        populate = ["heap"]
        release = ["heap"]
        repeat = 3
        every_ms = 5
    "#;
    let workload = Workload::parse("meet", text).unwrap();
    let mut run = Run::new(&plan(workload, "classic", &["cpus=2"])).unwrap();
    run.run_until(u64::MAX).unwrap();
    assert_eq!(
        run.measures()[15],
        2000.0,
        "all that was written is on the device"
    );
    let laps = run.laps();
    assert_eq!(laps.len(), 2 + 6);
    let last_write_ns = laps
        .iter()
        .filter(|lap| lap.phase == 0)
        .map(|lap| lap.end_ns)
        .max();
    let of_one: Vec<_> = laps
        .iter()
        .filter(|lap| (lap.phase, lap.task) == (1, 0))
        .collect();
    assert!(Some(of_one[0].start_ns) >= last_write_ns);
    let period_ns = of_one[1].start_ns - of_one[0].start_ns;
    assert!((5_000_000..5_200_000).contains(&period_ns), "{period_ns}");
    assert_eq!(
        run.machine.resident_pages(MemcgId::ROOT)[0],
        0,
        "given back"
    );
}
