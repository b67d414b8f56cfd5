// SPDX-License-Identifier: Apache-2.0
//! What clearing costs, learnt while it is done.
//!
//! The model is linear. `MADV_COLD` costs per address range given (find the mapping, flush TLBs),
//! per present page inside (look up its `struct page`: a cache miss, whether young or not), a little
//! per young page. The flush dominates ranges of few pages: an interrupt to every CPU that runs the
//! target, 0.3 us while it sleeps, 18 us while it runs in a virtual machine. It is learnt from what
//! calls really took; so two young pages with hundreds of idle ones between are cleared as one range
//! where interrupts are dear, and as two where they are cheap.

/// Nanoseconds of CPU time. The defaults are measured (docs/measurements.md).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    /// `MADV_COLD`, per range, without the flush.
    pub range_ns: f64,
    /// `MADV_COLD`, per present page in a range.
    pub page_ns: f64,
    /// `MADV_COLD`, per range: the TLB flush. Learnt.
    pub flush_ns: f64,
    /// `clear_refs`, per present page of what it walks. Learnt.
    pub refs_page_ns: f64,
}

impl Default for CostModel {
    fn default() -> Self {
        CostModel {
            range_ns: 180.0,
            page_ns: 40.0,
            flush_ns: 2000.0,
            refs_page_ns: 28.0,
        }
    }
}

/// How far one observation moves what is learnt.
const LEARN: f64 = 0.25;

impl CostModel {
    /// Present idle pages that are cheaper to pass over inside a range than to leave out by
    /// beginning another range.
    pub fn worth_bridging(&self) -> u32 {
        ((self.range_ns + self.flush_ns) / self.page_ns) as u32
    }

    /// CPU time of `MADV_COLD` on `ranges` ranges with `pages` present pages.
    pub fn cold_ns(&self, ranges: u64, pages: u64) -> f64 {
        ranges as f64 * (self.range_ns + self.flush_ns) + pages as f64 * self.page_ns
    }

    /// CPU time of `clear_refs` over `pages` present pages. The target cannot map or fault memory
    /// meanwhile.
    pub fn refs_ns(&self, pages: u64) -> f64 {
        pages as f64 * self.refs_page_ns
    }

    /// `MADV_COLD` on so many ranges and pages took `cpu_ns`.
    pub fn learn_cold(&mut self, ranges: u64, pages: u64, cpu_ns: u64) {
        if ranges == 0 {
            return;
        }
        let known = ranges as f64 * self.range_ns + pages as f64 * self.page_ns;
        let flush = ((cpu_ns as f64 - known) / ranges as f64).clamp(100.0, 100_000.0);
        self.flush_ns += LEARN * (flush - self.flush_ns);
    }

    /// `clear_refs` over `pages` present pages took `cpu_ns`.
    pub fn learn_refs(&mut self, pages: u64, cpu_ns: u64) {
        // Below that, opening and writing the file is what is measured.
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
        assert!(model.worth_bridging() > 400, "{}", model.worth_bridging());
        for _ in 0..40 {
            model.learn_cold(1000, 1000, 330_000);
        }
        assert!(
            model.worth_bridging() < at_first,
            "{}",
            model.worth_bridging()
        );
    }

    #[test]
    fn nothing_is_learnt_from_nothing_and_noise_stays_bounded() {
        let mut model = CostModel::default();
        model.learn_cold(0, 0, 5);
        model.learn_refs(10, 1_000_000);
        assert_eq!(model, CostModel::default());
        model.learn_cold(1, 100_000, 1);
        assert!(model.flush_ns > 0.0);
    }
}
