// SPDX-License-Identifier: Apache-2.0
//! Activating pages in the kernel's classic LRU: moving them to the active list, which reclaim
//! leaves alone as long as the inactive list is long enough.
//!
//! The kernel has no call for this, but reading another process's memory marks every page read as
//! used (`FOLL_TOUCH` of `pin_user_pages_remote`, `folio_mark_accessed` in mm/swap.c, 5.6 to 6.18):
//! the first time sets it referenced, the second time moves it to the active list. So this reads
//! one byte of each page twice (process_vm_readv(2)), at 0.5 us per page in all, and discards the
//! bytes. It sets no accessed bit and makes no page dirty. A page that is not present would be
//! faulted in, so pass only pages that have just been seen.
//!
//! It undoes a side effect of observing: clearing accessed bits removes the evidence by which the
//! kernel would have kept hot pages.

use std::io;

use crate::access::PAGE_BYTES;
use crate::patient;

/// Most pages per call (`UIO_MAXIOV`).
pub const PAGES_MAX: usize = 1024;

/// The outcome of [`activate`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activated {
    pub pages: u64,
    /// Pages that could not be read: unmapped in the meantime, or device memory.
    pub refused: u64,
    /// System calls.
    pub calls: u64,
}

/// Activates the pages of process `pid` at these addresses, at most [`PAGES_MAX`].
///
/// # Errors
/// The process is gone (`ESRCH`), may not be traced by us (`EPERM`), does not answer (`TimedOut`),
/// or the kernel was built without the call (`ENOSYS`).
pub fn activate(pid: u32, addresses: &[u64]) -> io::Result<Activated> {
    let addresses = addresses[..addresses.len().min(PAGES_MAX)].to_vec();
    patient::call(pid, move || read_twice(pid, &addresses))?
}

fn read_twice(pid: u32, addresses: &[u64]) -> io::Result<Activated> {
    let mut activated = Activated::default();
    let mut rest = addresses;
    while !rest.is_empty() {
        let read = read_bytes(pid, rest)?;
        let again = if read > 0 {
            read_bytes(pid, &rest[..read])?
        } else {
            0
        };
        activated.calls += 1 + u64::from(read > 0);
        activated.pages += again as u64;
        activated.refused += (read - again.min(read)) as u64;
        rest = &rest[read..];
        // This page cannot be read, but those after it may be readable.
        if let [_, behind @ ..] = rest {
            activated.refused += 1;
            rest = behind;
        }
    }
    Ok(activated)
}

/// Reads a byte at each address, up to the first that fails. Returns how many were read.
fn read_bytes(pid: u32, addresses: &[u64]) -> io::Result<usize> {
    let mut bytes = [0u8; PAGES_MAX];
    let remote: Vec<libc::iovec> = addresses
        .iter()
        .map(|&address| libc::iovec {
            iov_base: (address & !(PAGE_BYTES - 1)) as *mut libc::c_void,
            iov_len: 1,
        })
        .collect();
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: addresses.len(),
    };
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    // SAFETY: `local` covers one byte of `bytes` per address and fits in it; `remote` has as many
    // entries, with addresses of the target that the kernel checks.
    let read = unsafe {
        libc::process_vm_readv(
            pid,
            &local,
            1,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    match usize::try_from(read) {
        Ok(read) => Ok(read),
        Err(_) => {
            let error = io::Error::last_os_error();
            if error.raw_os_error() == Some(libc::EFAULT) {
                Ok(0)
            } else {
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGES: usize = 2048;

    /// How many of our own pages are on an active list, from /proc/self/pagemap and
    /// /proc/kpageflags.
    fn active(addresses: &[u64]) -> io::Result<usize> {
        const ACTIVE: u64 = 1 << 6;
        let pagemap = File::open("/proc/self/pagemap")?;
        let flags = File::open("/proc/kpageflags")?;
        let mut active = 0;
        let mut word = [0; 8];
        for address in addresses {
            pagemap.read_exact_at(&mut word, address / PAGE_BYTES * 8)?;
            let frame = u64::from_ne_bytes(word) & ((1 << 55) - 1);
            if frame == 0 {
                return Err(io::Error::other("pagemap hides frame numbers"));
            }
            flags.read_exact_at(&mut word, frame * 8)?;
            active += usize::from(u64::from_ne_bytes(word) & ACTIVE != 0);
        }
        Ok(active)
    }

    #[test]
    fn live_pages_read_twice_are_active() {
        let lru_gen = std::fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
        if !matches!(lru_gen.trim(), "" | "0x0000") {
            return println!("SKIPPED live test of activation: the multi-gen LRU is on");
        }
        let bytes = (PAGES + 2) * PAGE_BYTES as usize;
        // SAFETY: a new anonymous mapping, which nothing else refers to.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(map, libc::MAP_FAILED);
        // SAFETY: within our own writable mapping. Small pages are requested before the first
        // write.
        unsafe {
            libc::madvise(map, bytes, libc::MADV_NOHUGEPAGE);
            std::ptr::write_bytes(map.cast::<u8>(), 1, bytes);
        }
        let first = map as u64;
        let addresses: Vec<u64> = (0..PAGES as u64)
            .map(|page| first + page * PAGE_BYTES)
            .collect();
        let before = active(&addresses);
        let pid = std::process::id();
        let mut activated = Activated::default();
        for chunk in addresses.chunks(PAGES_MAX) {
            match activate(pid, chunk) {
                Ok(done) => activated.pages += done.pages,
                Err(error) => return println!("SKIPPED live test of activation: {error}"),
            }
        }
        assert_eq!(activated.pages, PAGES as u64);
        // A hole is skipped. SAFETY: the last two pages of the mapping are no longer used.
        unsafe {
            libc::munmap(
                map.byte_add(PAGES * PAGE_BYTES as usize),
                2 * PAGE_BYTES as usize,
            )
        };
        let with_hole = [
            first,
            first + (PAGES as u64) * PAGE_BYTES,
            first + PAGE_BYTES,
        ];
        let done = activate(pid, &with_hole).expect("readable");
        assert_eq!((done.pages, done.refused), (2, 1));
        match (before, active(&addresses)) {
            (Ok(before), Ok(after)) => {
                // The per-CPU batches may still hold a few pages.
                assert!(
                    before < PAGES / 2 && after > PAGES * 9 / 10,
                    "{before} {after}"
                );
            }
            (Err(error), _) | (_, Err(error)) => {
                println!("SKIPPED live test of activation: lists of pages are unknown: {error}");
            }
        }
        // SAFETY: nothing refers to the rest of the mapping any more.
        unsafe { libc::munmap(map, PAGES * PAGE_BYTES as usize) };
    }

    #[test]
    fn nobody_is_gone() {
        let error = activate(u32::MAX, &[4096]).expect_err("no such process");
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert_eq!(
            activate(1, &[]).expect("nothing to do"),
            Activated::default()
        );
    }
}
