// SPDX-License-Identifier: Apache-2.0
//! Is a page mapped by others too? `MADV_COLD` leaves such pages alone
//! (madvise_cold_or_pageout_pte_range in mm/madvise.c: only where the mapping asked is the only
//! one), so their accessed bits stay.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// `/proc/kpagecount`: for root only.
#[derive(Debug)]
pub struct MapCounts {
    file: Option<File>,
}

impl MapCounts {
    /// Where it cannot be opened nothing is known of any page.
    pub fn open() -> Self {
        MapCounts {
            file: File::open("/proc/kpagecount").ok(),
        }
    }

    /// The page is mapped more than once; `None`: not known.
    pub fn is_shared(&self, pfn: u64) -> Option<bool> {
        let mut word = [0; 8];
        self.file
            .as_ref()?
            .read_exact_at(&mut word, pfn.checked_mul(8)?)
            .ok()?;
        Some(u64::from_ne_bytes(word) > 1)
    }
}
