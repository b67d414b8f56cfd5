// SPDX-License-Identifier: Apache-2.0
//! Measures the current cost of swapping a page out and in on this machine, on pages allocated for
//! it.
//!
//! A page takes microseconds from zram and milliseconds from a disk, and no kernel counter reveals
//! which it was. So this fills a few pages (half of each compressible, like typical data), pages
//! them out, and touches them again one by one.
//!
//! Only major faults count. A page on its way to a disk stays in the swap cache until the kernel
//! needs its frame, and one that readahead brought in early is there already: touching those costs
//! next to nothing and says nothing about the device.

use std::time::Instant;

use rustix::mm::{MapFlags, ProtFlags};

use crate::error::FileError;
use crate::moments::median;

/// Pages per probe.
const PAGES: usize = 16;
/// Distance between probed pages, so that swap readahead does not bring the next one in early.
const STRIDE: usize = 16;

/// A mapping of our own, unmapped on drop.
struct Mapping {
    at: *mut u8,
    bytes: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped below, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.at.cast(), self.bytes) };
    }
}

/// The cost of a page, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapPrice {
    /// Touching it when swapped out: the median.
    pub refault_ns: u64,
    /// Paging it out: the median, as one page that waits for a CPU would spoil a mean.
    pub evict_ns: u64,
}

impl SwapPrice {
    /// How long a program at its limit waits for a page to come back. Another page has to leave
    /// first, since the program reclaims for itself.
    #[must_use]
    pub fn at_limit_ns(self) -> u64 {
        self.refault_ns.saturating_add(self.evict_ns)
    }
}

/// Measures the cost of a page; `None` if the pages did not leave memory: there is no swap, no
/// space in it, or it is on a disk, to which pages are written later.
///
/// # Errors
/// Out of memory, or our own pagemap cannot be read.
pub fn price() -> Result<Option<SwapPrice>, FileError> {
    let failed = |source| FileError::Read {
        path: "/proc/self/pagemap".into(),
        source,
    };
    let page_bytes = rustix::param::page_size();
    let bytes = PAGES * STRIDE * page_bytes;
    // SAFETY: a new private mapping at an address the kernel chooses.
    let at = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    }
    .map_err(|errno| failed(errno.into()))?;
    let mapping = Mapping {
        at: at.cast(),
        bytes,
    };
    let page = |index: usize| -> *mut u8 {
        // SAFETY: within the mapping.
        unsafe { mapping.at.add(index * STRIDE * page_bytes) }
    };
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ at as u64;
    for index in 0..PAGES {
        for word in 0..page_bytes / 16 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            // SAFETY: the first half of a page of the mapping; the second half stays zero.
            unsafe { page(index).cast::<u64>().add(word).write_volatile(state) };
        }
    }
    let mut evicting_ns = Vec::with_capacity(PAGES);
    for index in 0..PAGES {
        let began = Instant::now();
        // SAFETY: our own mapping; its content is kept.
        let advised = unsafe { libc::madvise(page(index).cast(), page_bytes, libc::MADV_PAGEOUT) };
        if advised != 0 {
            return Ok(None);
        }
        evicting_ns.push(nanos(began));
    }
    let pagemap = std::fs::File::open("/proc/self/pagemap").map_err(failed)?;
    let mut times_ns = Vec::with_capacity(PAGES);
    for index in 0..PAGES {
        let mut entry = [0u8; 8];
        let offset = page(index) as u64 / page_bytes as u64 * 8;
        std::os::unix::fs::FileExt::read_exact_at(&pagemap, &mut entry, offset).map_err(failed)?;
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        let entry = u64::from_ne_bytes(entry);
        if entry & PRESENT != 0 || entry & SWAPPED == 0 {
            continue;
        }
        // SAFETY: within the mapping.
        times_ns.extend(major_fault_ns(|| unsafe { page(index).read_volatile() }));
    }
    Ok(median(times_ns)
        .zip(median(evicting_ns))
        .map(|(refault_ns, evict_ns)| SwapPrice {
            refault_ns,
            evict_ns,
        }))
}

/// How long a touch took if it was a major fault, which brought the page in from a device.
fn major_fault_ns(touch: impl FnOnce() -> u8) -> Option<u64> {
    let faults = major_faults();
    let began = Instant::now();
    touch();
    let ns = nanos(began);
    (major_faults() > faults).then_some(ns)
}

/// Major faults of this thread so far.
fn major_faults() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure; zeros are valid as well.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_majflt
    }
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::ProcRoot;

    #[test]
    fn one_page_that_waits_for_a_cpu_does_not_count() {
        let mut times_ns = vec![7_000; PAGES];
        times_ns[3] = 17_000_000;
        assert_eq!(median(times_ns), Some(7_000));
        assert_eq!(median(Vec::new()), None);
    }

    /// A page in the swap cache of a disk costs as little.
    #[test]
    fn a_touch_that_brings_nothing_in_has_no_price() {
        let fresh = vec![0u8; 64 * rustix::param::page_size()];
        let middle = &raw const fresh[fresh.len() / 2];
        // SAFETY: within the vector.
        assert_eq!(major_fault_ns(|| unsafe { middle.read_volatile() }), None);
    }

    #[test]
    fn without_swap_there_is_nothing_to_measure() {
        let price = price().unwrap();
        match crate::swap::free_bytes(&ProcRoot::default()).unwrap() {
            0 => assert_eq!(price, None),
            // Another program's device may be full or slow, so only check that the times are
            // plausible.
            _ => assert!(price.is_none_or(|price| price.refault_ns.min(price.evict_ns) > 100)),
        }
    }
}
