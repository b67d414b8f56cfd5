// SPDX-License-Identifier: Apache-2.0
//! Memory that needs room in swap to leave.

use super::*;
use crate::vma::VmaTable;

#[test]
fn without_swap_files_leave_and_anonymous_memory_says_why_not() {
    let mut mover = cold(20);
    mover.swap_free_bytes = 0;
    for page in &mut mover.pages[12..] {
        (page.file, page.mapping) = (true, 2);
    }
    let plan = Plan::of_base([run_of(0, 20)]);
    let (result, report, _) = evict(&mut mover, &plan, PageoutLimits::default());
    result.unwrap();
    assert_eq!(report.skipped_bytes.bytes(SkipReason::NoSwap), 12 * PAGE);
    assert_eq!(
        (report.left_anon_bytes, report.left_file_bytes),
        (0, 8 * PAGE)
    );
}

#[test]
fn shared_memory_goes_to_swap_or_stays() {
    let range = |first, pages| {
        let run = run_of(first, pages);
        format!("{:x}-{:x}", run.start, run.end)
    };
    let maps = format!(
        "{} rw-s 00000000 00:01 1 /memfd:x (deleted)\n{} r--s 00000000 08:01 2 /file\n",
        range(0, 12),
        range(12, 8)
    );
    let mut plan = Plan::of_base([run_of(0, 20)]);
    plan.heed(&VmaTable::from_text(&maps));
    for (free_pages, fits_pages) in [(100, 12), (5, 5), (0, 0)] {
        let mut mover = cold(20);
        mover.swap_free_bytes = free_pages * PAGE;
        for page in &mut mover.pages {
            page.file = true;
        }
        let (result, report, evicted) = evict(&mut mover, &plan, PageoutLimits::default());
        result.unwrap();
        assert_eq!(
            (report.left_anon_bytes, report.left_file_bytes),
            (fits_pages * PAGE, 8 * PAGE)
        );
        let stays = report.skipped_bytes.bytes(SkipReason::NoSwap);
        assert_eq!(stays, (12 - fits_pages) * PAGE);
        // Its entries are empty afterwards, as those of files.
        assert_eq!(evicted.file.bytes(), report.left_bytes);
    }
}

#[test]
fn a_full_swap_takes_what_fits() {
    let mut mover = cold(20);
    mover.swap_free_bytes = 7 * PAGE + 100;
    let plan = Plan::of_base([run_of(0, 20)]);
    let (_, report, _) = evict(&mut mover, &plan, PageoutLimits::default());
    assert_eq!(report.left_bytes, 7 * PAGE);
    assert_eq!(report.skipped_bytes.bytes(SkipReason::NoSwap), 13 * PAGE);
}

/// A rehearsal of two processes, one after the other, announces what then leaves: not what others
/// map too, nor more than swap takes.
#[test]
fn a_rehearsal_announces_what_then_leaves() {
    let plan = Plan::of_base([run_of(0, 60)]);
    let process = |free_pages: u64| {
        let mut mover = cold(60);
        mover.swap_free_bytes = free_pages * PAGE;
        for page in &mut mover.pages[..20] {
            page.sticky = true;
        }
        mover
    };
    let real = PageoutLimits {
        call_bytes_max: 8 * PAGE,
        ..Default::default()
    };
    let mut limits = PageoutLimits {
        rehearse: true,
        ..real
    };
    let mut free_pages = 70;
    for left_pages in [40, 30] {
        let (_, rehearsed, _) = evict(&mut process(70), &plan, limits);
        let (_, moved, _) = evict(&mut process(free_pages), &plan, real);
        assert_eq!(moved.left_bytes, left_pages * PAGE);
        assert_eq!(rehearsed.rehearsed_bytes, moved.left_bytes);
        assert_eq!(rehearsed.rehearsed_anon_bytes, moved.left_anon_bytes);
        assert_eq!(rehearsed.kept_bytes, moved.kept_bytes);
        assert_eq!(rehearsed.accounted_bytes(), plan.asked_bytes());
        limits.swap_taken_bytes += rehearsed.rehearsed_anon_bytes;
        free_pages -= left_pages;
    }
}
