// SPDX-License-Identifier: Apache-2.0
//! Tests of the monitor: regions, ages and schemes over simulated time.

use proptest::prelude::*;

use super::super::action::Action;
use super::super::quota::{Limits, Quota};
use super::super::region::Region;
use super::super::scheme::{AccessPattern, Watermarks};
use super::super::score::Weights;
use super::super::testing::{HotRange, run};
use super::*;

fn any_pattern() -> AccessPattern {
    AccessPattern {
        size_bytes: 0..=u64::MAX,
        nr_accesses: 0..=u32::MAX,
        age: 0..=u32::MAX,
    }
}

/// Bytes in regions wrongly taken for hot (accessed in more than half of the checks) or not.
fn wrong_pages(monitor: &Monitor, hot: &std::ops::Range<u64>) -> u64 {
    let half = monitor.attrs().max_nr_accesses() / 2;
    let mut wrong = 0;
    for region in &monitor.targets()[0].regions {
        for page in region.start / 4096..region.end / 4096 {
            wrong += u64::from((region.last_nr_accesses > half) != hot.contains(&page));
        }
    }
    wrong
}

#[test]
fn it_finds_a_hot_range() {
    for profile in [Profile::V6_12, Profile::V7_2] {
        let mut space = HotRange::new(100_000, 20_000..30_000);
        let mut monitor =
            Monitor::new(profile, Attrs::default(), &[TargetId(0)], Vec::new(), 1).unwrap();
        monitor.start(&mut space);
        run(&mut monitor, &mut space, 20 * 100);
        let wrong = wrong_pages(&monitor, &space.hot);
        assert!(
            wrong < 4_000,
            "{profile:?}: {wrong} of 100000 pages in wrong regions"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_regions() {
    let regions = |seed| {
        let mut space = HotRange::new(50_000, 100..9_000);
        let mut monitor = Monitor::new(
            Profile::V7_2,
            Attrs::default(),
            &[TargetId(0)],
            Vec::new(),
            seed,
        )
        .unwrap();
        monitor.start(&mut space);
        run(&mut monitor, &mut space, 500);
        monitor.targets()[0].regions.clone()
    };
    assert_eq!(regions(7), regions(7));
    assert_ne!(regions(7), regions(8));
}

/// The kernels use one variable for the number of regions before the last split.
#[test]
fn two_monitors_do_not_touch_each_other() {
    let new = |pages, seed| {
        let mut space = HotRange::new(pages, 0..pages / 3);
        let attrs = Attrs::default();
        let mut monitor =
            Monitor::new(Profile::V7_2, attrs, &[TargetId(0)], Vec::new(), seed).unwrap();
        monitor.start(&mut space);
        (monitor, space)
    };
    let (mut alone, mut its_space) = new(50_000, 1);
    run(&mut alone, &mut its_space, 400);
    let (mut one, mut space_one) = new(50_000, 1);
    let (mut two, mut space_two) = new(900, 2);
    for _ in 0..400 {
        run(&mut one, &mut space_one, 1);
        run(&mut two, &mut space_two, 1);
    }
    assert_eq!(one.targets()[0].regions, alone.targets()[0].regions);
}

#[test]
fn inactive_schemes_put_it_to_sleep() {
    let marks = Watermarks {
        interval_us: 5_000_000,
        high: 200,
        mid: 150,
        low: 50,
    };
    let mut scheme = Scheme::new(any_pattern(), Action::Stat, Quota::unlimited());
    scheme.watermarks = Some(marks);
    let mut monitor = Monitor::new(
        Profile::V7_2,
        Attrs::default(),
        &[TargetId(0)],
        vec![scheme.clone(), scheme],
        1,
    )
    .unwrap();
    let mut space = HotRange::new(1000, 0..1);
    space.free_permille = 500;
    assert_eq!(
        monitor.wait(&space),
        Wait::Inactive {
            interval_us: 5_000_000
        }
    );
    monitor.schemes[1].watermarks = None;
    monitor.schemes[1].active = true;
    assert_eq!(
        monitor.wait(&space),
        Wait::Sample,
        "one active scheme keeps sampling going"
    );
}

#[test]
fn a_quota_bounds_the_bytes_of_a_window() {
    let quota = Quota::new(Limits {
        bytes: 64 * 4096,
        reset_interval_ms: 1000,
        weights: Weights {
            size: 0,
            nr_accesses: 0,
            age: 1,
        },
        ..Limits::default()
    });
    let cold = AccessPattern {
        nr_accesses: 0..=0,
        ..any_pattern()
    };
    let mut monitor = Monitor::new(
        Profile::V7_2,
        Attrs::default(),
        &[TargetId(0)],
        vec![Scheme::new(cold, Action::Pageout, quota)],
        1,
    )
    .unwrap();
    let mut space = HotRange::new(10_000, 0..100);
    monitor.start(&mut space);
    // 10 windows of 1 s and a bit more.
    run(&mut monitor, &mut space, 2_010);
    let pages: u64 = space.applied.iter().map(|&(_, _, pages)| pages).sum();
    assert!(
        (9 * 64..=11 * 64).contains(&pages),
        "{pages} pages in 10 windows of 64"
    );
    assert!(monitor.schemes()[0].stats.qt_exceeds >= 8);
    // The hundred hot pages only share a region at their border.
    assert!(space.applied.iter().all(|&(_, first, _)| first >= 50));
}

#[test]
fn a_full_window_goes_on_where_it_stopped() {
    let quota = Quota::new(Limits {
        bytes: 100 * 4096,
        reset_interval_ms: 100,
        ..Limits::default()
    });
    let mut monitor = Monitor::new(
        Profile::V7_2,
        Attrs::default(),
        &[TargetId(0)],
        vec![Scheme::new(any_pattern(), Action::Willneed, quota)],
        1,
    )
    .unwrap();
    let mut space = HotRange::new(1000, 0..0);
    monitor.start(&mut space);
    run(&mut monitor, &mut space, 20 * 9 + 19);
    let mut touched = vec![false; 1000];
    for &(_, first, pages) in &space.applied {
        touched[first as usize..(first + pages) as usize].fill(true);
    }
    let covered = touched.iter().filter(|&&page| page).count();
    assert!(
        covered >= 800,
        "9 windows of 100 pages covered {covered} of 1000"
    );
}

proptest! {
    /// Regions always stay within their ranges, sorted, disjoint and not too many.
    #[test]
    fn regions_stay_sound(
        pages in 64u64..20_000,
        hot in 0u64..20_000,
        hot_pages in 0u64..5_000,
        seed: u64,
        new in any::<bool>(),
    ) {
        let profile = if new { Profile::V7_2 } else { Profile::V6_12 };
        let attrs = Attrs { max_nr_regions: 60, ..Attrs::default() };
        let mut space = HotRange::new(pages, hot..hot + hot_pages);
        let targets = [TargetId(0)];
        let mut monitor = Monitor::new(profile, attrs, &targets, Vec::new(), seed).unwrap();
        monitor.start(&mut space);
        for _ in 0..30 {
            run(&mut monitor, &mut space, 20);
            let regions = &monitor.targets()[0].regions;
            prop_assert_eq!(regions.iter().map(Region::size).sum::<u64>(), pages * 4096);
            for pair in regions.windows(2) {
                prop_assert!(pair[0].end <= pair[1].start);
            }
            prop_assert!(regions.len() <= 60 + 12, "{} regions", regions.len());
        }
        prop_assert!(monitor.nr_regions() >= 3);
    }
}
