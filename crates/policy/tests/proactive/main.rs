// SPDX-License-Identifier: Apache-2.0
//! Properties of all proactive policies, and the rules of each, on a world with exact ages.

mod rules;
mod world;

use agewise_policy::proactive::{Action, Cause, Psi, Reason};
use proptest::prelude::*;
use world::{Habit, PAGE, World};

/// One spec of each policy, quick enough for a test.
const SPECS: [&str; 4] = [
    "age:5s/10s",
    "pressure:period=1s",
    "cost:period=1s",
    "budget:8M,step=100ms",
];
const VOLUNTARY: usize = 3;
/// The greatest share of accesses that may refault under each of these, if pages are read less than
/// once in 12 s.
const SELDOM_READ_SHARES: [f64; VOLUNTARY] = [0.09, 0.01, 0.02];

fn mixed(hot: usize, cold: usize, hazard: f64) -> Vec<(usize, Habit)> {
    vec![
        (hot, Habit::Random(1.0)),
        (cold, Habit::Random(hazard)),
        (cold / 2 + 1, Habit::Never),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_must_stay_stays(
        which in 0usize..4, floor_pages in 0u64..3000, own in any::<bool>(), seed in any::<u64>(),
    ) {
        let floor = floor_pages * PAGE;
        let mut spec = SPECS[which].to_owned();
        if own {
            spec += if spec.contains(':') { "," } else { ":" };
            spec += &format!("floor={floor}");
        }
        let mut world = World::new(&spec, &mixed(800, 1500, 0.01), seed);
        world.floor_bytes = if own { 0 } else { floor };
        let all = world.resident_bytes();
        for _ in 0..240 {
            world.step(500);
            prop_assert!(world.resident_bytes() >= floor.min(all));
        }
    }

    #[test]
    fn the_rate_holds_over_any_window(
        which in 0usize..4, rate_kib in 8u64..2000, seed in any::<u64>(),
    ) {
        let rate = rate_kib * 1024;
        // Under a budget nothing backs off.
        let off = if SPECS[which].starts_with("budget") { "" } else { ",backoff=off" };
        let spec = format!("{},rate={rate}{off}", SPECS[which]);
        let mut world = World::new(&spec, &mixed(800, 1500, 0.05), seed);
        world.run(120_000, 250);
        for (at, &(from_ms, _)) in world.moves.iter().enumerate() {
            let mut bytes = 0;
            for &(to_ms, moved) in &world.moves[at..] {
                bytes += moved;
                let window_s = (to_ms - from_ms) as f64 / 1e3;
                prop_assert!(bytes as f64 <= rate as f64 * (window_s + 1.0) + 1.0);
            }
        }
    }

    #[test]
    fn the_same_facts_give_the_same_answers(which in 0usize..4, seed in any::<u64>()) {
        let run = || {
            let mut world = World::new(SPECS[which], &mixed(500, 500, 0.05), seed);
            world.run(60_000, 500);
            world.decisions
        };
        prop_assert_eq!(run(), run());
    }

    /// More waiting never makes a policy move more.
    #[test]
    fn moves_shrink_with_pressure(
        which in 0usize..4,
        some_us in 0u64..400_000,
        more_us in 0u64..400_000,
        seed in any::<u64>(),
    ) {
        let run = |us: u64| {
            let mut world = World::new(SPECS[which], &mixed(500, 1500, 0.0), seed);
            world.run(30_000, 500);
            let before = world.moved_bytes();
            // The next decisions that move anything, from the same state.
            world.psi = Some(Psi { some_us: us });
            for _ in 0..40 {
                world.step(500);
            }
            world.moved_bytes() - before
        };
        prop_assert!(run(some_us + more_us) <= run(some_us));
    }

    /// Every page is read as often as every other, so nothing is cold, whatever the rate of reads.
    /// A policy that only uses ages has to try, and tries the same number of pages however rarely
    /// they are read: if each is read once a minute, that is a noticeable share of the reads, but
    /// never as much as all pages once in ten minutes.
    #[test]
    fn uniform_access_makes_every_policy_back_off(
        which in 0usize..VOLUNTARY,
        hazard in prop_oneof![1 => 0.02f64..0.08, 3 => 0.08f64..2.0],
        seed in any::<u64>(),
    ) {
        let mut world = World::new(SPECS[which], &[(4000, Habit::Random(hazard))], seed);
        world.run(600_000, 500);
        let accesses = 4000.0 * 600.0 * (1.0 - (-hazard * 0.5).exp()) * 2.0;
        let share = world.refaults as f64 / accesses;
        let share_max = if hazard < 0.08 { SELDOM_READ_SHARES[which] } else { 0.01 };
        prop_assert!(share < share_max, "{share} of the accesses refault: {}", world.refaults);
        let moved_pages = world.moved_bytes() / PAGE;
        prop_assert!(moved_pages < 4000, "{moved_pages}");
    }

    /// Whatever the facts, the next decision is in the future, and a decision to do nothing has no
    /// limit.
    #[test]
    fn decisions_are_in_the_future(
        which in 0usize..4,
        step_ms in 1u64..3000,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(SPECS[which], &mixed(100, 100, 0.1), seed);
        for _ in 0..50 {
            let before_ms = world.now_ms;
            world.step(step_ms);
            if let Some(decision) = world.decisions.last() {
                prop_assert!(decision.next_ms > before_ms);
                if decision.action == Action::Nothing {
                    prop_assert!(decision.limit.is_none());
                }
            }
        }
    }
}

#[test]
fn what_does_not_leave_makes_a_pause() {
    for spec in SPECS {
        let mut world = World::new(spec, &[(4000, Habit::Never)], 1);
        world.stuck = true;
        world.run(120_000, 100);
        let pauses_ms = world.decisions.iter().filter_map(|of| match of.reason {
            Reason::CoolingDown {
                for_ms,
                cause: Cause::NoProgress,
            } => Some(for_ms),
            _ => None,
        });
        // Pauses of 10, 20, 40 and 80 s: what is left of them, not when they end.
        let longest_ms = pauses_ms.max();
        assert!(
            longest_ms.is_some_and(|ms| ms <= 80_000),
            "{spec}: {longest_ms:?}"
        );
        let tries = world.moves.len();
        assert!(tries < 400, "{spec} tried {tries} times");
    }
}

#[test]
fn what_does_not_leave_holds_up_the_rest_for_minutes_only() {
    for spec in SPECS {
        let mut world = World::new(spec, &[(4000, Habit::Never)], 1);
        world.stuck = true;
        world.run(7_200_000, 1000);
        assert_eq!(world.out_pages(), 0, "{spec}");
        world.stuck = false;
        world.run(7_800_000, 1000);
        assert!(world.out_pages() > 0, "{spec}");
    }
}

#[test]
fn swap_keeps_its_reserve() {
    for spec in SPECS {
        let mut world = World::new(spec, &[(4000, Habit::Never)], 1);
        world.swap_pages = 1000;
        world.run(900_000, 500);
        assert_eq!(world.out_pages(), 900, "{spec}");
        let full = world
            .decisions
            .iter()
            .any(|d| matches!(d.reason, Reason::SwapFull { .. }));
        assert!(full, "{spec}");
    }
}
