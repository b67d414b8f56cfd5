// SPDX-License-Identifier: Apache-2.0
//! What the walker of the page cache and this side exchange: the mirror of `bpf/cachewalk.h`.

/// All was shown.
pub const RC_DONE: u32 = 0;
/// Output full, or enough visited: call again.
pub const RC_FULL: u32 = 1;
/// The place to go on from is gone.
pub const RC_LOST: u32 = 2;
/// What was named is not there.
pub const RC_NOT_HERE: u32 = 3;

/// The inode was shown to its last page.
pub const FILE_WHOLE: u32 = 1;
/// It became another inode while it was walked.
pub const FILE_VOID: u32 = 2;

/// [`Ctl::page`]: the inode was shown to its end.
pub const SHOWN: u64 = u64::MAX;

/// A super block. See `struct cw_super`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Super {
    pub address: u64,
    pub magic: u64,
    pub device: u32,
    pub unused: u32,
    pub kind: [u8; 16],
    pub id: [u8; 32],
}

/// An inode with pages in the cache. See `struct cw_file`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct File {
    pub inode: u64,
    pub number: u64,
    pub size_bytes: u64,
    pub pages: u64,
    pub generation: u32,
    pub links: u32,
    pub n_leaves: u32,
    pub state: u32,
}

/// Up to 64 neighbours of a file's pages; a bit stands for 1 << [`shift`](Self::shift) pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    first_page_and_shift: u64,
    /// In the cache.
    pub present: u64,
    /// In the cache, as part of the large folio that begins before.
    pub tail: u64,
    /// Dirty: marked at the first page of a folio.
    pub dirty: u64,
    /// Being written back: marked at the first page of a folio.
    pub writeback: u64,
    /// Kernel address of the first folio: determines the frame, and so the node.
    pub folio: u64,
    /// Page flags of that folio.
    pub folio_flags: u64,
    /// Kernfs id of the cgroup that that folio is charged to; 0 without.
    pub cgroup: u64,
}

impl Leaf {
    /// First page, as index in the file.
    pub fn first_page(&self) -> u64 {
        self.first_page_and_shift & !63
    }

    /// Log2 of the pages that a bit stands for.
    pub fn shift(&self) -> u32 {
        (self.first_page_and_shift & 63) as u32
    }

    /// Pages in the cache.
    pub fn pages(&self) -> u64 {
        u64::from(self.present.count_ones()) << self.shift()
    }

    /// Dirty or being written back, with all of each large folio.
    pub fn unclean(&self) -> u64 {
        spread(self.dirty | self.writeback, self.tail)
    }
}

/// The slots of a leaf. See `struct cw_node`.
pub type Slots = [u64; 64];

/// Marks of first pages, for all pages of their folios: a mark goes up through tails.
fn spread(marks: u64, tail: u64) -> u64 {
    let (mut marks, mut tail) = (marks, tail);
    for step in [1, 2, 4, 8, 16, 32] {
        marks |= marks << step & tail;
        tail &= tail << step;
    }
    marks
}

/// Inodes passed last that are remembered.
pub const TRAIL: usize = 64;

/// An inode passed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Passed {
    pub inode: u64,
    pub number: u64,
}

/// Names of a path, at most.
pub const DEPTH: usize = 64;
/// The longest name of a directory entry, and its end.
pub const NAME_BYTES: usize = 256;

/// The names of a path, from the file up, each ended by a zero byte.
pub type Names = [[u8; NAME_BYTES]; DEPTH];

/// The control block. See `struct cw_ctl` for the fields.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Ctl {
    pub super_block: u64,
    pub inode: u64,
    pub number: u64,
    pub page: u64,
    pub fd: u32,
    pub visits_max: u32,
    pub rc: u32,
    pub n_supers: u32,
    pub n_files: u32,
    pub n_leaves: u32,
    pub visited: u32,
    pub retries: u32,
    pub names: u32,
    pub passed: u32,
    pub steps_back: u32,
    pub steps: u32,
    pub with_folios: u32,
    pub page_struct_bytes: u32,
    pub memcg: u64,
    pub cgroup: u64,
    pub trail: [Passed; TRAIL],
}

impl Default for Ctl {
    fn default() -> Self {
        // SAFETY: plain numbers, of which zero is one.
        unsafe { std::mem::zeroed() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn marks_spread_over_their_folios(tail: u64, marks: u64) {
            let tail = tail & !1;
            let marks = marks & !tail;
            let mut wanted = 0u64;
            let mut marked = false;
            for page in 0..64 {
                if tail >> page & 1 == 0 {
                    marked = marks >> page & 1 == 1;
                }
                wanted |= u64::from(marked) << page;
            }
            prop_assert_eq!(spread(marks, tail), wanted);
        }
    }
}
