// SPDX-License-Identifier: Apache-2.0
//! Report of what was judged and cleared, and errors.

use std::io;

/// What one scan cleared, and the cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearReport {
    /// Whether this scan cleared at all (it was not too soon).
    pub due: bool,
    /// Tables and leaves with young pages.
    pub tables_young: u64,
    /// Of these, noted to be cleared by `MADV_COLD`.
    pub tables_cleared: u64,
    /// Noted but not cleared: too much time had passed since they were read.
    pub tables_late: u64,
    /// Address ranges passed to `MADV_COLD`.
    pub ranges: u64,
    /// Present pages in them.
    pub range_pages: u64,
    /// Ranges the kernel refused: locked or unmapped in the meantime.
    pub ranges_refused: u64,
    /// System calls.
    pub calls: u64,
    /// Writes to `clear_refs`.
    pub refs_writes: u64,
    /// Present pages of mappings that nothing clears: hugetlb, or shared ones while `clear_refs`
    /// would stall the target for too long. Their young bits stay set.
    pub uncleared_pages: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

/// Why nothing could be cleared.
#[derive(Debug, thiserror::Error)]
pub enum ClearError {
    #[error("process {pid} is gone: its accessed bits need no clearing any more")]
    Gone { pid: u32 },
    #[error(
        "accessed bits of process {pid} cannot be cleared: {source}; run as root, or as its user \
         (clear_refs), or with CAP_SYS_NICE and CAP_SYS_PTRACE (MADV_COLD)"
    )]
    Denied {
        pid: u32,
        /// The error the system returned.
        source: io::Error,
    },
    #[error("cannot clear accessed bits of process {pid}: {source}")]
    System {
        pid: u32,
        /// The error the system returned.
        source: io::Error,
    },
}

impl ClearError {
    pub(super) fn new(pid: u32, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ESRCH | libc::ENOENT) => ClearError::Gone { pid },
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => ClearError::Denied { pid, source },
            _ => ClearError::System { pid, source },
        }
    }
}
