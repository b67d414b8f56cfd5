// SPDX-License-Identifier: Apache-2.0
//! The proactive policies on the simulated machine, and the machine under an agent's actions.

use std::io::Cursor as Bytes;
use std::path::Path;
use std::sync::Arc;

use agewise_kernel::ids::MemcgId;
use agewise_lab::experiment::machine_run::{MEASURES, Plan, Run, Subject, run};
use agewise_lab::experiment::replay::{Arrangement, Replay};
use agewise_lab::machine::address_space::{Advice, MapOptions};
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::machine::{Clearing, Limits, Machine, MachineConfig, Policy, SwapConfig};
use agewise_lab::proactive::{ProactivePlan, Sight};
use agewise_lab::workload::spec::Workload;
use agewise_policy::proactive::Decision;
use agewise_trace::page_trace::{Header, PageTraceWriter};
use agewise_trace::{AccessStream, Input, PageClass, ReadOptions, Request, registry};
use proptest::prelude::*;

const POLICIES: [&str; 3] = ["classic", "mglru:6.12", "mglru:7.2"];

/// A workload on 32 MiB that uses this share of it, with a touch every 0.2 ms.
fn server(used: f64, order: &str, touches: u64) -> String {
    format!(
        r#"
        description = "a server"
        memory = "64MiB"
        cpus = 2
        [[process]]
        name = "server"
        area = [{{ name = "heap", size = "32MiB" }}]
        phase = [{{ populate = ["heap"], touches = {touches}, think_ns = 200000, stream = [
            {{ area = "heap", order = "{order}", to = {used}, write = 0.2 }},
        ] }}]
        "#
    )
}

fn plan(toml: &str, agent: Option<&str>) -> Plan {
    let workload = Workload::parse("test", toml).unwrap();
    Plan {
        proactive: agent.map(|spec| ProactivePlan {
            spec: spec.parse().unwrap(),
            sight: Sight::default(),
            truth: true,
        }),
        ..Plan::of(workload, Policy::parse("mglru:7.2").unwrap(), 1)
    }
}

fn measure(plan: &Plan) -> impl Fn(&str) -> f64 + use<> {
    let measured = run(plan).unwrap();
    move |name| {
        let at = MEASURES.iter().position(|(known, _)| *known == name);
        measured[at.unwrap()]
    }
}

/// 60 % is never read again: most of it is moved out, at almost no cost.
#[test]
fn cost_saves_what_is_never_read() {
    let toml = server(0.4, "uniform", 400_000);
    let before = measure(&plan(&toml, None));
    let after = measure(&plan(&toml, Some("cost")));
    let saved = 1.0 - after("resident_mean_kib") / before("resident_mean_kib");
    assert!(saved > 0.45, "{saved}");
    let slower = after("time_ms") / before("time_ms") - 1.0;
    assert!(slower < 0.001, "{slower}");
    // Without the agent the run takes 80 s; this is the agent's CPU time.
    assert!(after("agent_cpu_ms") < 0.02 * after("time_ms"));
}

/// Every page is touched every 1.6 s: nothing is cold.
#[test]
fn uniform_access_is_left_alone() {
    let toml = server(1.0, "uniform", 300_000);
    let before = measure(&plan(&toml, None));
    for agent in ["age:3s/5s", "pressure:period=2s", "cost"] {
        let after = measure(&plan(&toml, Some(agent)));
        let more = after("major_faults") - before("major_faults");
        let share = more / before("accesses");
        assert!(share < 0.01, "{agent}: {share} more faults an access");
        let saved = 1.0 - after("resident_mean_kib") / before("resident_mean_kib");
        assert!(saved < 0.05, "{agent} keeps {saved} out");
    }
}

/// At the same limit there are fewer faults than with the kernel alone, and hardly any direct
/// reclaim. In the first seconds, while the agent learns the value of pages, there are about as
/// many.
#[test]
fn a_budget_spares_direct_reclaim_on_a_skewed_load() {
    let mut toml = server(1.0, "zipf", 1_000_000).replace("64MiB", "18MiB");
    toml = toml.replace("think_ns = 200000", "think_ns = 10000");
    let alone = measure(&plan(&toml, None));
    let agent = "budget:18M,measure=on,step=8ms,look=100ms";
    let with = measure(&plan(&toml, Some(agent)));
    let faults = with("major_faults") / alone("major_faults");
    assert!(faults < 0.9, "{faults} of the faults");
    let stalls = with("stall_some_ms") / alone("stall_some_ms");
    assert!(stalls < 0.3, "{stalls} of the stalls");
    assert!(with("time_ms") < alone("time_ms"));
}

/// Where memory nearly suffices, a budget always does some harm, and where it does not, a budget
/// that leaves the limit to the kernel first gains less.
#[test]
fn with_the_kernel_first_a_budget_does_no_harm_where_memory_nearly_suffices() {
    let run = |order, touches, limit, how: Option<&str>| {
        let mut toml = server(1.0, order, touches).replace("64MiB", &format!("{limit}iB"));
        toml = toml.replace("think_ns = 200000", "think_ns = 10000");
        let agent = how.map(|how| format!("budget:{limit},measure={how}"));
        measure(&plan(&toml, agent.as_deref()))("major_faults")
    };
    let ways = [None, Some("on"), Some("kernel_first")];
    let [alone, held, first] = ways.map(|how| run("uniform", 400_000, "31M", how));
    assert!(alone > 0.0 && held > alone, "{held}, alone {alone}");
    assert_eq!(first, alone);
    let [alone, held, first] = ways.map(|how| run("zipf", 1_000_000, "18M", how));
    assert!(
        held < first && first < 0.9 * alone,
        "{held}, {first}, alone {alone}"
    );
}

/// A program that touches all of its memory between two looks is looked at sooner: pages that all
/// look alike would otherwise leave in any order (40 to 66 % more faults, before that was so).
/// Compared with the kernel alone at the same limit, and at one that leaves the program as much
/// memory as it has beside the agent: that a budget takes less says nothing about its order.
#[test]
fn a_fast_program_is_held_in_a_good_order_too() {
    let mut toml = server(1.0, "zipf", 500_000).replace("64MiB", "18MiB");
    toml = toml.replace("think_ns = 200000", "think_ns = 0");
    let limit_pages = (18 << 20) / 4096;
    for policy in ["classic", "mglru:7.2"] {
        let run = |agent, limit_pages| {
            measure(&Plan {
                policy: Policy::parse(policy).unwrap(),
                memory_pages: Some(limit_pages),
                ..plan(&toml, agent)
            })
        };
        let alone = run(None, limit_pages);
        for agent in ["budget:18M,measure=on", "budget:17M,measure=on"] {
            let with = run(Some(agent), limit_pages);
            let less_kib = alone("resident_mean_kib") - with("resident_mean_kib");
            let as_much = run(None, limit_pages - (less_kib / 4.0) as u64);
            for (other, most) in [(&alone, 1.05), (&as_much, 1.04)] {
                let ratio = with("major_faults") / other("major_faults");
                assert!(
                    ratio < most,
                    "{agent} beside {policy}, {less_kib} KiB less: {ratio} of the faults"
                );
            }
        }
    }
}

/// A zipf load over 32 MiB that is limited to 18 MiB, run beside the agent.
fn under_a_limit(settings: &[&str], look_ms: u64) -> Run {
    let mut toml = server(1.0, "zipf", 300_000).replace("64MiB", "18MiB");
    toml = toml.replace("think_ns = 200000", "think_ns = 10000");
    let agent = format!("budget:18M,measure=on,step=8ms,look={look_ms}ms");
    let mut plan = plan(&toml, Some(&agent));
    plan.settings = settings.iter().map(|text| (*text).to_owned()).collect();
    let mut run = Run::new(&plan).unwrap();
    run.run_until(u64::MAX).unwrap();
    run.machine.check().unwrap();
    run
}

/// The code that keeps budgets of real processes also keeps simulated ones: pace, slices and queue.
#[test]
fn a_budget_is_held_by_the_pacer_in_slices() {
    let run = under_a_limit(&[], 100);
    let stats = run.agent().unwrap().stats();
    let run_ms = run.end_ns() / 1_000_000;
    // The pace of scans follows the accesses found, within a hundredth of a core or a quarter of
    // the cost of moving; clearing takes 55 ns a page.
    let looked_ns = stats.looks * (17 << 20) / 4096 * 55;
    let affordable_ns = run.end_ns() / 100 + stats.cpu_ns / 4;
    assert!(
        stats.looks >= 2 && looked_ns <= affordable_ns,
        "{} scans in {run_ms} ms",
        stats.looks
    );
    assert!(stats.slices > stats.moves, "{stats:?}");
    // Slices of 8 to 32 pages amount to 16 pages per ms; late ones and large moves take more.
    assert!(stats.tried_pages < stats.slices * 64, "{stats:?}");
    assert!(
        stats.left_pages[0] > 0 && stats.left_pages[1] == 0,
        "anonymous memory only"
    );
    assert!(stats.left_pages[0] <= stats.tried_pages);
    assert!(
        stats.young_again_pages > 0,
        "some were touched while they were queued"
    );
    assert!(stats.behind < stats.moves / 10, "{stats:?}");
    let decided = run.agent().unwrap().log();
    let asked: u64 = decided
        .iter()
        .map(|(_, decision)| decision.action.bytes())
        .sum();
    assert!(
        stats.tried_pages * 4096 <= asked,
        "no more than was decided"
    );
}

/// A harmful order is noticed by its effect on the program and abandoned within a minute. It is
/// kept to the end if the effect is not measured, or if it saves faults while a CPU is free.
#[test]
fn a_budget_that_does_harm_is_stepped_back_from_within_a_minute() {
    let toml = server(1.0, "zipf", 650_000)
        .replace("64MiB", "18MiB")
        .replace("think_ns = 200000", "think_ns = 100000");
    let last_move_s = |order: &str| {
        let agent = format!("budget:18M,step=32ms,{order}");
        let mut plan = plan(&toml, Some(&agent));
        // The work of a program that mostly sleeps does not show its cost.
        plan.settings = vec!["hit_ns=5000".to_owned()];
        if let Some(agent) = &mut plan.proactive {
            agent.truth = false;
        }
        let mut run = Run::new(&plan).unwrap();
        run.run_until(u64::MAX).unwrap();
        assert!(run.end_ns() > 65_000_000_000, "{} ns", run.end_ns());
        let log = run.agent().unwrap().log();
        log.last().unwrap().0 / 1_000_000_000
    };
    let worst_s = last_move_s("by=worst,measure=on");
    assert!(worst_s < 60, "moved after {worst_s} s");
    for order in ["by=worst,measure=off", "by=reuse,measure=on"] {
        let moved_s = last_move_s(order);
        assert!(moved_s > 60, "{order}: nothing moved after {moved_s} s");
    }
}

/// Scans come as often as memory is accessed, whatever the policy begins with: those that begin too
/// often slow down, those that begin too seldom come early.
#[test]
fn scans_follow_how_much_is_accessed() {
    let (short, long) = (under_a_limit(&[], 10), under_a_limit(&[], 1_000));
    let looks = |run: &Run| run.agent().unwrap().stats().looks;
    let by_the_policy = |run: &Run, ms: u64| run.end_ns() / 1_000_000 / ms;
    let (often, seldom) = (looks(&short), looks(&long));
    assert!(often < by_the_policy(&short, 10) * 2 / 3, "{often}");
    assert!(seldom > by_the_policy(&long, 1_000) * 2, "{seldom}");
    let ratio = often as f64 / seldom as f64;
    assert!((0.5..2.0).contains(&ratio), "{often} and {seldom} scans");
}

/// Accesses missed by a scan falsify ages and evict memory in use: a little at the measured share,
/// and more as more are missed.
#[test]
fn missed_accesses_make_false_ages_by_degree() {
    let of = |missed: &str| {
        let run = under_a_limit(&[missed], 100);
        let stats = *run.agent().unwrap().stats();
        let misplaced = stats.misplaced_bins / stats.compared as f64;
        assert_eq!(stats.compared, stats.looks);
        (misplaced, run.machine.counters().pswpin as f64)
    };
    let none = of("agent_missed=0");
    let measured = of("agent_missed=0.002");
    let many = of("agent_missed=0.3");
    println!("bins misplaced, pages swapped in: {none:?}, {measured:?}, {many:?}");
    assert!(measured.0 < none.0 + 0.02, "{measured:?} beside {none:?}");
    assert!(measured.1 < none.1 * 1.05, "{measured:?} beside {none:?}");
    assert!(
        many.0 > measured.0 && many.1 > measured.1 * 1.02,
        "{many:?}"
    );
}

/// `lab run TRACE --proactive`: agents run beside traces as they do beside workloads.
#[test]
fn agents_run_beside_traces() {
    let header = Header::default();
    let path = Path::new("t");
    let mut writer = PageTraceWriter::new(path, Vec::new(), &header).unwrap();
    let mut state = 1u64;
    for at in 0..200_000u64 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let share = (state >> 40) as f64 / (1u64 << 24) as f64;
        let request = Request {
            first_page: 1000 + (share.powi(3) * 4000.0) as u64,
            page_count: 1,
            time_ns: at * 20_000,
            process: 7,
            class: PageClass::Anon,
            ..Request::default()
        };
        writer.push(&request).unwrap();
    }
    let bytes = Bytes::new(writer.finish().unwrap());
    let input = Input::from_reader(path, bytes).unwrap();
    let format = registry::by_name("page").unwrap();
    let reader = (format.open)(input, &ReadOptions::default()).unwrap();
    let mut stream = AccessStream::new(path, format, reader);
    let replay = Arc::new(Replay::read("t", path, &mut stream, None).unwrap());
    let mut plan = plan(&server(1.0, "zipf", 1), None);
    plan.subject = Subject::Trace(replay, Arrangement::Forward);
    plan.memory_pages = Some(2_500);
    let alone = measure(&plan);
    assert!(
        alone("resident_mean_kib") > 4_000.0,
        "memory of traces is measured"
    );
    for agent in [
        "budget:9M,measure=on,look=50ms",
        "age:500ms/500ms",
        "cost:min_age=200ms",
    ] {
        plan.proactive = Some(ProactivePlan {
            spec: agent.parse().unwrap(),
            sight: Sight::default(),
            truth: true,
        });
        let with = measure(&plan);
        assert_eq!(with("accesses"), alone("accesses"), "{agent}");
        assert!(with("agent_cpu_ms") > 0.0, "{agent} ran");
        if agent.starts_with("budget") {
            assert!(with("agent_out") > 0.0, "{agent}");
            let stalls = with("stall_some_ms") / alone("stall_some_ms");
            assert!(stalls < 0.5, "{agent}: {stalls} of the stalls");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_histograms_near_the_truth() {
    let toml = server(0.7, "zipf", 100_000);
    let plan = plan(&toml, Some("age:2s/3s"));
    let measured = run(&plan).unwrap();
    assert_eq!(measured, run(&plan).unwrap());
    let mut run = Run::new(&plan).unwrap();
    run.run_until(u64::MAX).unwrap();
    run.machine.check().unwrap();
    let agent = run.agent().unwrap();
    let stats = agent.stats();
    assert!(stats.looks > 20 && stats.compared == stats.looks);
    // There are two bins; scans every 0.4 s blur the bound of 2 s.
    let misplaced = stats.misplaced_bins / stats.compared as f64;
    assert!(misplaced < 0.05, "{misplaced}");
    let aged = |entry: &(u64, Decision)| entry.1.reason.name() == "older";
    assert!(agent.log().iter().all(aged) && !agent.log().is_empty());
}

/// The working-set report's R6: distance of its histogram from the truth, as the earth mover's
/// distance in bins per page, over bins of 1, 2, 3, 5, 7, 10... s. It is exact if scans fall on the
/// bounds; otherwise accesses between two scans cannot be told apart more finely.
#[test]
fn the_report_misplaces_few_pages() {
    for (order, used, period_ms, most) in [
        ("zipf", 1.0, 1000, 0.01),
        ("uniform", 1.0, 1000, 0.01),
        ("zipf", 1.0, 1300, 0.35),
        ("uniform", 1.0, 1300, 0.35),
        ("uniform", 0.4, 1300, 0.35),
        ("scan", 0.4, 1300, 0.75),
    ] {
        let toml = server(used, order, 150_000);
        let agent = format!("cost:period={period_ms}ms,min_age=12h");
        let mut run = Run::new(&plan(&toml, Some(&agent))).unwrap();
        run.run_until(u64::MAX).unwrap();
        let stats = run.agent().unwrap().stats();
        assert!(stats.compared > 5 && stats.moves == 0);
        let misplaced = stats.misplaced_bins / stats.compared as f64;
        println!("{order} {used}, looks every {period_ms} ms: {misplaced:.3} bins a page");
        assert!(misplaced < most, "{order} {used}: {misplaced}");
    }
}

#[test]
fn generations_are_an_access_source_as_well() {
    let toml = server(0.4, "uniform", 200_000);
    let before = measure(&plan(&toml, None));
    let mut with = plan(&toml, Some("age:4s/8s,backoff=off"));
    if let Some(agent) = &mut with.proactive {
        (agent.sight, agent.truth) = (Sight::Generations, false);
    }
    let after = measure(&with);
    let saved = 1.0 - after("resident_mean_kib") / before("resident_mean_kib");
    assert!(saved > 0.3, "{saved}");
}

fn machine(policy: &str, device: DeviceKind, pages: u32) -> Machine {
    Machine::new(MachineConfig {
        policy: Policy::parse(policy).unwrap(),
        swap: Some(SwapConfig::new(device, pages)),
        ..MachineConfig::new(pages)
    })
}

fn file_pages(machine: &mut Machine, group: MemcgId) -> u64 {
    let seen = machine.look_at_files(group, false);
    seen.values().map(|table| table.bits.present.len()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// For any page-outs with accesses in between, frames, slots, charges and lists agree, pages
    /// that left are not mapped, and all of them can come back.
    #[test]
    fn the_hand_leaves_the_machine_whole(
        which in 0usize..3,
        device in prop_oneof![Just(DeviceKind::Zram), Just(DeviceKind::Ssd)],
        steps in prop::collection::vec((0u64..600, 1u64..200, any::<bool>(), 0u8..6), 1..40),
    ) {
        let mut machine = machine(POLICIES[which], device, 4096);
        let group = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(group);
        let file = machine.add_file(200, group, Advice::Random);
        let heap = machine.map(process, &MapOptions::anon(600)).unwrap();
        let mapped = machine.map(process, &MapOptions::file(file.number(), 200)).unwrap();
        for (first, count, even_young, what) in steps {
            let base = if what == 1 { mapped } else { heap };
            let run = base + first..base + first + count;
            let runs = std::slice::from_ref(&run);
            match what {
                0 | 1 => {
                    let before = machine.mapped_pages(process);
                    let (tried, left) = machine.page_out(process, runs, even_young);
                    let after = machine.mapped_pages(process);
                    prop_assert_eq!(before[0] - after[0], left[0]);
                    prop_assert!(left[0] + left[1] <= tried[0] + tried[1]);
                }
                2 => {
                    machine.sort_cold(process, runs);
                    machine.reap(group);
                }
                3 => {
                    let run = first..(first + count).min(600);
                    let before = file_pages(&mut machine, group);
                    let runs = std::slice::from_ref(&run);
                    let (tried, left) = machine.drop_file_pages(file, runs, even_young);
                    prop_assert_eq!(before - file_pages(&mut machine, group), left.len() as u64);
                    prop_assert!(left.len() as u64 <= tried);
                }
                4 => {
                    for page in first..(first + count).min(200) {
                        machine.read(process, file, page as u32, 1);
                        if even_young {
                            machine.write(process, file, page as u32, 1);
                        }
                    }
                }
                _ => {
                    for page in first..(first + count).min(600) {
                        machine.access(process, heap + page, page % 3 == 0);
                        machine.access(process, mapped + page % 200, false);
                    }
                }
            }
            let clearings = [Clearing::None, Clearing::Accessed, Clearing::Anon, Clearing::All];
            let clearing = clearings[first as usize % 4];
            let (seen, _) = machine.beside(machine.now_ns() + 1_000_000, |machine| {
                let mut pages = 0;
                machine.look_at(process, clearing, |table| {
                    pages += table.bits.present.len();
                });
                pages
            });
            let mapped = machine.mapped_pages(process);
            prop_assert_eq!(seen, mapped[0] + mapped[1]);
            prop_assert_eq!(machine.check(), Ok(()));
        }
        for page in 0..600 {
            machine.access(process, heap + page, true);
        }
        prop_assert_eq!(machine.mapped_pages(process)[0], 600);
        prop_assert_eq!(machine.check(), Ok(()));
    }
}
