// SPDX-License-Identifier: Apache-2.0
//! Which refaults are of pages that were pushed out.
//!
//! Everybody may page out their own memory (`MADV_PAGEOUT`) and read it back, as often as they
//! like. If such refaults counted, a program in a protected cgroup could have any other cgroup
//! blamed, and the memory that a policy has moved out would count against somebody else. Only as
//! many refaults count as the kernel has taken pages because memory was short.

/// Half of what was taken and has not come back is forgotten after this time: kswapd takes pages in
/// bursts, which may be a minute apart, but what was taken an hour ago says nothing about now.
const HALF_LIFE_MS: f64 = 30_000.0;

/// Pages that were taken, recently, and have not come back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Stolen {
    pages: f64,
}

impl Stolen {
    /// Takes in a window in which so many pages were taken and came back. Returns how many of the
    /// latter count.
    pub fn cover(&mut self, stolen_pages: u64, refaulted_pages: u64, window_ms: u64) -> u64 {
        let kept = 0.5f64.powf(window_ms as f64 / HALF_LIFE_MS);
        self.pages = self.pages * kept + stolen_pages as f64;
        let covered = refaulted_pages.min(self.pages as u64);
        self.pages -= covered as f64;
        covered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_count_as_were_taken_lately() {
        let mut stolen = Stolen::default();
        assert_eq!(stolen.cover(0, 5000, 1000), 0);
        assert_eq!(stolen.cover(700, 500, 1000), 500);
        // A burst covers the next windows, but not those after an hour.
        let left = stolen.cover(0, 500, 1000);
        assert!((190..=200).contains(&left), "{left}");
        assert_eq!(stolen.cover(0, 500, 1000), 0);
        stolen.cover(1 << 20, 0, 1000);
        assert_eq!(stolen.cover(0, 500, 3_600_000), 0);
        // Nor do counters at the end of their range do harm.
        assert_eq!(stolen.cover(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
        assert_eq!(stolen.cover(0, 1, 0), 0);
    }
}
