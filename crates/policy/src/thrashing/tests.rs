// SPDX-License-Identifier: Apache-2.0
//! Decisions on synthetic samples.

use proptest::prelude::*;

use super::*;

mod innocent;

const MIB: u64 = 1 << 20;

fn config(up_to: Step) -> Config {
    Config {
        up_to,
        ..Config::default()
    }
}

/// A machine whose protected `desk` suffers or not, second by second.
struct Machine {
    now_ms: u64,
    /// Where the demand of the hog comes from.
    part: &'static str,
    groups: Vec<GroupSample<&'static str>>,
}

impl Machine {
    fn new() -> Machine {
        let group = |group, is_protected, resident_mib: u64| GroupSample {
            group,
            is_protected,
            is_untouchable: false,
            resident_bytes: resident_mib * MIB,
            swapped_bytes: 0,
            refaulted_pages: 0,
            young_refaulted_pages: Some(0),
            stolen_pages: None,
            full_stall_us: Some(0),
            limits: Vec::new(),
        };
        Machine {
            now_ms: 0,
            part: "hog",
            groups: vec![
                group("desk", true, 400),
                group("idle", false, 900),
                group("hog", false, 500),
            ],
        }
    }

    fn group(&mut self, name: &str) -> &mut GroupSample<&'static str> {
        self.groups
            .iter_mut()
            .find(|group| group.group == name)
            .unwrap()
    }

    /// One second in which the desk has `refaults` young refaults and waits for `stall_ms`.
    fn second(
        &mut self,
        guard: &mut Guard<&'static str>,
        refaults: u64,
        stall_ms: u64,
    ) -> Vec<Decision<&'static str>> {
        self.now_ms += 1000;
        let desk = self.group("desk");
        desk.refaulted_pages += refaults;
        desk.young_refaulted_pages = desk.young_refaulted_pages.map(|pages| pages + refaults);
        desk.full_stall_us = desk.full_stall_us.map(|us| us + stall_ms * 1000);
        let groups = self.groups.clone();
        let now_ms = self.now_ms;
        guard.look(Sample { now_ms, groups }, |group| match *group {
            "hog" => self.part,
            other => other,
        })
    }

    fn grow(&mut self, name: &str, mib: u64) {
        self.group(name).resident_bytes += mib * MIB;
    }

    /// Seconds in which the hog grows and the desk suffers; returns the acts and their times.
    fn thrash(&mut self, guard: &mut Guard<&'static str>, seconds: u64) -> Vec<(u64, Act)> {
        let mut acts = Vec::new();
        for _ in 0..seconds {
            self.grow("hog", 50);
            let decisions = self.second(guard, 1000, 300);
            acts.extend(
                decisions
                    .into_iter()
                    .map(|decision| (self.now_ms, decision.act)),
            );
        }
        acts
    }
}

#[test]
fn nobody_is_blamed_for_what_the_sufferer_has_paged_out_itself() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Kill));
    machine.group("desk").stolen_pages = Some(7);
    assert_eq!(machine.thrash(&mut guard, 60), []);
    // From now on the kernel takes from it what comes back.
    let mut acts = Vec::new();
    for _ in 0..10 {
        *machine.group("desk").stolen_pages.as_mut().unwrap() += 1000;
        acts.extend(machine.thrash(&mut guard, 1));
    }
    assert!(
        matches!(acts[..], [(63_000, Act::Squeeze { .. }), ..]),
        "{acts:?}"
    );
}

#[test]
fn the_guilty_is_named_with_reasons_and_only_after_some_windows() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Report));
    machine.second(&mut guard, 0, 0);
    let mut first = None;
    for window in 1..=3 {
        machine.grow("hog", 50);
        let decisions = machine.second(&mut guard, 1000, 300);
        assert_eq!(decisions.len(), usize::from(window == 3), "window {window}");
        first = decisions.into_iter().next();
    }
    let decision = first.unwrap();
    assert_eq!((decision.protected, &decision.act), ("desk", &Act::Report));
    let suffering = decision.suffering.unwrap();
    assert_eq!(suffering.young_refaults_per_s, 1000.0);
    assert_eq!(suffering.full_share, Some(0.3));
    let blame = decision.blame.unwrap();
    assert_eq!((blame.group, blame.share), ("hog", 1.0));
    assert_eq!(blame.growth_bytes_per_s, (50 * MIB) as f64);
    // No further act before the time of the step is over.
    assert_eq!(machine.thrash(&mut guard, 10).len(), 2);
}

fn name(act: &Act) -> Option<&'static str> {
    match act {
        Act::Squeeze { .. } => Some("squeeze"),
        Act::Freeze { .. } => Some("freeze"),
        Act::Kill => Some("kill"),
        Act::Thaw => None,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_ladder_goes_no_further_than_it_may() {
    for (up_to, wanted) in [
        (
            Step::Squeeze,
            vec!["squeeze", "squeeze", "squeeze", "squeeze"],
        ),
        (Step::Freeze, vec!["squeeze", "freeze", "freeze", "freeze"]),
        (Step::Kill, vec!["squeeze", "freeze", "kill", "kill"]),
    ] {
        let mut machine = Machine::new();
        let mut guard = Guard::new(Config {
            freeze_ms: 2000,
            ..config(up_to)
        });
        machine.second(&mut guard, 0, 0);
        let acts = machine.thrash(&mut guard, 20);
        let names: Vec<_> = acts.iter().filter_map(|(_, act)| name(act)).collect();
        assert_eq!(names, wanted, "{up_to:?}");
    }
}

/// What was done to one culprit does not count against the next.
#[test]
fn each_culprit_is_treated_gently_first() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Kill));
    machine.second(&mut guard, 0, 0);
    let acts = machine.thrash(&mut guard, 9);
    assert!(
        matches!(
            acts[..],
            [(_, Act::Squeeze { .. }), (_, Act::Freeze { .. })]
        ),
        "{acts:?}"
    );
    let mut next = Vec::new();
    for _ in 0..28 {
        machine.grow("idle", 50);
        next.extend(machine.second(&mut guard, 1000, 300));
    }
    let thawed = next.iter().position(|decision| decision.act == Act::Thaw);
    assert_eq!(
        thawed,
        Some(0),
        "nobody else is blamed while it is frozen: {next:?}"
    );
    next.retain(|decision| decision.suffering.is_some());
    assert!(next.iter().all(|decision| {
        let blame = decision.blame.as_ref();
        blame.is_some_and(|blame| blame.group == "idle")
    }));
    let acts: Vec<&Act> = next.iter().map(|decision| &decision.act).collect();
    assert!(
        matches!(
            acts[..],
            [Act::Squeeze { .. }, Act::Freeze { .. }, Act::Kill]
        ),
        "{acts:?}"
    );
}

/// Nobody waits for the thaw of what was never frozen, nor is anything harder done in its place.
#[test]
fn a_step_that_is_not_carried_out_comes_again_if_it_can_be() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Kill));
    machine.second(&mut guard, 0, 0);
    let mut acts = Vec::new();
    for comes_again in [Some(true), None, Some(true), Some(false), None] {
        acts.extend(machine.thrash(&mut guard, 5).into_iter().map(|of| of.1));
        let failed = comes_again.into_iter();
        failed.for_each(|comes_again| guard.not_done(&"hog", comes_again));
    }
    let names: Vec<_> = acts.iter().filter_map(name).collect();
    assert_eq!(names, ["squeeze", "squeeze", "freeze", "freeze", "kill"]);
}

/// Getting there can take longer than the time between two steps.
#[test]
fn a_limit_that_is_not_reached_is_not_lowered() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Squeeze));
    machine.second(&mut guard, 0, 0);
    let mut squeeze = |reached: Option<u64>, is_done: bool| {
        if let Some(limit_bytes) = reached {
            // It grows by 150 MiB until the next step, and has reached the limit then.
            let hog = machine.group("hog");
            let left = hog.resident_bytes - (limit_bytes - 150 * MIB);
            hog.resident_bytes -= left;
            hog.swapped_bytes += left;
        }
        let act = machine.thrash(&mut guard, 5)[0].1.clone();
        if !is_done {
            guard.not_done(&"hog", true);
        }
        match act {
            Act::Squeeze { limit_bytes } => limit_bytes,
            act => panic!("{act:?}"),
        }
    };
    let first = squeeze(None, true);
    assert_eq!(squeeze(None, true), first);
    let second = squeeze(Some(first), false);
    assert_eq!(second, first / 5 * 4);
    // The limit of before is the one that is in force.
    assert_eq!(squeeze(Some(first), true), second);
}

/// So is each cgroup in a culprit. Each keeps its restraints until all is calm, or it is gone.
#[test]
fn each_part_of_a_culprit_is_treated_gently_first() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Freeze));
    machine.second(&mut guard, 0, 0);
    machine.part = "hog/a";
    let acts = machine.thrash(&mut guard, 3);
    assert!(matches!(acts[..], [(_, Act::Squeeze { .. })]), "{acts:?}");
    machine.part = "hog/b";
    let acts = machine.thrash(&mut guard, 10);
    assert!(
        matches!(
            acts[..],
            [(_, Act::Squeeze { .. }), (_, Act::Freeze { .. })]
        ),
        "{acts:?}"
    );
    let parts: Vec<_> = guard.throttled().copied().collect();
    assert_eq!(parts, ["hog/a", "hog/b"]);
    let taken_back = |decisions: Vec<Decision<&'static str>>| -> Vec<_> {
        let blame = decisions.into_iter().map(|of| (of.blame, of.act));
        blame.map(|(of, act)| (of.unwrap().part, act)).collect()
    };
    assert_eq!(
        taken_back(guard.forget(&"hog/a")),
        [("hog/a", Act::Release)]
    );
    assert_eq!(
        taken_back(guard.let_go()),
        [("hog/b", Act::Thaw), ("hog/b", Act::Release)]
    );
}

#[test]
fn a_squeeze_goes_down_in_steps_to_a_floor_and_is_taken_back() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(Config {
        squeeze_floor_bytes: 300 * MIB,
        ..config(Step::Squeeze)
    });
    machine.second(&mut guard, 0, 0);
    let mut limits = Vec::new();
    for _ in 0..40 {
        machine.group("hog").swapped_bytes += 50 * MIB;
        for decision in machine.second(&mut guard, 1000, 300) {
            let Act::Squeeze { limit_bytes } = decision.act else {
                panic!("{:?}", decision.act);
            };
            limits.push(limit_bytes / MIB);
            machine.group("hog").resident_bytes = limit_bytes;
        }
    }
    assert_eq!(limits, [400, 320, 300, 300, 300, 300, 300, 300]);
    // Nine calm windows are not enough; a bad one restarts the count.
    for _ in 0..9 {
        assert!(machine.second(&mut guard, 0, 0).is_empty());
    }
    machine.second(&mut guard, 1000, 300);
    let mut back = Vec::new();
    for second in 1..=12 {
        for decision in machine.second(&mut guard, 10, 0) {
            back.push((second, decision.blame.unwrap().group, decision.act));
        }
    }
    assert_eq!(back, [(10, "hog", Act::Release)]);
    assert_eq!(guard.throttled().count(), 0);
}

#[test]
fn a_frozen_group_is_thawed_in_time_whatever_happens() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(Config {
        freeze_ms: 3000,
        ..config(Step::Freeze)
    });
    machine.second(&mut guard, 0, 0);
    let acts = machine.thrash(&mut guard, 9);
    let frozen = acts
        .iter()
        .find(|(_, act)| matches!(act, Act::Freeze { .. }))
        .unwrap();
    let more = machine.thrash(&mut guard, 4);
    let thawed = acts
        .iter()
        .chain(&more)
        .find(|(_, act)| *act == Act::Thaw)
        .unwrap();
    assert_eq!(thawed.0 - frozen.0, 3000);
    // If it ends in between, all restraints are removed.
    machine.thrash(&mut guard, 1);
    let back: Vec<Act> = guard
        .let_go()
        .into_iter()
        .map(|decision| decision.act)
        .collect();
    assert!(back.contains(&Act::Release), "{back:?}");
    assert!(guard.let_go().is_empty());
}

/// What it does without the culprit says nothing about what it does with it.
#[test]
fn calm_while_the_culprit_is_frozen_does_not_begin_the_ladder_anew() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(Config {
        freeze_ms: 12_000,
        ..config(Step::Kill)
    });
    machine.second(&mut guard, 0, 0);
    let mut acts = Vec::new();
    for _ in 0..60 {
        let is_frozen = guard.next_thaw_ms().is_some();
        machine.grow("hog", 50 * u64::from(!is_frozen));
        let (refaults, stall_ms) = if is_frozen { (0, 0) } else { (1000, 300) };
        let decisions = machine.second(&mut guard, refaults, stall_ms);
        acts.extend(decisions.into_iter().filter_map(|of| name(&of.act)));
    }
    assert_eq!(acts[..3], ["squeeze", "freeze", "kill"], "{acts:?}");
}

#[test]
fn one_sign_alone_is_not_thrashing() {
    for (refaults, stall_ms) in [(5000, 20), (10, 900), (0, 0)] {
        let mut machine = Machine::new();
        let mut guard = Guard::new(config(Step::Kill));
        for _ in 0..30 {
            machine.grow("hog", 50);
            assert!(machine.second(&mut guard, refaults, stall_ms).is_empty());
        }
    }
}

#[test]
fn without_pressure_figures_more_refaults_are_asked_for() {
    for (refaults, acts) in [(150, false), (250, true)] {
        let mut machine = Machine::new();
        machine.group("desk").full_stall_us = None;
        machine.group("desk").young_refaulted_pages = None;
        let mut guard = Guard::new(config(Step::Report));
        let mut seen = Vec::new();
        for _ in 0..10 {
            machine.grow("hog", 50);
            seen.extend(machine.second(&mut guard, refaults, 0));
        }
        assert_eq!(!seen.is_empty(), acts, "{refaults}");
    }
}

#[test]
fn the_untouchable_are_named_and_left_alone() {
    let mut machine = Machine::new();
    machine.group("hog").is_untouchable = true;
    let mut guard = Guard::new(config(Step::Kill));
    machine.second(&mut guard, 0, 0);
    let acts = machine.thrash(&mut guard, 30);
    assert!(acts.len() > 3);
    assert!(acts.iter().all(|(_, act)| *act == Act::Report), "{acts:?}");
}

#[test]
fn what_was_done_for_one_that_is_gone_is_taken_back() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Squeeze));
    machine.second(&mut guard, 0, 0);
    assert_eq!(machine.thrash(&mut guard, 3).len(), 1);
    machine.group("desk").is_protected = false;
    let back = machine.second(&mut guard, 0, 0);
    assert_eq!(back.len(), 1);
    assert_eq!(back[0].act, Act::Release);
}

/// A cgroup that is gone, or whose counters cannot be read, cannot be watched, so it is not held.
#[test]
fn what_was_done_to_one_that_is_not_seen_any_more_is_taken_back() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Freeze));
    machine.second(&mut guard, 0, 0);
    let acts = machine.thrash(&mut guard, 9);
    assert!(
        matches!(acts.last(), Some((_, Act::Freeze { .. }))),
        "{acts:?}"
    );
    machine.groups.retain(|group| group.group != "hog");
    let back = machine.second(&mut guard, 0, 0);
    let acts: Vec<&Act> = back.iter().map(|decision| &decision.act).collect();
    assert_eq!(acts, [&Act::Thaw, &Act::Release]);
    assert_eq!(guard.throttled().count(), 0);
    assert_eq!(machine.second(&mut guard, 0, 0), [], "once");
}

proptest! {
    /// Whatever happens: no untouchable cgroup is acted on, no limit is below the floor, frozen
    /// cgroups are thawed in time, and letting go removes all restraints.
    #[test]
    fn restraints_are_bounded(
        windows in prop::collection::vec(
            (0u64..3000, 0u64..2000, 0u64..900, 0u64..200, 0u64..200),
            1..120,
        ),
        untouchable: bool,
    ) {
        let mut machine = Machine::new();
        machine.group("hog").is_untouchable = untouchable;
        let mut guard = Guard::new(config(Step::Kill));
        let mut frozen: BTreeMap<&str, u64> = BTreeMap::new();
        for (step_ms, refaults, stall_ms, hog_mib, idle_mib) in windows {
            machine.now_ms += step_ms;
            machine.grow("hog", hog_mib);
            machine.grow("idle", idle_mib);
            for decision in machine.second(&mut guard, refaults, stall_ms) {
                let group = decision.blame.as_ref().map_or("", |blame| blame.group);
                if decision.act != Act::Report {
                    prop_assert!(!(untouchable && group == "hog"));
                    prop_assert!(group == "hog" || group == "idle");
                }
                match decision.act {
                    Act::Squeeze { limit_bytes } => prop_assert!(limit_bytes >= 64 * MIB),
                    Act::Freeze { for_ms } => { frozen.insert(group, machine.now_ms + for_ms); }
                    Act::Thaw => { prop_assert!(frozen.remove(group).is_some()); }
                    _ => {}
                }
            }
            for until_ms in frozen.values() {
                prop_assert!(machine.now_ms < *until_ms);
            }
        }
        for decision in guard.let_go() {
            if decision.act == Act::Thaw {
                frozen.remove(decision.blame.unwrap().group);
            }
        }
        prop_assert!(frozen.is_empty());
        prop_assert_eq!(guard.throttled().count(), 0);
    }
}
