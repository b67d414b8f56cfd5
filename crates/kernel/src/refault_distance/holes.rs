// SPDX-License-Identifier: Apache-2.0
//! How many pages of the shadow LRU have come back.

/// How many of the pages evicted lately have come back: an estimate of the holes in the shadow LRU,
/// kept only to see what throttle 1 does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    evicted_pages: u64,
    returned_pages: u64,
}

/// Evictions over which the share of holes is averaged.
const HOLES_WINDOW_PAGES: u64 = 1 << 16;

impl Holes {
    /// Pages were evicted.
    pub fn evicted(&mut self, pages: u64) {
        self.evicted_pages += pages;
        if self.evicted_pages >= HOLES_WINDOW_PAGES {
            self.evicted_pages /= 2;
            self.returned_pages /= 2;
        }
    }

    /// Pages came back.
    pub fn returned(&mut self, pages: u64) {
        self.returned_pages = (self.returned_pages + pages).min(self.evicted_pages);
    }

    /// A distance without the holes in between.
    pub(super) fn fill(&self, distance: u64) -> u64 {
        let kept = self.evicted_pages - self.returned_pages;
        let filled =
            u128::from(distance) * u128::from(kept) / u128::from(self.evicted_pages.max(1));
        u64::try_from(filled).unwrap_or(distance)
    }
}
