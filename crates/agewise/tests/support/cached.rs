// SPDX-License-Identifier: Apache-2.0
//! Files whose pages are in memory or not, and charged to the cgroup of whoever reads them first.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use agewise_host::pagecache::cachestat;
use rustix::fs::{Advice, fadvise};

use super::Group;

pub const PAGE: u64 = 4096;
/// Pages of a file.
pub const PAGES: u64 = 4096;
pub const HALF_BYTES: u64 = PAGES / 2 * PAGE;

/// Creates a file that is not in memory.
pub fn uncached(path: &Path) -> File {
    fs::write(path, vec![7; (PAGES * PAGE) as usize]).unwrap();
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    // Pages in a CPU's LRU batch cannot be dropped and stay charged to us, so try again.
    for _ in 0..200 {
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        if cachestat(&file, 0..PAGES).map_or(0, |stat| stat.pages) == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    file
}

/// Creates a file with all pages in memory, clean, and charged to the cgroup.
pub fn cached_by(group: &Group, path: &Path) -> File {
    let file = uncached(path);
    read_in(group, path);
    fadvise(&file, 0, None, Advice::Random).unwrap();
    file
}

/// Reads a file from a process in the cgroup.
pub fn read_in(group: &Group, path: &Path) {
    let reader = "echo $$ > \"$1/cgroup.procs\" && cat \"$2\" > /dev/null";
    let read = Command::new("sh")
        .args(["-c", reader, "sh"])
        .arg(&group.dir)
        .arg(path)
        .status();
    assert!(read.unwrap().success());
}

/// Reads the first half of the file repeatedly.
pub fn keep_warm(file: &File, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        for page in 0..PAGES / 2 {
            let mut bytes = [0; PAGE as usize];
            file.read_exact_at(&mut bytes, page * PAGE).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
