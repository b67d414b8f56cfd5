// SPDX-License-Identifier: Apache-2.0
//! The price of a page of swap that leaves and comes back.

use std::io;
use std::time::Instant;

use rand::RngExt;
use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::memory::{PAGES, advise, anonymous};
use crate::PAGE_BYTES;
use crate::statistics::median;

const PAGE: usize = PAGE_BYTES as usize;
/// Distance of pages that are brought back, so that read-ahead does not bring them.
const STRIDE: usize = 16;

/// Time of a page to leave for swap and to come back, in ns, as a program waits for it; None if
/// most pages did not leave. Those written by a slow device stay in its cache for now.
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
    let times: Vec<f64> = gone
        .iter()
        .step_by(STRIDE)
        .map(|page| {
            let start = Instant::now();
            std::hint::black_box(memory[page * PAGE]);
            start.elapsed().as_nanos() as f64
        })
        .collect();
    Ok(Some([out_ns, median(&times)]))
}
