// SPDX-License-Identifier: Apache-2.0
//! The simulated machine as a whole: the same seed gives the same run, counts match real kernels,
//! and its files answer like the kernel's. Invariants under any load are tested in src/fuzz.

use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::machine_run::{Plan, RunError, run};
use agewise_lab::experiment::matrix::{run_columns, summarize};
use agewise_lab::machine::address_space::{Advice, MapOptions};
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{
    CgroupError, FileError, Limits, Machine, MachineConfig, Policy, SwapConfig,
};
use agewise_lab::reference::replay::{Conditions, replay};
use agewise_lab::reference::{Cell, Guest, Members, Phase};
use agewise_lab::workload::kernel_trace::TraceSpec;
use agewise_lab::workload::library;

const POLICIES: [&str; 5] = [
    "classic",
    "classic:6.12",
    "mglru:7.2",
    "mglru:6.12",
    "mglru:v6",
];

fn policy(name: &str) -> Policy {
    Policy::parse(name).unwrap()
}

fn config(name: &str, pages: u32, swap: Option<(DeviceKind, u32)>) -> MachineConfig {
    MachineConfig {
        policy: policy(name),
        swap: swap.map(|(kind, pages)| SwapConfig::new(kind, pages)),
        ..MachineConfig::new(pages)
    }
}

fn limit(max_pages: u64) -> Limits {
    Limits {
        max_pages,
        ..Limits::default()
    }
}

fn plan(workload: &str) -> Plan {
    Plan::of(library::find(workload).unwrap(), policy("mglru:7.2"), 1)
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let policies = ["classic", "mglru:7.2", "mglru:6.12"].map(|name| (policy(name).into(), None));
    for workload in ["desktop", "forkers"] {
        let text = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let results = pool
                .unwrap()
                .install(|| run_columns(&plan(workload), &policies, 2, &Arc::default(), || ()))
                .unwrap();
            format!("{:?}", summarize(workload, &results))
        };
        let first = text(1);
        assert_eq!(first, text(1), "{workload}");
        assert_eq!(first, text(4), "{workload}");
    }
}

#[test]
fn every_workload_runs_with_every_policy() {
    for workload in library::names() {
        let workload = library::find(workload).unwrap();
        if workload.trace.is_some() {
            continue;
        }
        for name in POLICIES {
            let plan = Plan {
                policy: policy(name),
                ..plan(&workload.name)
            };
            assert!(run(&plan).unwrap()[0] > 0.0, "{} {name}", workload.name);
        }
    }
}

fn cell(kernel: &str, lru_gen: u32, pattern: &str, theta: f64, touches: u64) -> Cell {
    Cell {
        kernel: kernel.to_owned(),
        rules: None,
        lru_gen,
        limit_bytes: 32 << 20,
        guest: Guest::PLAIN,
        swappiness: 60,
        members: Members::ALONE,
        nomadv: true,
        writes: false,
        trace: TraceSpec {
            pattern: pattern.to_owned(),
            pages: 16384,
            hot: 0,
            theta,
            seed: 12345,
            touches,
        },
        trace_hash: None,
        runs: Vec::new(),
    }
}

/// Counts measured in real kernels under a limit of 32 MiB: lowest and highest misses of the main
/// phase, and pages scanned.
#[test]
fn counts_are_those_of_real_kernels() {
    let measured = [
        (
            "6.12",
            7,
            "anon-zipf",
            0.8,
            400_000,
            85_407..=86_632,
            106_154,
        ),
        ("7.2", 7, "anon-zipf", 0.8, 400_000, 86_701..=86_780, 94_121),
        (
            "7.2",
            7,
            "anon-zipf",
            0.99,
            400_000,
            43_081..=43_344,
            46_882,
        ),
        (
            "6.12",
            7,
            "file-zipf",
            0.99,
            200_000,
            20_776..=20_776,
            20_800,
        ),
        (
            "7.2",
            7,
            "file-zipf",
            0.99,
            200_000,
            21_556..=21_557,
            21_560,
        ),
        (
            "7.2",
            0,
            "file-uniform",
            0.0,
            60_000,
            30_206..=30_309,
            30_262,
        ),
        (
            "6.12",
            0,
            "file-zipf",
            0.99,
            200_000,
            19_982..=20_082,
            20_069,
        ),
    ];
    for (kernel, lru_gen, pattern, theta, touches, misses, scanned) in measured {
        let cell = cell(kernel, lru_gen, pattern, theta, touches);
        let outcome = replay(&cell, &Conditions::default()).unwrap();
        let main = outcome[&Phase::Main];
        let near = |found: u64, low: u64, high: u64, share: f64| {
            found as f64 >= low as f64 * (1.0 - share)
                && found as f64 <= high as f64 * (1.0 + share)
        };
        assert!(
            near(main.misses, *misses.start(), *misses.end(), 0.02),
            "{kernel} {lru_gen} {pattern} {theta}: {main:?}, measured {misses:?}"
        );
        assert!(
            near(main.scanned, scanned, scanned, 0.05),
            "{kernel} {lru_gen} {pattern} {theta}: {main:?}, scanned {scanned}"
        );
    }
}

#[test]
fn exact_statistics_take_the_oom_trap_away() {
    let cell = cell("6.12", 0, "anon-zipf", 0.8, 400_000);
    let killed = |exact_stats: bool| {
        (0..10)
            .filter(|phase| {
                let conditions = Conditions {
                    miss_ns: [50_000, 120_000, 150_000],
                    flush_phase_ns: 200_000_000 * phase + 100_000_000,
                    exact_stats,
                    ..Conditions::default()
                };
                !replay(&cell, &conditions)
                    .unwrap()
                    .contains_key(&Phase::Main)
            })
            .count()
    };
    assert!(killed(false) > 0);
    assert_eq!(killed(true), 0);
}

const LRU_GEN: &str = "/sys/kernel/debug/lru_gen";

fn switches_and_lists_are_shown(machine: &mut Machine, old: bool) {
    for (text, shown) in [("n", "0x0000\n"), ("0xf", "0x0007\n"), ("y", "0x0007\n")] {
        machine
            .write_file("/sys/kernel/mm/lru_gen/enabled", text.as_bytes())
            .unwrap();
        let enabled = machine.read_file("/sys/kernel/mm/lru_gen/enabled");
        assert_eq!(enabled.as_deref(), Ok(shown));
    }
    assert_eq!(machine.read_file("/sys/nothing"), Err(FileError::NotFound));
    let first = machine.read_file(LRU_GEN).unwrap();
    let root = ["memcg 1 /\n", "memcg     1 /\n"][usize::from(old)];
    let begins = format!("{root} node     0\n");
    assert!(first.starts_with(&begins), "{first}");
}

#[test]
fn files_answer_as_the_kernels() {
    for name in ["mglru:6.12", "mglru:7.2"] {
        let old = name.ends_with("6.12");
        let mut machine = Machine::new(config(name, 4096, Some((DeviceKind::Zram, 4096))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(group);
        let vpn = machine.map(process, &MapOptions::anon(500)).unwrap();
        for page in 0..500 {
            machine.access(process, vpn + page, true);
        }
        let mut write = |path: &str, text: &str| match machine.write_file(path, text.as_bytes()) {
            Ok(taken) => taken as i32,
            Err(error) => -error.errno(),
        };
        for (text, expected) in [
            ("+ 2 0 4", -22),
            ("+ 9999 0 3", -22),
            ("+ 2 7 3", -22),
            ("+ 2 0", -22),
            ("hello", -22),
            ("", -22),
            ("\n", -22),
            ("x 2 0 3", -22),
            ("+ 2 0 3 1 1", 11),
            ("+ 2 0 4 200 1", 13),
            ("+ 2 0 5 201 1", if old { -22 } else { 13 }),
            ("- 2 0 5 1 10", -22),
            ("- 2 0 0 1 10", 12),
            ("- 2 0 3 201 10", if old { -22 } else { 14 }),
            ("- 2 0 3 max 10", if old { -22 } else { 14 }),
            ("- 2 0 3 60 -5", -22),
        ] {
            assert_eq!(write(LRU_GEN, text), expected, "{name} {text:?}");
        }
        assert_eq!(write("/sys/kernel/debug/lru_gen_full", "+ 2 0 3"), -22);
        let reclaim = "/sys/fs/cgroup/t/memory.reclaim";
        for (text, expected) in [
            ("0", 1),
            ("4K swappiness=200", 17),
            ("4K swappiness=max", if old { -22 } else { 17 }),
            ("1M swappiness=201", -22),
            ("1M bad=1", -22),
            ("-1", -22),
            ("10G", -11),
        ] {
            assert_eq!(write(reclaim, text), expected, "{name} {text:?}");
        }
        switches_and_lists_are_shown(&mut machine, old);
        assert_eq!(machine.read_file(reclaim), Err(FileError::Denied));
        for path in machine.file_paths() {
            assert!(
                !matches!(machine.read_file(&path), Err(FileError::NotFound)),
                "{path}"
            );
        }
        machine.check().unwrap();
    }
}

/// The counters in a file of the machine.
fn counters(machine: &mut Machine, path: &str) -> BTreeMap<String, u64> {
    let text = machine.read_file(path).unwrap();
    let pair = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    text.lines().map(pair).collect()
}

#[test]
fn reclaim_is_counted_as_the_version_does() {
    const STAT: &str = "/sys/fs/cgroup/t/memory.stat";
    const SPLIT: [&str; 4] = ["kswapd", "direct", "khugepaged", "proactive"];
    for name in POLICIES {
        let (is_new, is_v6) = (name == "classic" || name == "mglru:7.2", name == "mglru:v6");
        let mut machine = Machine::new(config(name, 4096, Some((DeviceKind::Zram, 4096))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", limit(500));
        let process = machine.add_process(group);
        let vpn = machine.map(process, &MapOptions::anon(800)).unwrap();
        for page in (0..800).chain(0..800) {
            machine.access(process, vpn + page, true);
        }
        // Only the limit has reclaimed.
        let at_limit = counters(&mut machine, STAT);
        let vm = counters(&mut machine, "/proc/vmstat");
        assert!(
            at_limit["pgscan"] > 300 && at_limit["pgsteal"] > 300,
            "{name}"
        );
        for of in ["pgscan", "pgsteal"] {
            let by_type = vm[&format!("{of}_anon")] + vm[&format!("{of}_file")];
            assert_eq!(by_type, at_limit[of], "{name}");
            // The totals are in memory.stat alone, types of pages in vmstat alone.
            assert!(!vm.contains_key(of) && !at_limit.contains_key(&format!("{of}_anon")));
            let expected = if is_new { at_limit[of] } else { 0 };
            assert_eq!(vm[&format!("{of}_direct")], expected, "{name}");
            for who in SPLIT {
                let counter = format!("{of}_{who}");
                let has_since = match who {
                    "proactive" => is_new,
                    "khugepaged" => !is_v6,
                    _ => true,
                };
                assert_eq!(vm.contains_key(&counter), has_since, "{name} {counter}");
                let in_stat = has_since && !is_v6;
                assert_eq!(at_limit.contains_key(&counter), in_stat, "{name} {counter}");
                if in_stat && who != "direct" {
                    assert_eq!(at_limit[&counter], 0, "{name} {counter}");
                }
            }
        }
        let refilled = if is_new { at_limit["pgrefill"] } else { 0 };
        assert_eq!(vm["pgrefill"], refilled, "{name}");
        machine
            .write_file("/sys/fs/cgroup/t/memory.reclaim", b"400K")
            .unwrap();
        let now = counters(&mut machine, STAT);
        assert!(now["pgsteal"] >= at_limit["pgsteal"] + 100, "{name}");
        let split = SPLIT.map(|who| now.get(&format!("pgsteal_{who}")).copied());
        let total = now["pgsteal"];
        let expected = match (is_new, is_v6) {
            (true, _) => {
                let of_limit = at_limit["pgsteal"];
                [Some(0), Some(of_limit), Some(0), Some(total - of_limit)]
            }
            (_, true) => [None; 4],
            _ => [Some(0), Some(total), Some(0), None],
        };
        assert_eq!(split, expected, "{name}");
    }
}

#[test]
fn dropped_shadows_count_for_the_cgroup_that_pays_for_them() {
    const COUNTER: &str = "workingset_nodereclaim";
    let mut machine = Machine::new(config("mglru:7.2", 8192, Some((DeviceKind::Zram, 4096))));
    let groups = ["a", "b"].map(|name| machine.add_memcg(MemcgId::ROOT, name, limit(500)));
    let reader = machine.add_process(groups[0]);
    let file = machine.add_file(60_000, groups[0], Advice::Random);
    for page in 0..60_000 {
        machine.read(reader, file, page, 1);
    }
    let stat = |name| format!("/sys/fs/cgroup/{name}/memory.stat");
    let [a, b] = ["a", "b"].map(|name| counters(&mut machine, &stat(name))[COUNTER]);
    assert!(a > 100 && b == 0, "a {a}, b {b}");
    assert_eq!(counters(&mut machine, "/proc/vmstat")[COUNTER], a);
}

#[test]
fn limits_below_usage_full_swap_and_removal_under_reclaim_end_well() {
    for name in POLICIES {
        let mut machine = Machine::new(config(name, 4096, Some((DeviceKind::Zram, 100))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(group);
        let vpn = machine.map(process, &MapOptions::anon(600)).unwrap();
        for page in 0..600 {
            machine.access(process, vpn + page, true);
        }
        assert_eq!(
            machine.remove_memcg(group),
            Err(CgroupError::Busy("/t".to_owned()))
        );
        // Swap takes 100 of the 600 pages: killing is the only way to free the rest.
        machine.set_limits(group, limit(300));
        assert!(!machine.is_alive(process), "{name}");
        assert_eq!(machine.memcg_limit_events(group).oom_kill, 1, "{name}");
        let file = machine.add_file(200, MemcgId::ROOT, Advice::Random);
        let reader = machine.add_process(group);
        machine.read(reader, file, 0, 200);
        machine.exit(reader);
        machine.remove_memcg(group).unwrap();
        assert!(machine.remove_memcg(group).is_err());
        machine.check().unwrap();
        // Its pages can still be reclaimed.
        let before = machine.resident_pages(MemcgId::ROOT)[1];
        let _ = machine.reclaim_memcg(MemcgId::ROOT, 100, None);
        assert!(machine.resident_pages(MemcgId::ROOT)[1] < before, "{name}");
        machine.check().unwrap();
    }
}

#[test]
fn a_lowered_limit_waits_for_swap_rather_than_kill() {
    for name in POLICIES {
        let mut machine = Machine::new(config(name, 4096, Some((DeviceKind::Nvme, 1000))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(group);
        let vpn = machine.map(process, &MapOptions::anon(600)).unwrap();
        for page in 0..600 {
            machine.access(process, vpn + page, true);
        }
        machine.set_limits(group, limit(300));
        assert!(machine.is_alive(process), "{name}");
        assert_eq!(machine.memcg_limit_events(group).oom_kill, 0, "{name}");
        assert!(machine.usage_pages(group) <= 300, "{name}");
        assert_eq!(machine.memcg_events(group).pgscan_proactive, 0, "{name}");
        machine.check().unwrap();
    }
}

#[test]
fn a_limit_written_again_is_reclaimed_down_to() {
    for name in POLICIES {
        let mut machine = Machine::new(config(name, 4096, Some((DeviceKind::Zram, 1000))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(group);
        let vpn = machine.map(process, &MapOptions::anon(600)).unwrap();
        for page in 0..600 {
            machine.access(process, vpn + page, true);
        }
        let write = |machine: &mut Machine, file: &str, text: &str| {
            let path = format!("/sys/fs/cgroup/t/{file}");
            machine.write_file(&path, text.as_bytes()).unwrap();
            machine.usage_pages(group)
        };
        // Nothing can leave until there is swap.
        write(&mut machine, "memory.swap.max", "0");
        assert!(
            write(&mut machine, "memory.high", "1228800") >= 600,
            "{name}"
        );
        write(&mut machine, "memory.swap.max", "max");
        assert!(
            write(&mut machine, "memory.high", "1228800") <= 300,
            "{name}"
        );
        machine.check().unwrap();
    }
}

#[test]
fn too_little_memory_is_refused() {
    let plan = Plan {
        memory_pages: Some(10),
        ..plan("kv")
    };
    assert!(matches!(run(&plan), Err(RunError::TooSmall { pages: 10 })));
}

#[test]
fn too_much_memory_is_refused() {
    let pages = (1 << 26) + 1;
    for memory_pages in [pages, u64::MAX] {
        let plan = Plan {
            memory_pages: Some(memory_pages),
            ..plan("kv")
        };
        let error = run(&plan).unwrap_err();
        assert!(error.to_string().contains("67108864 (256 GiB)"), "{error}");
    }
}

#[test]
fn a_page_costs_at_most_64_bytes_of_simulator() {
    let pages = 1 << 17;
    for name in ["classic", "mglru:7.2"] {
        let mut machine = Machine::new(config(name, pages, Some((DeviceKind::Zram, pages))));
        let group = machine.add_memcg(MemcgId::ROOT, "t", limit(u64::from(pages) / 2));
        let process = machine.add_process(group);
        let vpn = machine
            .map(process, &MapOptions::anon(pages.into()))
            .unwrap();
        for page in 0..u64::from(pages) {
            machine.access(process, vpn + page, true);
        }
        let bytes = machine.footprint_bytes() as f64 / f64::from(pages);
        assert!(bytes <= 64.0, "{name}: {bytes}");
    }
}
