// SPDX-License-Identifier: Apache-2.0
//! The cost of clearing accessed bits, learned on the fly: it accounts for nearly all of the cost
//! of observing memory.
//!
//! The model is linear. `MADV_COLD` costs something per address range passed to it (finding the
//! mapping, flushing TLBs), per present page inside (looking up its `struct page`: a cache miss,
//! whether young or not), and a little per young page. The flush dominates ranges of few pages: it
//! interrupts every CPU that runs the target, and takes 0.3 us while the target sleeps, 18 us while
//! it runs in a virtual machine. The model learns from the measured time of each call; so two young
//! pages with hundreds of idle ones between them are cleared as one range where interrupts are
//! expensive, and as two where they are cheap.

/// The learned costs, in nanoseconds of CPU time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// `MADV_COLD`, per range: finding the mapping, flushing TLBs.
    pub range_ns: f64,
    /// `MADV_COLD`, per present page in a range.
    pub page_ns: f64,
    /// `clear_refs`, per present page of what it walks.
    pub refs_page_ns: f64,
    /// Sums of a least-squares fit of time to ranges and pages, in units of the defaults.
    sums: Sums,
}

/// Sums of the normal equations; older observations fade.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    ranges2: f64,
    pages2: f64,
    cross: f64,
    ranges_time: f64,
    pages_time: f64,
}

/// Defaults, as measured (docs/inside/measurements.md).
const RANGE_NS: f64 = 2000.0;
const PAGE_NS: f64 = 40.0;
const REFS_PAGE_NS: f64 = 28.0;

/// The factor by which the weight of an observation shrinks with each later one.
const FADE: f64 = 0.8;
/// Pull towards the defaults, as a share of the evidence: it decides what the evidence cannot
/// separate.
const PULL: f64 = 0.02;
/// The share of its error by which one observation corrects `refs_page_ns`.
const LEARN: f64 = 0.25;
/// Maximum number of idle pages to include, however expensive ranges seem.
const BRIDGE_MAX: f64 = 1024.0;

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            range_ns: RANGE_NS,
            page_ns: PAGE_NS,
            refs_page_ns: REFS_PAGE_NS,
            sums: Sums::default(),
        }
    }
}

impl CostModel {
    /// Present idle pages that are cheaper to include in a range than to skip by starting another
    /// range.
    pub fn worth_bridging(&self) -> u32 {
        (self.range_ns / self.page_ns).min(BRIDGE_MAX) as u32
    }

    /// CPU time of `MADV_COLD` on `ranges` ranges with `pages` present pages.
    pub fn cold_ns(&self, ranges: u64, pages: u64) -> f64 {
        ranges as f64 * self.range_ns + pages as f64 * self.page_ns
    }

    /// CPU time of `clear_refs` over `pages` present pages. The target cannot map or fault memory
    /// meanwhile.
    pub fn refs_ns(&self, pages: u64) -> f64 {
        pages as f64 * self.refs_page_ns
    }

    /// `MADV_COLD` on this many ranges and pages took `cpu_ns`.
    pub fn learn_cold(&mut self, ranges: u64, pages: u64, cpu_ns: u64) {
        if ranges == 0 {
            return;
        }
        let (ranges, pages) = (ranges as f64 * RANGE_NS, pages as f64 * PAGE_NS);
        // Weigh by relative errors: with absolute ones, long calls would drown out short ones.
        let weight = 1.0 / (ranges + pages);
        let (ranges, pages, time) = (ranges * weight, pages * weight, cpu_ns as f64 * weight);
        let sums = &mut self.sums;
        for (sum, value) in [
            (&mut sums.ranges2, ranges * ranges),
            (&mut sums.pages2, pages * pages),
            (&mut sums.cross, ranges * pages),
            (&mut sums.ranges_time, ranges * time),
            (&mut sums.pages_time, pages * time),
        ] {
            *sum = *sum * FADE + value;
        }
        let pull = PULL * (sums.ranges2 + sums.pages2);
        let (a, b) = (sums.ranges2 + pull, sums.pages2 + pull);
        let (x, y) = (sums.ranges_time + pull, sums.pages_time + pull);
        let det = a * b - sums.cross * sums.cross;
        self.range_ns = RANGE_NS * ((x * b - y * sums.cross) / det).clamp(0.05, 50.0);
        self.page_ns = PAGE_NS * ((a * y - sums.cross * x) / det).clamp(0.3, 5.0);
    }

    /// `clear_refs` over `pages` present pages took `cpu_ns`.
    pub fn learn_refs(&mut self, pages: u64, cpu_ns: u64) {
        // With fewer pages, most of the time goes to opening and writing the file.
        if pages < 1024 {
            return;
        }
        let page = (cpu_ns as f64 / pages as f64).clamp(1.0, 1000.0);
        self.refs_page_ns += LEARN * (page - self.refs_page_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dear_interrupts_bridge_wide_gaps() {
        let mut model = CostModel::default();
        let at_first = model.worth_bridging();
        for _ in 0..40 {
            // 1000 lone pages at 19 us: the target runs on another CPU.
            model.learn_cold(1000, 1000, 19_000_000);
        }
        assert!(
            model.worth_bridging() > 3 * at_first,
            "{}",
            model.worth_bridging()
        );
        for _ in 0..40 {
            model.learn_cold(1000, 1000, 330_000);
        }
        assert!(
            model.worth_bridging() < at_first / 2,
            "{}",
            model.worth_bridging()
        );
    }

    #[test]
    fn ranges_and_pages_are_told_apart() {
        let mut model = CostModel::default();
        for round in 0..60u64 {
            let (ranges, pages) = (100 + round * 37 % 500, 2000 + round * 7919 % 90_000);
            model.learn_cold(ranges, pages, ranges * 9000 + pages * 70);
        }
        assert!((model.range_ns - 9000.0).abs() < 1500.0, "{model:?}");
        assert!((model.page_ns - 70.0).abs() < 7.0, "{model:?}");
    }

    #[test]
    fn a_slow_machine_is_no_reason_to_bridge_more() {
        let mut model = CostModel::default();
        let at_first = model.worth_bridging();
        for _ in 0..20 {
            // Everything takes twice as long, in ranges of 4096 pages only.
            model.learn_cold(100, 409_600, 2 * (100 * 2000 + 409_600 * 40));
        }
        let bridge = model.worth_bridging();
        assert!(bridge <= at_first * 3 / 2, "{at_first} {bridge}");
    }

    #[test]
    fn nothing_is_learnt_from_nothing_and_noise_stays_bounded() {
        let mut model = CostModel::default();
        model.learn_cold(0, 0, 5);
        model.learn_refs(10, 1_000_000);
        assert_eq!(model, CostModel::default());
        model.learn_cold(1, 100_000, 1);
        assert!(model.range_ns > 0.0 && model.page_ns > 0.0);
        for _ in 0..50 {
            model.learn_cold(1, 0, u64::MAX);
        }
        assert!(model.worth_bridging() <= 1024);
    }
}
