// SPDX-License-Identifier: Apache-2.0
//! The location of a ledger: a directory to which nobody else can write, opened without following
//! links.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::error::FileError;

/// Largest ledger: thousands of cgroups with the longest paths.
const SIZE_MAX: u64 = 64 << 20;

/// A directory that contains a ledger, or will.
///
/// Its lines are carried out with full privileges, so it must be certain who could have written
/// them. The directories on the path to it decide that, not the owner of the file alone:
///
/// - If one of them is ours (or root's) and closed to all others (no search permission), nobody
///   else can reach anything below, and everything below is trusted whoever owns it: a ledger given
///   away with `chown` was still written by us, and its new owner cannot reach it. Rejecting it
///   would leave a cgroup frozen for no reason. The state directory of a systemd unit with its own
///   user is below `/var/lib/private`, which is closed this way.
/// - Otherwise every directory must belong to us or root, and nobody else may have write permission
///   (above the last directory a sticky bit is enough, as in `/tmp`). The same holds for the file:
///   in a directory that can be searched, its owner could have changed it.
#[derive(Debug)]
pub(super) struct Place {
    dir: OwnedFd,
    path: PathBuf,
    name: OsString,
    is_closed: bool,
}

fn unreadable(path: &Path, source: impl Into<io::Error>) -> FileError {
    FileError::Read {
        path: path.to_owned(),
        source: source.into(),
    }
}

fn untrusted(path: &Path, why: &str) -> FileError {
    let why = format!("not trusted: {why}; look at it, undo by hand what it says, and remove it");
    unreadable(path, io::Error::other(why))
}

fn is_ours(stat: &Stat) -> bool {
    stat.st_uid == 0 || stat.st_uid == rustix::process::geteuid().as_raw()
}

impl Drop for Place {
    /// Closing it would not do: a child of another thread has the lock as well until it calls exec.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.dir, FlockOperation::Unlock);
    }
}

impl Place {
    /// Opens the directory for a ledger of this name; `None` if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be opened, or others could write to it.
    pub fn open(dir: &Path, name: &OsStr) -> Result<Option<Self>, FileError> {
        // Links are resolved first (a state directory may be one); then the resolved path is walked
        // without following any.
        let real = match fs::canonicalize(dir) {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(dir, error)),
        };
        let (opened, is_closed) = walk(&real)?;
        Ok(Some(Place {
            dir: opened,
            path: real.join(name),
            name: name.to_owned(),
            is_closed,
        }))
    }

    /// Like [`open`](Self::open), but creates a missing directory, closed to others.
    ///
    /// # Errors
    /// The directory cannot be created or opened, or others could write to it.
    pub fn make(dir: &Path, name: &OsStr) -> Result<Self, FileError> {
        let made = DirBuilder::new().mode(0o700).recursive(true).create(dir);
        made.map_err(|source| FileError::Directory {
            path: dir.to_owned(),
            what: "create",
            source,
        })?;
        Self::open(dir, name)?.ok_or_else(|| unreadable(dir, Errno::NOENT))
    }

    /// The path of the ledger.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes the lock of the directory; `false` if another program has it. The lock ends with the
    /// program that holds it, however that ends, and needs no file, so it works on a full or
    /// read-only disk.
    ///
    /// # Errors
    /// The file system does not support locks.
    pub fn lock(&self) -> Result<bool, FileError> {
        match rustix::fs::flock(&self.dir, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(unreadable(&self.path, errno)),
        }
    }

    /// Reads the ledger; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, is not a file, or another user may have written it.
    pub fn read(&self) -> Result<Option<Vec<u8>>, FileError> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(untrusted(&self.path, "it is a symbolic link")),
            Err(errno) => return Err(unreadable(&self.path, errno)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| unreadable(&self.path, errno))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(untrusted(&self.path, "it is not a file"));
        }
        if !self.is_closed && !is_ours(&stat) {
            return Err(untrusted(&self.path, "it belongs to another user"));
        }
        if !self.is_closed && stat.st_mode & 0o022 != 0 {
            return Err(untrusted(&self.path, "others may write to it"));
        }
        let mut bytes = Vec::new();
        let mut file = File::from(fd).take(SIZE_MAX + 1);
        file.read_to_end(&mut bytes)
            .map_err(|error| unreadable(&self.path, error))?;
        if bytes.len() as u64 > SIZE_MAX {
            return Err(untrusted(&self.path, "it is larger than any ledger"));
        }
        Ok(Some(bytes))
    }

    /// Replaces the whole ledger. Whatever happens, either the old or the new one exists. When this
    /// returns, the new one and its name are on disk.
    ///
    /// # Errors
    /// The disk is full or read-only; the old ledger stays.
    pub fn replace(&self, bytes: &[u8]) -> Result<(), FileError> {
        self.try_replace(bytes)
            .map_err(|source| self.failed(source))
    }

    fn try_replace(&self, bytes: &[u8]) -> io::Result<()> {
        // It could not be read again, so nothing in it would ever be undone.
        if bytes.len() as u64 > SIZE_MAX {
            return Err(Errno::FBIG.into());
        }
        let fresh = self.fresh();
        self.unlink(&fresh)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let fd = rustix::fs::openat(&self.dir, &fresh, flags | OFlags::CLOEXEC, mode)?;
        let mut file = File::from(fd);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if let Err(error) = written {
            self.unlink(&fresh)?;
            return Err(error);
        }
        rustix::fs::renameat(&self.dir, &fresh, &self.dir, &self.name)?;
        self.sync()
    }

    /// Removes the ledger, and an unfinished new one.
    ///
    /// # Errors
    /// The ledger cannot be removed.
    pub fn remove(&self) -> Result<(), FileError> {
        // An unfinished ledger contains nothing valid, so a failure to remove it does not matter
        // yet.
        let _ = self.unlink(&self.fresh());
        let removed = self.unlink(&self.name).and_then(|()| self.sync());
        removed.map_err(|source| self.failed(source))
    }

    fn fresh(&self) -> OsString {
        let mut fresh = self.name.clone();
        fresh.push(".new");
        fresh
    }

    fn failed(&self, source: io::Error) -> FileError {
        FileError::Write {
            path: self.path.clone(),
            value: "what has to be undone".to_owned(),
            source,
        }
    }

    fn unlink(&self, name: &OsStr) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            // A read-only file system reports this for missing files, too.
            Err(Errno::ROFS) if !self.exists(name) => Ok(()),
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn exists(&self, name: &OsStr) -> bool {
        rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn sync(&self) -> io::Result<()> {
        match rustix::fs::fsync(&self.dir) {
            // Some file systems cannot sync a directory, and some cannot be written to at all.
            Ok(()) | Err(Errno::INVAL | Errno::ROFS) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Opens a path component by component, without links. Returns whether one of its directories is
/// closed to all others.
fn walk(real: &Path) -> Result<(OwnedFd, bool), FileError> {
    let mut at = PathBuf::from("/");
    let open = |dir: Option<&OwnedFd>, name: &OsStr, last: bool, at: &Path| {
        let kind = if last { OFlags::RDONLY } else { OFlags::PATH };
        let flags = kind | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match dir {
            Some(dir) => rustix::fs::openat(dir, name, flags, Mode::empty()),
            None => rustix::fs::open(name, flags, Mode::empty()),
        };
        opened.map_err(|errno| unreadable(at, errno))
    };
    let names: Vec<&OsStr> = real
        .components()
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name),
            _ => None,
        })
        .collect();
    let mut dir = open(None, OsStr::new("/"), names.is_empty(), &at)?;
    let mut is_closed = check(&dir, &at, names.is_empty())?;
    for (number, name) in (1..).zip(&names) {
        at.push(name);
        let is_last = number == names.len();
        dir = open(Some(&dir), name, is_last, &at)?;
        if !is_closed {
            is_closed = check(&dir, &at, is_last)?;
        }
    }
    Ok((dir, is_closed))
}

/// Rejects a directory in which others could put a ledger. Returns whether it is closed to them.
fn check(dir: &OwnedFd, at: &Path, is_last: bool) -> Result<bool, FileError> {
    let stat = rustix::fs::fstat(dir).map_err(|errno| unreadable(at, errno))?;
    let is_sticky = stat.st_mode & 0o1000 != 0 && !is_last;
    if !is_ours(&stat) {
        return Err(untrusted(at, "the directory belongs to another user"));
    }
    if stat.st_mode & 0o011 == 0 {
        return Ok(true);
    }
    if stat.st_mode & 0o022 != 0 && !is_sticky {
        return Err(untrusted(at, "others may write to the directory"));
    }
    Ok(false)
}

#[cfg(test)]
#[path = "place_tests.rs"]
mod tests;
