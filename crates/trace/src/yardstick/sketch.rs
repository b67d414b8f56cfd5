// SPDX-License-Identifier: Apache-2.0
//! A count-min sketch of 4-bit counters that are halved periodically.
//!
//! Source: Einziger, Friedman and Manes, "TinyLFU: a highly efficient cache admission
//! policy", 2017.

use crate::hash;

const ROWS: u64 = 4;
const COUNT_MAX: u8 = 15;
/// A larger pool has several pages a counter: 256 MiB of counters are enough.
const WIDTH_MAX: usize = 1 << 26;

/// Estimates how often pages were accessed recently.
pub(super) struct Sketch {
    /// One array for all rows. One byte per counter takes more memory than 4 bits, but is simpler.
    counters: Vec<u8>,
    mask: u64,
    additions: u64,
    sample: u64,
}

impl Sketch {
    /// For a pool of this many pages: at least one counter per page and row, up to [`WIDTH_MAX`],
    /// halved after 10 accesses per page, and then after every 5: what was counted is halved, too.
    pub fn new(capacity: usize) -> Self {
        let width = capacity.clamp(64, WIDTH_MAX).next_power_of_two() as u64;
        Self {
            counters: vec![0; (width * ROWS) as usize],
            mask: width - 1,
            additions: 0,
            sample: (capacity as u64).saturating_mul(10).max(64),
        }
    }

    pub fn add(&mut self, page: u32) {
        let estimate = self.estimate(page);
        if estimate < COUNT_MAX {
            // Only increment the smallest counters: larger ones already include another page.
            for row in 0..ROWS {
                let counter = &mut self.counters[slot(page, row, self.mask)];
                *counter = (*counter).max(estimate + 1);
            }
        }
        self.additions += 1;
        if self.additions >= self.sample {
            self.additions /= 2;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
    }

    pub fn estimate(&self, page: u32) -> u8 {
        (0..ROWS)
            .map(|row| self.counters[slot(page, row, self.mask)])
            .min()
            .unwrap_or(0)
    }
}

fn slot(page: u32, row: u64, mask: u64) -> usize {
    let bits = hash(u64::from(page) << 2 | row);
    (row * (mask + 1) + (bits & mask)) as usize
}
