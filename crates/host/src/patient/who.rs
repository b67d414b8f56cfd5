// SPDX-License-Identifier: Apache-2.0
//! Which process does not answer, and for whom it counts.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::error;
use crate::process::stat::{Stat, Status};
use crate::root::ProcRoot;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    /// The pid may be another's soon.
    pub start_ticks: u64,
    pub user: User,
}

/// Whose process it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum User {
    /// Its effective user. Of a process in a user namespace, who created the outermost; of one with
    /// a subordinate id, the first of the range: a user may have thousands of either.
    Id(u32),
    /// What root starts in a user namespace is not root. By the inode of the outermost.
    Namespace(u64),
}

impl User {
    pub const ROOT: User = User::Id(0);
}

/// `None` if it has ended.
pub(super) fn who(pid: u32) -> Option<Who> {
    let of = ProcRoot::default().of(pid);
    let (stat, status) = (of.join("stat"), of.join("status"));
    let start_ticks = Stat::parse(&stat, error::read_bytes(&stat).ok()?)
        .ok()?
        .start_ticks;
    let user = outermost(&of.join("ns/user"));
    // Its effective user; the owner of its directory would be root if it hides its memory.
    let euid = Status::parse(&status, &error::read(&status).ok()?)
        .ok()?
        .euid;
    let ranges = || std::fs::read_to_string("/etc/subuid").unwrap_or_default();
    Some(Who {
        start_ticks,
        user: user.unwrap_or_else(|| User::Id(first_of_range(&ranges(), euid))),
    })
}

/// A user can run programs with subordinate ids outside of namespaces, by setuid files made within.
/// Lines of subuid(5) are `user:first:count`.
fn first_of_range(ranges: &str, id: u32) -> u32 {
    let mut ranges = ranges.lines().filter_map(|line| {
        let mut fields = line
            .split(':')
            .skip(1)
            .map(|field| field.trim().parse().ok());
        Some((fields.next()??, fields.next()??))
    });
    let range = ranges.find(|&(first, count)| id.checked_sub(first).is_some_and(|n| n < count));
    range.map_or(id, |(first, _): (u32, u32)| first)
}

/// For whom those in a user namespace count; `None` for our own namespace.
fn outermost(path: &Path) -> Option<User> {
    let mut at = File::open(path).ok()?;
    let mut outermost = None;
    // Nothing above our own can be opened.
    while let Ok(above) = above(&at) {
        outermost = Some(std::mem::replace(&mut at, above));
    }
    let outermost = outermost?;
    match owner(&outermost).ok()? {
        0 => Some(User::Namespace(outermost.metadata().ok()?.ino())),
        id => Some(User::Id(id)),
    }
}

// ioctl_nsfs(2), as of include/uapi/linux/nsfs.h.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

fn above(namespace: &File) -> io::Result<File> {
    // SAFETY: it takes no argument.
    let fd = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor, which is nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

fn owner(namespace: &File) -> io::Result<u32> {
    let mut id = 0u32;
    // SAFETY: it writes a uid_t.
    match unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut id) } {
        0 => Ok(id),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_count_as_one() {
        let ranges = "# comment\nann:100000:65536\nbob:165536:10\nx:y:5\nann:4294967290:99\n";
        let cases = [
            (100_000, 100_000),
            (165_535, 100_000),
            (165_545, 165_536),
            (165_546, 165_546),
        ];
        for (id, first) in cases {
            assert_eq!(first_of_range(ranges, id), first);
        }
        assert_eq!(first_of_range(ranges, u32::MAX), 4_294_967_290);
        assert_eq!(first_of_range("", 7), 7);
    }

    #[test]
    fn we_count_for_ourselves() {
        let us = who(std::process::id()).unwrap();
        let euid = rustix::process::geteuid().as_raw();
        assert_eq!(us.user, User::Id(euid));
        assert!(us.start_ticks > 0);
        assert_eq!(who(1 << 30), None);
    }
}
