// SPDX-License-Identifier: Apache-2.0
//! Finds out whether other processes map a page too. `MADV_COLD` skips such pages
//! (madvise_cold_or_pageout_pte_range in mm/madvise.c requires that no other mapping exists), so
//! their accessed bits stay set.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::access::pages_per_kernel_page;

/// `/proc/kpagecount`, readable by root only.
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
