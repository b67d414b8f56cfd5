// SPDX-License-Identifier: Apache-2.0
//! Real pages that stay, whatever is asked: dirty ones, and those of files on a network or of FUSE.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::drop::{DropLimits, Dropper};
use super::hand::generation_of;
use super::names::Place;
use super::report::DropReport;
use super::shown::{CacheKind, FAR, Inode, SuperBlock};
use super::stat::{cachestat, has_cachestat};
use crate::access::PAGE_BYTES;

const PAGES: u64 = 64;
const BYTES: u64 = PAGES * PAGE_BYTES;

/// A file that is in memory.
struct Cached {
    file: File,
    place: Place,
}

impl Cached {
    /// Clean if it was written back already.
    fn new(dir: &Path) -> Self {
        let path = dir.join("file");
        std::fs::write(&path, vec![1; BYTES as usize]).unwrap();
        let file = File::options().read(true).write(true).open(&path);
        let file = file.unwrap();
        let device = file.metadata().unwrap().dev();
        let place = Place { path, device };
        Cached { file, place }
    }

    /// Drops all of it, as if it were on such a file system.
    fn drop_as(&self, fs_type: &str, far: bool) -> DropReport {
        let on = SuperBlock {
            address: 0,
            magic: 0,
            fs_type: fs_type.into(),
            device: 0,
            kind: CacheKind::File,
        };
        let inode = Inode {
            address: 0,
            number: self.file.metadata().unwrap().ino(),
            generation: generation_of(&self.file).unwrap_or(0),
            size_bytes: BYTES,
            links: 1,
        };
        let limits = DropLimits {
            bytes_max: u64::MAX,
            rate_bytes_per_s: u64::MAX,
            rehearse: false,
            far,
            files_max: usize::MAX,
        };
        let never = AtomicBool::new(false);
        let mut sum = DropReport::default();
        Dropper::new(limits, &never)
            .drop_chosen(
                (&on, &inode),
                Some(&self.place),
                std::slice::from_ref(&(0..PAGES)),
                &mut |_, report| sum.add(report),
            )
            .unwrap();
        sum
    }

    /// Pages in memory, and how many of them are dirty or under writeback.
    fn pages(&self) -> [u64; 2] {
        let stat = cachestat(&self.file, 0..PAGES).unwrap();
        [stat.pages, stat.dirty_pages + stat.writeback_pages]
    }
}

fn is_skipped(what: &str) -> bool {
    let is_skipped = !has_cachestat();
    if is_skipped {
        println!("SKIPPED {what}: cachestat needs Linux 6.5");
    }
    is_skipped
}

#[test]
fn files_on_a_network_or_of_fuse_stay_unless_asked_for() {
    if is_skipped("files on a network") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let cached = Cached::new(dir.path());
    cached.file.sync_all().unwrap();
    for fs_type in FAR {
        let report = cached.drop_as(fs_type, false);
        assert_eq!(report.unreachable_bytes, BYTES, "{fs_type}: {report:?}");
    }
    assert_eq!(cached.pages(), [PAGES, 0]);
    for (fs_type, far) in [("fuse", true), ("ext4", false)] {
        cached
            .file
            .read_exact_at(&mut [0; BYTES as usize], 0)
            .unwrap();
        let report = cached.drop_as(fs_type, far);
        assert_eq!(report.unreachable_bytes, 0, "{fs_type}: {report:?}");
        assert!(report.left_bytes > 0, "{fs_type}: {report:?}");
    }
}

#[test]
fn dirty_pages_stay_and_are_named() {
    if is_skipped("dirty pages") {
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let cached = Cached::new(dir.path());
    let middle = vec![2; 8 * PAGE_BYTES as usize];
    // The kernel may write them back at any time.
    for _ in 0..20 {
        cached.file.sync_all().unwrap();
        cached.file.write_all_at(&middle, 16 * PAGE_BYTES).unwrap();
        let report = cached.drop_as("ext4", false);
        let [_, dirty] = cached.pages();
        if dirty >= 8 {
            assert!(report.dirty_bytes >= 8 * PAGE_BYTES, "{report:?}");
            assert!(report.left_bytes <= BYTES - 8 * PAGE_BYTES, "{report:?}");
            return;
        }
    }
    panic!("the kernel wrote the pages back each time");
}
