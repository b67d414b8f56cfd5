// SPDX-License-Identifier: Apache-2.0
//! Drops cold file pages: exact ranges, file by file.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::cached::{CachedFile, Cold};
use super::chunk::{Stalled, chunk_at, past};
use super::files::FileAges;
use super::hand::{CacheHand, FileHand};
use super::names::{Mounts, Place};
use super::quiet::quiet;
use super::report::DropReport;
use super::shown::{CacheKind, Inode, SuperBlock};
use super::stat::no_cachestat;
use crate::access::{AccessError, PAGE_BYTES};
use crate::mover::{Clock, SystemClock, TokenBucket};

/// Limits of dropping.
#[derive(Clone, Copy, Debug)]
pub struct DropLimits {
    /// Most bytes that leave; those that stay do not count.
    pub bytes_max: u64,
    /// Bytes that leave per second, on average.
    pub rate_bytes_per_s: u64,
    /// Do everything except the call itself.
    pub rehearse: bool,
    /// Include files of network and FUSE file systems.
    pub far: bool,
    /// Most files tried, the largest first: finding and opening each takes about 20 us.
    pub files_max: usize,
}

/// Called with each file that was tried, where it was found, and the outcome.
pub type Tell<'a> = dyn FnMut(&CachedFile, Option<&Place>, &DropReport) + 'a;

/// Drops cold pages, file by file, within limits for all of them together.
pub struct Dropper<'a> {
    limits: DropLimits,
    bucket: TokenBucket,
    cancel: &'a AtomicBool,
    /// What left, or would have.
    used_bytes: u64,
}

impl<'a> Dropper<'a> {
    /// Creates a dropper that has used none of its limits.
    pub fn new(limits: DropLimits, cancel: &'a AtomicBool) -> Self {
        Dropper {
            limits,
            bucket: TokenBucket::new(limits.rate_bytes_per_s, SystemClock.now_ns()),
            cancel,
            used_bytes: 0,
        }
    }

    /// Drops cold pages, starting with the files that use the most memory. Returns the sum.
    ///
    /// # Errors
    /// The kernel lacks `cachestat`, or accesses cannot be read any more. Nothing is dropped then.
    pub fn drop_cold(
        &mut self,
        ages: &mut FileAges,
        cold: &Cold<'_>,
        mounts: &Mounts,
        tell: &mut Tell<'_>,
    ) -> Result<DropReport, AccessError> {
        let is_file = |file: &&CachedFile| file.on.kind == CacheKind::File;
        let files = ages.files().filter(is_file);
        let mut files: Vec<(CachedFile, Vec<Range<u64>>)> = files
            .map(|file| (file, ages.cold(file, cold)))
            .filter(|(_, runs)| !runs.is_empty())
            .map(|(file, runs)| (file.clone(), runs))
            .collect();
        files.sort_by_key(|(file, _)| (std::cmp::Reverse(file.pages), file.inode.address));
        let mut sum = DropReport::default();
        for (at, (file, runs)) in files.iter().enumerate() {
            if at >= self.limits.files_max {
                sum.add(&limited(runs));
                continue;
            }
            let place = match file.inode.links > 0 && self.may_be_taken(&file.on) {
                true => ages
                    .path(file)?
                    .and_then(|path| mounts.find(file.on.device, &path, file.inode.number)),
                false => None,
            };
            let report = self.drop_pages(ages, file, place.as_ref(), runs)?;
            tell(file, place.as_ref(), &report);
            sum.add(&report);
        }
        Ok(sum)
    }

    /// Whether the file system may be touched: not if its files come back over a network, unless
    /// requested.
    fn may_be_taken(&self, on: &SuperBlock) -> bool {
        on.kind == CacheKind::File && (self.limits.far || !on.is_far())
    }

    fn open(&self, on: &SuperBlock, inode: &Inode, place: Option<&Place>) -> Option<FileHand> {
        let place = place.filter(|_| self.may_be_taken(on))?;
        FileHand::open(inode.number, inode.generation, place).ok()
    }

    /// Drops the clean pages among those the caller has just selected. `each` is called with every
    /// run and its outcome.
    ///
    /// # Errors
    /// The kernel lacks `cachestat`.
    pub fn drop_chosen(
        &mut self,
        (on, inode): (&SuperBlock, &Inode),
        place: Option<&Place>,
        runs: &[Range<u64>],
        each: &mut dyn FnMut(&Range<u64>, &DropReport),
    ) -> Result<(), AccessError> {
        let hand = self.open(on, inode, place);
        for run in runs {
            let mut report = DropReport {
                asked_bytes: (run.end - run.start) * PAGE_BYTES,
                ..DropReport::default()
            };
            match &hand {
                Some(hand) => self.drop_piece(hand, run.clone(), &mut report, &mut |_| ())?,
                None => report.unreachable_bytes = report.asked_bytes,
            }
            each(run, &report);
        }
        Ok(())
    }

    /// Drops these pages of a file, after checking each once more.
    ///
    /// # Errors
    /// As [`drop_cold`](Self::drop_cold). Other errors of the file are in the report.
    fn drop_pages(
        &mut self,
        ages: &mut FileAges,
        file: &CachedFile,
        place: Option<&Place>,
        runs: &[Range<u64>],
    ) -> Result<DropReport, AccessError> {
        let mut report = DropReport {
            asked_bytes: bytes_of(runs),
            ..DropReport::default()
        };
        let Some(hand) = self.open(&file.on, &file.inode, place) else {
            report.unreachable_bytes = report.asked_bytes;
            return Ok(report);
        };
        let mut stalled = Stalled::default();
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                if stalled.is_over(&report) {
                    report.stayed_bytes += (run.end - at) * PAGE_BYTES;
                    break;
                }
                let room = self.room_pages();
                if room == 0 {
                    report.limited_bytes += (run.end - at) * PAGE_BYTES;
                    break;
                }
                let chunk = chunk_at(at, run.end, room);
                let before = report;
                ages.take_in_accesses()?;
                for piece in quiet(ages.pending(), file, &chunk, &mut report) {
                    self.drop_piece(&hand, piece, &mut report, &mut |left| {
                        ages.note_dropped(file, left);
                    })?;
                }
                at = past(&chunk, run.end, &before, &mut report);
            }
        }
        Ok(report)
    }

    /// Pages that still fit the limits, after waiting for the rate; 0 after a cancellation.
    fn room_pages(&mut self) -> u64 {
        loop {
            let room = self.limits.bytes_max.saturating_sub(self.used_bytes) / PAGE_BYTES;
            if self.cancel.load(Relaxed) || room == 0 {
                return 0;
            }
            match self.bucket.wait_ns(SystemClock.now_ns()) {
                0 => return room,
                // Sleeps in short pieces, to notice a cancellation.
                wait_ns => SystemClock.sleep_ns(wait_ns.min(50_000_000)),
            }
        }
    }

    /// Drops the clean pages of a range in which none was accessed. Calls `left` with ranges that
    /// left completely.
    fn drop_piece(
        &mut self,
        hand: &dyn CacheHand,
        pages: Range<u64>,
        report: &mut DropReport,
        left: &mut dyn FnMut(&Range<u64>),
    ) -> Result<(), AccessError> {
        let count = pages.end - pages.start;
        let (cached, unclean) = match hand.stat(&pages) {
            Ok(stat) => stat,
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => return Err(no_cachestat()),
            Err(_) => {
                report.unreachable_bytes += count * PAGE_BYTES;
                return Ok(());
            }
        };
        if unclean > 0 && count > 1 && cached > 0 {
            // The advice would start writeback of dirty pages, so split the range to exclude them.
            let middle = pages.start + count / 2;
            self.drop_piece(hand, pages.start..middle, report, left)?;
            return self.drop_piece(hand, middle..pages.end, report, left);
        }
        report.vanished_bytes += (count - cached.min(count)) * PAGE_BYTES;
        let cached_bytes = cached.min(count) * PAGE_BYTES;
        if cached == 0 {
            return Ok(());
        }
        if unclean > 0 {
            report.dirty_bytes += cached_bytes;
            return Ok(());
        }
        if self.limits.rehearse {
            report.rehearsed_bytes += cached_bytes;
            self.use_up(cached_bytes);
            return Ok(());
        }
        let left_bytes = match hand.drop(&pages).and_then(|()| hand.stat(&pages)) {
            Ok((after, _)) => cached.min(count).saturating_sub(after) * PAGE_BYTES,
            Err(_) => 0,
        };
        if left_bytes == count * PAGE_BYTES {
            left(&pages);
        }
        report.left_bytes += left_bytes;
        report.stayed_bytes += cached_bytes - left_bytes;
        self.use_up(left_bytes);
        Ok(())
    }

    fn use_up(&mut self, bytes: u64) {
        self.used_bytes += bytes;
        self.bucket.take(bytes);
    }
}

/// The report for pages that were not reached.
fn limited(runs: &[Range<u64>]) -> DropReport {
    DropReport {
        asked_bytes: bytes_of(runs),
        limited_bytes: bytes_of(runs),
        ..DropReport::default()
    }
}

fn bytes_of(runs: &[Range<u64>]) -> u64 {
    let pages = runs.iter().map(|run| run.end - run.start);
    pages.sum::<u64>() * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use std::io;

    use proptest::prelude::*;

    /// Pages that are clean, dirty, or stay whatever is asked.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Page {
        Clean,
        Dirty,
        Mapped,
    }

    struct Fake(RefCell<BTreeMap<u64, Page>>);

    impl CacheHand for Fake {
        fn stat(&self, pages: &Range<u64>) -> io::Result<(u64, u64)> {
            let all = self.0.borrow();
            let dirty = all
                .range(pages.clone())
                .filter(|(_, page)| **page == Page::Dirty);
            Ok((
                all.range(pages.clone()).count() as u64,
                dirty.count() as u64,
            ))
        }

        fn drop(&self, pages: &Range<u64>) -> io::Result<()> {
            let mut all = self.0.borrow_mut();
            let dirty = all
                .range(pages.clone())
                .any(|(_, page)| *page == Page::Dirty);
            assert!(!dirty, "dirty pages among {pages:?}");
            all.retain(|at, page| !pages.contains(at) || *page == Page::Mapped);
            Ok(())
        }
    }

    fn limits() -> DropLimits {
        DropLimits {
            bytes_max: u64::MAX,
            rate_bytes_per_s: u64::MAX,
            rehearse: false,
            far: false,
            files_max: usize::MAX,
        }
    }

    #[test]
    fn what_stays_uses_up_no_limit() {
        let cancel = AtomicBool::new(false);
        let content = (0..20).map(|at| (at, if at < 10 { Page::Mapped } else { Page::Clean }));
        let fake = Fake(RefCell::new(content.collect()));
        let limits = DropLimits {
            bytes_max: 10 * PAGE_BYTES,
            ..limits()
        };
        let mut dropper = Dropper::new(limits, &cancel);
        let mut report = DropReport::default();
        let drop = |dropper: &mut Dropper<'_>, pages, report: &mut _| {
            dropper.drop_piece(&fake, pages, report, &mut |_| ())
        };
        drop(&mut dropper, 0..10, &mut report).unwrap();
        assert_eq!((report.stayed_bytes, dropper.room_pages()), (40960, 10));
        drop(&mut dropper, 10..14, &mut report).unwrap();
        assert_eq!((report.left_bytes, dropper.room_pages()), (16384, 6));
    }

    /// A file of which the kernel says only this.
    struct Failing(i32);

    impl CacheHand for Failing {
        fn stat(&self, _: &Range<u64>) -> io::Result<(u64, u64)> {
            Err(io::Error::from_raw_os_error(self.0))
        }

        fn drop(&self, _: &Range<u64>) -> io::Result<()> {
            panic!("dropped without knowing what is dirty")
        }
    }

    #[test]
    fn a_kernel_without_cachestat_is_not_a_file_that_cannot_be_reached() {
        let cancel = AtomicBool::new(false);
        let of = |errno| {
            let mut report = DropReport::default();
            let mut dropper = Dropper::new(limits(), &cancel);
            let done = dropper.drop_piece(&Failing(errno), 0..10, &mut report, &mut |_| ());
            done.map(|()| report.unreachable_bytes)
        };
        assert_eq!(of(libc::EOPNOTSUPP).unwrap(), 10 * PAGE_BYTES);
        let refused = of(libc::ENOSYS).unwrap_err();
        assert!(refused.to_string().contains("Linux 6.5"), "{refused}");
    }

    proptest! {
        #[test]
        fn all_that_is_asked_is_accounted_for(
            pages in prop::collection::vec(0u8..4, 1..300),
            rehearse: bool,
        ) {
            let kinds = |kind: &u8| match kind {
                0 => None,
                1 => Some(Page::Clean),
                2 => Some(Page::Dirty),
                _ => Some(Page::Mapped),
            };
            let of = |kind: u8| pages.iter().filter(|page| **page == kind).count() as u64 * 4096;
            let content = pages.iter().map(kinds).enumerate();
            let content = content.filter_map(|(at, page)| Some((at as u64, page?)));
            let fake = Fake(RefCell::new(content.collect()));
            let limits = DropLimits { rehearse, ..limits() };
            let cancel = AtomicBool::new(false);
            let mut report = DropReport::default();
            let mut noted = 0;
            Dropper::new(limits, &cancel).drop_piece(
                &fake,
                0..pages.len() as u64,
                &mut report,
                &mut |left| noted += (left.end - left.start) * 4096,
            ).unwrap();
            prop_assert!(noted <= report.left_bytes);
            prop_assert_eq!(report.vanished_bytes, of(0));
            prop_assert_eq!(report.dirty_bytes, of(2));
            let (left, stayed, rehearsed) = match rehearse {
                true => (0, 0, of(1) + of(3)),
                false => (of(1), of(3), 0),
            };
            prop_assert_eq!(report.left_bytes, left);
            prop_assert_eq!(report.stayed_bytes, stayed);
            prop_assert_eq!(report.rehearsed_bytes, rehearsed);
        }
    }
}
