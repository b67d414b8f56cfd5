// SPDX-License-Identifier: Apache-2.0
//! How a file's pages are dropped piece by piece, and when the rest is left alone.

use std::ops::Range;

use agewise_policy::table::PAGES_PER_TABLE;

use super::report::DropReport;
use crate::access::PAGE_BYTES;

/// Pages per call, few enough that little time passes between looking at them and the call.
const CHUNK_PAGES: u64 = 2048;

/// Gives up a file after this many bytes in a row have stayed: something maps it.
const STALLED_BYTES_MAX: u64 = 64 << 20;

/// Pages of the largest folio. Folios are aligned to their size, and leave as a whole or not at
/// all.
const FOLIO_PAGES: u64 = PAGES_PER_TABLE as u64;

/// The next pages of a run, where `room` pages may leave: whole folios, if there is room for the
/// largest one.
pub fn chunk_at(at: u64, end: u64, room: u64) -> Range<u64> {
    let most = at + room.min(CHUNK_PAGES);
    let border = most / FOLIO_PAGES * FOLIO_PAGES;
    if most >= end {
        at..end
    } else if border > at {
        at..border
    } else {
        at..most
    }
}

/// Where to go on in a run after a chunk. If limits cut that short and none of it left, it may be a
/// folio that is larger: the rest of that then counts as limited and is not tried in pieces.
pub fn past(chunk: &Range<u64>, end: u64, before: &DropReport, report: &mut DropReport) -> u64 {
    let stayed_bytes = report.stayed_bytes - before.stayed_bytes;
    let is_cut = chunk.end < end && !chunk.end.is_multiple_of(FOLIO_PAGES);
    if !is_cut || stayed_bytes == 0 || report.left_bytes > before.left_bytes {
        return chunk.end;
    }
    let past = chunk.end.next_multiple_of(FOLIO_PAGES).min(end);
    report.stayed_bytes = before.stayed_bytes;
    report.limited_bytes += stayed_bytes + (past - chunk.end) * PAGE_BYTES;
    past
}

/// How much of a file has stayed in a row.
#[derive(Default)]
pub struct Stalled {
    /// What had left, or would have, and what had stayed by then.
    moved_bytes: u64,
    stayed_bytes: u64,
}

impl Stalled {
    /// Whether the rest of the file is given up, after this report on it.
    pub fn is_over(&mut self, report: &DropReport) -> bool {
        let moved_bytes = report.went_bytes();
        if moved_bytes > self.moved_bytes {
            (self.moved_bytes, self.stayed_bytes) = (moved_bytes, report.stayed_bytes);
        }
        report.stayed_bytes - self.stayed_bytes >= STALLED_BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_are_cut_only_by_limits() {
        assert_eq!(chunk_at(100, 9000, u64::MAX >> 1), 100..2048);
        assert_eq!(chunk_at(2048, 9000, 600), 2048..2560);
        assert_eq!(chunk_at(2560, 9000, 88), 2560..2648);
        assert_eq!(chunk_at(8192, 9000, 808), 8192..9000);
    }

    #[test]
    fn a_folio_larger_than_the_room_is_limited_and_blocks_nothing() {
        let before = DropReport {
            stayed_bytes: 7,
            ..DropReport::default()
        };
        let after = |stayed_pages, left_pages| DropReport {
            stayed_bytes: 7 + stayed_pages * PAGE_BYTES,
            left_bytes: left_pages * PAGE_BYTES,
            ..DropReport::default()
        };
        let mut cut = after(64, 0);
        assert_eq!(past(&(0..64), 9000, &before, &mut cut), 512);
        assert_eq!((cut.stayed_bytes, cut.limited_bytes), (7, 512 * PAGE_BYTES));
        for (chunk, mut report) in [
            (0..512, after(512, 0)),
            (8960..9000, after(40, 0)),
            (0..64, after(32, 32)),
            (0..64, after(0, 0)),
        ] {
            let told = report;
            assert_eq!(past(&chunk, 9000, &before, &mut report), chunk.end);
            assert_eq!(report, told);
        }
    }

    #[test]
    fn a_file_that_stays_is_given_up() {
        let mut stalled = Stalled::default();
        let mut report = DropReport::default();
        report.stayed_bytes += STALLED_BYTES_MAX - 1;
        assert!(!stalled.is_over(&report));
        report.left_bytes += 1;
        report.stayed_bytes += 1;
        assert!(!stalled.is_over(&report), "some left");
        report.stayed_bytes += STALLED_BYTES_MAX - 1;
        assert!(!stalled.is_over(&report));
        report.stayed_bytes += 1;
        assert!(stalled.is_over(&report));
    }
}
