// SPDX-License-Identifier: Apache-2.0
//! Finds the cgroup each physical page is charged to: `/proc/kpageflags` and `/proc/kpagecgroup`
//! (Documentation/admin-guide/mm/pagemap.rst), eight bytes per frame each.
//!
//! DAMON has a filter by memory cgroup as well. But it reports bytes only since Linux 6.14, matches
//! one cgroup without its descendants, and walks all memory once per cgroup and type; this walks it
//! once for all of them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use agewise_policy::generations::PageType;

use crate::error::FileError;
use crate::root::ProcRoot;

/// Frames read per call: 512 KiB of each file.
const FRAMES_AT_ONCE: usize = 64 << 10;

/// Bits of `kpageflags` (include/uapi/linux/kernel-page-flags.h).
mod flag {
    pub const LRU: u64 = 1 << 5;
    pub const MMAP: u64 = 1 << 11;
    pub const ANON: u64 = 1 << 12;
    pub const SWAPBACKED: u64 = 1 << 14;
    pub const COMPOUND_TAIL: u64 = 1 << 16;
    pub const HUGE: u64 = 1 << 17;
    pub const ZERO_PAGE: u64 = 1 << 24;
}

/// A page of anonymous memory or of the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Anonymous or file.
    pub page_type: PageType,
    /// The inode of the cgroup it is charged to; 0 if it is not charged.
    pub cgroup: u64,
}

/// The two files.
#[derive(Debug)]
pub(super) struct Frames {
    flags: (PathBuf, File),
    cgroups: (PathBuf, File),
}

/// Names of the files below `/proc`.
pub(crate) const FILES: [&str; 2] = ["kpageflags", "kpagecgroup"];

impl Frames {
    /// Opens the files. Needs root, `CONFIG_PROC_PAGE_MONITOR` and `CONFIG_MEMCG`.
    pub fn open(proc: &ProcRoot) -> Result<Self, FileError> {
        let open = |name: &str| {
            let path = proc.join(name);
            match File::open(&path) {
                Ok(file) => Ok((path, file)),
                Err(source) => Err(FileError::Read { path, source }),
            }
        };
        let [flags, cgroups] = FILES;
        Ok(Frames {
            flags: open(flags)?,
            cgroups: open(cgroups)?,
        })
    }

    /// Calls `visit` with the number of each frame in `frames` that belongs to a user page, in
    /// ascending order. The parts of a large page all get the type and cgroup of its first frame.
    pub fn each(
        &self,
        frames: Range<u64>,
        mut visit: impl FnMut(u64, Frame),
    ) -> Result<(), FileError> {
        let mut flags = vec![0; FRAMES_AT_ONCE * 8];
        let mut cgroups = vec![0; FRAMES_AT_ONCE * 8];
        let mut head = None;
        let mut at = frames.start;
        while at < frames.end {
            let wanted = (frames.end - at).min(FRAMES_AT_ONCE as u64) as usize * 8;
            let read = read_some(&self.flags, &mut flags[..wanted], at)?;
            let read = read_some(&self.cgroups, &mut cgroups[..read], at)?;
            // Past the last frame the kernel knows.
            if read < 8 {
                break;
            }
            let words = flags[..read]
                .chunks_exact(8)
                .zip(cgroups[..read].chunks_exact(8));
            for (pfn, (flags, cgroup)) in (at..).zip(words) {
                let flags = word(flags);
                if flags & flag::COMPOUND_TAIL == 0 {
                    head = user_page(flags, word(cgroup));
                }
                if let Some(frame) = head {
                    visit(pfn, frame);
                }
            }
            at += (read / 8) as u64;
        }
        Ok(())
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes.try_into().unwrap_or_default())
}

/// Reads from a frame's entry on, as much as the file and the buffer allow.
fn read_some(
    (path, file): &(PathBuf, File),
    into: &mut [u8],
    pfn: u64,
) -> Result<usize, FileError> {
    loop {
        match file.read_at(into, pfn.saturating_mul(8)) {
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => {
                let path = path.clone();
                return Err(FileError::Read { path, source });
            }
        }
    }
}

/// Returns pages on an LRU list or in page tables. Not hugetlb, which is not reclaimed, nor the
/// zero page, which belongs to nobody.
fn user_page(flags: u64, cgroup: u64) -> Option<Frame> {
    let is_user = flags & (flag::LRU | flag::MMAP) != 0;
    if !is_user || flags & (flag::HUGE | flag::ZERO_PAGE) != 0 {
        return None;
    }
    let page_type = match flags & (flag::ANON | flag::SWAPBACKED) {
        0 => PageType::File,
        _ => PageType::Anon,
    };
    Some(Frame { page_type, cgroup })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(dir: &std::path::Path, flags: &[u64], cgroups: &[u64]) -> Frames {
        let roots = crate::root::Roots::below(dir);
        std::fs::create_dir_all(roots.proc.path()).unwrap();
        for (name, words) in FILES.into_iter().zip([flags, cgroups]) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            std::fs::write(roots.proc.join(name), bytes).unwrap();
        }
        Frames::open(&roots.proc).unwrap()
    }

    #[test]
    fn user_pages_are_told_from_the_kernels_and_parts_follow_their_head() {
        let dir = tempfile::tempdir().unwrap();
        const SLAB: u64 = 1 << 7;
        let tail = flag::COMPOUND_TAIL;
        let flags = [
            flag::LRU | flag::ANON,
            SLAB,
            flag::LRU,
            tail,
            tail | flag::LRU,
            SLAB,
            tail,
            flag::MMAP | flag::SWAPBACKED,
            flag::MMAP | flag::HUGE,
            flag::MMAP | flag::ZERO_PAGE,
            0,
        ];
        let cgroups = [1, 2, 3, 0, 9, 2, 2, 4, 5, 6, 7];
        let frames = fake(dir.path(), &flags, &cgroups);
        let seen = |range| {
            let mut seen = Vec::new();
            let visit = |pfn, frame: Frame| seen.push((pfn, frame.page_type, frame.cgroup));
            frames.each(range, visit).unwrap();
            seen
        };
        use PageType::{Anon, File};
        let all = [
            (0, Anon, 1),
            (2, File, 3),
            (3, File, 3),
            (4, File, 3),
            (7, Anon, 4),
        ];
        assert_eq!(seen(0..11), all);
        assert_eq!(seen(0..1_000_000), all, "ends where the kernel's frames do");
        assert_eq!(seen(7..8), all[4..]);
    }

    #[test]
    fn a_kernel_without_the_files_names_them() {
        let dir = tempfile::tempdir().unwrap();
        let roots = crate::root::Roots::below(dir.path());
        let error = Frames::open(&roots.proc).unwrap_err().to_string();
        assert!(error.contains("kpageflags"), "{error}");
    }

    #[test]
    fn live_memory_of_our_own_is_found_where_the_kernel_put_it() {
        use std::os::unix::fs::FileExt;
        const PAGES: usize = 256;
        let Ok(frames) = Frames::open(&ProcRoot::default()) else {
            return println!("SKIPPED live frames: needs root and /proc/kpagecgroup");
        };
        let memory = vec![1u8; (PAGES + 1) * 4096];
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let first = (memory.as_ptr() as u64).div_ceil(4096);
        let mut found = 0;
        for page in first..first + PAGES as u64 {
            let mut bytes = [0; 8];
            pagemap.read_exact_at(&mut bytes, page * 8).unwrap();
            let pfn = u64::from_ne_bytes(bytes) & ((1 << 55) - 1);
            let visit = |at, frame: Frame| {
                let is_ours = at == pfn && frame.page_type == PageType::Anon;
                found += usize::from(is_ours && frame.cgroup != 0);
            };
            frames.each(pfn..pfn + 1, visit).unwrap();
        }
        std::hint::black_box(&memory);
        // A part of a huge page is recognised by its head page, which this test does not read.
        let thp = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        if thp.unwrap_or_default().contains("[always]") {
            return println!("SKIPPED live frames: memory may be in huge pages");
        }
        assert!(found > PAGES * 9 / 10, "{found} of {PAGES}");
    }
}
