// SPDX-License-Identifier: Apache-2.0
//! What a walk of the page cache shows (file systems and inodes), and its report.

use std::sync::Arc;

use super::accesses::Block;
use super::frames::Folios;
use super::layout::{BDEVFS_MAGIC, File, HUGETLBFS_MAGIC, Leaf, Super, TMPFS_MAGIC};

/// File systems whose pages come back over a network or from another program, so that the cost of
/// dropping them is unknown.
pub(super) const FAR: [&str; 19] = [
    "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "coda", "pvfs2", "vboxsf", "fuse",
    "fuseblk", "fusectl", "virtiofs", "ocfs2", "gfs2", "gpfs", "lustre", "beegfs",
];

/// The kind of cached pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Of a file on a device or the network, which can be read again.
    File,
    /// tmpfs, memfd and shared memory: has an inode, but can only go to swap.
    Shmem,
    /// Of a block device itself: `Buffers` of `/proc/meminfo`.
    Device,
}

impl CacheKind {
    /// Whether the ages of a single file say when it was used: reads and writes of shared memory
    /// pass no tracepoint, so it would look idle.
    pub fn has_ages(self) -> bool {
        self != CacheKind::Shmem
    }
}

/// A file system instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperBlock {
    pub(super) address: u64,
    pub(super) magic: u64,
    /// Type as listed in `/proc/filesystems`.
    pub fs_type: String,
    /// Device of its files, `major << 20 | minor`.
    pub device: u32,
    /// The kind of its pages.
    pub kind: CacheKind,
}

impl SuperBlock {
    /// Converts a record; `None` for hugetlbfs, whose pages are not page cache.
    pub(super) fn new(record: &Super) -> Option<Self> {
        let end = record.kind.iter().position(|byte| *byte == 0);
        let name = &record.kind[..end.unwrap_or(record.kind.len())];
        let kind = match record.magic {
            HUGETLBFS_MAGIC => return None,
            TMPFS_MAGIC => CacheKind::Shmem,
            BDEVFS_MAGIC => CacheKind::Device,
            _ => CacheKind::File,
        };
        Some(SuperBlock {
            address: record.address,
            magic: record.magic,
            fs_type: String::from_utf8_lossy(name).into_owned(),
            device: record.device,
            kind,
        })
    }

    /// Whether it is a network or FUSE file system.
    pub fn is_far(&self) -> bool {
        FAR.contains(&self.fs_type.as_str())
    }
}

/// An inode as the walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Kernel address, which identifies the inode while it exists.
    pub address: u64,
    pub number: u64,
    /// Generation, if the file system has them.
    pub generation: u32,
    pub size_bytes: u64,
    /// Number of hard links; 0 after deletion.
    pub links: u32,
}

/// Identifies an inode while it exists, as accesses do: its address, and the low half of its
/// number.
pub type Key = (u64, u32);

impl Inode {
    /// Its key, valid while it exists.
    pub fn key(&self) -> Key {
        (self.address, self.number as u32)
    }

    /// The block with this index, which begins at page 512 times the index.
    pub fn block(&self, index: u64) -> Block {
        let (inode, number) = self.key();
        Block {
            inode,
            number,
            block: index as u32,
        }
    }

    pub(super) fn new(file: &File) -> Self {
        Inode {
            address: file.inode,
            number: file.number,
            generation: file.generation,
            size_bytes: file.size_bytes,
            links: file.links,
        }
    }

    /// A permanent name, valid also while the inode is not in memory. Numbers alone are not unique
    /// in file systems with subvolumes, and are reused.
    pub fn name_hash(&self, on: &SuperBlock) -> u64 {
        let device = u64::from(on.device).rotate_left(40);
        self.number ^ device ^ u64::from(self.generation).rotate_left(20)
    }

    /// Whether its clean pages can be dropped by default: it has a name, and can be read again from
    /// a device of this machine.
    pub fn can_be_dropped(&self, on: &SuperBlock) -> bool {
        on.kind == CacheKind::File && self.links > 0 && !on.is_far()
    }
}

/// Receives what a walk shows.
pub trait CacheSink {
    /// Receives some leaves of an inode, in ascending order of index; more may follow. `folios` has
    /// the frames of their pages, if the walk shows those.
    fn leaves(&mut self, on: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf], folios: &Folios<'_>);

    /// Ends an inode. If not `valid`, it became another inode in the meantime, and its leaves must
    /// be discarded.
    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool);

    /// Ends a file system before all of its inodes were shown, although it still exists.
    fn cut_short(&mut self, _on: &Arc<SuperBlock>) {}
}

/// The results and the cost of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WalkReport {
    /// File system instances.
    pub super_blocks: u64,
    /// Inodes visited, with or without pages.
    pub inodes: u64,
    /// Inodes with pages.
    #[serde(rename = "walked_files")]
    pub files: u64,
    /// Pages shown.
    pub pages: u64,
    /// Tree nodes skipped because they kept changing during the read.
    pub unreadable: u64,
    /// Times the current inode went away, and the walk continued from one passed earlier.
    pub steps_back: u64,
    /// Times a list of inodes was restarted because the place in it was gone.
    pub restarts: u64,
    /// File system instances not walked to the end: unmounted, or changing faster than they were
    /// read.
    pub incomplete: u64,
    /// CPU time, ns.
    #[serde(rename = "walk_cpu_ns")]
    pub cpu_ns: u64,
}
