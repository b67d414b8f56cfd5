// SPDX-License-Identifier: Apache-2.0
//! Advice about the memory of another process: process_madvise(2).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use crate::access::AddressRange;
use crate::patient;

/// Most ranges per call (`UIO_MAXIOV`).
pub(crate) const RANGES_MAX: usize = 1024;

/// Gives advice (`MADV_COLD`, `MADV_PAGEOUT`) about `ranges` (at most [`RANGES_MAX`]) of the
/// process behind a pidfd. Returns the bytes of the ranges processed completely, from the first on;
/// the call stops at a range that fails.
///
/// # Errors
/// The first range failed, or the process does not answer ([`patient::call`]): then how much is
/// processed, and when, is not known.
pub(crate) fn advise(
    pid: u32,
    pidfd: &Arc<OwnedFd>,
    ranges: &[AddressRange],
    advice: libc::c_int,
) -> io::Result<u64> {
    let (pidfd, ranges) = (Arc::clone(pidfd), ranges.to_vec());
    let give = move || {
        let vector: Vec<libc::iovec> = ranges.iter().map(remote).collect();
        // SAFETY: the vector is valid during the call; its addresses are those of the target, and
        // are not dereferenced here. Neither advice changes what the memory contains.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_raw_fd(),
                vector.as_ptr(),
                vector.len(),
                advice,
                0,
            )
        };
        u64::try_from(done).map_err(|_| io::Error::last_os_error())
    };
    match advice {
        libc::MADV_PAGEOUT => patient::call_device(pid, give)?,
        _ => patient::call(pid, give)?,
    }
}

fn remote(range: &AddressRange) -> libc::iovec {
    libc::iovec {
        iov_base: range.start as *mut libc::c_void,
        iov_len: range.len() as usize,
    }
}
