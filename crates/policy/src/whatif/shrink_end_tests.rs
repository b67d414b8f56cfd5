// SPDX-License-Identifier: Apache-2.0
//! Where it ends.

use super::super::plan::{Goal, plan};
use super::super::{Bound, Curves};
use super::tests::{FULL, World, curves, terms};
use super::*;

/// A limit that held does harm once the program needs more.
#[test]
fn it_ends_only_at_a_limit_that_holds() {
    let told = curves(40.0, 100.0);
    let terms = terms(Goal::Bytes(FULL / 2));
    let steps = plan(&told, &terms).unwrap();
    let run = |need_percent: f64| {
        let mut shrink = Shrink::new(steps.clone(), terms);
        let mut world = World::new(told.clone());
        world.later = vec![(50_000, curves(need_percent, 200.0))];
        let over_ms = world.run(&mut shrink, terms.wait_max);
        assert!((250..=5000).contains(&over_ms), "{need_percent}: {over_ms}");
        assert_eq!(shrink.verdict(), Verdict::Waiting);
        let share = world
            .limit_bytes
            .map(|limit| (limit - terms.beyond_bytes) * 100 / FULL);
        let ended_ms = world.now_ms;
        (share, ended_ms)
    };
    // Steps of 3 percent, below 56 already: the last is given up, back by one and two more, by four
    // more, to no limit.
    let ran = [57.0, 60.0, 80.0, 130.0].map(run);
    let [one, three, seven, none] = ran.map(|(share, _)| share);
    assert!((56..=58).contains(&one.unwrap()), "{ran:?}");
    assert!((59..=62).contains(&three.unwrap()), "{ran:?}");
    assert!((80..=90).contains(&seven.unwrap()), "{ran:?}");
    assert_eq!(none, None);
    let ended_ms = ran[2].1;
    assert!(ended_ms >= 50_000 + MEASURE_HOLD_MS - SETTLE_MS, "{ran:?}");
}

/// That the shortest step did harm leads back to the limit before it, which is no news about that.
#[test]
fn after_the_last_step_it_goes_back_by_single_ones() {
    let told = curves(40.0, 100.0);
    let terms = terms(Goal::Bytes(FULL * 45 / 100));
    let steps = plan(&told, &terms).unwrap();
    let run = |later: Vec<(u64, Curves)>| {
        let mut shrink = Shrink::new(steps.clone(), terms);
        let mut world = World::new(curves(70.0, 200.0));
        world.later = later;
        let over_ms = world.run(&mut shrink, terms.wait_max);
        assert!((250..=5000).contains(&over_ms), "{over_ms}");
        let kept = shrink.outcomes().iter().filter(|of| of.is_kept);
        let kept: Vec<u64> = kept.map(|of| of.planned.limit_bytes).collect();
        (kept, world.limit_bytes.unwrap(), world.now_ms)
    };
    let (kept, limit, ended_ms) = run(Vec::new());
    assert_eq!(kept.last(), Some(&limit));
    // While that limit is watched, half a percent more is needed than what it has and may lack.
    let need_percent = (limit - terms.beyond_bytes) as f64 / FULL as f64 * 100.0 + 1.5;
    let (_, above, _) = run(vec![(ended_ms - 5000, curves(need_percent, 200.0))]);
    assert_eq!(above, kept[kept.len() - 2]);
}

/// With `auto`, a step that is expected to do harm is not taken, whether above the goal or below.
#[test]
fn a_step_that_the_measurement_forbids_is_not_taken() {
    let curves = curves(60.0, 10.0);
    let lowest = |goal| {
        let terms = terms(goal);
        let mut shrink = Shrink::new(plan(&curves, &terms).unwrap(), terms);
        let mut world = World::new(curves.clone());
        // Each page costs twice as much as reckoned: 100 faults per second are allowed, at 50 %.
        world.fault_ns = 20_000.0;
        let over_ms = world.run(&mut shrink, terms.wait_max);
        let limit = world.limit_bytes.unwrap();
        (over_ms > 0, shrink.verdict(), limit > FULL / 2)
    };
    let auto = lowest(Goal::Auto(Bound::Likely));
    assert_eq!(auto, (false, Verdict::Reached, true));
    let bytes = lowest(Goal::Bytes(FULL * 45 / 100));
    assert_eq!(bytes, (true, Verdict::Waiting, true));
}

/// Waiting fluctuates: a little too much of it for some seconds is forgiven once.
#[test]
fn a_limit_that_did_a_little_harm_once_is_tried_again() {
    let told = curves(40.0, 100.0);
    let terms = terms(Goal::Bytes(FULL / 2));
    let steps = plan(&told, &terms).unwrap();
    // At the goal, for five seconds each time.
    let run = |need_percent: f64, times: u64| {
        let mut shrink = Shrink::new(steps.clone(), terms);
        let mut world = World::new(told.clone());
        for at_ms in (0..times).rev().map(|time| 80_000 + time * 25_000) {
            world.later.push((at_ms + 5000, told.clone()));
            world.later.push((at_ms, curves(need_percent, 200.0)));
        }
        let over_ms = world.run(&mut shrink, terms.wait_max);
        assert!((250..=5000).contains(&over_ms), "{need_percent}: {over_ms}");
        (shrink.verdict(), world.limit_bytes.unwrap() > FULL / 2)
    };
    assert_eq!(run(49.5, 1), (Verdict::Reached, false));
    assert_eq!(run(49.5, 2), (Verdict::Waiting, true));
    assert_eq!(run(57.0, 1), (Verdict::Waiting, true));
}

/// What left comes back late, so a step that shows waiting is held longer than one that does not.
#[test]
fn steps_are_longer_where_there_is_waiting() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let limits = |waited_us_per_second: u64| {
        let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
        let facts = |now_ms| Facts {
            now_ms,
            waited_us: Some(now_ms * waited_us_per_second / 1000),
            ..Facts::default()
        };
        let acts = (0..41).map(|half| shrink.next(facts(half * 500)));
        acts.filter(|act| matches!(act, Act::Limit(_))).count()
    };
    // 2 ms a second are allowed; 20 s.
    assert_eq!(limits(900), 6);
    assert_eq!(limits(1500), 3);
}
