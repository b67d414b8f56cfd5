// SPDX-License-Identifier: Apache-2.0
//! The eviction against a fake kernel: only pages that were asked for and idle are passed, and
//! every byte is accounted for, whatever fails.

use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::mover::fake::{FakeClock, FakeMover, Fault, PAGE, Page, Place};
use crate::mover::plan::HUGE_BYTES;
use crate::mover::recheck::NoRecheck;

mod swap;

const BASE: u64 = 0x7f00_0000_0000;

const COLD: Page = Page {
    mapping: 1,
    locked: false,
    file: false,
    place: Place::Memory,
    young: false,
    sticky: false,
    unmaps: false,
    processed: 0,
};

fn run_of(first: u64, pages: u64) -> AddressRange {
    AddressRange::new(BASE + first * PAGE, pages * PAGE)
}

fn evict(
    mover: &mut FakeMover,
    plan: &Plan,
    limits: PageoutLimits,
) -> (Result<(), PageoutError>, PageoutReport, Evicted) {
    let (clock, cancel) = (FakeClock::default(), AtomicBool::new(false));
    let mut source = NoRecheck;
    let mut eviction = Eviction::new(plan, limits, mover, &mut source, &clock, &cancel);
    let result = eviction.run(|_| ());
    (result, eviction.report().clone(), eviction.evicted())
}

fn cold(pages: usize) -> FakeMover {
    FakeMover::new(BASE, vec![COLD; pages])
}

#[test]
fn cold_pages_leave_and_are_remembered() {
    let mut mover = cold(5000);
    let plan = Plan::of_base([run_of(10, 4000)]);
    let (result, report, evicted) = evict(&mut mover, &plan, PageoutLimits::default());
    result.unwrap();
    assert_eq!(
        (report.left_anon_bytes, report.left_file_bytes),
        (4000 * PAGE, 0)
    );
    assert_eq!(
        (report.kept_bytes, report.skipped_bytes.total_bytes()),
        (0, 0)
    );
    assert_eq!(report.calls, 2);
    assert!(mover.largest_call_bytes <= 8 << 20);
    assert_eq!(evicted.anon.runs(), [run_of(10, 4000)]);
    assert!(
        mover
            .pages
            .iter()
            .enumerate()
            .all(|(i, page)| { page.processed == u32::from((10..4010).contains(&i)) })
    );
}

/// Everything passed is assumed to have left. What was not passed is skipped as usual, and another
/// address space is noticed.
#[test]
fn unverified_pages_are_passed_and_not_looked_at() {
    let limits = PageoutLimits {
        unverified: true,
        ..Default::default()
    };
    let plan = Plan::of_base([run_of(0, 3), run_of(5, 20)]);
    let mut mover = cold(30);
    mover.pages[7].sticky = true;
    (mover.pages[10].locked, mover.pages[10].mapping) = (true, 2);
    mover.swap_free_bytes = 100 * PAGE;
    let (result, report, evicted) = evict(&mut mover, &plan, limits);
    result.unwrap();
    let skipped_bytes = report.skipped_bytes.bytes(SkipReason::Unevictable);
    assert_eq!((report.left_bytes, skipped_bytes), (22 * PAGE, PAGE));
    assert_eq!(
        mover.pages.iter().filter(|page| page.processed > 0).count(),
        22
    );
    assert_eq!(evicted, Evicted::default());

    let mut mover = cold(30);
    mover.swap_free_bytes = 7 * PAGE;
    let (_, report, _) = evict(&mut mover, &plan, limits);
    assert_eq!(report.left_bytes, 7 * PAGE);
    assert_eq!(report.skipped_bytes.bytes(SkipReason::NoSwap), 16 * PAGE);

    let mut mover = cold(30);
    mover.exited_before_call = Some(0);
    let (_, report, _) = evict(&mut mover, &plan, limits);
    assert_eq!((report.left_bytes, mover.calls), (0, 0));
}

#[test]
fn mlocked_memory_in_the_middle_is_skipped_and_the_rest_goes() {
    let mut mover = cold(30);
    for index in 10..13 {
        (mover.pages[index].locked, mover.pages[index].mapping) = (true, 2);
    }
    for page in &mut mover.pages[13..] {
        page.mapping = 3;
    }
    // The locked part is in the second range of the vector, so the call stops short.
    let plan = Plan::of_base([run_of(0, 3), run_of(5, 20)]);
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default());
    result.unwrap();
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::Unevictable),
        3 * PAGE
    );
    assert_eq!(report.left_bytes, 20 * PAGE);
    assert!(mover.pages[10..13].iter().all(|page| page.processed == 0));
}

#[test]
fn limits_and_floors_bind() {
    let all = Plan::of_base([run_of(0, 100)]);
    let limits = PageoutLimits {
        bytes_max: 30 * PAGE + 5,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut cold(100), &all, limits);
    assert_eq!(report.left_bytes, 30 * PAGE);
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Limit), 70 * PAGE);

    // Pages that the kernel keeps do not count towards the limit.
    let mut mover = cold(100);
    mover.pages[..50]
        .iter_mut()
        .for_each(|page| page.sticky = true);
    let (_, report, _) = evict(&mut mover, &all, limits);
    assert_eq!(
        (report.kept_bytes, report.left_bytes),
        (50 * PAGE, 30 * PAGE)
    );
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Limit), 20 * PAGE);

    let limits = PageoutLimits {
        floor_bytes: 80 * PAGE,
        ..Default::default()
    };
    for rehearse in [false, true] {
        let limits = PageoutLimits { rehearse, ..limits };
        let mut mover = cold(100);
        let (_, report, _) = evict(&mut mover, &all, limits);
        assert_eq!(report.skipped_bytes.bytes(SkipReason::Floor), 80 * PAGE);
        let moved = if rehearse {
            report.rehearsed_bytes
        } else {
            report.left_bytes
        };
        assert_eq!(moved, 20 * PAGE);
        assert_eq!(mover.calls, u64::from(!rehearse));
    }
    let limits = PageoutLimits {
        bytes_max: 0,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut cold(100), &all, limits);
    assert_eq!((report.left_bytes, report.calls), (0, 0));
}

#[test]
fn the_rate_is_kept_by_waiting() {
    let mut mover = cold(2560);
    let plan = Plan::of_base([run_of(0, 2560)]);
    let limits = PageoutLimits {
        rate_bytes_per_s: Some(1 << 20),
        call_bytes_max: 64 << 10,
        ..Default::default()
    };
    let (clock, cancel) = (FakeClock::default(), AtomicBool::new(false));
    let mut source = NoRecheck;
    let mut eviction = Eviction::new(&plan, limits, &mut mover, &mut source, &clock, &cancel);
    eviction.run(|_| ()).unwrap();
    assert_eq!(eviction.report().left_bytes, 10 << 20);
    let seconds = clock.now_ns.get() as f64 / 1e9;
    assert!(
        (9.7..10.1).contains(&seconds),
        "{seconds} s for 10 MiB at 1 MiB/s"
    );
}

#[test]
fn cancelling_stops_before_the_next_call() {
    let mut mover = cold(100);
    let plan = Plan::of_base([run_of(0, 100)]);
    let limits = PageoutLimits {
        call_bytes_max: 10 * PAGE,
        ..Default::default()
    };
    let (clock, cancel) = (FakeClock::default(), AtomicBool::new(false));
    let mut source = NoRecheck;
    let mut eviction = Eviction::new(&plan, limits, &mut mover, &mut source, &clock, &cancel);
    eviction
        .run(|report| cancel.store(report.left_bytes >= 30 * PAGE, Ordering::Relaxed))
        .unwrap();
    let report = eviction.report();
    assert_eq!(report.left_bytes, 30 * PAGE);
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Cancelled), 70 * PAGE);
}

#[test]
fn a_process_that_ends_half_way_is_an_outcome_and_no_privilege_an_error() {
    let plan = Plan::of_base([run_of(0, 100)]);
    let limits = PageoutLimits {
        call_bytes_max: 10 * PAGE,
        ..Default::default()
    };
    let mut mover = cold(100);
    mover.exited_before_call = Some(2);
    let (result, report, _) = evict(&mut mover, &plan, limits);
    result.unwrap();
    assert_eq!(report.accounted_bytes(), report.asked_bytes);
    assert_eq!(report.left_bytes, 10 * PAGE);
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::ProcessGone),
        90 * PAGE
    );

    let mut mover = cold(100);
    mover.faults = vec![(3, Fault::Errno(Errno::PERM))];
    let (result, report, _) = evict(&mut mover, &plan, limits);
    assert!(matches!(result, Err(PageoutError::Denied { pid: 7 })));
    assert_eq!(report.left_bytes, 20 * PAGE);
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Failed), 80 * PAGE);

    // Nobody knows what happens to what was passed, nor to the rest.
    let mut mover = cold(100);
    mover.faults = vec![(3, Fault::Errno(Errno::TIMEDOUT))];
    let (result, report, _) = evict(&mut mover, &plan, limits);
    assert!(matches!(result, Err(PageoutError::Unanswered { pid: 7 })));
    assert_eq!(report.left_bytes, 20 * PAGE);
    let unknown_bytes = report.skipped_bytes.bytes(SkipReason::Unanswered);
    assert_eq!(unknown_bytes, 80 * PAGE);

    // It runs on without its first thread.
    let mut mover = cold(100);
    mover.lost_leader = true;
    let (result, report, _) = evict(&mut mover, &plan, limits);
    assert!(matches!(result, Err(PageoutError::LostLeader { pid: 7 })));
    assert_eq!(report.skipped_bytes.bytes(SkipReason::Failed), 100 * PAGE);

    let mut mover = cold(100);
    mover.faults = (1..100)
        .map(|call| (call, Fault::Errno(Errno::INTR)))
        .collect();
    let (result, report, _) = evict(&mut mover, &plan, limits);
    assert!(matches!(result, Err(PageoutError::System { .. })));
    assert_eq!(report.accounted_bytes(), report.asked_bytes);
}

#[test]
fn nothing_leaving_is_noticed() {
    let mut mover = cold(40_000);
    for page in &mut mover.pages {
        page.sticky = true;
    }
    let plan = Plan::of_base([run_of(0, 40_000)]);
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default());
    result.unwrap();
    assert_eq!(report.kept_bytes, 64 << 20);
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::NoProgress),
        40_000 * PAGE - (64 << 20)
    );
}

#[test]
fn an_eye_that_returns_more_than_asked_moves_nothing_more() {
    let mut mover = cold(100);
    let plan = Plan::of_base([run_of(10, 5)]);
    let (clock, cancel) = (FakeClock::default(), AtomicBool::new(false));
    let mut eager = |_: &RunSet| Ok(RunSet::from_runs([run_of(0, 100)]));
    let limits = PageoutLimits::default();
    let mut eviction = Eviction::new(&plan, limits, &mut mover, &mut eager, &clock, &cancel);
    eviction.run(|_| ()).unwrap();
    assert_eq!(eviction.report().left_bytes, 5 * PAGE);

    let mut blind = |_: &RunSet| {
        Err(PageoutError::Recheck {
            reason: "no source".to_owned(),
        })
    };
    let mut mover = cold(100);
    let mut eviction = Eviction::new(&plan, limits, &mut mover, &mut blind, &clock, &cancel);
    assert!(eviction.run(|_| ()).is_err());
    assert_eq!(
        eviction.report().skipped_bytes.bytes(SkipReason::Failed),
        5 * PAGE
    );
    assert_eq!(mover.calls, 0);
}

#[test]
fn huge_pages_go_whole_or_not_at_all() {
    let per_huge = HUGE_BYTES / PAGE;
    let huge = [AddressRange::new(BASE + 100 * PAGE, 3 * HUGE_BYTES)];
    let plan = Plan::new([run_of(0, 50)], huge);
    // 100..1636 contains the whole huge pages 512..1536.
    let limits = PageoutLimits {
        call_bytes_max: 3 << 20,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut cold(2048), &plan, limits);
    assert_eq!(report.left_bytes, (2 * per_huge + 50) * PAGE);
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::PartialHuge),
        per_huge * PAGE
    );
    assert_eq!(report.calls, 3, "one huge page a call, and the small ones");

    // Only partly present: it stays whole.
    let mut mover = cold(2048);
    mover.pages[600].place = Place::Nowhere;
    let (_, report, _) = evict(&mut mover, &plan, limits);
    assert_eq!(report.left_bytes, (per_huge + 50) * PAGE);
    assert_eq!(mover.pages[601].processed, 0);

    // With a limit below a huge page, small pages can still leave.
    let limits = PageoutLimits {
        bytes_max: 1 << 20,
        ..Default::default()
    };
    let (_, report, _) = evict(&mut cold(2048), &plan, limits);
    assert_eq!(report.left_bytes, 50 * PAGE);
    assert_eq!(
        report.skipped_bytes.bytes(SkipReason::Limit),
        2 * HUGE_BYTES
    );
}

const PAGES: u64 = 96;

fn some_page() -> impl Strategy<Value = Page> {
    let place =
        prop_oneof![6 => Just(Place::Memory), 1 => Just(Place::Swap), 1 => Just(Place::Nowhere)];
    let rare = || prop::bool::weighted(0.1);
    (place, rare(), rare(), rare()).prop_map(|(place, young, sticky, unmaps)| Page {
        place,
        young,
        sticky,
        unmaps,
        ..COLD
    })
}

/// Mappings of random length: `(pages, kind)`, where kind 0 is a hole, 1 mlocked, 2 a file, others
/// anonymous.
fn some_space() -> impl Strategy<Value = Vec<Page>> {
    let pages = prop::collection::vec(some_page(), PAGES as usize);
    let mappings = prop::collection::vec((1usize..20, 0u8..8), 5..40);
    (pages, mappings).prop_map(|(mut pages, mappings)| {
        let mut rest = &mut pages[..];
        for (number, (length, kind)) in mappings.into_iter().enumerate() {
            let (these, others) = rest.split_at_mut(length.min(rest.len()));
            for page in these {
                page.mapping = if kind == 0 { 0 } else { number as u32 + 1 };
                page.locked = kind == 1;
                page.file = kind == 2;
                if page.mapping == 0 || (page.file && page.place == Place::Swap) {
                    page.place = Place::Nowhere;
                }
            }
            rest = others;
        }
        pages
    })
}

/// Never in two successive calls: a range that stops two calls without an errno is given up.
fn some_faults() -> impl Strategy<Value = Vec<(u64, Fault)>> {
    let fault = prop_oneof![
        (0usize..4).prop_map(Fault::Short),
        Just(Fault::Errno(Errno::INTR)),
        Just(Fault::Errno(Errno::AGAIN)),
    ];
    let call = (1u64..6).prop_map(|half| 2 * half);
    prop::collection::vec((call, fault), 0..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_passed_is_what_was_asked_for_and_every_byte_is_accounted(
        pages in some_space(),
        asked in prop::collection::vec((0..PAGES, 1u64..12), 0..14),
        call_pages in 1u64..40,
        limit_pages in prop_oneof![Just(u64::MAX / PAGE), 0u64..60],
        faults in some_faults(),
        unmapping in any::<bool>(),
    ) {
        let runs = asked.into_iter().map(|(first, len)| run_of(first, len.min(PAGES - first)));
        let plan = Plan::of_base(runs);
        let mut mover = FakeMover::new(BASE, pages);
        for page in &mut mover.pages {
            page.unmaps &= unmapping;
        }
        mover.faults = faults.clone();
        let before = mover.pages.clone();
        let young = mover.young(plan.base());
        let mut source = |runs: &RunSet| Ok(runs.subtract(&young));
        let limits = PageoutLimits {
            bytes_max: limit_pages * PAGE,
            call_bytes_max: call_pages * PAGE,
            ..Default::default()
        };
        let (clock, cancel) = (FakeClock::default(), AtomicBool::new(false));
        let mut eviction = Eviction::new(&plan, limits, &mut mover, &mut source, &clock, &cancel);
        eviction.run(|_| ()).unwrap();
        let (report, evicted) = (eviction.report().clone(), eviction.evicted());

        prop_assert_eq!(report.accounted_bytes(), report.asked_bytes);
        prop_assert_eq!(report.asked_bytes, plan.base().bytes());
        prop_assert!(mover.largest_call_bytes <= limits.call_bytes_max);
        prop_assert!(report.left_bytes <= limits.bytes_max);
        prop_assert_eq!(evicted.bytes(), report.left_bytes);
        let is_asked = |index: usize| {
            let run = run_of(index as u64, 1);
            !RunSet::from_runs([run]).intersect(plan.base()).is_empty()
        };
        let limited = report.skipped_bytes.bytes(SkipReason::Limit) > 0;
        for (index, (was, now)) in before.iter().zip(&mover.pages).enumerate() {
            let movable = is_asked(index)
                && was.mapping != 0
                && !was.locked
                && !was.young
                && was.place == Place::Memory;
            if movable && !limited && !was.unmaps {
                prop_assert!(now.processed > 0, "page {index} was forgotten");
                prop_assert_eq!(now.place == Place::Memory, was.sticky);
            }
            if !movable {
                prop_assert_eq!(now.processed, 0, "page {} was not asked for", index);
            }
            // Once, or twice if a call stopped there without an errno.
            prop_assert!(now.processed <= 2, "page {index}: {} times", now.processed);
        }
        if !unmapping && faults.is_empty() && !limited {
            let count = |want: &dyn Fn(&Page) -> bool| {
                let pages = before.iter().enumerate();
                pages.filter(|(i, page)| is_asked(*i) && want(page)).count() as u64 * PAGE
            };
            let there = |p: &Page| p.mapping != 0 && p.place == Place::Memory;
            let tried = |p: &Page| there(p) && !p.young && !p.locked;
            prop_assert_eq!(report.young_again_bytes, count(&|p| there(p) && p.young));
            prop_assert_eq!(report.left_file_bytes, count(&|p| tried(p) && !p.sticky && p.file));
            prop_assert_eq!(report.left_anon_bytes, count(&|p| tried(p) && !p.sticky && !p.file));
            prop_assert_eq!(report.kept_bytes, count(&|p| tried(p) && p.sticky));
            let skipped = |reason| report.skipped_bytes.bytes(reason);
            prop_assert_eq!(skipped(SkipReason::Absent), count(&|p| !there(p)));
            prop_assert_eq!(
                skipped(SkipReason::Unevictable),
                count(&|p| there(p) && !p.young && p.locked)
            );
        }
    }
}
