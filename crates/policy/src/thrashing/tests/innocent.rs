// SPDX-License-Identifier: Apache-2.0
//! Who is not to blame.

use super::*;

#[test]
fn whoever_outgrows_memory_alone_has_nobody_to_blame() {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Kill));
    machine.second(&mut guard, 0, 0);
    for _ in 0..20 {
        machine.grow("desk", 100);
        machine.grow("idle", 1);
        for decision in machine.second(&mut guard, 1000, 500) {
            assert_eq!((decision.blame, decision.act), (None, Act::Report));
        }
    }
}

#[test]
fn another_protected_group_is_spared_while_somebody_else_is_to_blame() {
    let demand = |group, mib_per_s: u64, is_protected| Demand {
        group,
        growth_bytes_per_s: (mib_per_s * MIB) as f64,
        refault_bytes_per_s: 0.0,
        resident_bytes: MIB,
        is_untouchable: false,
        is_protected,
    };
    let find = |demands: &[Demand<&'static str>]| {
        Blame::find(&"desk", demands, &Config::default()).map(|blame| blame.group)
    };
    let desk = demand("desk", 0, true);
    assert_eq!(
        find(&[
            desk.clone(),
            demand("music", 60, true),
            demand("hog", 40, false)
        ]),
        Some("hog")
    );
    assert_eq!(
        find(&[
            desk.clone(),
            demand("music", 90, true),
            demand("hog", 10, false)
        ]),
        Some("music")
    );
    let many: Vec<_> = ["a", "b", "c", "d", "e"]
        .map(|name| demand(name, 10, false))
        .into();
    assert_eq!(find(&many), None, "a fifth each");
    assert_eq!(find(&[desk]), None);
}

/// A machine of which only the desk suffers, with so many refaults a second, for 20 s in which
/// others demand little or much.
fn acts(
    refaults: u64,
    mut each_second: impl FnMut(&mut Machine),
) -> Vec<(Option<&'static str>, Act)> {
    let mut machine = Machine::new();
    let mut guard = Guard::new(config(Step::Kill));
    machine.second(&mut guard, 0, 0);
    let mut acts = Vec::new();
    for _ in 0..20 {
        each_second(&mut machine);
        let decisions = machine.second(&mut guard, refaults, 300);
        let blamed = |of: Decision<&'static str>| (of.blame.map(|blame| blame.group), of.act);
        acts.extend(decisions.into_iter().map(blamed));
    }
    acts
}

#[test]
fn a_little_growth_of_another_is_not_what_takes_all_the_memory() {
    let told = acts(1000, |machine| machine.group("idle").resident_bytes += 4096);
    assert!(!told.is_empty());
    assert!(told.iter().all(|of| *of == (None, Act::Report)), "{told:?}");
}

/// Compressed memory comes back faster than most programs grow.
#[test]
fn a_leak_is_to_blame_however_much_comes_back() {
    for refaults in [1000, 75_000] {
        let told = acts(refaults, |machine| machine.grow("hog", 50));
        assert!(
            matches!(told[..], [(Some("hog"), Act::Squeeze { .. }), ..]),
            "{told:?}"
        );
    }
}

/// The window in which a culprit goes on began while it was frozen.
#[test]
fn nobody_else_is_blamed_for_a_window_of_which_the_culprit_was_frozen() {
    for thaws_between_looks in [false, true] {
        let mut machine = Machine::new();
        let mut guard = Guard::new(Config {
            freeze_ms: 6000,
            ..config(Step::Freeze)
        });
        machine.second(&mut guard, 0, 0);
        let acts = machine.thrash(&mut guard, 8);
        assert!(matches!(acts[1], (_, Act::Freeze { .. })), "{acts:?}");
        let thaw_ms = guard.next_thaw_ms().unwrap();
        let mut decisions = Vec::new();
        while machine.now_ms < thaw_ms {
            machine.grow("idle", 50);
            if thaws_between_looks && machine.now_ms + 1000 == thaw_ms {
                decisions.extend(guard.thaw_due(thaw_ms));
                machine.now_ms += 10;
            }
            decisions.extend(machine.second(&mut guard, 1000, 300));
        }
        let acts: Vec<Act> = decisions.into_iter().map(|of| of.act).collect();
        assert_eq!(acts, [Act::Thaw]);
        machine.grow("idle", 50);
        let next = machine.second(&mut guard, 1000, 300);
        assert!(matches!(next[0].act, Act::Squeeze { .. }), "{next:?}");
    }
}

/// Its own, or one that also applies to the one that grows.
#[test]
fn whoever_is_outside_a_limit_that_was_hit_is_not_to_blame() {
    // Each has a limit of its own, the desk and the idle another one together.
    let set = |machine: &mut Machine, hits: [u64; 2]| {
        let limits = |of, own| vec![(of, own), ("slice", hits[1])];
        machine.group("desk").limits = limits("desk", hits[0]);
        machine.group("idle").limits = limits("idle", 0);
        machine.group("hog").limits = vec![("hog", 0)];
    };
    let blamed = |own: u64, slice: u64, grows: &'static str| {
        let mut hits = [5, 5];
        let told = acts(4096, |machine| {
            hits = [hits[0] + own, hits[1] + slice];
            set(machine, hits);
            machine.grow(grows, 50);
        });
        let (blamed, acts): (Vec<_>, Vec<_>) = told.into_iter().unzip();
        assert!(!blamed.is_empty() && blamed.iter().all(|of| *of == blamed[0]));
        let is_held = acts.iter().any(|act| *act != Act::Report);
        assert_eq!(is_held, blamed[0].is_some());
        blamed[0]
    };
    // At 512 pages each, 8 hits explain all refaults.
    assert_eq!(blamed(0, 0, "hog"), Some("hog"), "none was hit");
    assert_eq!(blamed(8, 0, "hog"), None);
    assert_eq!(blamed(0, 8, "hog"), None);
    assert_eq!(blamed(0, 8, "idle"), Some("idle"));
    assert_eq!(blamed(8, 8, "idle"), None);
    // A small cgroup in the desk fills its own limit with page cache.
    assert_eq!(blamed(1, 0, "hog"), Some("hog"));
    assert_eq!(blamed(7, 7, "hog"), Some("hog"));
    assert_eq!(blamed(7, 8, "hog"), None);
}
