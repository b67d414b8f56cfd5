// SPDX-License-Identifier: Apache-2.0
//! Prices of devices: a page of swap that leaves and comes back, a page of a file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::memory::{PAGES, advise, anonymous};
use crate::PAGE_BYTES;
use crate::statistics::median;

const PAGE: usize = PAGE_BYTES as usize;
/// Pages of a file that are read, far from each other.
const READS: usize = 128;

/// Time of a page to leave for swap and to come back, in ns, as a program waits for it; None if
/// most pages did not leave.
pub fn swap_ns() -> io::Result<Option<[f64; 2]>> {
    let mut memory = anonymous(PAGES)?;
    let mut random = Pcg64Mcg::seed_from_u64(1);
    // As typical data, half of it can be compressed away.
    for page in memory.chunks_exact_mut(PAGE) {
        random.fill(&mut page[..PAGE / 2]);
    }
    let start = Instant::now();
    advise(memory.as_ptr(), memory.len(), libc::MADV_PAGEOUT)?;
    let out_ns = start.elapsed().as_nanos() as f64 / PAGES as f64;
    let mut present = vec![0u8; PAGES];
    // SAFETY: the range is mapped, and the vector has a byte for each of its pages.
    let asked = unsafe {
        libc::mincore(
            memory.as_ptr().cast_mut().cast(),
            memory.len(),
            present.as_mut_ptr(),
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    let gone: Vec<usize> = (0..PAGES).filter(|&page| present[page] & 1 == 0).collect();
    if gone.len() < PAGES / 2 {
        return Ok(None);
    }
    // Backwards, so that read-ahead does not bring the next one.
    let times: Vec<f64> = gone
        .iter()
        .rev()
        .map(|page| {
            let start = Instant::now();
            std::hint::black_box(memory[page * PAGE]);
            start.elapsed().as_nanos() as f64
        })
        .collect();
    Ok(Some([out_ns, median(&times)]))
}

/// Time to read a page of a file that is not in the page cache, in ns; the file has none of its
/// pages there afterwards but those read.
pub fn file_page_ns(file: &File) -> io::Result<f64> {
    file.sync_data()?;
    let advise = |advice| {
        // SAFETY: the descriptor is ours, and the advice changes no content.
        match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, advice) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    advise(libc::POSIX_FADV_RANDOM)?;
    advise(libc::POSIX_FADV_DONTNEED)?;
    let mut buffer = [0; PAGE];
    let mut times = Vec::with_capacity(READS);
    for read in 0..READS {
        let page = read * (PAGES / READS);
        let start = Instant::now();
        file.read_exact_at(&mut buffer, (page * PAGE) as u64)?;
        times.push(start.elapsed().as_nanos() as f64);
    }
    Ok(median(&times))
}
