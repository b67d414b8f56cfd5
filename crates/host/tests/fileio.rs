// SPDX-License-Identifier: Apache-2.0
//! Reads and writes as reported by the kernel, compared with those made. Needs root and BPF;
//! otherwise prints so and skips.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use agewise_host::fileio::{FileIo, FileIoSource, Whose};

mod cache;
#[path = "support/need.rs"]
mod need;
use cache::{Loop, on_disk};
use need::opened;

/// First page, last page, and whether it was a write, for each access of a process to a file.
fn told(all: &[FileIo], pid: u32, of: &File) -> Vec<(u64, u64, bool)> {
    let number = of.metadata().unwrap().ino();
    let of_file = |io: &&FileIo| io.inode == number && io.pid == pid;
    let found = all.iter().filter(of_file);
    found.map(|io| (io.first, io.last, io.write)).collect()
}

/// Pages written, in order, without the repetition when a write continues in the page before.
fn written(told: &[(u64, u64, bool)]) -> Vec<u64> {
    let writes = told.iter().filter(|io| io.2);
    let mut pages: Vec<u64> = writes.flat_map(|io| io.0..=io.1).collect();
    pages.dedup();
    pages
}

/// What is not reported of writes to the file system of a directory.
fn untold(source: &FileIoSource, dir: &Path) -> Option<String> {
    let name = match rustix::fs::statfs(dir).unwrap().f_type as u64 {
        0xef53 => "ext4",
        0x5846_5342 => "xfs",
        _ => "another",
    };
    source.unseen().filter(|unseen| !unseen.contains(name))
}

#[test]
fn what_is_told_is_what_was_read_and_written_in_order() {
    in_order(on_disk().path());
}

#[test]
fn a_long_read_is_one_and_overwrites_are_told_again() {
    long_reads(on_disk().path());
}

#[test]
fn what_is_appended_is_told_where_it_went() {
    appended(on_disk().path());
}

#[test]
fn other_file_systems_tell_the_same() {
    for kind in ["xfs", "btrfs"] {
        if let Some(mounted) = Loop::new(kind) {
            in_order(&mounted.at);
            long_reads(&mounted.at);
            appended(&mounted.at);
        }
    }
}

fn in_order(dir: &Path) {
    let Some(mut source) = opened("pagecache", "reads and writes", FileIoSource::open()) else {
        return;
    };
    let path = dir.join("file");
    let mut file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let own = std::process::id();
    source.watch(own, Whose::WithChildren).unwrap();
    file.write_all(&[1; 10_000]).unwrap();
    file.read_exact_at(&mut [0; 1], 9999).unwrap();
    file.read_exact_at(&mut [0; 1], 9998).unwrap();
    file.read_exact_at(&mut [0; 2], 4095).unwrap();
    // More than there is: pages past the end are not reported.
    file.seek(SeekFrom::Start(4100)).unwrap();
    file.read_to_end(&mut Vec::with_capacity(1 << 16)).unwrap();
    let null = File::options().write(true).open("/dev/null").unwrap();
    let mut offset = 100;
    // SAFETY: our own descriptors, and an offset that outlives the call.
    let sent = unsafe { libc::sendfile(null.as_raw_fd(), file.as_raw_fd(), &mut offset, 3000) };
    assert!(sent > 0);
    let mut started = Command::new("head")
        .arg("-c")
        .arg("70")
        .arg(&path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    started.wait().unwrap();
    source.forget(own);
    file.read_exact_at(&mut [0; 1], 0).unwrap();

    let all = source.drain().unwrap();
    assert_eq!(source.dropped(), 0);
    let own_ios = told(&all, own, &file);
    assert_eq!(written(&own_ios), [0, 1, 2]);
    let reads: Vec<_> = own_ios.into_iter().filter(|io| !io.2).collect();
    let wanted = [(2, 2), (2, 2), (0, 1), (1, 2), (0, 0)];
    assert_eq!(reads, wanted.map(|(first, last)| (first, last, false)));
    let by_head = told(&all, started.id(), &file);
    assert!(matches!(by_head[..], [(0, _, false)]), "{by_head:?}");
    assert!(all.is_sorted_by_key(|io| io.time_ns / 1_000_000));
    assert!(!source.has_watched(), "who has ended is watched no more");
}

fn long_reads(dir: &Path) {
    let Some(mut source) = opened("pagecache", "long reads", FileIoSource::open()) else {
        return;
    };
    let path = dir.join("long");
    let mut options = File::options();
    let file = options.create_new(true).read(true).write(true).open(&path);
    let file = file.unwrap();
    let own = std::process::id();
    source.watch(own, Whose::Alone).unwrap();
    let pages = 500;
    for page in 0..pages {
        file.write_all_at(&[7; 4096], page * 4096).unwrap();
    }
    let mut all = vec![0; 4096 * pages as usize];
    file.read_exact_at(&mut all, 0).unwrap();
    file.read_exact_at(&mut all[4096..], 4096).unwrap();
    let first = told(&source.drain().unwrap(), own, &file);
    assert_eq!(written(&first), (0..pages).collect::<Vec<_>>());
    let reads: Vec<_> = first.into_iter().filter(|io| !io.2).collect();
    let wanted = [(0, pages - 1, false), (1, pages - 1, false)];
    assert_eq!(reads, wanted);
    if let Some(unseen) = untold(&source, dir) {
        return println!("SKIPPED overwrites: not reported are {unseen}");
    }
    for page in [3, 400, 3] {
        file.write_all_at(&[8; 10], page * 4096 + 5).unwrap();
    }
    // All of it, in whatever folios it lies.
    file.write_all_at(&[9; 300 * 4096], 50 * 4096 + 5).unwrap();
    let again = told(&source.drain().unwrap(), own, &file);
    let wanted: Vec<u64> = [3, 400, 3].into_iter().chain(50..=350).collect();
    assert_eq!(written(&again), wanted);
}

/// The place where a file is appended to is known only once its end has been looked up.
fn appended(dir: &Path) {
    let Some(mut source) = opened("pagecache", "appended", FileIoSource::open()) else {
        return;
    };
    let path = dir.join("appended");
    std::fs::write(&path, [1; 10 * 4096]).unwrap();
    let mut file = File::options().append(true).open(&path).unwrap();
    source.watch(std::process::id(), Whose::Alone).unwrap();
    file.write_all(&[2; 4096]).unwrap();
    let seen = told(&source.drain().unwrap(), std::process::id(), &file);
    assert_eq!(written(&seen), [10]);
}

#[test]
fn a_full_ring_is_counted() {
    let Some(mut source) = opened("pagecache", "a full ring", FileIoSource::with_ring(4096)) else {
        return;
    };
    let dir = on_disk();
    let path = dir.path().join("file");
    std::fs::write(&path, [1; 5000]).unwrap();
    let file = File::open(&path).unwrap();
    let own = std::process::id();
    source.watch(own, Whose::Alone).unwrap();
    for at in 0..500 {
        file.read_exact_at(&mut [0], at).unwrap();
    }
    let got = told(&source.drain().unwrap(), own, &file).len() as u64;
    // Other threads of this process are reported as well.
    let dropped = source.dropped();
    assert!(got < 100 && dropped >= 500 - got, "{got}, {dropped}");
}
