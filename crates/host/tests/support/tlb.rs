// SPDX-License-Identifier: Apache-2.0
//! Flushing the TLB, so that the next access of a page sets its accessed bit again.

/// Drops all TLB entries of this process: unmapping more than 33 pages flushes everything. An
/// access through an entry that survived a clear (by clear_refs, which does not flush) would set no
/// bit, and a sleeping process keeps its entries on CPUs that tag them (PCID).
pub fn flush() {
    const BYTES: usize = 64 * 4096;
    // SAFETY: a new mapping of our own, unmapped before we return.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let got = libc::mmap(std::ptr::null_mut(), BYTES, access, flags, -1, 0);
        if got == libc::MAP_FAILED || libc::munmap(got, BYTES) != 0 {
            libc::_exit(102);
        }
    }
}
