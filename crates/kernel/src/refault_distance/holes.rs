// SPDX-License-Identifier: Apache-2.0
//! Estimates how many pages of the shadow LRU have come back.

/// The share of recently evicted pages that have come back: an estimate of the holes in the shadow
/// LRU, kept only to show the effect of throttle 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    evicted_pages: u64,
    returned_pages: u64,
}

/// Evictions over which the share is averaged.
const HOLES_WINDOW_PAGES: u64 = 1 << 16;

impl Holes {
    /// Counts evicted pages.
    pub fn evicted(&mut self, pages: u64) {
        self.evicted_pages += pages;
        if self.evicted_pages >= HOLES_WINDOW_PAGES {
            self.evicted_pages /= 2;
            self.returned_pages /= 2;
        }
    }

    /// Counts pages that came back.
    pub fn returned(&mut self, pages: u64) {
        self.returned_pages = (self.returned_pages + pages).min(self.evicted_pages);
    }

    /// Returns a distance without the holes.
    pub(super) fn fill(&self, distance: u64) -> u64 {
        let kept = self.evicted_pages - self.returned_pages;
        let filled =
            u128::from(distance) * u128::from(kept) / u128::from(self.evicted_pages.max(1));
        u64::try_from(filled).unwrap_or(distance)
    }
}
