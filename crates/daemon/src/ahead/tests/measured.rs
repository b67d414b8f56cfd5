// SPDX-License-Identifier: Apache-2.0
//! What holding a budget is worth is found out, and what follows from it.

use agewise_host::access;
use agewise_host::agent::AlsoYoung;
use agewise_policy::budget::{KernelFirst, Verdict};

use super::super::{Seen as Handed, Shared};
use super::*;

/// Touches a hot quarter all the time, and the rest in turn. The kernel takes whatever is above the
/// limit, but never from the hot quarter.
fn touch_under_limit(state: &mut State, ms: u64) {
    let (pages, hot) = (64 * MIB / PAGE_BYTES, 16 * MIB / PAGE_BYTES);
    let touched = (ms * 16..ms * 16 + 16).map(|n| n % hot);
    for page in touched.chain([hot + ms * 7 % (pages - hot)]) {
        state.counted.faults += u64::from(state.out.contains(&page));
        state.touch(page);
    }
    state.counted.work_us += 500;
    while state.present.len() as u64 > 48 * MIB / PAGE_BYTES {
        let Some(&page) = state.present.range(hot..).next() else {
            break;
        };
        state.present.remove(&page);
        state.out.insert(page);
    }
}

#[test]
fn harm_is_stepped_back_from_within_a_minute() {
    let mut scene = Scene::new("budget:48M,by=worst,measure=on", false, Backend::Zram);
    scene.target.set_limit_bytes(48 * MIB);
    scene.run(60_000, ROOM, touch_under_limit);
    let measured = scene.report.measured.expect("it was found out");
    assert_eq!(measured.verdict, Verdict::Back, "{measured:?}");
    assert!(measured.faults_change.unwrap().is_more(), "{measured:?}");
    let steps = scene.report.steps;
    assert!(steps > 0);
    scene.run(60_000, ROOM, touch_under_limit);
    assert_eq!(scene.report.steps, steps, "nothing is moved any more");
    // Nobody holds the budget if the kernel has no limit any more.
    scene.target.set_limit_bytes(4 << 30);
    scene.run(10_000, ROOM, touch_under_limit);
    assert!(scene.report.steps > steps);
}

#[test]
fn the_kernel_has_the_limit_until_memory_was_replaced_twice() {
    let mut scene = Scene::new("budget:48M", false, Backend::Zram);
    scene.target.set_limit_bytes(48 * MIB);
    scene.run(5_000, ROOM, |state, ms| {
        touch_under_limit(state, ms);
        state.counted.faults = state.counted.faults.min(100);
    });
    let first = KernelFirst {
        came_in_pages: 100,
        until_pages: 2 * 48 * MIB / PAGE_BYTES,
    };
    assert_eq!(scene.report.kernel_first, Some(first));
    assert_eq!((scene.report.scans, scene.report.steps), (0, 0));
    scene.state.borrow_mut().counted.faults += first.until_pages;
    scene.run(5_000, ROOM, touch_under_limit);
    assert_eq!(scene.report.kernel_first, None);
    assert!(scene.report.scans > 0 && scene.report.steps > 0);
}

/// Nobody else clears accessed bits in an epoch of the kernel.
#[test]
fn the_agent_clears_accessed_bits_while_the_kernel_holds_the_limit() {
    let mut scene = Scene::new("budget:48M,measure=on", false, Backend::Zram);
    scene.target.set_limit_bytes(48 * MIB);
    let mut left_ms = 0;
    for _ in 0..340 {
        scene.run(100, ROOM, touch_under_limit);
        left_ms += 100 * u32::from(scene.target.is_left_to_kernel());
    }
    assert!(scene.report.measured.is_none(), "nothing is known yet");
    assert!((8_000..13_000).contains(&left_ms), "{left_ms}");
}

#[test]
fn what_was_seen_before_the_kernel_has_the_limit_is_handed_over() {
    let shared = Arc::new(Shared::default());
    let mut bits = TableBits::default();
    bits.young.insert(3);
    let table = Seen {
        index: 7,
        bits,
        movable: PageSet::ALL,
    };
    let mut handed = Handed(Arc::clone(&shared));
    let process = access::Target {
        pid: PID,
        start_ticks: Some(START_TICKS),
    };
    let mut take = || handed.take(&process);
    assert!(take().is_none());
    shared.note(PID, START_TICKS, &[table]);
    assert_eq!(take().unwrap().len(), 1);
    assert!(take().unwrap().is_empty(), "there may be more");
    shared.note(PID, START_TICKS, &[table]);
    shared.leave(&[(PID, START_TICKS)]);
    assert_eq!(take().unwrap().len(), 1, "what was seen is not lost");
    assert!(take().is_none());
    // It is no longer held.
    shared.note(PID, START_TICKS, &[table]);
    shared.keep(&[PID]);
    shared.keep(&[]);
    assert_eq!(take().unwrap().len(), 1);
    assert!(take().is_none());
    shared.note(PID, START_TICKS, &[table]);
    (0..2).for_each(|_| shared.keep(&[]));
    assert!(take().is_none(), "it has ended");
}

/// Without a limit that the kernel could hold, there is nothing to compare with.
#[test]
fn without_a_limit_nothing_is_measured() {
    let mut scene = Scene::new("budget:48M,by=worst,measure=on", false, Backend::Zram);
    scene.run(60_000, ROOM, touch_under_limit);
    assert!(scene.report.measured.is_none());
    assert!(scene.report.steps > 0);
}

/// Otherwise an epoch in which a worker ends would have no work and no faults, and one in which a
/// process joins would have those of its whole life.
#[test]
fn what_a_process_consumed_while_held_counts() {
    const WORKER: u32 = 2;
    let consumed = |work_us| Counted {
        work_us,
        faults: work_us / 10,
        ..Counted::default()
    };
    let mut scene = Scene::new("budget:48M,measure=on", false, Backend::Zram);
    let held = Held {
        processes: vec![(PID, START_TICKS), (WORKER, START_TICKS)],
        ..scene.target.held.clone()
    };
    scene.target.hold(held);
    let start = |work_us| {
        let state = State {
            counted: consumed(work_us),
            ..State::default()
        };
        PROCESSES.with_borrow_mut(|all| all.insert(WORKER, Rc::new(RefCell::new(state))));
    };
    start(5_000);
    scene.state.borrow_mut().counted = consumed(1_000);
    scene.run(1_500, ROOM, |_, _| {});
    assert_eq!(scene.target.consumed(), consumed(0));
    PROCESSES.with_borrow(|all| all[&WORKER].borrow_mut().counted = consumed(5_400));
    scene.state.borrow_mut().counted = consumed(1_500);
    assert_eq!(scene.target.consumed(), consumed(900));
    PROCESSES.with_borrow_mut(|all| all.remove(&WORKER));
    scene.state.borrow_mut().counted = consumed(2_000);
    scene.run(1_500, ROOM, |_, _| {});
    assert_eq!(scene.target.consumed(), consumed(1_400));
    start(100);
    scene.run(1_500, ROOM, |_, _| {});
    assert_eq!(scene.target.consumed(), consumed(1_400));
}
