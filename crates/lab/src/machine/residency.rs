// SPDX-License-Identifier: Apache-2.0
//! How long pages stay in memory, by zone: the test of age inversion.
//!
//! If reclaim is fair, a page stays equally long whatever zone it came from. With lists per zone
//! this depends on how allocations are spread; the spread of the zones' means measures it.

use agewise_kernel::folio::{FolioType, Pfn};

/// Mean and standard deviation of durations, updated one by one (Welford).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// Durations counted.
    pub count: u64,
    /// Their mean, in ns.
    pub mean_ns: f64,
    squares: f64,
}

impl Spread {
    fn add(&mut self, value_ns: f64) {
        self.count += 1;
        let distance = value_ns - self.mean_ns;
        self.mean_ns += distance / self.count as f64;
        self.squares += distance * (value_ns - self.mean_ns);
    }

    /// Standard deviation, in ns.
    pub fn sd_ns(&self) -> f64 {
        match self.count {
            0 | 1 => 0.0,
            count => (self.squares / (count - 1) as f64).sqrt(),
        }
    }
}

/// Residency of evicted pages.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// When the page of each frame was loaded; empty if nothing is recorded.
    loaded_ns: Vec<u64>,
    /// Residency by zone and type.
    by_zone: [[Spread; 2]; 4],
    /// When the first page was evicted. Pages loaded before that do not count: their residency
    /// depends on when their zone was filled.
    first_eviction_ns: Option<u64>,
    /// Load time of the youngest page evicted so far.
    youngest_ns: u64,
    evictions: u64,
    inversions: u64,
}

impl Residency {
    /// Records times for `frames` frames; 0 records nothing.
    pub fn new(frames: u32) -> Residency {
        Residency {
            loaded_ns: vec![0; frames as usize],
            ..Residency::default()
        }
    }

    #[inline]
    pub(super) fn loaded(&mut self, pfn: Pfn, now_ns: u64) {
        if let Some(place) = self.loaded_ns.get_mut(pfn.index()) {
            *place = now_ns;
        }
    }

    /// A page has moved to another frame.
    pub(super) fn moved(&mut self, from: Pfn, to: Pfn) {
        if let Some(&loaded_ns) = self.loaded_ns.get(from.index()) {
            self.loaded(to, loaded_ns);
        }
    }

    pub(super) fn evicted(&mut self, pfn: Pfn, zone: usize, of: FolioType, now_ns: u64) {
        let Some(&loaded_ns) = self.loaded_ns.get(pfn.index()) else {
            return;
        };
        let stayed_ns = now_ns.saturating_sub(loaded_ns);
        let since_ns = *self.first_eviction_ns.get_or_insert(now_ns);
        if loaded_ns >= since_ns {
            self.by_zone[zone][of.index()].add(stayed_ns as f64);
        }
        self.evictions += 1;
        // It was loaded well before a page that is already gone: it was kept for too long.
        if self.youngest_ns.saturating_sub(loaded_ns) > stayed_ns / 10 {
            self.inversions += 1;
        }
        self.youngest_ns = self.youngest_ns.max(loaded_ns);
    }

    /// Residency of the evicted pages of a zone, anon and file.
    pub fn zone(&self, zone: usize) -> &[Spread; 2] {
        &self.by_zone[zone]
    }

    /// How long the page in a frame has been in memory, in ns.
    pub(super) fn age_ns(&self, pfn: Pfn, now_ns: u64) -> Option<u64> {
        let loaded_ns = self.loaded_ns.get(pfn.index())?;
        Some(now_ns.saturating_sub(*loaded_ns))
    }

    /// Share of evicted pages that were loaded more than a tenth of their residency before a page
    /// evicted earlier.
    pub fn inversion_share(&self) -> f64 {
        self.inversions as f64 / self.evictions.max(1) as f64
    }
}

/// Standard deviation of means relative to their mean; None for fewer than two.
pub fn relative_spread(means: &[f64]) -> Option<f64> {
    if means.len() < 2 {
        return None;
    }
    let mean = means.iter().sum::<f64>() / means.len() as f64;
    let squares: f64 = means.iter().map(|each| (each - mean).powi(2)).sum();
    Some((squares / means.len() as f64).sqrt() / mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_that_keep_pages_longer_show() {
        let mut residency = Residency::new(2);
        // The very first eviction is not typical of any zone.
        residency.evicted(Pfn(0), 1, FolioType::File, 1);
        for round in 1..=10 {
            let at_ns = round * 1000;
            residency.loaded(Pfn(0), at_ns);
            residency.loaded(Pfn(1), at_ns);
            residency.evicted(Pfn(0), 1, FolioType::File, at_ns + 100);
            residency.evicted(Pfn(1), 2, FolioType::File, at_ns + 300);
        }
        assert_eq!(residency.zone(1)[1].count, 10);
        assert!((residency.zone(2)[1].mean_ns - 300.0).abs() < 1e-9);
        assert_eq!(residency.zone(2)[1].sd_ns(), 0.0);
        let means = [1, 2].map(|zone| residency.zone(zone)[1].mean_ns);
        let spread = relative_spread(&means).unwrap();
        assert!((spread - 0.5).abs() < 1e-9, "{spread}");
        assert_eq!(relative_spread(&means[..1]), None);
    }

    #[test]
    fn an_older_page_evicted_after_a_younger_one_is_an_inversion() {
        let mut residency = Residency::new(3);
        for (frame, loaded_ns) in [(0, 0), (1, 500), (2, 900)] {
            residency.loaded(Pfn(frame), loaded_ns);
        }
        residency.evicted(Pfn(2), 0, FolioType::Anon, 1000);
        residency.evicted(Pfn(0), 0, FolioType::Anon, 1100);
        residency.evicted(Pfn(1), 0, FolioType::Anon, 1200);
        assert!((residency.inversion_share() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(Residency::new(0).inversion_share(), 0.0);
    }
}
