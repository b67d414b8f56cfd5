// SPDX-License-Identifier: Apache-2.0
use proptest::prelude::*;

use super::super::plan::{Goal, Refusal, STEP_PART, plan};
use super::super::waiting::SECOND_MS;
use super::super::{Bound, Curves, Decider, Estimate, Prices};
use super::*;

pub(super) const FULL: u64 = 100 << 20;

/// A curve without faults down to `knee` percent; below, `steep` more per second for each percent.
pub(super) fn curves(knee: f64, steep: f64) -> Curves {
    Curves::of_anon(FULL, 60_000, |percent| {
        let likely = (knee - f64::from(percent)).max(0.0) * steep;
        Estimate {
            low: likely * 0.9,
            likely,
            high: likely * 1.1,
        }
    })
}

pub(super) fn terms(goal: Goal) -> Terms {
    Terms {
        goal,
        wait_max: 0.002,
        prices: Prices::exact(10_000.0, 100_000.0),
        beyond_bytes: 2 << 20,
        usage_bytes: FULL + (2 << 20),
        step_bytes_max: u64::MAX,
    }
}

#[test]
fn no_step_takes_more_than_its_maximum() {
    let terms = Terms {
        step_bytes_max: 1 << 20,
        ..terms(Goal::Bytes(FULL / 2))
    };
    let steps = plan(&curves(0.0, 0.0), &terms).unwrap().to_goal;
    let limits = steps.iter().map(|step| step.limit_bytes);
    let all: Vec<u64> = std::iter::once(terms.usage_bytes).chain(limits).collect();
    assert!(all.windows(2).all(|of| of[0] - of[1] <= 1 << 20));
    assert_eq!(all.last(), Some(&(FULL / 2)));
}

/// A cgroup that faults as its own curve says, whatever the plan's curve was.
pub(super) struct World {
    curves: Curves,
    pub(super) limit_bytes: Option<u64>,
    /// Grows with each fault, up to the limit.
    usage_bytes: f64,
    faults: f64,
    pub(super) now_ms: u64,
    /// How many faults each page that leaves at a step causes soon.
    back_share: f64,
    /// Pages that will come back soon.
    out_pages: f64,
    /// From when on other curves are true, ms, and these, latest first.
    pub(super) later: Vec<(u64, Curves)>,
    /// The cost of a fault. If it differs from the terms, the kernel's counter shows it.
    pub(super) fault_ns: f64,
}

impl World {
    pub(super) fn new(curves: Curves) -> Self {
        World {
            curves,
            limit_bytes: None,
            usage_bytes: (FULL + (2 << 20)) as f64,
            faults: 0.0,
            now_ms: 5000,
            back_share: 0.0,
            out_pages: 0.0,
            later: Vec::new(),
            fault_ns: 10_000.0,
        }
    }

    /// Runs a shrink to its end; returns the longest time for which waiting exceeded the allowance.
    pub(super) fn run(&mut self, shrink: &mut Shrink, wait_max: f64) -> u64 {
        let (mut over_ms, mut most_ms) = (0, 0);
        for _ in 0..10_000 {
            let facts = Facts {
                now_ms: self.now_ms,
                faults: [self.faults as u64, 0],
                waited_us: Some((self.faults * self.fault_ns / 1e3) as u64),
                usage_bytes: Some(self.usage_bytes as u64),
                is_blind: false,
            };
            match shrink.next(facts) {
                Act::Limit(bytes) => {
                    let before = self.limit_bytes.unwrap_or(FULL + (2 << 20));
                    let left = before.saturating_sub(bytes) / 4096;
                    self.out_pages = match left {
                        // Below the limit, what comes back needs no reclaim.
                        0 => 0.0,
                        _ => self.out_pages + left as f64 * self.back_share,
                    };
                    self.limit_bytes = Some(bytes);
                }
                Act::Unlimit => (self.limit_bytes, self.out_pages) = (None, 0.0),
                Act::Wait => {}
                Act::Done => return most_ms,
            }
            self.now_ms += 250;
            if let Some((_, curves)) = self.later.pop_if(|(at_ms, _)| *at_ms <= self.now_ms) {
                self.curves = curves;
            }
            // Without a limit, all that it lacks is there at once.
            let most_bytes = self.limit_bytes.map_or(f64::MAX, |of| of as f64);
            self.usage_bytes = match self.limit_bytes {
                Some(_) => self.usage_bytes.min(most_bytes),
                None => (2 * FULL) as f64,
            };
            let memory = (self.usage_bytes as u64).saturating_sub(2 << 20);
            let rate = self
                .curves
                .at(Decider::Kernel, memory)
                .faults_per_second()
                .likely;
            // An eighth of what is missing comes back in a quarter of a second.
            let rate = rate + self.out_pages / 2.0;
            self.out_pages *= 7.0 / 8.0;
            self.faults += rate / 4.0;
            self.usage_bytes = (self.usage_bytes + rate / 4.0 * 4096.0).min(most_bytes);
            // Less than one fault per second too much cannot be detected.
            let counted = (rate - 1000.0 / SECOND_MS as f64).max(0.0);
            let is_over = counted * self.fault_ns / 1e9 > wait_max;
            // What comes back below the limit comes back whatever the limit is.
            let is_refilling = self.usage_bytes < most_bytes && self.limit_bytes.is_some();
            over_ms = match is_over {
                true if is_refilling => over_ms,
                true => over_ms + 250,
                false => 0,
            };
            most_ms = most_ms.max(over_ms);
        }
        panic!("it does not end");
    }
}

#[test]
fn what_hurts_is_refused() {
    let curves = curves(60.0, 100.0);
    let half = plan(&curves, &terms(Goal::Bytes(FULL / 2)));
    assert!(matches!(half, Err(Refusal::Hurts { .. })), "{half:?}");
    let text = half.unwrap_err().to_string();
    assert!(text.contains("of the time in waiting"), "{text}");
    let more = plan(&curves, &terms(Goal::Bytes(FULL * 2)));
    assert!(matches!(more, Err(Refusal::Smaller { .. })));
    let all = plan(&self::curves(200.0, 100.0), &terms(Goal::Auto(Bound::High)));
    assert!(matches!(all, Err(Refusal::Nothing { .. })));
}

#[test]
fn auto_goes_to_the_least_that_does_not_hurt_and_stays() {
    let curves = curves(60.0, 100.0);
    let terms = terms(Goal::Auto(Bound::High));
    let steps = plan(&curves, &terms).unwrap();
    let pairs = steps.to_goal.windows(2);
    assert!(
        pairs
            .into_iter()
            .all(|pair| pair[0].limit_bytes > pair[1].limit_bytes)
    );
    assert_eq!(steps.further, []);
    let mut world = World::new(curves);
    let mut shrink = Shrink::new(steps, terms);
    assert_eq!(world.run(&mut shrink, terms.wait_max), 0);
    assert_eq!(shrink.verdict(), Verdict::Reached);
    let limit = world.limit_bytes.unwrap();
    // 200 faults per second are allowed: two percent below the knee.
    assert!(
        (FULL * 58 / 100..FULL * 66 / 100).contains(&limit),
        "{limit}"
    );
}

#[test]
fn when_it_hurts_it_steps_back_at_once() {
    let told = curves(40.0, 100.0);
    let terms = terms(Goal::Bytes(FULL * 45 / 100));
    let mut shrink = Shrink::new(plan(&told, &terms).unwrap(), terms);
    // It really needs 70 percent.
    let mut world = World::new(curves(70.0, 200.0));
    let over_ms = world.run(&mut shrink, terms.wait_max);
    assert!(over_ms <= 4000, "{over_ms}");
    assert_eq!(shrink.verdict(), Verdict::Waiting);
    let limit = world.limit_bytes.unwrap();
    assert!(
        (FULL * 70 / 100..FULL * 80 / 100).contains(&limit),
        "{limit}"
    );
    // A step, half of it and a quarter did harm, and each time the one before came back.
    let outcomes = shrink.outcomes();
    let harmful = outcomes.iter().filter(|outcome| !outcome.is_kept);
    let harmful: Vec<u64> = harmful.map(|of| of.planned.limit_bytes).collect();
    assert!((2..=3).contains(&harmful.len()), "{outcomes:?}");
    assert!(harmful.iter().all(|bytes| *bytes < limit), "{outcomes:?}");
    assert!(harmful.is_sorted() && !outcomes.last().unwrap().is_kept);
}

/// The kernel takes pages that are in use along with others; they come back over some seconds.
#[test]
fn a_step_that_takes_too_much_at_once_is_taken_in_parts() {
    let curves = Curves::of_anon(FULL, 60_000, |_| Estimate {
        high: 1000.0,
        ..Estimate::exact(0.0)
    });
    let terms = terms(Goal::Bytes(FULL / 2));
    let steps = plan(&curves, &terms).unwrap();
    let lowest = |back_share: f64| {
        let mut shrink = Shrink::new(steps.clone(), terms);
        let mut world = World::new(curves.clone());
        world.back_share = back_share;
        let over_ms = world.run(&mut shrink, terms.wait_max);
        assert!(over_ms <= 4000, "{over_ms}");
        let harmful = shrink.outcomes().iter().filter(|of| !of.is_kept).count();
        (shrink.verdict(), world.limit_bytes, harmful)
    };
    let goal = Some(FULL / 2);
    assert_eq!(lowest(0.0), (Verdict::Reached, goal, 0));
    // 800 pages leave at a step, 200 faults a second are allowed.
    assert_eq!(lowest(2.0), (Verdict::Reached, goal, 1));
    assert_eq!(lowest(4.0), (Verdict::Reached, goal, 2));
    let (verdict, limit_bytes, harmful) = lowest(10.0);
    assert_eq!((verdict, limit_bytes, harmful), (Verdict::Waiting, None, 3));
}

/// What is reported of a step that is taken back is what it was taken back for.
#[test]
fn a_step_that_hurts_late_shows_the_waiting_that_decided() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    let mut acts = Vec::new();
    for tenth in 0..36u64 {
        let now_ms = tenth * 100;
        // Nothing for three seconds; then all the time, until that is too much of two seconds.
        let waited_us = now_ms.saturating_sub(3000) * 1000;
        let facts = Facts {
            now_ms,
            waited_us: Some(waited_us),
            ..Facts::default()
        };
        acts.push(shrink.next(facts));
    }
    assert!(acts.contains(&Act::Unlimit), "{acts:?}");
    let outcome = shrink.outcomes()[0];
    assert!(
        !outcome.is_kept && outcome.wait_ratio > terms.wait_max,
        "{outcome:?}"
    );
    assert_eq!(
        outcome.wait_ratio, 0.05,
        "100 ms of the last 2 s, not of 2.1 s"
    );
}

/// Reclaim down to a limit may take longer than a step is held.
#[test]
fn a_step_that_took_long_to_set_is_judged_by_what_follows() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    let facts = |now_ms, waited_ms: u64| Facts {
        now_ms,
        waited_us: Some(waited_ms * 1000),
        ..Facts::default()
    };
    assert!(matches!(shrink.next(facts(0, 0)), Act::Limit(_)));
    for now_ms in [6000, 7000] {
        assert_eq!(shrink.next(facts(now_ms, 100)), Act::Wait);
    }
    assert_eq!(shrink.next(facts(8000, 200)), Act::Unlimit);
    assert_eq!(shrink.outcomes()[0].wait_ratio, 0.05);
    // Waiting for most of the time that it took is too much at once.
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    assert!(matches!(shrink.next(facts(0, 0)), Act::Limit(_)));
    assert_eq!(shrink.next(facts(6000, 3000)), Act::Unlimit);
}

/// They are a consequence of the step that was taken back, not of the limit that is held again.
#[test]
fn faults_of_what_a_harmful_step_took_are_no_surprise() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    let mut next = |now_ms, faults, waited_ms: u64| {
        shrink.next(Facts {
            now_ms,
            faults: [faults, 0],
            waited_us: Some(waited_ms * 1000),
            ..Facts::default()
        })
    };
    // Twice more than predicted, without harm.
    let _ = next(0, 0, 0);
    assert_eq!(next(1000, 0, 0), Act::Wait);
    let Act::Limit(held) = next(4000, 60, 0) else {
        panic!("no second step");
    };
    assert_eq!(next(5000, 60, 0), Act::Wait);
    let Act::Limit(harmful) = next(8000, 120, 0) else {
        panic!("no third step");
    };
    assert_eq!(next(9000, 120, 0), Act::Wait);
    assert_eq!(next(11_000, 900, 100), Act::Limit(held));
    assert_eq!(next(12_000, 1300, 100), Act::Wait);
    let half = held.midpoint(harmful);
    assert_eq!(next(15_000, 2500, 100), Act::Limit(half));
    assert_eq!(shrink.outcomes().len(), 3, "no step is noted twice");
}

/// What comes back after a harmful step shows nothing about a limit that takes nothing meanwhile.
#[test]
fn a_limit_that_it_went_back_to_is_judged_once_the_memory_has_grown_to_it() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    let mut next = |now_ms, waited_ms: u64, usage_bytes| {
        shrink.next(Facts {
            now_ms,
            waited_us: Some(waited_ms * 1000),
            usage_bytes: Some(usage_bytes),
            ..Facts::default()
        })
    };
    let Act::Limit(held) = next(0, 0, terms.usage_bytes) else {
        panic!("no first step");
    };
    assert_eq!(next(1000, 0, held), Act::Wait);
    let Act::Limit(harmful) = next(4000, 0, held) else {
        panic!("no second step");
    };
    assert_eq!(next(5000, 0, harmful), Act::Wait);
    assert_eq!(next(7000, 10, harmful), Act::Limit(held));
    // Ten times as much as is allowed, for ten seconds.
    let refilled = held - REFILLED_BYTES;
    for second in 1..10 {
        let waited_ms = 10 + second * 20;
        assert_eq!(
            next(7000 + second * 1000, waited_ms, refilled - 1),
            Act::Wait
        );
    }
    assert_eq!(next(17_000, 210, refilled), Act::Wait);
    let half = held.midpoint(harmful);
    assert_eq!(next(20_000, 210, held), Act::Limit(half));
    // One that does with less never grows to it.
    assert_eq!(next(21_000, 210, half), Act::Wait);
    assert_eq!(next(23_000, 220, half), Act::Limit(held));
    assert_eq!(next(23_000 + REFILL_MS, 220, half), Act::Wait);
    let after = next(26_000 + REFILL_MS, 220, half);
    assert!(matches!(after, Act::Limit(_)), "{after:?}");
}

#[test]
fn what_was_not_predicted_ends_it_before_it_hurts() {
    let told = curves(20.0, 100.0);
    let terms = Terms {
        wait_max: 0.9,
        ..terms(Goal::Bytes(FULL * 30 / 100))
    };
    let mut shrink = Shrink::new(plan(&told, &terms).unwrap(), terms);
    let mut world = World::new(curves(90.0, 10.0));
    world.run(&mut shrink, terms.wait_max);
    assert_eq!(shrink.verdict(), Verdict::Unpredicted);
    assert!(world.limit_bytes.unwrap() > FULL / 2);
}

#[test]
fn the_kernels_own_count_of_waiting_is_believed() {
    let terms = terms(Goal::Bytes(FULL / 2));
    let mut shrink = Shrink::new(plan(&curves(20.0, 100.0), &terms).unwrap(), terms);
    let facts = |now_ms, waited_us| Facts {
        now_ms,
        faults: [0; 2],
        waited_us: Some(waited_us),
        ..Facts::default()
    };
    assert!(matches!(shrink.next(facts(0, 7)), Act::Limit(_)));
    assert_eq!(shrink.next(facts(1000, 7)), Act::Wait);
    assert_eq!(shrink.next(facts(2000, 7 + 3_000)), Act::Wait);
    assert_eq!(shrink.next(facts(3000, 7 + 50_000)), Act::Unlimit);
    assert_eq!(shrink.outcomes()[0].wait_ratio, 0.025);
    // It may recover before half a step follows.
    assert_eq!(shrink.next(facts(6999, 7 + 50_000)), Act::Wait);
    assert!(matches!(
        shrink.next(facts(7000, 7 + 50_000)),
        Act::Limit(_)
    ));
}

#[test]
fn where_a_fault_costs_less_than_reckoned_it_goes_further_and_never_hurts() {
    // 200 faults per second are allowed at the assumed cost, 1000 at the real one, and 184 and 920
    // expected: 50.8 percent instead of 58.2.
    let curves = curves(60.0, 100.0);
    let terms = terms(Goal::Auto(Bound::Likely));
    let lowest = |fault_ns: f64| {
        let steps = plan(&curves, &terms).unwrap();
        let goal = steps.to_goal.last().unwrap().limit_bytes;
        let mut shrink = Shrink::new(steps, terms);
        let mut world = World::new(curves.clone());
        world.fault_ns = fault_ns;
        assert_eq!(world.run(&mut shrink, terms.wait_max), 0);
        assert_eq!(shrink.verdict(), Verdict::Reached);
        (goal, world.limit_bytes.unwrap())
    };
    let (goal, limit) = lowest(10_000.0);
    let part = terms.usage_bytes / STEP_PART / PARTS as u64;
    assert!((goal..goal + part).contains(&limit), "{limit} of {goal}");
    let (goal, limit) = lowest(2_000.0);
    assert!(
        limit < goal && limit >= FULL * 508 / 1000,
        "{limit} of {goal}"
    );
}

/// Below the goal it comes closer to what is allowed than a step is long.
#[test]
fn where_a_step_would_hurt_a_part_of_it_follows() {
    // 200 faults per second are allowed at the assumed cost, reached at 58 percent; at the real one
    // 500, and 460 expected, reached at 55.4.
    let curves = curves(60.0, 100.0);
    let terms = terms(Goal::Auto(Bound::Likely));
    let mut shrink = Shrink::new(plan(&curves, &terms).unwrap(), terms);
    let mut world = World::new(curves);
    world.fault_ns = 4_000.0;
    assert_eq!(world.run(&mut shrink, terms.wait_max), 0);
    let least = FULL * 554 / 1000 + terms.beyond_bytes;
    let limit = world.limit_bytes.unwrap();
    let part = terms.usage_bytes / STEP_PART / PARTS as u64;
    assert!((least..least + part).contains(&limit), "{limit}, {least}");
}

#[test]
fn below_the_goal_stepping_back_is_no_failure() {
    let told = curves(60.0, 100.0);
    let terms = terms(Goal::Auto(Bound::Likely));
    let mut shrink = Shrink::new(plan(&told, &terms).unwrap(), terms);
    let goal = shrink.steps[shrink.to_goal - 1].limit_bytes;
    // Harmless down to the goal, and a wall below it.
    let wall = curves(57.0, 20_000.0);
    let mut world = World::new(Curves::of_anon(FULL, 60_000, |percent| {
        let at = f64::from(percent);
        let [a, b] = [&told, &wall].map(|of| of.of(Decider::Kernel).at(at).faults_per_second());
        Estimate {
            low: a.low + b.low,
            likely: a.likely + b.likely,
            high: a.high + b.high,
        }
    }));
    world.fault_ns = 1_000.0;
    let over_ms = world.run(&mut shrink, terms.wait_max);
    assert!((250..=4000).contains(&over_ms), "{over_ms}");
    assert_eq!(shrink.verdict(), Verdict::Reached);
    assert!(!shrink.outcomes().last().unwrap().is_kept);
    let limit = world.limit_bytes.unwrap();
    assert!(
        limit <= goal && limit >= FULL * 57 / 100,
        "{limit} of {goal}"
    );
}

proptest! {
    /// Whatever was predicted and whatever is true, waiting exceeds the allowance for at most four
    /// seconds, and the limit never ends below the requested goal.
    #[test]
    fn it_never_hurts_for_long(
        told in 10.0f64..100.0, truth in 10.0f64..120.0, steep in 1.0f64..500.0,
        goal in prop::option::of(10u64..100), wait_max in 0.0001f64..0.05,
        fault_ns in 1_000.0f64..10_000.0,
    ) {
        let bytes = goal.map(|percent| FULL * percent / 100);
        let goal = bytes.map_or(Goal::Auto(Bound::Likely), Goal::Bytes);
        let terms = Terms { wait_max, ..terms(goal) };
        let Ok(steps) = plan(&curves(told, steep), &terms) else { return Ok(()) };
        let truth = curves(truth, steep);
        // The test excludes cgroups that wait too much even without a limit.
        let own = truth.of(Decider::Kernel).at(200.0).wait_ratio(terms.prices).likely;
        prop_assume!(own <= wait_max);
        let mut world = World::new(truth);
        world.fault_ns = fault_ns;
        let mut shrink = Shrink::new(steps, terms);
        let over_ms = world.run(&mut shrink, wait_max);
        prop_assert!(over_ms <= 4000, "{over_ms}");
        prop_assert!(world.limit_bytes.is_none_or(|limit| limit >= bytes.unwrap_or(0)));
    }
}
