// SPDX-License-Identifier: Apache-2.0
use super::*;

/// Most memory was never used. Only a little may go, and the memory in use is as old as the
/// policy asks for.
#[test]
fn the_oldest_goes_whatever_fits() {
    let all = [(0, 6 << 20), (20_000, 5 << 20), (60_000, 54 << 20)];
    let older = |[anon_ms, _]: Ages| {
        let older = all.iter().filter(|(age_ms, _)| Some(*age_ms) >= anon_ms);
        older.map(|(_, bytes)| bytes).sum()
    };
    let oldest = |bytes| oldest([Some(0); 2], 90_000, bytes, older)[0];
    for (bytes, range) in [
        (1, 20_001..=60_000),
        (54 << 20, 20_001..=60_000),
        (55 << 20, 1..=20_000),
        (60 << 20, 0..=0),
        (99 << 20, 0..=0),
    ] {
        let found = oldest(bytes);
        assert!(
            found.is_some_and(|ms| range.contains(&ms)),
            "{bytes} {found:?}"
        );
    }
}

/// A library, which others map too, is the oldest memory of the first process.
#[test]
fn what_the_kernel_keeps_takes_no_room() {
    let mut done = Done::default();
    let room = |done: &Done| done.room(1 << 20).map(|room| room.bytes_max);
    done.count(&PageoutReport {
        asked_bytes: 8 << 20,
        kept_bytes: 8 << 20,
        ..PageoutReport::default()
    });
    assert_eq!(room(&done), Some(1 << 20));
    done.left_anon_bytes = 1 << 20;
    assert_eq!(room(&done), None);
    // But there is an end to it.
    (done.left_anon_bytes, done.tried_bytes) = (0, KEPT_MAX_BYTES);
    assert_eq!(room(&done), None);
}

/// As the guard of the policies counts: a move of which nothing left makes it pause.
#[test]
fn a_huge_page_that_is_too_large_was_tried() {
    let mut report = PageoutReport {
        asked_bytes: 2 << 20,
        ..PageoutReport::default()
    };
    report.skipped_bytes.add(SkipReason::Limit, 2 << 20);
    let mut done = Done::default();
    for _ in 0..3 {
        done.begin_pass();
        done.count(&report);
    }
    done.end_passes(1 << 20);
    assert_eq!((done.tried_bytes, done.left_bytes()), (1 << 20, 0));
    assert!(!done.found_all(1 << 20));
}

#[test]
fn what_stays_counts_once_however_often_it_is_tried() {
    let mut done = Done::default();
    for _ in 0..3 {
        done.begin_pass();
        done.count(&PageoutReport {
            asked_bytes: 30 << 20,
            kept_bytes: 29 << 20,
            young_again_bytes: 1 << 20,
            ..PageoutReport::default()
        });
        done.trouble("process 7: not permitted".to_owned());
    }
    let counted = (done.tried_bytes, done.young_again_bytes);
    assert_eq!(counted, (29 << 20, 1 << 20));
    assert!(done.room(1 << 20).is_some());
    assert_eq!(done.troubles.len(), 1);
}

#[test]
fn a_rehearsal_finds_no_more_than_may_go() {
    let room = |rehearsed_bytes, left_bytes| {
        let mut done = Done::default();
        done.count_dropped(&DropReport {
            asked_bytes: 100 << 20,
            rehearsed_bytes,
            left_bytes,
            limited_bytes: 60 << 20,
            ..DropReport::default()
        });
        room_for_mapped(&done, 40 << 20)
    };
    assert_eq!((room(40 << 20, 0), room(0, 40 << 20)), (0, 0));
    assert_eq!((room(0, 30 << 20), room(0, 0)), (10 << 20, 40 << 20));
}

#[test]
fn what_is_cut_to_pages_or_used_again_is_not_all_there_was() {
    let found_all = |tried_bytes, young_again_bytes, bytes_max| {
        let done = Done {
            tried_bytes,
            young_again_bytes,
            ..Done::default()
        };
        done.found_all(bytes_max)
    };
    let bytes_max = 10 * PAGE_BYTES + 5;
    assert!(!found_all(10 * PAGE_BYTES, 0, bytes_max));
    assert!(!found_all(7 * PAGE_BYTES, 3 * PAGE_BYTES, bytes_max));
    assert!(found_all(9 * PAGE_BYTES, 0, bytes_max));
    assert!(found_all(0, 0, PAGE_BYTES));
}
