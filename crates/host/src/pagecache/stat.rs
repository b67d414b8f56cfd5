// SPDX-License-Identifier: Apache-2.0
//! The kernel's own count of the cached pages of one file: `cachestat(2)`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use crate::access::{AccessError, PAGE_BYTES};

/// The same on all architectures, and not in `libc` yet.
const CACHESTAT: libc::c_long = 451;

/// Pages in a range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStat {
    /// Present in the cache.
    pub pages: u64,
    /// Of these, dirty.
    pub dirty_pages: u64,
    /// Of these, under writeback.
    pub writeback_pages: u64,
}

/// Whether the kernel has the call: asks about a file that is not open.
pub(crate) fn has_cachestat() -> bool {
    // SAFETY: without a file, the kernel accesses none of the memory it is given.
    let result = unsafe { libc::syscall(CACHESTAT, -1, 0, 0, 0) };
    result >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
}

/// Refuses a kernel that cannot distinguish clean pages from dirty ones.
pub(super) fn no_cachestat() -> AccessError {
    AccessError::Unsupported {
        what: "dropping pages of files",
        why: "the kernel does not show which of them are clean (cachestat, Linux 6.5)".into(),
    }
}

/// Refuses a kernel on which no pages of files can be dropped.
///
/// # Errors
/// [`AccessError::Unsupported`] before Linux 6.5.
pub fn check_cachestat() -> Result<(), AccessError> {
    match has_cachestat() {
        true => Ok(()),
        false => Err(no_cachestat()),
    }
}

/// Counts pages of an open file. An empty range means the whole file.
///
/// # Errors
/// `ENOSYS` before Linux 6.5, `EOPNOTSUPP` for files without a page cache.
pub fn cachestat(file: impl AsFd, pages: Range<u64>) -> io::Result<CacheStat> {
    let range = [
        pages.start.saturating_mul(PAGE_BYTES),
        pages
            .end
            .saturating_sub(pages.start)
            .saturating_mul(PAGE_BYTES),
    ];
    let mut stat = [0u64; 5];
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: both have the sizes the call expects (two and five words), and outlive it.
    let result = unsafe { libc::syscall(CACHESTAT, fd, range.as_ptr(), stat.as_mut_ptr(), 0) };
    match result {
        0 => Ok(CacheStat {
            pages: stat[0],
            dirty_pages: stat[1],
            writeback_pages: stat[2],
        }),
        _ => Err(io::Error::last_os_error()),
    }
}
