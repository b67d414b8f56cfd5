// SPDX-License-Identifier: Apache-2.0
//! Working-set reports, thrashing prevention and balloons on simulated machines.

use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::balloon::{Host, Sharing, run_host};
use agewise_lab::experiment::machine_run::{Plan, Run};
use agewise_lab::machine::address_space::MapOptions;
use agewise_lab::machine::{FileError, Limits, Machine, MachineConfig, Policy};
use agewise_lab::workload::library;
use agewise_policy::thrashing::{Act, Config, GroupSample, Guard, Sample, Step};
use agewise_policy::workingset::Histogram;

const NODE: &str = "/sys/devices/system/node/node0/workingset_report";
const GROUP: &str = "/sys/fs/cgroup/web/memory.workingset";

fn seconds(machine: &mut Machine, seconds: u64) {
    let now_ns = machine.now_ns() + seconds * 1_000_000_000;
    machine.set_now_ns(now_ns);
}

/// Pages touched now, 4 s ago and 20 s ago are reported in their bins: the simulated kernel ages
/// them on demand and by its thread.
#[test]
fn the_simulated_kernel_has_the_files() {
    let mut machine = Machine::new(MachineConfig::new(65_536));
    let web = machine.add_memcg(MemcgId::ROOT, "web", Limits::default());
    let process = machine.add_process(web);
    let start = machine.map(process, &MapOptions::anon(4096)).unwrap();
    for (file, text) in [
        (format!("{NODE}/page_age_intervals"), "2000,10000"),
        (format!("{NODE}/refresh_interval"), "1000"),
        (format!("{GROUP}.refresh_interval"), "N0=1000"),
    ] {
        machine.write_file(&file, text.as_bytes()).unwrap();
    }
    for page in 0..1000 {
        machine.access(process, start + page, true);
    }
    // The walk visits address spaces that ran; touches of other pages let time pass.
    for second in 0..20 {
        seconds(&mut machine, 1);
        machine.schedule(process);
        let touched = match second {
            15 => 0..400,
            18.. => 400..500,
            _ => 600..600,
        };
        for page in touched {
            machine.access(process, start + page, true);
        }
        let _ = machine.read_file(&format!("{NODE}/page_age")).unwrap();
    }
    let text = machine.read_file(&format!("{GROUP}.page_age")).unwrap();
    let histogram: Histogram = text.strip_prefix("N0\n").expect(&text).parse().unwrap();
    let pages: Vec<u64> = histogram
        .bins()
        .iter()
        .map(|bin| bin.amounts[0] / 4096)
        .collect();
    // A few pages are still in the CPU's batch and on no list.
    assert!((970..=1000).contains(&pages.iter().sum::<u64>()), "{text}");
    // There are four generations, each one second wide: older pages are drained into the oldest and
    // count as just that old.
    assert!((95..=105).contains(&pages[0]), "{text}");
    for (file, shown) in [
        (format!("{NODE}/refresh_interval"), "1000\n"),
        (format!("{GROUP}.report_threshold"), "N0=0 \n"),
    ] {
        assert_eq!(machine.read_file(&file).as_deref(), Ok(shown));
    }
    let error = machine
        .write_file(&format!("{GROUP}.refresh_interval"), b"N0")
        .unwrap_err();
    assert_eq!(error, FileError::Report { errno: 22 });
    let paths = machine.file_paths();
    for path in [format!("{NODE}/page_age"), format!("{GROUP}.page_age")] {
        assert!(paths.contains(&path), "{path}");
    }
    assert!(
        machine
            .read_file("/sys/fs/cgroup/memory.workingset.page_age")
            .is_err()
    );
    machine.check().unwrap();
}

/// The aging thread keeps births young even if nobody reads the report.
#[test]
fn the_aging_thread_of_the_simulated_kernel_runs() {
    let mut machine = Machine::new(MachineConfig::new(65_536));
    let process = machine.add_process(MemcgId::ROOT);
    let start = machine.map(process, &MapOptions::anon(16)).unwrap();
    machine
        .write_file(&format!("{NODE}/refresh_interval"), b"2000")
        .unwrap();
    let agings = |machine: &Machine| machine.work().agings;
    let before = agings(&machine);
    for _ in 0..10 {
        seconds(&mut machine, 1);
        machine.access(process, start, true);
    }
    let thread = agings(&machine) - before;
    assert!((4..=6).contains(&thread), "{thread} agings in 10 s at 2 s");
    machine
        .write_file(&format!("{NODE}/refresh_interval"), b"0")
        .unwrap();
    let before = agings(&machine);
    for _ in 0..10 {
        seconds(&mut machine, 1);
        machine.access(process, start, true);
    }
    assert_eq!(agings(&machine), before, "off costs nothing");
}

fn thrash(min_ttl_ms: u32, seed: u64) -> Plan {
    let workload = library::find("thrash").unwrap();
    Plan {
        settings: vec![format!("min_ttl_ms={min_ttl_ms}")],
        ..Plan::of(workload, Policy::parse("mglru:7.2").unwrap(), seed)
    }
}

/// The first document's claim: with min_ttl the kernel kills one task instead of thrashing.
#[test]
fn min_ttl_kills_one_instead_of_thrashing() {
    let measure = |min_ttl_ms| {
        let mut run = Run::new(&thrash(min_ttl_ms, 1)).unwrap();
        run.run_until(8_000_000_000).unwrap();
        let desktop = run.machine.pressure(run.memcg).full_ns;
        (
            run.machine.counters().oom_kill,
            run.machine.counters().pswpin,
            desktop,
        )
    };
    let (kills, swapped_in, stalled_ns) = measure(0);
    assert_eq!(kills, 0, "it thrashes on");
    assert!(swapped_in > 10_000, "{swapped_in}");
    let (kills, fewer, less_ns) = measure(1000);
    assert_eq!(kills, 1, "the hog, once");
    assert!(fewer * 3 < swapped_in, "{fewer} against {swapped_in}");
    assert!(
        less_ns * 2 < stalled_ns || stalled_ns == 0,
        "{less_ns} against {stalled_ns}"
    );
}

/// What the guard is shown of a cgroup.
fn sample(run: &Run, memcg: MemcgId, is_protected: bool) -> GroupSample<MemcgId> {
    let events = run.machine.memcg_events(memcg);
    GroupSample {
        group: memcg,
        is_protected,
        is_untouchable: false,
        resident_bytes: run.machine.usage_pages(memcg) * 4096,
        swapped_bytes: 0,
        refaulted_pages: events.workingset_refault.iter().sum(),
        // By the kernel's own criterion: evicted within the last generations.
        young_refaulted_pages: Some(events.workingset_activate.iter().sum()),
        stolen_pages: None,
        full_stall_us: Some(run.machine.pressure(memcg).full_ns / 1000),
        limits: Vec::new(),
    }
}

/// The same without killing: the guard finds the hog and squeezes it, and the desktop gets its
/// working set back.
#[test]
fn a_squeeze_of_the_guilty_gives_the_desktop_its_memory_back() {
    let measure = |is_guarded: bool| {
        let mut run = Run::new(&thrash(0, 1)).unwrap();
        let group = |run: &Run, name: &str| run.group(name).expect("a cgroup of the workload");
        let (desktop, batch) = (group(&run, "desktop"), group(&run, "batch"));
        let mut guard = Guard::new(Config {
            up_to: Step::Squeeze,
            squeeze_floor_bytes: 4 << 20,
            squeeze_to: 0.7,
            step_ms: 300,
            full_share: 0.02,
            ..Config::default()
        });
        let mut squeezed = None;
        for tick in 1..=80u64 {
            run.run_until(tick * 100_000_000).unwrap();
            let now_ms = tick * 100;
            let groups = vec![sample(&run, desktop, true), sample(&run, batch, false)];
            for decision in guard.look(Sample { now_ms, groups }, |guilty| *guilty) {
                let blamed = decision.blame.map(|blame| blame.group);
                let limit_pages = match decision.act {
                    Act::Squeeze { limit_bytes } => limit_bytes / 4096,
                    Act::Release => agewise_lab::machine::UNLIMITED,
                    Act::Report => continue,
                    other => panic!("{other:?}"),
                };
                assert_eq!(blamed, Some(batch), "the hog is to blame");
                if is_guarded {
                    squeezed.get_or_insert(tick);
                    run.machine.set_limits(
                        batch,
                        Limits {
                            high_pages: limit_pages,
                            ..Limits::default()
                        },
                    );
                }
            }
        }
        let refaults = run.machine.memcg_events(desktop).workingset_refault;
        (
            refaults.iter().sum::<u64>(),
            run.machine.counters().oom_kill,
            squeezed,
        )
    };
    let (alone, ..) = measure(false);
    let (guarded, kills, squeezed) = measure(true);
    assert!(squeezed.is_some(), "it never acted");
    assert_eq!(kills, 0);
    assert!(
        guarded * 2 < alone,
        "{guarded} refaults of the desktop against {alone}"
    );
}

/// Guests with balloons on one host: dividing by the reports beats equal parts.
#[test]
fn reports_divide_a_host_better_than_equal_shares() {
    for seed in 1..=2 {
        let refaults = |sharing| {
            let host = Host {
                seed,
                sharing,
                ..Host::example().unwrap()
            };
            run_host(&host).unwrap().total_refaults()
        };
        let (equal, reports) = (refaults(Sharing::Equal), refaults(Sharing::Reports));
        assert!(equal > 1000, "{equal}");
        assert!(
            reports * 4 < equal * 3,
            "seed {seed}: {reports} against {equal}"
        );
    }
}
