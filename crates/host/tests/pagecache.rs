// SPDX-License-Identifier: Apache-2.0
//! The page-cache walker and the programs on its tracepoints, on real files, compared with the
//! kernel's own reports: `mincore`, `cachestat`, `/proc/meminfo`. Needs root and BPF; otherwise
//! prints so and skips.

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

use agewise_host::cgroup::{Hierarchy, OwnCgroup};
use agewise_host::pagecache::{
    AccessNotes, Accessed, CacheKind, CacheReader, CacheSink, CacheWalk, Folios, Inode, Leaf,
    Mounts, SuperBlock,
};
use agewise_host::root::ProcRoot;

mod cache;
#[path = "support/need.rs"]
mod need;
use cache::{
    PAGE, Seen, accessed, advise, cachestat, cold_file, meminfo, on_disk, pages_of, read_page,
    resident,
};
use need::opened;

#[test]
fn all_of_the_cache_is_what_meminfo_says() {
    let Some(mut walk) = opened("pagecache", "meminfo", CacheWalk::open()) else {
        return;
    };
    // Other programs read and write in the meantime, so only one of several tries has to match.
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

/// A file with three levels fills the output of a call several times.
#[test]
fn one_inode_is_walked_alone_and_nothing_where_it_was() {
    let Some(mut walk) = opened("pagecache", "one inode", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    for pages in [1, 700, 300_000u64] {
        let path = dir.path().join(pages.to_string());
        let file = cold_file(&path, 1);
        let writable = File::options().write(true).open(&path).unwrap();
        writable.set_len(pages * PAGE as u64).unwrap();
        // One page in each node.
        (0..pages)
            .step_by(64)
            .for_each(|page| read_page(&file, page));
        let (all, _) = Seen::walk(&mut walk);
        let (on, inode, _) = all.file(&file).expect("it is in memory").clone();
        let mut alone = Seen::default();
        let before = resident(&file, pages as usize);
        walk.walk_inode(inode.address, &mut alone).unwrap();
        let after = resident(&file, pages as usize);
        assert_eq!(alone.files.len(), 1);
        let (found_on, found, _) = alone.file(&file).expect("the same file");
        assert_eq!((found_on, found.address), (&on, inode.address));
        // A page may be reclaimed meanwhile.
        let found = alone.pages(&file);
        let missed: Vec<_> = after.difference(&found).collect();
        let made_up: Vec<_> = found.difference(&before).collect();
        assert_eq!((missed, made_up), (vec![], vec![]));
        drop((file, writable));
        fs::remove_file(&path).unwrap();
        // Its memory may be another inode's by now, or free, but must not show this inode.
        let mut gone = Seen::default();
        walk.walk_inode(inode.address, &mut gone).unwrap();
        let same = |(_, other, _): &&cache::SeenFile| {
            (other.number, other.generation) == (inode.number, inode.generation)
        };
        assert_eq!(gone.files.values().filter(same).count(), 0);
    }
    walk.walk_inode(0, &mut Seen::default()).unwrap();
    walk.walk_inode(u64::MAX - 4095, &mut Seen::default())
        .unwrap();
}

#[test]
fn pages_belong_to_the_cgroup_that_wrote_them() {
    let Some(mut walk) = opened("pagecache", "owners", CacheWalk::open()) else {
        return;
    };
    let hierarchy = Hierarchy::discover(&ProcRoot::default());
    let own = hierarchy.and_then(|at| OwnCgroup::make_near(&at, "agewise-test-owner"));
    let Ok(own) = own else {
        return println!("SKIPPED owners: {own:?}");
    };
    let dir = on_disk();
    let path = dir.path().join("file");
    let mut command = Command::new("cp");
    command.arg("/proc/self/exe").arg(&path);
    own.enter(&mut command).unwrap();
    assert!(command.status().unwrap().success());
    let (seen, _) = Seen::walk(&mut walk);
    let (_, _, leaves) = seen.file(&File::open(&path).unwrap()).expect("in memory");
    let owners: BTreeSet<u64> = leaves.iter().map(|leaf| leaf.cgroup).collect();
    assert_eq!(owners, BTreeSet::from([own.cgroup().id()]));
}

#[test]
fn what_is_peeked_at_stays_noted() {
    let Some(mut accessed) = opened("pagecache", "peek", Accessed::open()) else {
        return;
    };
    let dir = on_disk();
    let file = cold_file(&dir.path().join("file"), 1030);
    let number = file.metadata().unwrap().ino() as u32;
    // The file was written.
    accessed.look().unwrap();
    read_page(&file, 3);
    read_page(&file, 1025);
    let noted = accessed.look().unwrap();
    let of_file = |(block, _): &(&agewise_host::pagecache::Block, _)| block.number == number;
    let blocks: Vec<_> = noted.blocks.iter().filter(of_file).collect();
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    let first = *blocks.iter().find(|(block, _)| block.block == 0).unwrap().0;
    assert!(accessed.peek(&first).unwrap().is_empty());
    read_page(&file, 7);
    for _ in 0..2 {
        let peeked = accessed.peek(&first).unwrap();
        assert_eq!(peeked.pages().collect::<Vec<_>>(), [7]);
    }
    assert!(accessed.look().unwrap().blocks[&first].contains(7));
}

#[test]
fn pages_of_a_file_are_those_of_mincore() {
    let Some(mut walk) = opened("pagecache", "mincore", CacheWalk::open()) else {
        return;
    };
    let dir = on_disk();
    // One page, which has no tree; one node; two levels; three levels.
    for (pages, step) in [(1, 1), (5, 2), (64, 3), (700, 7), (9000, 61), (4096, 1)] {
        let file = cold_file(&dir.path().join(format!("{pages}-{step}")), pages);
        // The kernel may reclaim pages in the meantime.
        let is_checked = (0..20).any(|_| {
            (0..pages as u64)
                .step_by(step)
                .for_each(|page| read_page(&file, page));
            let before = resident(&file, pages);
            let (seen, _) = Seen::walk(&mut walk);
            let stat = cachestat(&file);
            if before.len() < pages / step || before != resident(&file, pages) {
                return false;
            }
            let what = format!("{pages} pages, each {step}th read");
            assert_eq!(seen.pages(&file), before, "{what}");
            assert!(
                stat.is_none_or(|stat| stat[0] == before.len() as u64),
                "{what}: {stat:?}"
            );
            true
        });
        assert!(is_checked, "the kernel took pages away all the time");
    }
}

/// The frames of all pages of one file.
struct FramesOf {
    number: u64,
    found: BTreeMap<u64, u64>,
}

impl CacheSink for FramesOf {
    fn leaves(&mut self, _: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf], folios: &Folios<'_>) {
        for (at, leaf) in leaves.iter().enumerate() {
            for part in (0..1 << leaf.shift()).filter(|_| inode.number == self.number) {
                folios.each(at, leaf, part, |page, frame| {
                    let page = leaf.first_page() + 64 * part + u64::from(page);
                    self.found.insert(page, frame);
                });
            }
        }
    }

    fn end(&mut self, _: &Arc<SuperBlock>, _: &Inode, _: bool) {}
}

#[test]
fn frames_are_those_that_page_tables_have() {
    let Some(mut walk) = opened("pagecache", "frames", CacheWalk::with_frames()) else {
        return;
    };
    let dir = on_disk();
    // A single page, small folios, large ones from readahead, and larger ones from a long write.
    for (pages, from) in [
        (1, "reads"),
        (70, "reads"),
        (4096, "readahead"),
        (4096, "a write"),
    ] {
        let path = dir.path().join(format!("{pages} of {from}"));
        let mut file = cold_file(&path, pages);
        match from {
            "readahead" => advise(&file, libc::POSIX_FADV_SEQUENTIAL),
            "a write" => std::fs::write(&path, vec![1; pages * PAGE]).unwrap(),
            _ => {}
        }
        std::io::copy(&mut file, &mut std::io::sink()).unwrap();
        let mut seen = FramesOf {
            number: file.metadata().unwrap().ino(),
            found: BTreeMap::new(),
        };
        let before = mapped_frames(&file, pages);
        walk.walk(&|on| on.kind == CacheKind::File, &mut seen)
            .unwrap();
        let wanted = mapped_frames(&file, pages);
        assert_eq!(seen.found.len(), pages);
        let moved = before.iter().filter(|page| !wanted.contains(page)).count();
        let other = wanted
            .iter()
            .filter(|(page, frame)| seen.found[page] != *frame);
        // The kernel may migrate pages in the meantime.
        assert!(other.count() <= moved, "{pages} pages, {moved} moved");
    }
}

/// Index and frame of each page of a file, according to our own page table.
fn mapped_frames(file: &File, pages: usize) -> Vec<(u64, u64)> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED | MapFlags::POPULATE);
    // SAFETY: a new mapping of a file whose size does not change.
    let at = unsafe { mmap(null, pages * PAGE, ProtFlags::READ, flags, file, 0).unwrap() };
    let frame = |page: u64| {
        // SAFETY: within the mapping.
        unsafe { at.cast::<u8>().add(page as usize * PAGE).read_volatile() };
        let mut entry = [0; 8];
        let first = at as u64 / PAGE as u64;
        pagemap
            .read_exact_at(&mut entry, (first + page) * 8)
            .unwrap();
        (page, u64::from_ne_bytes(entry) & ((1 << 55) - 1))
    };
    let frames = (0..pages as u64).map(frame).collect();
    // SAFETY: the mapping made above.
    unsafe { munmap(at, pages * PAGE).unwrap() };
    frames
}

#[test]
fn dirty_pages_are_those_of_cachestat() {
    let Some(mut walk) = opened("pagecache", "dirty", CacheWalk::open()) else {
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
        // The kernel may be writing them back now.
        if before == after && before[1] as usize == dirty.len() && dirty.contains(&100) {
            return;
        }
        tries.push(format!("{before:?} {after:?} {dirty:?}"));
    }
    panic!("{}", tries.join("\n"));
}

#[test]
fn what_is_read_is_what_was_read() {
    let Some(mut source) = opened("pagecache", "accessed", Accessed::open()) else {
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

    // Long reads are processed in batches of folios, across blocks of 512.
    file.read_exact_at(&mut vec![0; 1500 * PAGE], 100 * PAGE as u64)
        .unwrap();
    assert_eq!(accessed(&mut source, &file), (100..1600).collect());
    file.read_exact_at(&mut [0; 10], 2000 * PAGE as u64 - 5)
        .unwrap();
    assert_eq!(accessed(&mut source, &file), [1999, 2000].into());

    let out = File::options().write(true).open("/dev/null").unwrap();
    let mut offset = 3000 * PAGE as i64;
    // SAFETY: our own descriptors, and an offset that outlives the call.
    unsafe { libc::sendfile(out.as_raw_fd(), file.as_raw_fd(), &mut offset, 20 * PAGE) };
    let sent = accessed(&mut source, &file);
    assert!(
        (3000..3020).all(|page| sent.contains(&page)) && sent.len() <= 40,
        "{sent:?}"
    );

    // Overwrites clean pages. A folio is dirty as a whole, and recorded as a whole.
    let writer = File::options()
        .write(true)
        .open(dir.path().join("read"))
        .unwrap();
    writer.write_all_at(&[9; 8], 500 * PAGE as u64).unwrap();
    assert_eq!(accessed(&mut source, &file).len(), 1);
}

#[test]
fn what_is_overwritten_is_accessed_whatever_the_size_of_folios() {
    let test = "overwritten pages of large folios";
    let Some(mut notes) = opened("pagecache", test, Accessed::open()) else {
        return;
    };
    let dir = on_disk();
    let path = dir.path().join("large");
    // Written at once and clean, it is cached in large folios where the file system has them.
    fs::write(&path, vec![1; 512 * PAGE]).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    let _ = accessed(&mut notes, &file);
    file.write_all_at(&vec![2; 512 * PAGE], 0).unwrap();
    let pages = accessed(&mut notes, &file);
    assert_eq!(pages, (0..512).collect::<BTreeSet<u64>>());
}

/// A program's buffer is often larger than the file.
#[test]
fn a_read_reaches_no_further_than_the_file() {
    let Some(mut accessed) = opened("pagecache", "a large buffer", Accessed::open()) else {
        return;
    };
    let dir = on_disk();
    let file = cold_file(&dir.path().join("file"), 1);
    let number = file.metadata().unwrap().ino() as u32;
    accessed.look().unwrap();
    assert_eq!(file.read_at(&mut vec![0; 16 << 20], 0).unwrap(), PAGE);
    let seen = accessed.look().unwrap();
    let of_file = seen.blocks.iter().filter(|(at, _)| at.number == number);
    let found: Vec<_> = of_file
        .map(|(at, pages)| (at.block, pages.pages().collect::<Vec<_>>()))
        .collect();
    assert_eq!(found, [(0, vec![0])]);
}

#[test]
fn a_walk_stands_a_storm() {
    let Some(mut walk) = opened("pagecache", "storm", CacheWalk::open()) else {
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
            if number.is_multiple_of(3) {
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
    let Some(mut walk) = opened("pagecache", "names", CacheWalk::open()) else {
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
    // Deleted: it may still have its name in memory, but has no path any more.
    let (on, inode, _) = seen.file(&open).unwrap();
    assert_eq!(inode.links, 0);
    if let Some(path) = walk.path(on, inode).unwrap() {
        assert!(mounts.find(on.device, &path, inode.number).is_none());
    }
    // Renamed since the walk: found under its current name.
    fs::rename(&files[0].0, below.join("renamed")).unwrap();
    let (on, inode, _) = seen.file(&files[0].1).unwrap();
    assert!(walk.path(on, inode).unwrap().unwrap().ends_with("renamed"));
}

#[test]
fn loading_costs_the_verifier_little() {
    let walk = opened("pagecache", "verifier", CacheWalk::open());
    let (Some(_walk), Some(_accessed)) = (walk, opened("pagecache", "verifier", Accessed::open()))
    else {
        return;
    };
    // Also of programs that other tests load at the same time.
    let open = fs::read_dir("/proc/self/fdinfo").unwrap();
    let text = open.filter_map(|fd| fs::read_to_string(fd.ok()?.path()).ok());
    let text: String = text.collect();
    let counts = text
        .lines()
        .filter_map(|line| line.strip_prefix("verified_insns:"));
    let counts: Vec<u32> = counts.map(|count| count.trim().parse().unwrap()).collect();
    assert!(
        counts.len() >= 6 && counts.iter().all(|count| *count < 100_000),
        "{counts:?}"
    );
}
