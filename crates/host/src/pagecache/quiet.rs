// SPDX-License-Identifier: Apache-2.0
//! Which pages were not accessed since they were selected: looked up right before they are dropped.

use std::ops::Range;

use agewise_policy::table::PAGES_PER_TABLE;

use super::accesses::Accesses;
use super::cached::CachedFile;
use super::report::DropReport;
use crate::access::PAGE_BYTES;

/// The parts of `pages` that were not accessed, for all that is known. Others are counted in the
/// report.
pub(super) fn quiet(
    accesses: &Accesses,
    file: &CachedFile,
    pages: &Range<u64>,
    report: &mut DropReport,
) -> Vec<Range<u64>> {
    let table = PAGES_PER_TABLE as u64;
    let mut parts: Vec<Range<u64>> = Vec::new();
    if accesses.lacks_many() {
        report.unknown_bytes += (pages.end - pages.start) * PAGE_BYTES;
        return parts;
    }
    for page in pages.clone() {
        let block = file.inode.block(page / table);
        let set = accesses.blocks.get(&block);
        if set.is_some_and(|set| set.contains((page % table) as usize)) {
            report.young_bytes += PAGE_BYTES;
            continue;
        }
        match parts.last_mut() {
            Some(last) if last.end == page => last.end += 1,
            _ => parts.push(page..page + 1),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Shared, file};
    use super::super::shown::CacheKind;
    use super::*;

    #[test]
    fn what_was_accessed_is_told_from_what_is_not_known() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        shared.0.lock().unwrap().files = vec![file(1, CacheKind::File, 7, 64)];
        ages.look(&|_| true).unwrap();
        let seen = ages.files().next().unwrap().clone();
        let mut at_once = |missed| {
            shared.0.lock().unwrap().missed = missed;
            ages.take_in_accesses().unwrap();
            let mut report = DropReport::default();
            let parts = quiet(ages.pending(), &seen, &(0..64), &mut report);
            let pages = [report.young_bytes, report.unknown_bytes].map(|bytes| bytes / PAGE_BYTES);
            (parts, pages)
        };
        shared.0.lock().unwrap().files[0].read = 0b1111_0000;
        assert_eq!(at_once(1), (vec![0..4, 8..64], [4, 0]));
        assert_eq!(at_once(1000), (vec![], [0, 64]));
    }
}
