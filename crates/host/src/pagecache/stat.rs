// SPDX-License-Identifier: Apache-2.0
//! The kernel's own count of the cached pages of one file: `cachestat(2)`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};

use crate::access::PAGE_BYTES;

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
