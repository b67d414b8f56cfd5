// SPDX-License-Identifier: Apache-2.0
//! `agewise files` and `agewise reclaim --files` on a real FUSE file system, which the test serves:
//! its pages are shown like those of other files, and leave only if somebody asks for it.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, UNIX_EPOCH};

use agewise_host::pagecache::cachestat;
use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request, Session,
};
use rustix::fs::{Advice, fadvise};
use serde_json::Value;

#[allow(dead_code, reason = "each test program uses its part of it")]
mod support;
use support::Group;
use support::cached::*;
use support::program::{agewise, json_lines, words};

/// A directory with one file.
struct OneFile;

/// Answers stay valid for the whole test.
const TTL: Duration = Duration::from_secs(3600);
const FILE: INodeNo = INodeNo(2);

fn attributes(ino: INodeNo) -> FileAttr {
    let is_file = ino == FILE;
    FileAttr {
        ino,
        size: if is_file { PAGES * PAGE } else { 0 },
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: match is_file {
            true => FileType::RegularFile,
            false => FileType::Directory,
        },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for OneFile {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "file" {
            true => reply.entry(&TTL, &attributes(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &attributes(ino));
    }

    /// Without this flag the kernel drops all pages of a file that somebody opens.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = (PAGES * PAGE).saturating_sub(offset);
        reply.data(&vec![7; left.min(size.into()) as usize]);
    }
}

/// The record of the file, if the page cache can be followed.
fn record(line: &str) -> Option<Value> {
    let (worked, out, error) = agewise(&words(line));
    if !worked
        && ["not permitted", "not available here"]
            .iter()
            .any(|why| error.contains(why))
    {
        println!("SKIPPED files of FUSE: {error}");
        return None;
    }
    assert!(worked, "{error}");
    let is_it = |record: &Value| {
        let path = record["path"].as_str();
        path.is_some_and(|path| path.ends_with("/file"))
    };
    json_lines(&out).into_iter().find(is_it)
}

#[test]
fn pages_of_fuse_are_shown_and_leave_only_if_asked_for() {
    let group = match Group::create("fuse") {
        Ok(group) => group,
        Err(why) => return println!("SKIPPED files of FUSE: {why}"),
    };
    let dir = tempfile::tempdir().unwrap();
    let mounted = Session::new(OneFile, dir.path(), &Config::default());
    let served = match mounted.and_then(Session::spawn) {
        Ok(served) => served,
        Err(why) => return println!("SKIPPED files of FUSE: {why}"),
    };
    check(&group, &dir.path().join("file"));
    drop(served);
}

fn check(group: &Group, path: &Path) {
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, Advice::Random).unwrap();
    read_in(group, path);
    let stop = AtomicBool::new(false);
    let cgroup = &group.path;
    let in_cache = |pages| cachestat(&file, pages).map_or(0, |stat| stat.pages * PAGE);
    std::thread::scope(|scope| {
        scope.spawn(|| keep_warm(&file, &stop));
        let times = "--older-than 2s --interval 500ms --observe 6s --format json";
        let shown = record(&format!(
            "files --cgroup {cgroup} --duration 5s --intervals 3s --format json"
        ));
        let kept = record(&format!("reclaim --files --cgroup {cgroup} {times}"));
        let kept_bytes = in_cache(0..PAGES);
        let moved = record(&format!("reclaim --files --far --cgroup {cgroup} {times}"));
        stop.store(true, Relaxed);
        let (Some(shown), Some(kept), Some(moved)) = (shown, kept, moved) else {
            return;
        };
        let bytes = |record: &Value, field: &str| record[field].as_u64().unwrap();
        // Others may reclaim cold pages (such as a DAMON scheme of the machine).
        let is_half = |bytes| (HALF_BYTES * 9 / 10..=HALF_BYTES * 101 / 100).contains(&bytes);
        assert_eq!(shown["path"], "fuse:/file", "{shown}");
        let total = bytes(&shown, "resident_bytes");
        assert!(is_half(total - HALF_BYTES), "{shown}");
        assert!(
            bytes(&shown["ages"][1], "bytes") >= HALF_BYTES * 9 / 10,
            "{shown}"
        );

        assert!(is_half(bytes(&kept, "unreachable_bytes")), "{kept}");
        assert_eq!(bytes(&kept, "left_bytes"), 0, "{kept}");
        assert!(is_half(kept_bytes - HALF_BYTES), "{kept}");
        assert_eq!(moved["path"], path.to_str().unwrap());
        assert!(is_half(bytes(&moved, "left_bytes")), "{moved}");
        let [hot, cold] = [0..PAGES / 2, PAGES / 2..PAGES].map(in_cache);
        assert!(cold <= HALF_BYTES / 100, "cold pages: {moved}");
        assert!(hot >= HALF_BYTES * 995 / 1000, "hot pages: {moved}");
    });
}
