// SPDX-License-Identifier: Apache-2.0
//! The kernel's two ways to clear accessed bits, behind a trait that tests can make fail; and
//! whether other processes map a page too.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::access::{AddressRange, pages_per_kernel_page};
use crate::advice::{RANGES_MAX, advise};
use crate::patient;
use crate::process::Process;

/// Most ranges per call.
pub const MAX_RANGES: usize = RANGES_MAX;

/// The scope of a `clear_refs` write (proc_pid_clear_refs(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// is not permitted (`EPERM`) or does not exist (`ENOSYS`). `TimedOut` if the process does not
    /// answer; then it may still be done, at any time.
    fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize>;

    /// Writes to `clear_refs`.
    ///
    /// # Errors
    /// The process is gone (`ENOENT`, `ESRCH`), belongs to another user (`EACCES`), or does not
    /// answer (`TimedOut`).
    fn refs(&mut self, scope: RefsScope) -> io::Result<()>;
}

/// Clears through the kernel. `MADV_COLD` needs the right to trace the process and CAP_SYS_NICE
/// (neither for ourselves, since Linux 6.13); `clear_refs` needs to run as its user.
#[derive(Debug)]
pub struct KernelHand {
    pid: u32,
    pidfd: Option<Arc<OwnedFd>>,
    clear_refs: PathBuf,
}

impl KernelHand {
    /// Creates it for an open process.
    pub fn new(process: &Process) -> Self {
        // Given a pidfd, the kernel uses the address space of the first thread, and fails with
        // ESRCH if that has ended.
        let pidfd = process.shared_pidfd();
        KernelHand {
            pid: process.pid(),
            pidfd: pidfd.filter(|_| !process.has_lost_leader()).cloned(),
            clear_refs: process.path("clear_refs"),
        }
    }
}

impl ClearHand for KernelHand {
    fn cold(&mut self, ranges: &[AddressRange]) -> io::Result<usize> {
        let Some(pidfd) = &self.pidfd else {
            return Err(io::Error::from_raw_os_error(libc::ENOSYS));
        };
        let ranges = &ranges[..ranges.len().min(MAX_RANGES)];
        let mut left = advise(self.pid, pidfd, ranges, libc::MADV_COLD)?;
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
        let path = self.clear_refs.clone();
        patient::call(self.pid, move || {
            OpenOptions::new().write(true).open(path)?.write_all(value)
        })?
    }
}

/// `/proc/kpagecount`, readable by root only: how often each page is mapped. `MADV_COLD` skips
/// pages that others map too (madvise_cold_or_pageout_pte_range in mm/madvise.c requires that no
/// other mapping exists), so their accessed bits stay set.
#[derive(Debug)]
pub struct MapCounts {
    file: Option<File>,
}

impl MapCounts {
    /// Opens the file. If that fails, nothing is known about any page.
    pub fn open() -> Self {
        MapCounts {
            file: File::open("/proc/kpagecount").ok(),
        }
    }

    /// Whether the page at a frame (in units of 4 KiB) is mapped more than once; `None` if unknown.
    pub fn is_shared(&self, pfn: u64) -> Option<bool> {
        let mut word = [0; 8];
        let pfn = pfn / pages_per_kernel_page();
        self.file
            .as_ref()?
            .read_exact_at(&mut word, pfn.checked_mul(8)?)
            .ok()?;
        Some(u64::from_ne_bytes(word) > 1)
    }
}
