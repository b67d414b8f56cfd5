// SPDX-License-Identifier: Apache-2.0
//! DAMON on the simulated machine: it sees the real accesses, reclaim learns of the accessed bits
//! it clears, each action moves pages as in its kernel, and its time stays within the quota.

use std::sync::Arc;

use agewise_damon::action::Action;
use agewise_damon::attrs::Attrs;
use agewise_damon::filter::{Filter, FilterKind};
use agewise_damon::monitor::Monitor;
use agewise_damon::profile::Profile;
use agewise_damon::quota::Quota;
use agewise_damon::scheme::{AccessPattern, Scheme};
use agewise_damon::target::TargetId;
use agewise_kernel::folio::{Flag, Pfn};
use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::machine_run::{MEASURES, Plan, Run, RunError, Subject, run};
use agewise_lab::heatmap;
use agewise_lab::machine::address_space::MapOptions;
use agewise_lab::machine::damon::Watched;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{Limits, Machine, MachineConfig, Policy, ProcessId, SwapConfig};
use agewise_lab::workload::library;
use agewise_lab::workload::spec::Workload;

const PAGES: u64 = 4096;

/// A machine with 16 MiB of anonymous memory of one process; returns also where the memory starts.
fn machine(policy: &str) -> (Machine, ProcessId, u64) {
    let mut machine = Machine::new(MachineConfig {
        policy: Policy::parse(policy).unwrap(),
        swap: Some(SwapConfig::new(DeviceKind::Zram, 8192)),
        stat_flush_ns: 0,
        ..MachineConfig::new(3 * PAGES as u32)
    });
    let memcg = machine.add_memcg(MemcgId::ROOT, "test", Limits::default());
    let process = machine.add_process(memcg);
    let start = machine.map(process, &MapOptions::anon(PAGES)).unwrap();
    for vpn in start..start + PAGES {
        machine.access(process, vpn, true);
    }
    machine.lru.drain_all();
    (machine, process, start)
}

fn everything() -> AccessPattern {
    AccessPattern {
        size_bytes: 0..=u64::MAX,
        nr_accesses: 0..=u32::MAX,
        age: 0..=u32::MAX,
    }
}

/// Starts a monitor with samples of 1 ms and aggregations of 20 ms.
fn watch(machine: &mut Machine, profile: Profile, watched: Watched, schemes: Vec<Scheme>) {
    let attrs = Attrs {
        sample_us: 1_000,
        aggr_us: 20_000,
        ..Attrs::default()
    };
    let monitor = Monitor::new(profile, attrs, &[TargetId(0)], schemes, 1).unwrap();
    machine.start_damon(monitor, watched);
}

/// Touches a page every 100 us, going round `hot` pages, for this many ms.
fn keep_hot(machine: &mut Machine, process: ProcessId, start: u64, hot: u64, ms: u64) {
    let end_ns = machine.now_ns() + ms * 1_000_000;
    let mut at = 0;
    while machine.now_ns() < end_ns {
        for _ in 0..hot.div_ceil(4) {
            machine.access(process, start + at % hot, false);
            at += 1;
        }
        machine.wait_ns(100_000);
    }
}

fn folio(machine: &Machine, process: ProcessId, vpn: u64) -> agewise_kernel::folio::Folio {
    machine.lru.folios[Pfn(machine.frame_of(process, vpn).unwrap())]
}

#[test]
fn both_spaces_find_what_is_hot() {
    for policy in ["classic:6.12", "mglru:7.2"] {
        for physical in [true, false] {
            let (mut machine, process, start) = machine(policy);
            let watched = if physical {
                Watched::Physical(None)
            } else {
                Watched::Virtual(vec![process])
            };
            watch(&mut machine, Profile::V7_2, watched, Vec::new());
            keep_hot(&mut machine, process, start, 512, 1_000);
            let kdamond = machine.damon().unwrap();
            assert!(kdamond.samples() > 800, "{}", kdamond.samples());
            let first = if physical {
                u64::from(machine.frame_of(process, start).unwrap())
            } else {
                start
            };
            let (mut right, mut wrong) = (0, 0);
            for region in &kdamond.monitor().targets()[0].regions {
                for page in region.start / 4096..region.end / 4096 {
                    let hot = (first..first + 512).contains(&page);
                    let seen = region.last_nr_accesses > 10;
                    right += u64::from(hot && seen);
                    wrong += u64::from(!hot && seen);
                }
            }
            assert!(
                right > 400 && wrong < 200,
                "{policy}, physical {physical}: {right} of 512 found, {wrong} others"
            );
            machine.check().unwrap();
        }
    }
}

/// Monitoring clears accessed bits; reclaim must still count these accesses.
#[test]
fn reclaim_learns_of_the_accesses_the_monitor_has_cleared() {
    let survivors = |remembers: bool| {
        let (mut machine, process, start) = machine("classic:6.12");
        // One aggregation makes scattered pages old and records it in a flag.
        watch(
            &mut machine,
            Profile::V6_12,
            Watched::Physical(None),
            Vec::new(),
        );
        machine.wait_ns(400_000_000);
        machine.access(process, start, false);
        let looked_at: Vec<u64> = (start..start + PAGES)
            .filter(|&vpn| folio(&machine, process, vpn).has(Flag::Young))
            .collect();
        assert!(
            looked_at.len() > 100,
            "{} pages were made old",
            looked_at.len()
        );
        for vpn in start..start + PAGES {
            let pfn = Pfn(machine.frame_of(process, vpn).unwrap());
            if !remembers {
                machine.lru.folios[pfn].clear(Flag::Young);
            }
        }
        machine.clear_accessed_bits(process);
        machine.reclaim_memcg(MemcgId(1), PAGES / 2, None).unwrap();
        machine.check().unwrap();
        let resident = |vpn: &&u64| machine.frame_of(process, **vpn).is_some();
        looked_at.iter().filter(resident).count() as f64 / looked_at.len() as f64
    };
    let (with, without) = (survivors(true), survivors(false));
    assert!(
        with > 0.95 && without < 0.6,
        "{with} of them stay, {without} if it forgets"
    );
}

#[test]
fn each_action_does_what_its_kernel_does() {
    // Under the classic LRU, new anonymous pages are inactive.
    let act = |policy: &str, profile, action: Action| {
        let (mut machine, process, start) = machine(policy);
        let scheme = Scheme::new(everything(), action, Quota::unlimited());
        let space = match action {
            Action::Cold | Action::Willneed => Watched::Virtual(vec![process]),
            _ => Watched::Physical(None),
        };
        watch(&mut machine, profile, space, vec![scheme]);
        machine.wait_ns(30_000_000);
        machine.access(process, start, false);
        machine.lru.drain_all();
        machine.check().unwrap();
        let stats = machine.damon().unwrap().monitor().schemes()[0].stats;
        (machine, process, start, stats)
    };
    let (machine, process, start, stats) = act("classic:6.12", Profile::V6_12, Action::LruPrio);
    let page = folio(&machine, process, start + 7);
    assert!(
        page.has(Flag::Referenced) && !page.has(Flag::Active),
        "6.12 marks"
    );
    assert_eq!(stats.sz_applied, PAGES * 4096);
    let (machine, process, start, _) = act("classic", Profile::V7_2, Action::LruPrio);
    let page = folio(&machine, process, start + 7);
    assert!(
        !page.has(Flag::Referenced) && page.has(Flag::Active),
        "7.2 activates"
    );

    let (machine, process, start, stats) = act("classic", Profile::V7_2, Action::Stat);
    assert!(stats.sz_tried > 0 && stats.sz_applied == 0);
    assert!(!folio(&machine, process, start + 7).has(Flag::Active));

    let (machine, process, start, stats) = act("mglru:7.2", Profile::V7_2, Action::Pageout);
    let left = (start..start + PAGES)
        .filter(|&vpn| machine.frame_of(process, vpn).is_some())
        .count() as u64;
    // All pages were just written, so only those that it has checked and made old may leave.
    assert!((PAGES - 250..PAGES).contains(&left), "{left} pages left");
    assert_eq!(stats.sz_applied, (PAGES - left) * 4096);

    let (machine, process, start, stats) = act("mglru:7.2", Profile::V7_2, Action::Cold);
    assert!(stats.sz_applied > 0);
    let youngest = folio(&machine, process, start + 7).generation();
    assert!(youngest.is_some());

    // 6.12 and 7.2 move anonymous pages to the second youngest generation under multi-gen.
    for (policy, profile) in [("mglru:6.12", Profile::V6_12), ("mglru:7.2", Profile::V7_2)] {
        let (machine, process, start, _) = act(policy, profile, Action::LruDeprio);
        let page = folio(&machine, process, start + 7);
        let state = &machine.lru.lruvecs[page.lruvec.index()].mglru;
        let expected = state.slot(state.max_seq - 1);
        assert_eq!(page.generation(), Some(expected), "{policy}");
    }
}

#[test]
fn pageout_takes_what_is_cold_and_willneed_brings_it_back() {
    let (mut machine, process, start) = machine("mglru:7.2");
    let cold = AccessPattern {
        nr_accesses: 0..=0,
        age: 5..=u32::MAX,
        ..everything()
    };
    let scheme = Scheme::new(cold, Action::Pageout, Quota::unlimited());
    watch(
        &mut machine,
        Profile::V7_2,
        Watched::Physical(None),
        vec![scheme],
    );
    keep_hot(&mut machine, process, start, 512, 2_000);
    machine.check().unwrap();
    let resident = |machine: &Machine, pages: std::ops::Range<u64>| {
        pages
            .filter(|&page| machine.frame_of(process, start + page).is_some())
            .count()
    };
    assert_eq!(resident(&machine, 0..512), 512, "hot pages stay");
    let left = resident(&machine, 512..PAGES);
    assert!(left < 400, "{left} cold pages left");
    let out = machine.counters().pswpout;

    let scheme = Scheme::new(everything(), Action::Willneed, Quota::unlimited());
    let space = Watched::Virtual(vec![process]);
    watch(&mut machine, Profile::V7_2, space, vec![scheme]);
    machine.wait_ns(30_000_000);
    machine.access(process, start, false);
    machine.check().unwrap();
    assert!(
        machine.counters().pswpin + 200 > out,
        "{} of {out}",
        machine.counters().pswpin
    );
    let majors = machine.counters().pgmajfault;
    for vpn in start..start + PAGES {
        machine.access(process, vpn, false);
    }
    assert_eq!(
        machine.counters().pgmajfault,
        majors,
        "all were in the swap cache"
    );
    machine.check().unwrap();
}

#[test]
fn filters_keep_pages_out() {
    let (mut machine, process, start) = machine("classic");
    let mut scheme = Scheme::new(everything(), Action::LruPrio, Quota::unlimited());
    scheme.filters = vec![Filter::reject(FilterKind::Anon, true)];
    watch(
        &mut machine,
        Profile::V7_2,
        Watched::Physical(None),
        vec![scheme],
    );
    machine.wait_ns(30_000_000);
    machine.access(process, start, false);
    machine.lru.drain_all();
    assert!(!folio(&machine, process, start + 7).has(Flag::Active));
    let stats = machine.damon().unwrap().monitor().schemes()[0].stats;
    assert!(stats.sz_tried > 0 && stats.sz_ops_filter_passed == 0);
}

#[test]
fn processes_that_exit_are_looked_at_no_more() {
    let (mut machine, process, _) = machine("mglru:7.2");
    let space = Watched::Virtual(vec![process]);
    watch(&mut machine, Profile::V7_2, space, Vec::new());
    machine.wait_ns(30_000_000);
    machine.exit(process);
    let other = machine.add_process(MemcgId(1));
    let start = machine.map(other, &MapOptions::anon(16)).unwrap();
    machine.wait_ns(50_000_000);
    machine.access(other, start, true);
    assert!(machine.damon().unwrap().samples() > 60);
    machine.check().unwrap();
}

fn plan(policy: &str, damon: &str) -> Plan {
    let workload = library::find("kv").unwrap();
    Plan {
        settings: vec!["hit_ns=2000".to_owned()],
        damon: Some(damon.to_owned()),
        ..Plan::of(workload, Policy::parse(policy).unwrap(), 1)
    }
}

fn measured(plan: &Plan, name: &str) -> f64 {
    let at = plan
        .measures()
        .unwrap()
        .iter()
        .position(|(known, _)| *known == name);
    run(plan).unwrap()[at.unwrap()]
}

const ALWAYS: &str = "wmarks_high=1000:wmarks_mid=1001:wmarks_low=0";

#[test]
fn the_quota_bounds_the_time_of_the_schemes() {
    let cost_ms = |quota_ms: u64| {
        let damon = format!(
            "lru_sort:{ALWAYS}:hot_thres_access_freq=50:cold_min_age=100000:quota_ms={quota_ms}:\
             quota_reset_interval_ms=100"
        );
        let plan = plan("classic", &damon);
        let watching = Plan {
            damon: Some(format!("scheme:{ALWAYS}")),
            ..plan.clone()
        };
        let spent = measured(&plan, "damon_cpu_ms") - measured(&watching, "damon_cpu_ms");
        (spent, measured(&plan, "time_ms"))
    };
    let (unlimited_ms, _) = cost_ms(0);
    let (limited_ms, time_ms) = cost_ms(2);
    // Each of the two schemes has half the quota, and may exceed it by a region in each window.
    assert!(
        limited_ms <= 2.0 * 1.5 * (time_ms / 100.0 + 1.0),
        "{limited_ms} ms in {time_ms} ms"
    );
    assert!(
        limited_ms < unlimited_ms,
        "{limited_ms} against {unlimited_ms} without a limit"
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for damon in ["lru_sort", "reclaim"] {
        let plan = plan("mglru:7.2", &format!("{damon}:{ALWAYS}"));
        assert_eq!(run(&plan).unwrap(), run(&plan).unwrap());
    }
}

#[test]
fn watermarks_keep_it_asleep_and_cost_nothing() {
    let plan = plan("mglru:7.2", "lru_sort:wmarks_high=100:wmarks_mid=50");
    assert_eq!(measured(&plan, "damon_samples"), 0.0);
    assert!(measured(&plan, "damon_cpu_ms") < 0.1);
    let disabled = Plan {
        damon: Some("lru_sort:enabled=N".to_owned()),
        ..plan.clone()
    };
    let without = Plan {
        damon: None,
        ..plan
    };
    assert_eq!(
        run(&disabled).unwrap()[..MEASURES.len()],
        run(&without).unwrap()
    );
}

#[test]
fn what_the_kernel_refuses_is_refused_before_anything_runs() {
    let refused = Run::new(&plan("mglru:7.2", "reclaim:min_nr_regions=2"));
    let Err(RunError::Damon(error)) = refused else {
        panic!("it was not refused");
    };
    assert!(
        error
            .to_string()
            .contains("min_nr_regions=2 is refused with EINVAL"),
        "{error}"
    );
}

#[test]
fn heat_is_recorded_beside_what_the_monitor_sees() {
    let fine = "scheme:sample_interval=1000:aggr_interval=20000";
    for damon in [fine.to_owned(), format!("{fine}:space=virtual")] {
        let mut run = Run::new(&plan("mglru:7.2", &damon)).unwrap();
        run.record_heat();
        run.run_until(u64::MAX).unwrap();
        let summary = heatmap::summarize(run.heat()).unwrap();
        assert!(summary.windows > 20, "{damon}: {summary:?}");
        assert!(summary.true_heat > 0.0 && summary.seen_heat > 0.0);
        assert!(
            summary.distance > 0.0 && summary.distance < 0.3,
            "{damon}: {summary:?}"
        );
    }
}

/// Bursts of 10 ms, a tenth of a second apart: five aggregations each, of which one or two see it.
#[test]
fn aggregations_of_a_pause_are_recorded_and_the_burst_belongs_to_the_first() {
    let bursts = r#"
        description = "Bursts over two of eight MiB"
        memory = "32MiB"

        [[process]]
        name = "bursts"

        [[process.area]]
        name = "heap"
        size = "8MiB"

        [[process.phase]]
        populate = ["heap"]

        [[process.phase]]
        touches = 5000
        repeat = 30
        every_ms = 100
        stream = [{ area = "heap", order = "scan", to = 0.25 }]
    "#;
    let plan = Plan {
        subject: Subject::Workload(Arc::new(Workload::parse("bursts", bursts).unwrap())),
        ..plan(
            "mglru:7.2",
            "scheme:sample_interval=1000:aggr_interval=20000:space=virtual",
        )
    };
    let mut run = Run::new(&plan).unwrap();
    run.record_heat();
    run.run_until(u64::MAX).unwrap();
    let windows = run.heat();
    let apart_ms = windows.windows(2).map(|of| of[1].at_ms - of[0].at_ms);
    let longest_ms = apart_ms.fold(0.0, f64::max);
    assert!(windows.len() > 120 && longest_ms < 30.0, "{longest_ms} ms");
    let busy: Vec<f64> = windows
        .iter()
        .filter(|window| window.true_heat > 0.01)
        .map(|window| window.distance)
        .collect();
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    assert!(busy.len() >= 30 && mean < 0.4, "{mean} in {}", busy.len());
}
