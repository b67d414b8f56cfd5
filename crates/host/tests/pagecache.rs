// SPDX-License-Identifier: Apache-2.0
//! The walker of the page cache and the programs on its tracepoints, on real files, beside what the
//! kernel itself says of them: `mincore`, `cachestat`, `/proc/meminfo`. Needs root and BPF; says so
//! and skips otherwise.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use agewise_host::access::AccessError;
use agewise_host::pagecache::{
    Accessed, CacheKind, CacheSink, CacheWalk, Inode, Leaf, Mounts, SuperBlock, WalkReport,
};
use agewise_host::root::ProcRoot;

const PAGE: usize = 4096;

/// A source, or the reason why there is none here.
fn opened<T>(test: &str, source: Result<T, AccessError>) -> Option<T> {
    match source {
        Ok(source) => Some(source),
        Err(error @ (AccessError::NoPrivilege { .. } | AccessError::Unsupported { .. })) => {
            println!("SKIPPED {test}: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Pages of each inode, and which of them are not clean.
#[derive(Default)]
struct Seen {
    open: Vec<Leaf>,
    files: BTreeMap<(u32, u64), (Arc<SuperBlock>, Inode, Vec<Leaf>)>,
    twice: u64,
}

impl CacheSink for Seen {
    fn leaves(&mut self, _: &Arc<SuperBlock>, _: &Inode, leaves: &[Leaf]) {
        self.open.extend(leaves);
    }

    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let leaves = std::mem::take(&mut self.open);
        if valid {
            let file = (Arc::clone(on), *inode, leaves);
            let before = self.files.insert((on.device, inode.number), file);
            // Inode numbers of btrfs are those of a subvolume.
            self.twice += u64::from(before.is_some_and(|(on, ..)| on.fs_type != "btrfs"));
        }
    }
}

impl Seen {
    fn walk(walk: &mut CacheWalk) -> (Self, WalkReport) {
        let mut seen = Seen::default();
        let report = walk.walk(&|_| true, &mut seen).unwrap();
        (seen, report)
    }

    fn file(&self, of: &File) -> Option<&(Arc<SuperBlock>, Inode, Vec<Leaf>)> {
        let number = of.metadata().unwrap().ino();
        let mut found = self
            .files
            .values()
            .filter(|(_, inode, _)| inode.number == number);
        let size = of.metadata().unwrap().len();
        found.find(|(_, inode, _)| inode.size_bytes == size)
    }

    fn pages(&self, of: &File) -> BTreeSet<u64> {
        let leaves = self.file(of).map(|(.., leaves)| &leaves[..]);
        pages_of(leaves.unwrap_or_default(), |leaf| leaf.present)
    }
}

fn pages_of(leaves: &[Leaf], bits: impl Fn(&Leaf) -> u64) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for leaf in leaves {
        for bit in (0..64).filter(|bit| bits(leaf) >> bit & 1 == 1) {
            let first = leaf.first_page() + (bit << leaf.shift());
            pages.extend(first..first + (1 << leaf.shift()));
        }
    }
    pages
}

/// What `mincore` says of a file of so many pages.
fn resident(of: &File, pages: usize) -> BTreeSet<u64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let mut present = vec![0u8; pages];
    // SAFETY: a fresh mapping that is not read; the vector has a byte for each of its pages.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            pages * PAGE,
            ProtFlags::READ,
            MapFlags::SHARED,
            of,
            0,
        )
        .unwrap();
        assert_eq!(libc::mincore(at, pages * PAGE, present.as_mut_ptr()), 0);
        munmap(at, pages * PAGE).unwrap();
    }
    (0..pages as u64)
        .filter(|page| present[*page as usize] & 1 == 1)
        .collect()
}

/// `cachestat(2)` of a whole file: pages, dirty pages; nothing before Linux 6.5.
fn cachestat(of: &File) -> Option<[u64; 2]> {
    const CACHESTAT: libc::c_long = 451;
    let range = [0u64; 2];
    let mut stat = [0u64; 5];
    // SAFETY: both are of the sizes that the call knows, and outlive it.
    let result = unsafe {
        libc::syscall(
            CACHESTAT,
            of.as_raw_fd(),
            range.as_ptr(),
            stat.as_mut_ptr(),
            0,
        )
    };
    (result == 0).then_some([stat[0], stat[1]])
}

fn advise(of: &File, advice: libc::c_int) {
    // SAFETY: a descriptor of ours.
    unsafe { libc::posix_fadvise(of.as_raw_fd(), 0, 0, advice) };
}

/// A file of so many pages on its disk, none of them in memory, read without reading ahead.
fn cold_file(path: &Path, pages: usize) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![7; pages * PAGE]).unwrap();
    file.sync_all().unwrap();
    advise(&file, libc::POSIX_FADV_DONTNEED);
    let file = File::open(path).unwrap();
    advise(&file, libc::POSIX_FADV_RANDOM);
    file
}

fn read_page(of: &File, page: u64) {
    of.read_exact_at(&mut [0; PAGE], page * PAGE as u64)
        .unwrap();
}

/// A directory on a disk: not tmpfs, which has other pages.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

#[test]
fn all_of_the_cache_is_what_meminfo_says() {
    let Some(mut walk) = opened("meminfo", CacheWalk::open()) else {
        return;
    };
    // Others read and write meanwhile: one of some tries has to be right.
    let mut tries = Vec::new();
    for _ in 0..10 {
        let before = meminfo();
        let (seen, report) = Seen::walk(&mut walk);
        let after = meminfo();
        let mut pages = [0u64; 3];
        for (on, _, leaves) in seen.files.values() {
            pages[on.kind as usize] += leaves.iter().map(Leaf::pages).sum::<u64>();
        }
        let [file, shmem, device] = pages.map(|pages| pages * 4);
        let near = |seen: u64, at: usize| {
            let (low, high) = (before[at].min(after[at]), before[at].max(after[at]));
            let slack = high / 100 + 2048;
            seen + slack >= low && seen <= high + slack
        };
        tries.push(format!("{pages:?} {before:?} {after:?} {report:?}"));
        let is_near = near(file + shmem, 0) && near(device, 1) && near(shmem, 2);
        if is_near && seen.twice == 0 && report.incomplete == 0 {
            return;
        }
    }
    panic!("{}", tries.join("\n"));
}

/// `Cached`, `Buffers` and `Shmem`, KiB.
fn meminfo() -> [u64; 3] {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    ["Cached:", "Buffers:", "Shmem:"].map(|name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    })
}

#[test]
fn pages_of_a_file_are_those_of_mincore() {
    let Some(mut walk) = opened("mincore", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    let mut checked = 0;
    // One page, which has no tree; one node; two levels; three.
    for (pages, step) in [(1, 1), (5, 2), (64, 3), (700, 7), (9000, 61), (4096, 1)] {
        let file = cold_file(&dir.path().join(format!("{pages}-{step}")), pages);
        (0..pages as u64)
            .step_by(step)
            .for_each(|page| read_page(&file, page));
        let before = resident(&file, pages);
        let (seen, _) = Seen::walk(&mut walk);
        if before != resident(&file, pages) {
            continue;
        }
        checked += 1;
        assert_eq!(
            seen.pages(&file),
            before,
            "{pages} pages, each {step}th read"
        );
        assert!(before.len() >= pages / step);
        let stat = cachestat(&file);
        assert!(
            stat.is_none_or(|stat| stat[0] == before.len() as u64),
            "{stat:?}"
        );
    }
    assert!(checked > 2, "the kernel took the pages away all the time");
}

#[test]
fn dirty_pages_are_those_of_cachestat() {
    let Some(mut walk) = opened("dirty", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    let mut tries = Vec::new();
    for _ in 0..10 {
        let path = dir.path().join("dirty");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![1; 300 * PAGE]).unwrap();
        file.sync_all().unwrap();
        for page in [3u64, 100, 101, 299] {
            file.write_all_at(&[2; 100], page * PAGE as u64).unwrap();
        }
        let file = File::open(&path).unwrap();
        let Some(before) = cachestat(&file) else {
            println!("SKIPPED dirty: no cachestat (Linux 6.5)");
            return;
        };
        let (seen, _) = Seen::walk(&mut walk);
        let after = cachestat(&file).unwrap();
        let (.., leaves) = seen.file(&file).unwrap();
        let dirty = pages_of(leaves, |leaf| leaf.unclean());
        // The kernel may be writing them now.
        if before == after && before[1] as usize == dirty.len() && dirty.contains(&100) {
            return;
        }
        tries.push(format!("{before:?} {after:?} {dirty:?}"));
    }
    panic!("{}", tries.join("\n"));
}

/// Pages of a file that were accessed since the last look.
fn accessed(accessed: &mut Accessed, of: &File) -> BTreeSet<u64> {
    let number = of.metadata().unwrap().ino() as u32;
    let found = accessed.look().unwrap();
    assert_eq!(found.dropped, 0);
    let blocks = found
        .blocks
        .iter()
        .filter(|(block, _)| block.number == number);
    blocks
        .flat_map(|(block, pages)| {
            let first = u64::from(block.block) * 512;
            pages
                .pages()
                .map(move |page| first + page as u64)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn what_is_read_is_what_was_read() {
    let Some(mut source) = opened("accessed", Accessed::open()) else {
        return;
    };
    let dir = on_disk();
    let file = cold_file(&dir.path().join("read"), 4000);
    (0..4000).for_each(|page| read_page(&file, page));
    accessed(&mut source, &file);
    let wanted: BTreeSet<u64> = (0..4000).filter(|page| page % 7 == 3).collect();
    wanted.iter().for_each(|page| read_page(&file, *page));
    assert_eq!(accessed(&mut source, &file), wanted);
    assert!(accessed(&mut source, &file).is_empty());

    // Long reads go through in batches of folios, over blocks of 512.
    file.read_exact_at(&mut vec![0; 1500 * PAGE], 100 * PAGE as u64)
        .unwrap();
    assert_eq!(accessed(&mut source, &file), (100..1600).collect());
    file.read_exact_at(&mut [0; 10], 2000 * PAGE as u64 - 5)
        .unwrap();
    assert_eq!(accessed(&mut source, &file), [1999, 2000].into());

    let out = File::options().write(true).open("/dev/null").unwrap();
    let mut offset = 3000 * PAGE as i64;
    // SAFETY: descriptors of ours, and an offset that outlives the call.
    unsafe { libc::sendfile(out.as_raw_fd(), file.as_raw_fd(), &mut offset, 20 * PAGE) };
    let sent = accessed(&mut source, &file);
    assert!(
        (3000..3020).all(|page| sent.contains(&page)) && sent.len() <= 40,
        "{sent:?}"
    );

    // Overwriting clean pages; folios are dirty as a whole, and noted by their first page.
    let writer = File::options()
        .write(true)
        .open(dir.path().join("read"))
        .unwrap();
    writer.write_all_at(&[9; 8], 500 * PAGE as u64).unwrap();
    assert_eq!(accessed(&mut source, &file).len(), 1);
}

#[test]
fn a_map_that_is_full_says_how_much_it_dropped() {
    let Some(mut source) = opened("dropped", Accessed::with_tables(0)) else {
        return;
    };
    let dir = on_disk();
    let file = cold_file(&dir.path().join("read"), 1);
    file.set_len(512 * 1000 * PAGE as u64).ok();
    let sparse = File::create(dir.path().join("sparse")).unwrap();
    sparse.set_len(512 * 1000 * PAGE as u64).unwrap();
    let sparse = File::open(dir.path().join("sparse")).unwrap();
    advise(&sparse, libc::POSIX_FADV_RANDOM);
    source.look().unwrap();
    (0..1000).for_each(|block| read_page(&sparse, block * 512));
    let found = source.look().unwrap();
    assert!(
        found.dropped >= 800,
        "{} of {}",
        found.dropped,
        found.events
    );
    assert!(!found.blocks.is_empty() && found.blocks.len() <= 200);
}

#[test]
fn a_walk_stands_a_storm() {
    let Some(mut walk) = opened("storm", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    let stays = cold_file(&dir.path().join("stays"), 3000);
    (0..3000).for_each(|page| read_page(&stays, page));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (dir, stop) = (dir.path(), &stop);
            scope.spawn(move || storm(dir, thread, stop));
        }
        let (mut right, mut walks) = (0, 0);
        let began = std::time::Instant::now();
        while began.elapsed().as_secs() < 5 {
            let before = resident(&stays, 3000);
            let (seen, report) = Seen::walk(&mut walk);
            walks += 1;
            assert_eq!(seen.twice, 0, "{report:?}");
            if before == resident(&stays, 3000) && report.incomplete == 0 {
                assert_eq!(seen.pages(&stays), before, "{report:?}");
                right += 1;
            }
            for (_, inode, leaves) in seen.files.values() {
                let mut last = None;
                for leaf in leaves {
                    assert!(last < Some(leaf.first_page()), "{inode:?}");
                    last = Some(leaf.first_page());
                }
            }
        }
        stop.store(true, Relaxed);
        assert!(right > 0, "none of {walks} walks saw the file that stayed");
    });
}

/// Creates, grows, truncates, renames and deletes files, and drops their pages.
fn storm(dir: &Path, thread: usize, stop: &AtomicBool) {
    let name = |number: usize| dir.join(format!("{thread}-{}", number % 50));
    let mut number = 0usize;
    while !stop.load(Relaxed) {
        number += 1;
        if let Ok(mut file) = File::create(name(number)) {
            let _ = file.write_all(&vec![1; (number * 37 % 200) * PAGE]);
            let _ = file.set_len((number * 11 % 100 * PAGE) as u64);
            if number % 3 == 0 {
                let _ = file.sync_data();
                advise(&file, libc::POSIX_FADV_DONTNEED);
            }
        }
        let _ = fs::rename(name(number), name(number + 7));
        let _ = fs::remove_file(name(number + 3));
    }
}

#[test]
fn names_are_found_whatever_is_in_them() {
    let Some(mut walk) = opened("names", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    let odd: [&[u8]; 4] = [b"a\nb", b"\xff\xfe", b"\x1b[31m", b"with blank"];
    let below = dir.path().join("deep").join("deeper");
    fs::create_dir_all(&below).unwrap();
    let mut files: Vec<(PathBuf, File)> = Vec::new();
    for name in odd {
        let path = below.join(OsStr::from_bytes(name));
        fs::write(&path, [1; 10000]).unwrap();
        let file = File::open(&path).unwrap();
        files.push((path, file));
    }
    let gone = below.join("gone");
    fs::write(&gone, [1; 10000]).unwrap();
    let open = File::open(&gone).unwrap();
    fs::remove_file(&gone).unwrap();
    let mounts = Mounts::read(&ProcRoot::default()).unwrap();
    let (seen, _) = Seen::walk(&mut walk);
    for (path, file) in &files {
        let (on, inode, _) = seen.file(file).unwrap();
        let found = walk.path(on, inode).unwrap().unwrap();
        let place = mounts.find(on.device, &found, inode.number).unwrap();
        assert_eq!(place.path, *path);
        assert_eq!(on.kind, CacheKind::File);
    }
    // Deleted: it may still have its name, but no path leads to it.
    let (on, inode, _) = seen.file(&open).unwrap();
    assert_eq!(inode.links, 0);
    if let Some(path) = walk.path(on, inode).unwrap() {
        assert!(mounts.find(on.device, &path, inode.number).is_none());
    }
    // Renamed since the walk: found under the name it has now.
    fs::rename(&files[0].0, below.join("renamed")).unwrap();
    let (on, inode, _) = seen.file(&files[0].1).unwrap();
    assert!(walk.path(on, inode).unwrap().unwrap().ends_with("renamed"));
}

/// A file system in a file, mounted; unmounted when dropped.
struct Loop {
    _dir: tempfile::TempDir,
    at: PathBuf,
}

impl Loop {
    fn new(kind: &str) -> Option<Self> {
        let dir = on_disk();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(320 << 20).unwrap();
        let run = |command: &mut Command| {
            let output = command.output();
            output.is_ok_and(|output| output.status.success())
        };
        let made = run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image))
            && run(Command::new("mount")
                .args(["-o", "loop"])
                .arg(&image)
                .arg(&at));
        if !made {
            println!("SKIPPED {kind}: it cannot be made and mounted here");
            return None;
        }
        Some(Loop { _dir: dir, at })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

#[test]
fn every_file_system_shows_its_pages_and_accesses() {
    let Some(mut walk) = opened("file systems", CacheWalk::open()) else {
        return;
    };
    let Some(mut source) = opened("file systems", Accessed::open()) else {
        return;
    };
    for kind in ["ext4", "xfs", "btrfs"] {
        let Some(mounted) = Loop::new(kind) else {
            continue;
        };
        check_file_system(&mut walk, &mut source, kind, &mounted.at);
        // Over it an overlay, whose files are read through the pages of those below.
        let part = |name: &str| mounted.at.join(name);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(part(name)).unwrap();
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            part("lower").display(),
            part("upper").display(),
            part("work").display()
        );
        let merged = part("merged");
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&merged);
        if mount.status().is_ok_and(|status| status.success()) {
            check_file_system(
                &mut walk,
                &mut source,
                &format!("overlay on {kind}"),
                &merged,
            );
            let _ = Command::new("umount").arg("-l").arg(&merged).status();
        } else {
            println!("SKIPPED overlay on {kind}: it cannot be mounted");
        }
        // Unmounted while it is being walked.
        std::thread::scope(|scope| {
            scope.spawn(|| drop(mounted));
            (0..3).for_each(|_| drop(Seen::walk(&mut walk)));
        });
    }
}

fn check_file_system(walk: &mut CacheWalk, source: &mut Accessed, kind: &str, at: &Path) {
    let file = cold_file(&at.join("file"), 2000);
    // Sequential: large folios where the file system has them.
    advise(&file, libc::POSIX_FADV_SEQUENTIAL);
    file.read_exact_at(&mut vec![0; 1000 * PAGE], 0).unwrap();
    accessed(source, &file);
    let wanted: BTreeSet<u64> = (0..900).filter(|page| page % 5 == 2).collect();
    wanted.iter().for_each(|page| read_page(&file, *page));
    let got = accessed(source, &file);
    assert_eq!(got, wanted, "{kind}");
    let tries = (0..5).any(|_| {
        let before = resident(&file, 2000);
        let (seen, _) = Seen::walk(walk);
        before == resident(&file, 2000) && seen.pages(&file) == before && before.len() >= 1000
    });
    assert!(tries, "{kind}: pages are not those of mincore");
}
