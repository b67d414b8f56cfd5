// SPDX-License-Identifier: Apache-2.0
//! Files of our own for trying out the page cache.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstatfs, open};

use super::layout::TMPFS_MAGIC;

/// Creates an unnamed file in the file system of a directory. It is gone once closed.
///
/// # Errors
/// The file cannot be created there; [`io::ErrorKind::Unsupported`] if files there are memory
/// (tmpfs).
pub(super) fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = File::from(open(dir, flags, Mode::RUSR | Mode::WUSR)?);
    if fstatfs(&file)?.f_type as u64 == TMPFS_MAGIC {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(file)
}
