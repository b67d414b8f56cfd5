// SPDX-License-Identifier: Apache-2.0
//! Files of our own to try the page cache with.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstatfs, open};

use super::shown::TMPFS_MAGIC;

/// A file without a name, gone when it is closed, on the file system of a directory.
///
/// # Errors
/// It cannot be made there; [`io::ErrorKind::Unsupported`] where files are memory (tmpfs).
pub(super) fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(open(dir, flags, Mode::RUSR | Mode::WUSR)?);
    if fstatfs(&file)?.f_type as u64 == TMPFS_MAGIC {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(file)
}
