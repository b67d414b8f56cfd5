// SPDX-License-Identifier: Apache-2.0
//! Data exchanged with the page-cache walker: the mirror of `bpf/cachewalk.h`.

/// Everything was shown.
pub const RC_DONE: u32 = 0;
/// The output is full, or enough inodes were visited: call again.
pub const RC_FULL: u32 = 1;
/// The place to continue from is gone.
pub const RC_LOST: u32 = 2;
/// The named object does not exist.
pub const RC_NOT_HERE: u32 = 3;

/// The inode was shown up to its last page.
pub const FILE_WHOLE: u32 = 1;
/// It became another inode during the walk.
pub const FILE_VOID: u32 = 2;

/// Value of [`Ctl::page`]: the inode was shown to its end.
pub const SHOWN: u64 = u64::MAX;

/// [`Super::magic`] of tmpfs. This and the following are from `include/uapi/linux/magic.h`.
pub const TMPFS_MAGIC: u64 = 0x0102_1994;
pub const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
/// Of the file system of block devices.
pub const BDEVFS_MAGIC: u64 = 0x6264_6576;

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
}

/// An inode with cached pages. See `struct cw_file`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct File {
    pub inode: u64,
    pub number: u64,
    pub size_bytes: u64,
    pub generation: u32,
    pub links: u32,
    pub n_leaves: u32,
    pub state: u32,
}

/// Up to 64 adjacent pages of a file. A bit represents 1 << [`shift`](Self::shift) pages.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaf {
    first_page_and_shift: u64,
    /// Present in the cache.
    pub present: u64,
    /// Present, and not the first page of its large folio.
    pub tail: u64,
    /// Dirty: marked at the first page of a folio.
    pub dirty: u64,
    /// Under writeback: marked at the first page of a folio.
    pub writeback: u64,
    /// Kernfs id of the cgroup the first present folio is charged to; 0 for none.
    pub cgroup: u64,
}

impl Leaf {
    /// A leaf of pages that are not cached.
    #[cfg(test)]
    pub(super) fn at(first_page: u64) -> Self {
        Leaf {
            first_page_and_shift: first_page,
            ..Leaf::default()
        }
    }

    /// Index of the first page in the file.
    pub fn first_page(&self) -> u64 {
        self.first_page_and_shift & !63
    }

    /// Log2 of the pages per bit.
    pub fn shift(&self) -> u32 {
        (self.first_page_and_shift & 63) as u32
    }

    /// Pages in the cache.
    pub fn pages(&self) -> u64 {
        u64::from(self.present.count_ones()) << self.shift()
    }

    /// Pages that are dirty or under writeback, extended to whole folios.
    pub fn unclean(&self) -> u64 {
        spread(self.dirty | self.writeback, self.tail)
    }
}

/// The raw slots of a leaf. See `struct cw_node`.
pub type Slots = [u64; 64];

/// Extends marks at first pages to all pages of their folios, by shifting them up through tails.
fn spread(marks: u64, tail: u64) -> u64 {
    let (mut marks, mut tail) = (marks, tail);
    for step in [1, 2, 4, 8, 16, 32] {
        marks |= marks << step & tail;
        tail &= tail << step;
    }
    marks
}

/// Number of passed inodes that are remembered.
pub const TRAIL: usize = 64;

/// An inode that the walk has passed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Passed {
    pub inode: u64,
    pub number: u64,
}

/// Most names in a path.
pub const DEPTH: usize = 64;
/// Longest name of a directory entry, including the zero byte.
pub const NAME_BYTES: usize = 256;

/// The names of a path from the file upwards, each zero terminated.
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
    pub magic: u64,
    pub device: u32,
    pub unused: u32,
    pub trail: [Passed; TRAIL],
}

impl Default for Ctl {
    fn default() -> Self {
        // SAFETY: only plain numbers, for which zero is valid.
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
