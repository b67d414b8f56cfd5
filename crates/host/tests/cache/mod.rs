// SPDX-License-Identifier: Apache-2.0
//! Shared by tests of the page cache: files in known states, and what the kernel reports about
//! them.

#![allow(dead_code, reason = "each test program uses its part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use agewise_host::pagecache::{
    AccessNotes, Accessed, CacheSink, CacheWalk, Folios, Inode, Leaf, SuperBlock, WalkReport,
};

pub const PAGE: usize = 4096;

/// A file system in a file, mounted, and unmounted on drop.
pub struct Loop {
    _dir: tempfile::TempDir,
    pub at: PathBuf,
}

impl Loop {
    pub fn new(kind: &str) -> Option<Self> {
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

/// The file system of an inode, the inode, and its pages.
pub type SeenFile = (Arc<SuperBlock>, Inode, Vec<Leaf>);

/// The pages of each inode.
#[derive(Default)]
pub struct Seen {
    open: Vec<Leaf>,
    pub files: BTreeMap<(u32, u64), SeenFile>,
    pub twice: u64,
}

impl CacheSink for Seen {
    fn leaves(&mut self, _: &Arc<SuperBlock>, _: &Inode, leaves: &[Leaf], _: &Folios<'_>) {
        self.open.extend(leaves);
    }

    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let leaves = std::mem::take(&mut self.open);
        if valid {
            let file = (Arc::clone(on), *inode, leaves);
            let before = self.files.insert((on.device, inode.number), file);
            // Inode numbers are only unique within a subvolume on btrfs.
            self.twice += u64::from(before.is_some_and(|(on, ..)| on.fs_type != "btrfs"));
        }
    }
}

impl Seen {
    pub fn walk(walk: &mut CacheWalk) -> (Self, WalkReport) {
        let mut seen = Seen::default();
        let report = walk.walk(&|_| true, &mut seen).unwrap();
        (seen, report)
    }

    pub fn file(&self, of: &File) -> Option<&SeenFile> {
        let number = of.metadata().unwrap().ino();
        let mut found = self
            .files
            .values()
            .filter(|(_, inode, _)| inode.number == number);
        let size = of.metadata().unwrap().len();
        found.find(|(_, inode, _)| inode.size_bytes == size)
    }

    pub fn pages(&self, of: &File) -> BTreeSet<u64> {
        let leaves = self.file(of).map(|(.., leaves)| &leaves[..]);
        pages_of(leaves.unwrap_or_default(), |leaf| leaf.present)
    }
}

pub fn pages_of(leaves: &[Leaf], bits: impl Fn(&Leaf) -> u64) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    for leaf in leaves {
        for bit in (0..64).filter(|bit| bits(leaf) >> bit & 1 == 1) {
            let first = leaf.first_page() + (bit << leaf.shift());
            pages.extend(first..first + (1 << leaf.shift()));
        }
    }
    pages
}

/// The pages of a file that `mincore` reports as present, out of `pages`.
pub fn resident(of: &File, pages: usize) -> BTreeSet<u64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let mut present = vec![0u8; pages];
    // SAFETY: a new mapping that is not read; the vector has a byte for each of its pages.
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

/// `cachestat(2)` of a whole file: pages and dirty pages; `None` before Linux 6.5.
pub fn cachestat(of: &File) -> Option<[u64; 2]> {
    let stat = agewise_host::pagecache::cachestat(of, 0..0).ok()?;
    Some([stat.pages, stat.dirty_pages])
}

/// `Cached`, `Buffers` and `Shmem`, in KiB.
pub fn meminfo() -> [u64; 3] {
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

pub fn advise(of: &File, advice: libc::c_int) {
    // SAFETY: a descriptor of our own.
    unsafe { libc::posix_fadvise(of.as_raw_fd(), 0, 0, advice) };
}

/// A file with `pages` pages on disk, none of them in memory, opened without readahead.
pub fn cold_file(path: &Path, pages: usize) -> File {
    let mut file = File::create(path).unwrap();
    file.write_all(&vec![7; pages * PAGE]).unwrap();
    file.sync_all().unwrap();
    advise(&file, libc::POSIX_FADV_DONTNEED);
    let file = File::open(path).unwrap();
    advise(&file, libc::POSIX_FADV_RANDOM);
    file
}

/// A mapping that keeps pages of a file in memory: other programs on the machine (a DAMON scheme,
/// say) may reclaim cold pages of files that nobody maps at any time.
pub struct Kept {
    at: *mut std::ffi::c_void,
    bytes: usize,
}

impl Kept {
    /// `None` if some page is no longer in memory.
    pub fn new(of: &File, pages: usize) -> Option<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let bytes = pages * PAGE;
        let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED | MapFlags::POPULATE);
        if resident(of, pages).len() < pages {
            return None;
        }
        // SAFETY: a new mapping that is not read.
        let at = unsafe { mmap(null, bytes, ProtFlags::READ, flags, of, 0).unwrap() };
        Some(Kept { at, bytes })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the mapping made above.
        let _ = unsafe { rustix::mm::munmap(self.at, self.bytes) };
    }
}

pub fn read_page(of: &File, page: u64) {
    of.read_exact_at(&mut [0; PAGE], page * PAGE as u64)
        .unwrap();
}

/// A directory on a disk, not on tmpfs, whose pages are of another kind.
pub fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// The pages of a file accessed since the last look.
pub fn accessed(accessed: &mut Accessed, of: &File) -> BTreeSet<u64> {
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
