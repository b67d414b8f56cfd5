// SPDX-License-Identifier: Apache-2.0
//! The kind of a mapping, by the file system of its file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

use super::{Line, VmaKind};

/// Devices of shared memory or huge pages; each device is looked up only once.
#[derive(Debug, Default)]
pub(crate) struct Filesystems {
    kinds: HashMap<u64, Option<VmaKind>>,
    own: bool,
}

impl Filesystems {
    pub(super) fn kind(&mut self, line: &Line<'_>, pid: u32) -> VmaKind {
        if line.inode == 0 {
            let special = [b"[vdso]".as_slice(), b"[vvar", b"[vsyscall]", b"[uprobes]"];
            let is_special = special.iter().any(|prefix| line.name.starts_with(prefix));
            return if is_special {
                VmaKind::Special
            } else {
                VmaKind::Anon
            };
        }
        if let Some(kind) = self.of_device(line.device, pid) {
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
    fn of_device(&mut self, device: u64, pid: u32) -> Option<VmaKind> {
        if let Some(&known) = self.kinds.get(&device) {
            return known;
        }
        if !self.own {
            self.own = true;
            self.learn_internal();
        }
        // The target may be in another mount namespace, so read its mount table, not ours.
        self.learn_mounts(pid);
        *self.kinds.entry(device).or_insert(None)
    }

    /// Adds the kernel's internal mounts behind memfd, which no mount table lists.
    fn learn_internal(&mut self) {
        use rustix::fs::{MemfdFlags, memfd_create};
        let pairs = [
            (MemfdFlags::CLOEXEC, VmaKind::Shmem),
            (MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB, VmaKind::Hugetlb),
        ];
        for (flags, kind) in pairs {
            let Ok(fd) = memfd_create("agewise-probe", flags) else {
                continue;
            };
            if let Ok(meta) = File::from(fd).metadata() {
                self.kinds.insert(meta.dev(), Some(kind));
            }
        }
    }

    fn learn_mounts(&mut self, pid: u32) {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/mountinfo")) else {
            return;
        };
        for line in text.lines() {
            if let Some((device, kind)) = mount_kind(line) {
                self.kinds.insert(device, Some(kind));
            }
        }
    }
}

/// Parses a line of mountinfo (proc_pid_mountinfo(5)): device and kind for tmpfs and hugetlbfs.
pub(super) fn mount_kind(line: &str) -> Option<(u64, VmaKind)> {
    let (fields, rest) = line.split_once(" - ")?;
    let kind = match rest.split(' ').next()? {
        "tmpfs" | "devtmpfs" => VmaKind::Shmem,
        "hugetlbfs" => VmaKind::Hugetlb,
        _ => return None,
    };
    let (major, minor) = fields.split(' ').nth(2)?.split_once(':')?;
    Some((
        rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?),
        kind,
    ))
}
