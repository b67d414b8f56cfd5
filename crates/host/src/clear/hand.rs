// SPDX-License-Identifier: Apache-2.0
//! The kernel's two ways to clear accessed bits, behind a trait that tests can make fail.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;

use serde::Serialize;

use crate::access::AddressRange;
use crate::process::Process;

/// Most ranges per call (`UIO_MAXIOV`).
pub const MAX_RANGES: usize = 1024;

/// The scope of a `clear_refs` write (proc_pid_clear_refs(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RefsScope {
    /// `1`: all mappings.
    All,
    /// `2`: mappings without a file.
    Anon,
    /// `3`: file mappings (including shared memory).
    File,
}

/// Clears the accessed bits of one process.
pub trait ClearHand {
    /// Applies `MADV_COLD` to `ranges` (at most [`MAX_RANGES`]). Returns how many were processed,
    /// from the front; if not all, the next one was refused (locked, unmapped, hugetlb).
    ///
    /// # Errors
    /// The first range was refused (`EINVAL`, `ENOMEM`), the process is gone (`ESRCH`), or the call
    /// is not permitted (`EPERM`) or does not exist (`ENOSYS`).
    fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize>;

    /// Writes to `clear_refs`.
    ///
    /// # Errors
    /// The process is gone (`ENOENT`, `ESRCH`) or belongs to another user (`EACCES`).
    fn refs(&mut self, scope: RefsScope) -> io::Result<()>;
}

/// Clears through the kernel. `MADV_COLD` needs the right to trace the process and CAP_SYS_NICE
/// (neither for ourselves, since Linux 6.13); `clear_refs` needs to run as its user.
#[derive(Debug)]
pub struct KernelHand<'a> {
    pidfd: Option<BorrowedFd<'a>>,
    clear_refs: PathBuf,
    vectors: Vec<libc::iovec>,
}

impl<'a> KernelHand<'a> {
    /// Creates it for an open process.
    pub fn new(process: &'a Process) -> Self {
        KernelHand {
            // Given a pidfd, the kernel uses the address space of the first thread, and fails with
            // ESRCH if that has ended.
            pidfd: process.pidfd().filter(|_| !process.has_lost_leader()),
            clear_refs: process.path("clear_refs"),
            vectors: Vec::new(),
        }
    }
}

impl ClearHand for KernelHand<'_> {
    fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize> {
        let Some(pidfd) = self.pidfd else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let ranges = &ranges[..ranges.len().min(MAX_RANGES)];
        self.vectors.clear();
        self.vectors.extend(ranges.iter().map(|range| libc::iovec {
            iov_base: range.start as *mut libc::c_void,
            iov_len: range.len() as usize,
        }));
        // SAFETY: `vectors` has this many entries; the addresses are the target's, and MADV_COLD
        // changes no content.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_fd().as_raw_fd(),
                self.vectors.as_ptr(),
                self.vectors.len(),
                libc::MADV_COLD,
                0,
            )
        };
        if done < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut left = done as u64;
        let whole = ranges.iter().take_while(|range| {
            let fits = left >= range.len();
            left = left.saturating_sub(range.len());
            fits
        });
        Ok(whole.count())
    }

    fn refs(&mut self, scope: RefsScope) -> io::Result<()> {
        let value: &[u8] = match scope {
            RefsScope::All => b"1",
            RefsScope::Anon => b"2",
            RefsScope::File => b"3",
        };
        OpenOptions::new()
            .write(true)
            .open(&self.clear_refs)?
            .write_all(value)
    }
}
