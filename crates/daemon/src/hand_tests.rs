// SPDX-License-Identifier: Apache-2.0
use agewise_host::mover::{PageoutReport, SkipReason};
use agewise_host::pagecache::DropReport;

use super::done::KEPT_MAX_BYTES;
use super::*;

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
    done.count(&report);
    done.end(1 << 20);
    assert_eq!((done.tried_bytes, done.left_bytes()), (1 << 20, 0));
    assert!(!done.found_all(1 << 20));
}

#[test]
fn what_goes_wrong_in_each_pass_is_said_once() {
    let mut done = Done::default();
    for _ in 0..3 {
        done.trouble("process 7: not permitted".to_owned());
    }
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

#[test]
fn what_may_have_been_used_was_not_tried_but_found() {
    let mut done = Done::default();
    done.count_dropped(&DropReport {
        asked_bytes: 10 << 20,
        left_bytes: 4 << 20,
        unknown_bytes: 6 << 20,
        ..DropReport::default()
    });
    assert_eq!((done.tried_bytes, done.young_again_bytes), (4 << 20, 0));
    assert!(!done.found_all(10 << 20));
}
