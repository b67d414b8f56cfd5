// SPDX-License-Identifier: Apache-2.0
//! Cold pages of files leave: exact ranges, through a descriptor that can only read.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use agewise_policy::table::PAGES_PER_TABLE;
use serde::Serialize;

use super::accessed::{Accesses, Block};
use super::cached::CachedFile;
use super::files::FileAges;
use super::names::Place;
use super::shown::CacheKind;
use super::stat::cachestat;
use crate::access::{AccessError, PAGE_BYTES};
use crate::mover::{Clock, SystemClock, TokenBucket};

/// Pages of one call: between the look at them and the call little time passes.
const CHUNK_PAGES: u64 = 2048;

/// File systems whose pages come back over a network or from another program: leaving them costs
/// more than we know.
const FAR: [&str; 14] = [
    "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "fuse", "fuseblk", "fusectl", "virtiofs",
    "ocfs2", "gfs2", "lustre",
];

/// Limits of dropping.
#[derive(Clone, Copy, Debug)]
pub struct DropLimits {
    /// Bytes, at most.
    pub bytes_max: u64,
    /// Bytes a second, on average.
    pub rate_bytes_per_s: u64,
    /// Everything but the call itself.
    pub rehearse: bool,
    /// Files of network and FUSE file systems as well.
    pub far: bool,
}

/// What happened. `asked_bytes` is the sum of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DropReport {
    /// Cold when it was planned.
    pub asked_bytes: u64,
    /// Left memory.
    pub left_bytes: u64,
    /// Would have been asked to leave, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// Accessed since it was planned.
    pub young_bytes: u64,
    /// Dirty, or being written: never touched.
    pub dirty_bytes: u64,
    /// Stayed although asked: mapped by a process, locked, or part of a large folio that is used.
    pub stayed_bytes: u64,
    /// Gone by itself since it was planned.
    pub vanished_bytes: u64,
    /// Of a file that no path leads to any more, on a network, or that cannot be opened.
    pub unreachable_bytes: u64,
    /// Not reached: limits, or an end that was asked for.
    pub limited_bytes: u64,
}

impl DropReport {
    /// Names of the [`values`](Self::values).
    pub const NAMES: [&'static str; 9] = [
        "asked_bytes",
        "left_bytes",
        "rehearsed_bytes",
        "young_bytes",
        "dirty_bytes",
        "stayed_bytes",
        "vanished_bytes",
        "unreachable_bytes",
        "limited_bytes",
    ];

    /// All figures, in the order of [`NAMES`](Self::NAMES).
    pub fn values(mut self) -> [u64; Self::NAMES.len()] {
        self.fields().map(|field| *field)
    }

    fn fields(&mut self) -> [&mut u64; Self::NAMES.len()] {
        let DropReport {
            asked_bytes,
            left_bytes,
            rehearsed_bytes,
            young_bytes,
            dirty_bytes,
            stayed_bytes,
            vanished_bytes,
            unreachable_bytes,
            limited_bytes,
        } = self;
        [
            asked_bytes,
            left_bytes,
            rehearsed_bytes,
            young_bytes,
            dirty_bytes,
            stayed_bytes,
            vanished_bytes,
            unreachable_bytes,
            limited_bytes,
        ]
    }

    /// Adds another one, of another file.
    pub fn add(&mut self, other: &DropReport) {
        for (sum, more) in self.fields().into_iter().zip(other.values()) {
            *sum = sum.saturating_add(more);
        }
    }
}

/// What can be asked of a file's pages.
pub trait CacheHand {
    /// Pages in the cache, and those of them that are dirty or being written back.
    ///
    /// # Errors
    /// What the system says.
    fn stat(&self, pages: &Range<u64>) -> io::Result<(u64, u64)>;

    /// Lets clean pages go that nobody maps.
    ///
    /// # Errors
    /// What the system says.
    fn drop(&self, pages: &Range<u64>) -> io::Result<()>;
}

/// A file of ours to read, by `cachestat` and `posix_fadvise`.
struct FileHand(File);

impl FileHand {
    /// Opens the very file that was seen: a regular one with its inode number.
    fn open(file: &CachedFile, place: &Place) -> io::Result<Self> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOATIME | libc::O_CLOEXEC;
        let open = |path: &Path| File::options().read(true).custom_flags(flags).open(path);
        let opened = open(&place.path)?;
        let found = opened.metadata()?;
        let same = found.ino() == file.inode.number && found.dev() == place.device;
        match found.is_file() && same {
            true => Ok(FileHand(opened)),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl CacheHand for FileHand {
    fn stat(&self, pages: &Range<u64>) -> io::Result<(u64, u64)> {
        let stat = cachestat(&self.0, pages.clone())?;
        Ok((stat.pages, stat.dirty_pages + stat.writeback_pages))
    }

    fn drop(&self, pages: &Range<u64>) -> io::Result<()> {
        let offset = |page: u64| i64::try_from(page * PAGE_BYTES).unwrap_or(i64::MAX);
        let (from, length) = (offset(pages.start), offset(pages.end - pages.start));
        // SAFETY: a descriptor of ours; the advice changes no content.
        let error = unsafe {
            libc::posix_fadvise(self.0.as_raw_fd(), from, length, libc::POSIX_FADV_DONTNEED)
        };
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

/// Drops cold pages of one file after the other, within limits for all together.
pub struct Dropper<'a> {
    limits: DropLimits,
    bucket: TokenBucket,
    cancel: &'a AtomicBool,
    asked_bytes: u64,
}

impl<'a> Dropper<'a> {
    /// One that has done nothing yet.
    pub fn new(limits: DropLimits, cancel: &'a AtomicBool) -> Self {
        Dropper {
            limits,
            bucket: TokenBucket::new(limits.rate_bytes_per_s, SystemClock.now_ns()),
            cancel,
            asked_bytes: 0,
        }
    }

    /// Drops these pages of a file, each looked at once more right before.
    ///
    /// # Errors
    /// The accesses cannot be read any more: nothing leaves without them. What happens to the file
    /// is in the report.
    pub fn drop_pages(
        &mut self,
        ages: &mut FileAges,
        file: &CachedFile,
        place: Option<&Place>,
        runs: &[Range<u64>],
    ) -> Result<DropReport, AccessError> {
        let bytes = |pages: &Range<u64>| (pages.end - pages.start) * PAGE_BYTES;
        let mut report = DropReport {
            asked_bytes: runs.iter().map(bytes).sum(),
            ..DropReport::default()
        };
        let is_near = self.limits.far || !FAR.contains(&file.on.fs_type.as_str());
        let hand = place
            .filter(|_| is_near && file.on.kind == CacheKind::File)
            .and_then(|place| FileHand::open(file, place).ok());
        let Some(hand) = hand else {
            report.unreachable_bytes = report.asked_bytes;
            return Ok(report);
        };
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let chunk = at..run.end.min(at + CHUNK_PAGES);
                at = chunk.end;
                if self.is_over(bytes(&chunk)) {
                    report.limited_bytes += bytes(&chunk);
                    continue;
                }
                ages.take_in_accesses()?;
                for piece in quiet(ages.pending(), file, &chunk, &mut report) {
                    self.drop_piece(&hand, piece, &mut report);
                }
            }
        }
        Ok(report)
    }

    /// Whether limits or an end that was asked for leave no room for so much; waits for the rate.
    fn is_over(&mut self, bytes: u64) -> bool {
        loop {
            let room = self.limits.bytes_max.saturating_sub(self.asked_bytes);
            if self.cancel.load(Relaxed) || room < bytes {
                return true;
            }
            match self.bucket.wait_ns(SystemClock.now_ns()) {
                0 => return false,
                // In pieces, so that an end is noticed.
                wait_ns => SystemClock.sleep_ns(wait_ns.min(50_000_000)),
            }
        }
    }

    /// Pages of which none was accessed: the clean ones are asked to leave.
    fn drop_piece(&mut self, hand: &dyn CacheHand, pages: Range<u64>, report: &mut DropReport) {
        let count = pages.end - pages.start;
        let Ok((cached, unclean)) = hand.stat(&pages) else {
            report.unreachable_bytes += count * PAGE_BYTES;
            return;
        };
        if unclean > 0 && count > 1 && cached > 0 {
            // The advice would begin to write dirty pages: they stay out of it.
            let middle = pages.start + count / 2;
            self.drop_piece(hand, pages.start..middle, report);
            self.drop_piece(hand, middle..pages.end, report);
            return;
        }
        report.vanished_bytes += (count - cached.min(count)) * PAGE_BYTES;
        let cached_bytes = cached.min(count) * PAGE_BYTES;
        if cached == 0 {
            return;
        }
        if unclean > 0 {
            report.dirty_bytes += cached_bytes;
            return;
        }
        self.asked_bytes += cached_bytes;
        self.bucket.take(cached_bytes);
        if self.limits.rehearse {
            report.rehearsed_bytes += cached_bytes;
            return;
        }
        let left = match hand.drop(&pages).and_then(|()| hand.stat(&pages)) {
            Ok((after, _)) => cached.min(count).saturating_sub(after) * PAGE_BYTES,
            Err(_) => 0,
        };
        report.left_bytes += left;
        report.stayed_bytes += cached_bytes - left;
    }
}

/// The parts of `pages` that were not accessed; the others are counted.
fn quiet(
    accesses: &Accesses,
    file: &CachedFile,
    pages: &Range<u64>,
    report: &mut DropReport,
) -> Vec<Range<u64>> {
    let table = PAGES_PER_TABLE as u64;
    let mut parts: Vec<Range<u64>> = Vec::new();
    for page in pages.clone() {
        let block = Block {
            inode: file.inode.address,
            number: file.inode.number as u32,
            block: (page / table) as u32,
        };
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
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    /// Pages that are clean, dirty or stay whatever they are told.
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
            let limits = DropLimits {
                bytes_max: u64::MAX,
                rate_bytes_per_s: u64::MAX,
                rehearse,
                far: false,
            };
            let cancel = AtomicBool::new(false);
            let mut report = DropReport::default();
            Dropper::new(limits, &cancel).drop_piece(&fake, 0..pages.len() as u64, &mut report);
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

    #[test]
    fn figures_stand_under_their_names() {
        let one = DropReport {
            asked_bytes: 3,
            left_bytes: 1,
            limited_bytes: 2,
            ..DropReport::default()
        };
        let mut sum = one;
        sum.add(&one);
        let text = format!("{sum:?}");
        for (name, value) in DropReport::NAMES.iter().zip(sum.values()) {
            assert!(text.contains(&format!("{name}: {value}")), "{name}: {text}");
        }
        assert_eq!(sum.values().iter().sum::<u64>(), 12);
    }
}
