// SPDX-License-Identifier: Apache-2.0
use super::super::tests::{MIB, Scene};
use super::*;

/// A cgroup with 200 MiB, whose limit has gone down one step.
fn begun() -> (Scene, Throttle) {
    let scene = Scene::new();
    scene.set("memory.current", 200 * MIB);
    let mut throttle = scene.throttle();
    throttle.steps_for = Duration::ZERO;
    throttle.squeeze(&scene.cgroup, 20 * MIB).unwrap();
    (scene, throttle)
}

/// As where the kernel reclaims slowly.
#[test]
fn a_squeeze_goes_down_in_steps_and_is_undone_from_any() {
    let (scene, mut throttle) = begun();
    assert_eq!(scene.high(), Some(192));
    // What left of its own accord needs no steps.
    scene.set("memory.current", 100 * MIB);
    throttle.squeeze_on(&scene.cgroup, 20 * MIB).unwrap();
    assert_eq!(scene.high(), Some(92));
    throttle.steps_for = Duration::MAX;
    throttle.squeeze_on(&scene.cgroup, 20 * MIB).unwrap();
    assert_eq!(scene.high(), Some(20));
    throttle.release(&scene.cgroup).unwrap();
    assert_eq!(scene.high(), None);

    let (scene, throttle) = begun();
    // Killed between two steps.
    throttle.ledger.abandon();
    drop(throttle);
    drop(scene.throttle());
    assert_eq!(scene.high(), None);
}

#[test]
fn a_limit_that_somebody_else_sets_between_two_steps_is_left_alone() {
    let (scene, mut throttle) = begun();
    scene.set("memory.high", 150 * MIB);
    throttle.squeeze_on(&scene.cgroup, 20 * MIB).unwrap();
    throttle.release(&scene.cgroup).unwrap();
    throttle.squeeze_on(&scene.cgroup, 20 * MIB).unwrap();
    assert_eq!(scene.high(), Some(150));
}

#[test]
fn a_limit_of_our_own_between_two_steps_does_not_end_the_squeeze() {
    let (scene, mut throttle) = begun();
    throttle.limit(&scene.cgroup, 150 * MIB).unwrap();
    assert_eq!(scene.high(), Some(150));
    throttle.squeeze_on(&scene.cgroup, 20 * MIB).unwrap();
    assert_eq!(scene.high(), Some(142));
    throttle.release(&scene.cgroup).unwrap();
    assert_eq!(scene.high(), Some(150));
}

#[test]
fn no_step_is_above_what_somebody_else_had_set() {
    let scene = Scene::new();
    // More than it may have for now.
    scene.set("memory.current", 200 * MIB);
    scene.set("memory.high", 150 * MIB);
    let mut throttle = scene.throttle();
    throttle.steps_for = Duration::ZERO;
    throttle.squeeze(&scene.cgroup, 20 * MIB).unwrap();
    assert_eq!(scene.high(), Some(142));
    drop(throttle);
    assert_eq!(scene.high(), Some(150));
}
