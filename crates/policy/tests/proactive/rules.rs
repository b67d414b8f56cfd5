// SPDX-License-Identifier: Apache-2.0
//! Examples of what each policy does.

use agewise_policy::proactive::{
    Action, Backend, Controller, Decision, Facts, Hands, Limit, Looked, Outcome, Psi, Reason,
    Refaults, Spec, SwapRoom,
};
use agewise_policy::workingset::{Bin, NO_UPPER_BOUND_MS};

use crate::world::{Habit, World};

fn decided(world: &World) -> impl Iterator<Item = &Decision> {
    world
        .decisions
        .iter()
        .filter(|d| d.action != Action::Nothing)
}

#[test]
fn age_takes_what_is_older_once_a_period() {
    let groups = [(1000, Habit::Random(1.0)), (3000, Habit::Never)];
    let mut world = World::new("age:10s/40s,backoff=off", &groups, 1);
    world.run(39_000, 500);
    assert_eq!(world.out_pages(), 0, "not before the first period is over");
    world.run(41_000, 500);
    assert!(
        (3000..3010).contains(&world.out_pages()),
        "{}",
        world.out_pages()
    );
    assert_eq!(decided(&world).count(), 1);
    world.run(200_000, 500);
    assert!(decided(&world).count() <= 5);
}

#[test]
fn age_starts_slowly_unless_told_otherwise() {
    let mut world = World::new("age:10s/20s", &[(4000, Habit::Never)], 1);
    world.run(21_000, 500);
    assert_eq!(world.out_pages(), 80, "2 % at first");
    let decision = *decided(&world).last().unwrap();
    assert_eq!(decision.limit, Some(Limit::SlowStart));
    world.run(200_000, 500);
    assert!(world.out_pages() > 3900, "{}", world.out_pages());
}

#[test]
fn pressure_probes_until_tasks_wait() {
    let groups = [(1000, Habit::Random(1.0)), (3000, Habit::Never)];
    let mut world = World::new("pressure:period=1s,probe=1%,some=0.1%", &groups, 1);
    world.run(60_000, 500);
    let out = world.out_pages();
    assert!(
        (800..2200).contains(&out),
        "1 % of what is left a second, once what is read was separated from what is not: {out}"
    );
    world.psi = Some(Psi { some_us: 2_000 });
    world.run(62_000, 500);
    let out = world.out_pages();
    world.run(80_000, 500);
    assert_eq!(world.out_pages(), out, "0.2 % of the time is too much");
    let reason = world.decisions.last().unwrap().reason;
    assert!(matches!(reason, Reason::PressureHigh { .. }), "{reason:?}");
}

#[test]
fn pressure_asks_the_kernel_where_that_is_possible() {
    let mut controller = Controller::new(&"pressure:period=1s".parse::<Spec>().unwrap());
    let facts = |time_ms| Facts {
        time_ms,
        resident_bytes: [64 << 20, 64 << 20],
        hands: Hands {
            reclaim: true,
            ..Hands::default()
        },
        ..Facts::default()
    };
    controller.decide(&facts(0));
    let decision = controller.decide(&facts(1000));
    let bytes = (128u64 << 20) / 100;
    assert_eq!(decision.action, Action::Reclaim { bytes, anon: true });
    assert!(controller.pace().look_ms.is_none());
}

#[test]
fn cost_takes_what_is_never_read_and_leaves_the_rest() {
    let groups = [(1600, Habit::Random(0.5)), (2400, Habit::Never)];
    let mut world = World::new("cost", &groups, 1);
    world.run(60_000, 500);
    let out = world.out_pages();
    assert!(out >= 2380, "{out}");
    // 1600 pages x 0.5/s x 60 s = 48000 accesses.
    assert!(world.refaults < 48, "{}", world.refaults);
}

#[test]
fn cost_waits_longer_where_coming_back_is_dearer() {
    let groups = [(500, Habit::Random(0.5)), (3500, Habit::Never)];
    let first_ms = |spec: &str| {
        let mut world = World::new(spec, &groups, 1);
        world.run(900_000, 1000);
        world
            .moves
            .iter()
            .find(|(_, bytes)| *bytes > 0)
            .map(|(ms, _)| *ms)
    };
    let (cheap, dear) = (first_ms("cost:price=10%"), first_ms("cost:price=0.1%"));
    assert!(cheap.unwrap() * 4 < dear.unwrap(), "{cheap:?} {dear:?}");
}

/// Anonymous and file memory of the same ages, on a backend and at prices measured before anything
/// came back, by second. Returns when each of them goes, in seconds.
fn first_to_go(prices: impl Fn(u64) -> (Backend, [u64; 2])) -> [Option<u64>; 2] {
    let spec: Spec = "cost:period=1s,backoff=off".parse().unwrap();
    let mut controller = Controller::new(&spec);
    let bounds = controller.pace().bounds.bounds_ms().to_vec();
    let bins = |age_ms: u64, bytes: u64| -> Vec<Bin> {
        let all = bounds.iter().copied().chain([NO_UPPER_BOUND_MS]);
        let at = bounds.partition_point(|upper_ms| *upper_ms < age_ms);
        let amounts = |number| [if number == at { bytes } else { 0 }; 2];
        let bin = |(number, upper_ms)| Bin {
            upper_ms,
            amounts: amounts(number),
        };
        all.enumerate().map(bin).collect()
    };
    let mut first = [None; 2];
    for second in 1..3000 {
        let (resident, returned) = (bins(second * 1000, 1 << 20), bins(0, 0));
        let (backend, latency_ns) = prices(second);
        let decision = controller.decide(&Facts {
            time_ms: second * 1000,
            resident_bytes: [1 << 20; 2],
            looked: Some(Looked {
                time_ms: second * 1000,
                watched_ms: second * 1000,
                bins: &resident,
                returned: &returned,
            }),
            refaults: Refaults {
                bytes: [0; 2],
                latency_ns,
            },
            backend,
            swap: Some(SwapRoom {
                free_bytes: 1 << 30,
                total_bytes: 1 << 30,
            }),
            ..Facts::default()
        });
        if let Action::PageOut { older_than_ms, .. } = decision.action {
            for (first, age_ms) in first.iter_mut().zip(older_than_ms) {
                // A bound that no memory is old enough for takes nothing.
                let takes = age_ms.is_some_and(|age_ms| age_ms <= second * 1000);
                *first = first.or(takes.then_some(second));
            }
        }
    }
    first
}

#[test]
fn cost_keeps_longer_what_is_dearer_to_bring_back_be_it_of_files_or_not() {
    let [anon, file] = first_to_go(|_| (Backend::Zram, [7_000, 150_000]));
    assert!(anon.unwrap() * 4 < file.unwrap(), "{anon:?} {file:?}");
    let [anon, file] = first_to_go(|_| (Backend::Zram, [150_000, 7_000]));
    assert!(file.unwrap() * 4 < anon.unwrap(), "{anon:?} {file:?}");
    let [anon, file] = first_to_go(|_| (Backend::Zram, [50_000, 50_000]));
    assert_eq!(anon, file);
}

/// Of swap on a disk, no price may be measured at all.
#[test]
fn cost_forgets_the_price_of_a_backend_that_is_full() {
    let [always, _] = first_to_go(|_| (Backend::Ssd, [0; 2]));
    let [since, _] = first_to_go(|second| match second {
        1 => (Backend::Zram, [7_000, 0]),
        _ => (Backend::Ssd, [0; 2]),
    });
    assert!(always.is_some());
    assert_eq!(since, always);
}

/// Everything is read once a minute: after one mistake, the policy knows.
#[test]
fn cost_learns_a_period() {
    let groups = [(1000, Habit::Random(1.0)), (3000, Habit::Periodic(60_000))];
    let mut world = World::new("cost", &groups, 1);
    world.run(900_000, 500);
    let early = world.refaults;
    world.run(1_800_000, 500);
    let late = world.refaults - early;
    assert!(early < 9_000, "{early} of 45000 accesses");
    assert!(late < 3_000, "{late} of 45000 accesses");
}

/// A quarter is read every 20 s on average, the rest every 2000 s: most of the latter stays out.
#[test]
fn cost_tells_warm_from_cold() {
    let groups = [(1000, Habit::Random(0.05)), (3000, Habit::Random(0.0005))];
    let mut world = World::new("cost", &groups, 1);
    world.run(600_000, 1000);
    let out = world.out_pages();
    assert!(out > 1500, "{out}");
    let stall = world.refaults as f64 * 10e-6 / 600.0;
    assert!(stall < 0.002, "{stall}");
}

#[test]
fn cost_without_swap_leaves_anonymous_memory_alone() {
    let mut world = World::new("cost", &[(2000, Habit::Never)], 1);
    world.swap_pages = 0;
    world.run(60_000, 500);
    assert_eq!(world.out_pages(), 0);
}

#[test]
fn budget_holds_memory_below_the_limit_and_says_when_it_cannot() {
    let groups = [(4000, Habit::Random(0.2))];
    let mut world = World::new("budget:8M,step=100ms", &groups, 1);
    world.run(1_000, 100);
    world.run(30_000, 100);
    assert!(
        world.resident_bytes() <= 9 << 20,
        "{}",
        world.resident_bytes()
    );
    let over = decided(&world).all(|d| matches!(d.reason, Reason::OverBudget { .. }));
    assert!(over);
    assert!(world.moves.iter().map(|m| m.1).sum::<u64>() > 8 << 20);
}

#[test]
fn budget_takes_the_lower_of_budget_and_limit() {
    let mut world = World::new("budget:12M,step=100ms", &[(4000, Habit::Never)], 1);
    world.limit_bytes = Some(6 << 20);
    world.run(10_000, 100);
    assert!(world.resident_bytes() < 6 << 20);
    assert!(world.resident_bytes() > 5 << 20, "a little below, not far");
}

/// That memory is at the limit after an epoch in which only the kernel held it proves nothing.
#[test]
fn budget_says_when_growth_outruns_it() {
    for (step_ms, is_behind) in [(10, true), (3_000, false)] {
        let mut controller = Controller::new(&"budget:10M,step=10ms".parse::<Spec>().unwrap());
        let mut behind = false;
        for step in 0..20u64 {
            let resident = 10 << 20;
            let decision = controller.decide(&Facts {
                time_ms: step * step_ms,
                resident_bytes: [resident, 0],
                outcome: (step > 0).then_some(Outcome {
                    tried_bytes: 1 << 20,
                    left_bytes: [64 << 10, 0],
                    cpu_ns: 1_000_000,
                }),
                ..Facts::default()
            });
            behind |= matches!(decision.reason, Reason::OverBudget { behind: true, .. });
        }
        assert_eq!(behind, is_behind);
    }
}

#[test]
fn budget_keeps_half_a_percent_free_but_a_mebibyte_where_that_is_little() {
    let headroom = |spec: &str, resident: u64| {
        let mut controller = Controller::new(&spec.parse::<Spec>().unwrap());
        let decision = controller.decide(&Facts {
            resident_bytes: [resident, 0],
            ..Facts::default()
        });
        match decision.reason {
            Reason::OverBudget { headroom_bytes, .. } => headroom_bytes,
            other => panic!("{spec}: {other:?}"),
        }
    };
    assert_eq!(headroom("budget:1000M", 1000 << 20), 5 << 20);
    assert_eq!(headroom("budget:100M", 100 << 20), 1 << 20);
    assert_eq!(headroom("budget:20M", 20 << 20), 3 * (20 << 20) / 200);
    assert_eq!(headroom("budget:20M,headroom=10%", 20 << 20), 2 << 20);
}

#[test]
fn sorting_comes_before_moving_if_asked_for() {
    let groups = [(4000, Habit::Random(0.05))];
    let mut world = World::new("cost:sort=on", &groups, 1);
    world.run(120_000, 500);
    let sorts: Vec<_> = decided(&world)
        .filter(|d| matches!(d.action, Action::Sort { .. }))
        .collect();
    assert!(
        (1..=3).contains(&sorts.len()),
        "once a minute: {}",
        sorts.len()
    );
}

#[test]
fn decisions_are_for_machines_to_read() {
    let mut world = World::new("age:5s/10s", &[(400, Habit::Never)], 1);
    world.run(11_000, 500);
    let decision = decided(&world).next().unwrap();
    let expected = concat!(
        r#"{"action":"page_out","older_than_ms":[5000,5000],"bytes_max":32768,"reason":"older","#,
        r#""idle_ms":5000,"cold_bytes":1638400,"limit":"slow_start","next_ms":20500}"#
    );
    assert_eq!(serde_json::to_string(decision).unwrap(), expected);
}
