// SPDX-License-Identifier: Apache-2.0
//! The programs that note accesses stop running: nothing is dropped on what they noted before.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agewise_policy::table::PageSet;

use super::accessed::{AccessNotes, Accessed};
use super::accesses::{Accesses, Block};
use super::cached::Cold;
use super::drop::{DropLimits, Dropper};
use super::files::FileAges;
use super::names::Mounts;
use super::report::DropReport;
use super::stat::{cachestat, has_cachestat};
use super::walk::CacheWalk;
use crate::access::{AccessError, PAGE_BYTES};
use crate::root::ProcRoot;

const PAGES: u64 = 512;
/// Ages that count as cold, in ms.
const COLD_MS: u64 = 300;

/// Accesses of this machine, whose programs the test can detach.
#[derive(Clone)]
struct Notes(Arc<Mutex<Accessed>>);

impl AccessNotes for Notes {
    fn look(&mut self) -> Result<Accesses, AccessError> {
        self.0.lock().unwrap().look()
    }

    fn peek(&mut self, block: &Block) -> Result<PageSet, AccessError> {
        self.0.lock().unwrap().peek(block)
    }

    fn sample(&mut self, slot: usize, inode: u64) {
        self.0.lock().unwrap().sample(slot, inode);
    }
}

/// The source, or `None` if there is none here.
fn opened<T>(source: Result<T, AccessError>) -> Option<T> {
    match source {
        Ok(source) => Some(source),
        Err(error @ (AccessError::NoPrivilege { .. } | AccessError::Unsupported { .. })) => {
            println!("SKIPPED programs that no longer run: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn programs_that_no_longer_run_are_noticed_and_attached_again() {
    let Some(mut accessed) = opened(Accessed::open()) else {
        return;
    };
    let is_known = |found: &Accesses| found.dropped == 0;
    assert!(is_known(&accessed.look().unwrap()));
    assert!(is_known(&accessed.look().unwrap()));
    accessed.detach();
    let error = accessed.look().unwrap_err().to_string();
    assert!(error.contains("they were attached again"), "{error}");
    assert!(!is_known(&accessed.look().unwrap()), "nobody noted these");
    assert!(is_known(&accessed.look().unwrap()));
}

/// A file on a disk whose pages are in memory and clean.
fn cached(dir: &Path) -> File {
    let mut file = File::create_new(dir.join("file")).unwrap();
    file.write_all(&vec![1; (PAGES * PAGE_BYTES) as usize])
        .unwrap();
    file.sync_all().unwrap();
    file
}

/// Drops what is cold of one file.
fn drop_cold(ages: &mut FileAges, number: u64) -> Result<DropReport, AccessError> {
    let cold = Cold {
        since_ms: ages.idle_for(COLD_MS),
        owns: &|_| true,
    };
    let limits = DropLimits {
        bytes_max: u64::MAX,
        rate_bytes_per_s: u64::MAX,
        rehearse: false,
        far: false,
        files_max: usize::MAX,
    };
    ages.files.retain(|_, file| file.inode.number == number);
    let mounts = Mounts::read(&ProcRoot::default()).unwrap();
    let never = AtomicBool::new(false);
    Dropper::new(limits, &never).drop_cold(ages, &cold, &mounts, &mut |_, _, _| ())
}

#[test]
fn nothing_is_dropped_while_accesses_are_not_noted() {
    if !has_cachestat() {
        return println!("SKIPPED dropping blindly: cachestat needs Linux 6.5");
    }
    let (Some(walk), Some(accessed)) = (opened(CacheWalk::open()), opened(Accessed::open())) else {
        return;
    };
    let notes = Notes(Arc::new(Mutex::new(accessed)));
    let mut ages = FileAges::new(Box::new(walk), Box::new(notes.clone()), 3_600_000);
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = cached(dir.path());
    let number = file.metadata().unwrap().ino();
    let there = || cachestat(&file, 0..PAGES).unwrap().pages;
    let grow_old = |ages: &mut FileAges| {
        ages.look(&|_| true).unwrap();
        std::thread::sleep(Duration::from_millis(COLD_MS + 100));
        ages.look(&|_| true).unwrap();
    };
    grow_old(&mut ages);
    notes.0.lock().unwrap().detach();
    // Now it is hot, and nobody knows.
    let mut bytes = vec![0; (PAGES * PAGE_BYTES) as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let error = drop_cold(&mut ages, number).unwrap_err().to_string();
    assert!(error.contains("no longer run"), "{error}");
    assert_eq!(there(), PAGES);
    let report = drop_cold(&mut ages, number).unwrap();
    assert_eq!(report.unknown_bytes, PAGES * PAGE_BYTES, "{report:?}");
    assert_eq!(there(), PAGES);

    // Once it has been followed for as long again, it is known to be cold.
    grow_old(&mut ages);
    assert!(ages.has_lost_within(u64::MAX));
    let is_known = |ages: &mut FileAges| {
        grow_old(ages);
        !ages.has_lost_within(COLD_MS)
    };
    assert!((0..20).any(|_| is_known(&mut ages)));
    let report = drop_cold(&mut ages, number).unwrap();
    assert!(report.left_bytes > 0 && there() < PAGES, "{report:?}");
}
