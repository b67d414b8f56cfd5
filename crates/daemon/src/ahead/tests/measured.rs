// SPDX-License-Identifier: Apache-2.0
//! What holding a budget is worth is found out, and what follows from it.

use agewise_policy::budget::Verdict;

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
    let mut scene = Scene::new("budget:48M,by=worst", false, Backend::Zram);
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

/// Without a limit that the kernel could hold, there is nothing to compare with.
#[test]
fn without_a_limit_nothing_is_measured() {
    let mut scene = Scene::new("budget:48M,by=worst", false, Backend::Zram);
    scene.run(60_000, ROOM, touch_under_limit);
    assert!(scene.report.measured.is_none());
    assert!(scene.report.steps > 0);
}
