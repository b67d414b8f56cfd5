// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of reading a page again from the device of its file, on a file of our own.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use super::stat::cachestat;
use super::unnamed::unnamed;
use crate::access::PAGE_BYTES;
use crate::moments::{Moments, median};

/// Number of pages read at a time, and their distance: readahead is off, but device blocks are
/// larger than pages.
const PAGES: u64 = 8;
const STRIDE: u64 = 16;

/// An unnamed file whose pages are dropped and read again.
#[derive(Debug)]
pub struct PriceOfFile {
    file: File,
    /// The median time of each moment at which pages were read.
    moments: Moments,
}

impl PriceOfFile {
    /// Creates and fills the file in a directory of the file system to measure.
    ///
    /// # Errors
    /// The file cannot be created there, or its file system is in memory.
    pub fn new(dir: &Path) -> io::Result<Self> {
        let mut file = unnamed(dir)?;
        let content: Vec<u8> = (0..PAGES * STRIDE * PAGE_BYTES / 8)
            .flat_map(|word| word.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes())
            .collect();
        file.write_all(&content)?;
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::Random)?;
        Ok(PriceOfFile {
            file,
            moments: Moments::default(),
        })
    }

    /// Reads pages that are not in memory, if they can be dropped.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn measure(&mut self) -> io::Result<()> {
        fadvise(&self.file, 0, None, Advice::DontNeed)?;
        let mut times_ns = Vec::new();
        for page in (0..PAGES).map(|page| page * STRIDE) {
            if cachestat(&self.file, page..page + 1)?.pages > 0 {
                continue;
            }
            let began = Instant::now();
            self.file.read_exact_at(&mut [0; 8], page * PAGE_BYTES)?;
            times_ns.push(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        if let Some(time_ns) = median(times_ns) {
            self.moments.add(time_ns);
        }
        Ok(())
    }

    /// The times to read a page that is not in memory, of all moments.
    pub fn moments(&self) -> &Moments {
        &self.moments
    }

    /// The time in ns to read a page that is not in memory; `None` before one was read.
    pub fn refault_ns(&self) -> Option<u64> {
        self.moments.median_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_from_a_device_has_a_price_and_one_from_memory_has_none() {
        let memory = Path::new("/dev/shm");
        match rustix::fs::statfs(memory) {
            Ok(stat) if stat.f_type == libc::TMPFS_MAGIC => {
                let refused = PriceOfFile::new(memory).map(drop).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "{refused}");
            }
            _ => println!("SKIPPED the price of a file in memory: /dev/shm is no tmpfs"),
        }
        let mut price = match PriceOfFile::new(Path::new("/var/tmp")) {
            Ok(price) => price,
            Err(error) => return println!("SKIPPED the price of a file: /var/tmp: {error}"),
        };
        assert_eq!(price.refault_ns(), None);
        price.measure().unwrap();
        match price.refault_ns() {
            Some(ns) => assert!((100..10_000_000_000).contains(&ns), "{ns}"),
            None => println!("SKIPPED the price of a file: its pages stay in memory"),
        }
    }
}
