// SPDX-License-Identifier: Apache-2.0
//! Samples of processes that share memory, fitted to what is charged.

use super::*;

/// Of two processes of 600 pages each, by a sample, 100 of which are in both.
fn sampled() -> SubjectReport {
    let bounds: Intervals = "1s".parse().unwrap();
    let name = Untrusted::from(std::path::Path::new("/a"));
    let mut report = SubjectReport::new(name, true, &[0], &[bounds]);
    report.nodes[0].1 = "1000 anon=825 file=7\n18446744073709551615 anon=275 file=0\n"
        .parse()
        .unwrap();
    report.resident_bytes = [1100 * PAGE_BYTES, 7 * PAGE_BYTES];
    report.unseen_bytes = [275 * PAGE_BYTES, 0];
    report.mapped_bytes = [1200 * PAGE_BYTES, 900 * PAGE_BYTES];
    report.largest_bytes = [600 * PAGE_BYTES, 4 * PAGE_BYTES];
    report.processes = 2;
    report.add_margins(&[[Margin::default(); 2]; 2]);
    report
}

#[test]
fn shared_memory_is_fitted_to_what_is_charged() {
    for (charged_pages, expected, off) in [
        (880, 880, true),
        (1100, 1100, false),
        // Bins are cut to whole pages, and resident memory is their sum.
        (881, 880, true),
        (2000, 1200, true),
        // They were moved into the cgroup.
        (3, 600, true),
    ] {
        let mut report = sampled();
        assert!(report.may_need_fit());
        report.fit(PageType::Anon, Some(charged_pages * PAGE_BYTES), u64::MAX);
        assert_eq!(
            report.resident_bytes,
            [expected * PAGE_BYTES, 7 * PAGE_BYTES]
        );
        assert_eq!(
            report.unseen_bytes.map(|bytes| bytes / PAGE_BYTES),
            [expected / 4, 0]
        );
        let bins = report.nodes[0].1.bins();
        assert_eq!(bins[0].amounts, [expected * 3 / 4, 7]);
        assert_eq!(bins[1].amounts, [expected / 4, 0]);
        let [anon, file] = report.margins_bytes[0];
        assert_eq!((anon.widest() > 0.0, file.widest()), (off, 0.0));
    }
}

/// Another subject counts the rest.
#[test]
fn what_counts_elsewhere_is_not_taken_back() {
    let mut report = sampled();
    report.fit(PageType::File, None, u64::MAX);
    assert_eq!(report.resident_bytes[1], 7 * PAGE_BYTES);
    assert_eq!(report.margins_bytes[0][1].widest(), 0.0);
}

#[test]
fn what_is_not_shared_stays_as_it_is_estimated() {
    let mut report = sampled();
    report.mapped_bytes = report.resident_bytes;
    report.fit(PageType::Anon, Some(0), u64::MAX);
    assert_eq!(report.resident_bytes[0], 1100 * PAGE_BYTES);
    report.fit(PageType::Anon, None, 700 * PAGE_BYTES);
    assert_eq!(report.resident_bytes[0], 700 * PAGE_BYTES);
    report.refuse("no privilege".to_owned());
    assert!(!report.may_need_fit());
}

/// Shares of nodes are rounded one by one.
#[test]
fn a_process_may_have_more_than_all_together() {
    let mut report = sampled();
    report.largest_bytes[0] = 1201 * PAGE_BYTES;
    report.fit(PageType::Anon, Some(880 * PAGE_BYTES), u64::MAX);
    assert!(report.resident_bytes[0] >= 1200 * PAGE_BYTES);
}
