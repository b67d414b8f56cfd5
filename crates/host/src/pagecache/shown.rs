// SPDX-License-Identifier: Apache-2.0
//! What a walk of the page cache shows: file systems, inodes, and what it met and cost.

use std::sync::Arc;

use super::accessed::Block;
use super::frames::Folios;
use super::layout::{File, Leaf, Super};

/// Of `include/uapi/linux/magic.h`.
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
const HUGETLBFS_MAGIC: u64 = 0x9584_58f6;
const BDEVFS_MAGIC: u64 = 0x6264_6576;

/// File systems whose pages come back over a network or from another program: the cost of dropping
/// them is not known.
const FAR: [&str; 14] = [
    "nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "fuse", "fuseblk", "fusectl", "virtiofs",
    "ocfs2", "gfs2", "lustre",
];

/// What cached pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheKind {
    /// Of a file on a device or the network: can be read again.
    File,
    /// tmpfs, memfd and shared memory: memory with a name, which only swap can take.
    Shmem,
    /// Of a block device itself: `Buffers` of `/proc/meminfo`.
    Device,
}

/// A file system instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuperBlock {
    pub(super) address: u64,
    /// Type as in `/proc/filesystems`.
    pub fs_type: String,
    /// Device of its files, `major << 20 | minor`.
    pub device: u32,
    /// What its pages are.
    pub kind: CacheKind,
}

impl SuperBlock {
    /// The content of the record; nothing for huge pages, which are not page cache.
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
            fs_type: String::from_utf8_lossy(name).into_owned(),
            device: record.device,
            kind,
        })
    }

    /// It is a network or FUSE file system.
    pub fn is_far(&self) -> bool {
        FAR.contains(&self.fs_type.as_str())
    }
}

/// An inode as the walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Kernel address: names the inode while it lives.
    pub address: u64,
    /// Inode number.
    pub number: u64,
    /// Generation, where the file system has them.
    pub generation: u32,
    /// Size, bytes.
    pub size_bytes: u64,
    /// Hard links: none once it was deleted.
    pub links: u32,
    /// Pages in the cache by the kernel's own count, when its walk began.
    pub pages: u64,
}

/// What names an inode while it lives, as accesses do: its address, and the low half of its number.
pub type Key = (u64, u32);

impl Inode {
    /// Its name while it lives.
    pub fn key(&self) -> Key {
        (self.address, self.number as u32)
    }

    /// The block of this index: pages from 512 times that on.
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
            pages: file.pages,
        }
    }

    /// What names it for good, also while it is not in memory. Numbers alone are not unique where a
    /// file system has subvolumes, and are used again.
    pub fn name_hash(&self, on: &SuperBlock) -> u64 {
        let device = u64::from(on.device).rotate_left(40);
        self.number ^ device ^ u64::from(self.generation).rotate_left(20)
    }

    /// Clean pages of it can be dropped unless asked otherwise: it has a name, and can be read
    /// again from a device of this machine.
    pub fn can_be_dropped(&self, on: &SuperBlock) -> bool {
        on.kind == CacheKind::File && self.links > 0 && !on.is_far()
    }
}

/// Takes what a walk shows.
pub trait CacheSink {
    /// Some leaves of an inode, in rising order of index. More may follow. `folios` have the frames
    /// of their pages, where the walk shows those.
    fn leaves(&mut self, on: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf], folios: &Folios<'_>);

    /// The inode has been shown. Not `valid`: it became another one in the meantime, and its leaves
    /// belong to nobody.
    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool);
}

/// What a walk met and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct WalkReport {
    /// File system instances.
    pub super_blocks: u64,
    /// Inodes looked at, with pages or without.
    pub inodes: u64,
    /// Inodes with pages.
    #[serde(rename = "walked_files")]
    pub files: u64,
    /// Pages shown.
    pub pages: u64,
    /// Nodes of trees given up: they changed under the read again and again.
    pub unreadable: u64,
    /// Times that the inode at hand went away, and the walk went on from one passed before.
    pub steps_back: u64,
    /// Times that a list of inodes was entered again, because the place in it was gone.
    pub restarts: u64,
    /// File system instances not walked to their end: unmounted, or changing faster than read.
    pub incomplete: u64,
    /// CPU time, ns.
    #[serde(rename = "walk_cpu_ns")]
    pub cpu_ns: u64,
}
