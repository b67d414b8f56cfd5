// SPDX-License-Identifier: Apache-2.0
//! The kind of a mapping, by the file system of its file.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Line, VmaKind};

/// Most that is read of a mount table. A user can have 100,000 mounts in a namespace of their own,
/// and writing a line of it takes the kernel 13 us.
const TABLE_MAX: u64 = 4 << 20;

/// Devices of shared memory or huge pages; each device is looked up only once, until they are
/// forgotten.
#[derive(Debug, Default)]
pub(crate) struct Filesystems {
    /// Of devices that mount tables list, and of others that were looked for there.
    kinds: HashMap<u64, Option<VmaKind>>,
    internal: Option<HashMap<u64, VmaKind>>,
}

impl Filesystems {
    /// Forgets what mount tables said: the kernel gives the numbers of file systems without a
    /// device to others as soon as they are unmounted.
    pub(super) fn forget(&mut self) {
        self.kinds.clear();
    }

    /// The kind of a mapping of a process with this mount table, which is taken once it has been
    /// read: mappings of thousands of file systems that are mounted no more must not cost more.
    pub(super) fn kind(&mut self, line: &Line<'_>, mounts: &mut Option<&Path>) -> VmaKind {
        if line.inode == 0 {
            let special = [b"[vdso]".as_slice(), b"[vvar", b"[vsyscall]", b"[uprobes]"];
            let is_special = special.iter().any(|prefix| line.name.starts_with(prefix));
            return if is_special {
                VmaKind::Special
            } else {
                VmaKind::Anon
            };
        }
        if let Some(kind) = self.of_device(line.device, mounts) {
            return kind;
        }
        if line.name.starts_with(b"anon_inode:") || line.name.starts_with(b"/dev/") {
            return VmaKind::Special;
        }
        if line.perms[3] == b's' {
            VmaKind::FileShared
        } else {
            VmaKind::FilePrivate
        }
    }

    /// Shared memory or huge pages by the device's file system; `None` for any other.
    fn of_device(&mut self, device: u64, mounts: &mut Option<&Path>) -> Option<VmaKind> {
        let internal = self.internal.get_or_insert_with(internal);
        if let Some(&kind) = internal.get(&device) {
            return Some(kind);
        }
        if let Some(&known) = self.kinds.get(&device) {
            return known;
        }
        if let Some(path) = *mounts {
            let mut table = Vec::new();
            let file = File::open(path);
            let read = file.and_then(|of| of.take(TABLE_MAX).read_to_end(&mut table));
            // Without the table, nothing is known that would be worth keeping.
            read.ok()?;
            *mounts = None;
            let table = String::from_utf8_lossy(&table);
            self.kinds.extend(table.lines().filter_map(mount_kind));
        }
        *self.kinds.entry(device).or_insert(None)
    }
}

/// The kernel's internal mounts behind memfd, which no mount table lists. They never go.
fn internal() -> HashMap<u64, VmaKind> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let pairs = [
        (MemfdFlags::CLOEXEC, VmaKind::Shmem),
        (MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB, VmaKind::Hugetlb),
    ];
    let device = |(flags, kind)| {
        let fd = memfd_create("agewise-probe", flags).ok()?;
        Some((File::from(fd).metadata().ok()?.dev(), kind))
    };
    pairs.into_iter().filter_map(device).collect()
}

/// Parses a line of mountinfo (proc_pid_mountinfo(5)): the device, and its kind if it is one of
/// shared memory or huge pages.
pub(super) fn mount_kind(line: &str) -> Option<(u64, Option<VmaKind>)> {
    let (fields, rest) = line.split_once(" - ")?;
    let kind = match rest.split(' ').next()? {
        "tmpfs" | "devtmpfs" => Some(VmaKind::Shmem),
        "hugetlbfs" => Some(VmaKind::Hugetlb),
        _ => None,
    };
    let (major, minor) = fields.split(' ').nth(2)?.split_once(':')?;
    Some((
        rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        kind,
    ))
}
