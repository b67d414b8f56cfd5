// SPDX-License-Identifier: Apache-2.0
//! What would happen if everything older than some age went: bytes freed, refaults and stall to
//! expect. Age alone does not tell what to evict; age and the price of reading back do.
//!
//! In a steady state the pages that reach age `a` in a second are the density of the histogram at
//! `a` (bytes per second of age). Were everything older evicted, each of them that is used again
//! would be a refault: the density is the rate of refaults, or more, for some are never used again.
//! The bins on both sides of a bound give the density above and below it; it falls with age.

use super::super::{Histogram, NO_UPPER_BOUND_MS};
use super::RefaultCost;
use crate::generations::{ByType, PageType};

/// A rate that is known within bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// At least: what is denser here than at the last bound, beyond which nothing is known to come
    /// back.
    pub low: f64,
    /// The best guess, corrected by what was observed.
    pub expected: f64,
    /// At most, in a steady state.
    pub high: f64,
}

/// What to expect of evicting everything older than an age, for as long as that is kept up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Projection {
    /// The age: a bound of the histogram.
    pub older_than_ms: u64,
    /// What would go, in bytes.
    pub freed_bytes: ByType<u64>,
    /// What would come back, in pages per second.
    pub refaults_per_s: ByType<Rate>,
    /// Time that programs would wait for it, in ms per second.
    pub stall_ms_per_s: Rate,
}

/// Makes projections, and learns from what became of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Projector {
    page_bytes: u64,
    /// Refaults observed for each one expected.
    correction: ByType<f64>,
}

/// Weight of one observation in the correction.
const CORRECTION_WEIGHT: f64 = 0.25;
/// An observation counts once this many refaults were expected: fewer say nothing.
const EXPECTED_MIN: f64 = 8.0;
/// Range of the correction.
const CORRECTION: (f64, f64) = (1.0 / 64.0, 64.0);

impl Projector {
    /// One that has observed nothing, for pages of a size.
    pub fn new(page_bytes: u64) -> Self {
        Projector {
            page_bytes: page_bytes.max(1),
            correction: [1.0; 2],
        }
    }

    /// Refaults observed for each one the density of the histogram lets expect.
    pub fn correction(&self) -> ByType<f64> {
        self.correction
    }

    /// What came of evicting everything older than the age of `projection` for `during_ms`:
    /// refaults of pages of a type.
    pub fn observe(
        &mut self,
        page_type: PageType,
        projection: &Projection,
        during_ms: u64,
        refaults: u64,
    ) {
        let correction = &mut self.correction[page_type as usize];
        let expected_per_s = projection.refaults_per_s[page_type as usize].expected;
        let uncorrected = expected_per_s / *correction * during_ms as f64 / 1000.0;
        if uncorrected < EXPECTED_MIN {
            return;
        }
        let seen = (refaults as f64 / uncorrected).clamp(CORRECTION.0, CORRECTION.1);
        // In the logarithm: half as many and twice as many weigh the same.
        let moved = correction.ln() + CORRECTION_WEIGHT * (seen.ln() - correction.ln());
        *correction = moved.exp();
    }

    /// A projection for every bound of a histogram of bytes, youngest first. None without bounds.
    pub fn project(&self, histogram: &Histogram, cost: &RefaultCost) -> Vec<Projection> {
        let bins = histogram.bins();
        let densities: Vec<ByType<f64>> = densities(histogram);
        let fault_ns = cost.fault_ns();
        let mut older: ByType<u64> = histogram.total();
        let mut projections = Vec::with_capacity(densities.len());
        for (index, below) in densities.iter().enumerate() {
            for (left, gone) in older.iter_mut().zip(bins[index].amounts) {
                *left = left.saturating_sub(gone);
            }
            let mut refaults_per_s = [Rate::default(); 2];
            let mut stall_ms_per_s = Rate::default();
            for page_type in 0..2 {
                let above = densities.get(index + 1).map(|density| density[page_type]);
                let last = densities[densities.len() - 1][page_type];
                let rate = self.rate(page_type, below[page_type], above, last);
                let rate = if older[page_type] == 0 {
                    Rate::default()
                } else {
                    rate
                };
                let ms_per_fault = fault_ns[page_type] / 1e6;
                stall_ms_per_s.low += rate.low * ms_per_fault;
                stall_ms_per_s.expected += rate.expected * ms_per_fault;
                stall_ms_per_s.high += rate.high * ms_per_fault;
                refaults_per_s[page_type] = rate;
            }
            projections.push(Projection {
                older_than_ms: bins[index].upper_ms,
                freed_bytes: older,
                refaults_per_s,
                stall_ms_per_s,
            });
        }
        projections
    }

    /// The rate at a bound, from the densities below and above it (none: it is the last) and that of
    /// the last finite bin, in bytes per second.
    fn rate(&self, page_type: usize, below: f64, above: Option<f64>, last: f64) -> Rate {
        let pages = |bytes_per_s: f64| bytes_per_s / self.page_bytes as f64;
        let high = below.max(above.unwrap_or(0.0));
        let at_bound = match above {
            // Densities fall by about a factor from bin to bin: the mean of the logarithms.
            Some(above) if above > 0.0 && below > 0.0 => (above * below).sqrt(),
            Some(above) => above.midpoint(below),
            None => below,
        };
        let low = above.map_or(0.0, |above| (above.min(below) - last).max(0.0));
        Rate {
            low: pages(low),
            expected: pages(at_bound) * self.correction[page_type],
            high: pages(high),
        }
    }

    /// The youngest age from which eviction is expected to stall programs no more than
    /// `stall_ms_per_s`: the coldest set that is affordable. `None` if there is none.
    pub fn affordable(projections: &[Projection], stall_ms_per_s: f64) -> Option<&Projection> {
        // From the old end, so that a bound beyond one that costs too much is never skipped.
        let affordable =
            |projection: &&Projection| projection.stall_ms_per_s.expected <= stall_ms_per_s;
        projections.iter().rev().take_while(affordable).last()
    }
}

/// Bytes per second of age, of every bin with an upper bound. A bin without width (a bound of zero)
/// has none.
fn densities(histogram: &Histogram) -> Vec<ByType<f64>> {
    let finite = histogram
        .bins()
        .iter()
        .filter(|bin| bin.upper_ms != NO_UPPER_BOUND_MS);
    let mut lower_ms = 0;
    finite
        .map(|bin| {
            let width_s = bin.upper_ms.saturating_sub(lower_ms) as f64 / 1000.0;
            lower_ms = bin.upper_ms;
            bin.amounts.map(|bytes| {
                if width_s > 0.0 {
                    bytes as f64 / width_s
                } else {
                    0.0
                }
            })
        })
        .collect()
}

/// The age below which a share (0 to 1) of the memory of a tier lies: the threshold to promote by,
/// if that share of the fast tier shall pass it. Needs no refaults: a slow tier that is mapped
/// causes none. `None` if there is no memory, or the age lies beyond the last bound.
pub fn promotion_age(histogram: &Histogram, share: f64) -> Option<u64> {
    let sum = |amounts: ByType<u64>| u128::from(amounts[0]) + u128::from(amounts[1]);
    let total = sum(histogram.total());
    if total == 0 || !(0.0..=1.0).contains(&share) {
        return None;
    }
    let wanted = total as f64 * share;
    let mut below = 0.0;
    let mut lower_ms = 0;
    for bin in histogram.bins() {
        let bytes = sum(bin.amounts) as f64;
        if below + bytes >= wanted && bin.upper_ms != NO_UPPER_BOUND_MS {
            let part = if bytes > 0.0 {
                (wanted - below) / bytes
            } else {
                0.0
            };
            let width_ms = (bin.upper_ms - lower_ms) as f64;
            return Some(lower_ms + (width_ms * part).ceil() as u64);
        }
        below += bytes;
        lower_ms = bin.upper_ms;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workingset::report::Backend;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;

    fn histogram(bins: &[(&str, u64, u64)]) -> Histogram {
        let text: String = bins
            .iter()
            .map(|(upper, anon, file)| {
                format!("{upper} anon={} file={}\n", anon * PAGE, file * PAGE)
            })
            .collect();
        text.parse().unwrap()
    }

    const OLDER: &str = "18446744073709551615";

    /// By hand: 1000 pages up to 1 s, 400 up to 5 s (100/s), 250 up to 30 s (10/s), 5000 older.
    #[test]
    fn bytes_refaults_and_stall_by_hand() {
        let histogram = histogram(&[
            ("1000", 1000, 0),
            ("5000", 400, 0),
            ("30000", 250, 0),
            (OLDER, 5000, 7),
        ]);
        let mut cost = RefaultCost::default();
        cost.measure(Backend::Ssd, 1, 100_000);
        let projections = Projector::new(PAGE).project(&histogram, &cost);
        let freed: Vec<u64> = projections
            .iter()
            .map(|p| p.freed_bytes[0] / PAGE)
            .collect();
        assert_eq!(freed, [5650, 5250, 5000]);
        let anon: Vec<Rate> = projections.iter().map(|p| p.refaults_per_s[0]).collect();
        let near = |rate: Rate, low: f64, expected: f64, high: f64| {
            let wanted = [low, expected, high];
            for (is, wanted) in [rate.low, rate.expected, rate.high].iter().zip(wanted) {
                assert!((is - wanted).abs() < 1e-6, "{rate:?} is not {wanted}");
            }
        };
        near(anon[0], 90.0, (1000.0f64 * 100.0).sqrt(), 1000.0);
        near(anon[1], 0.0, (100.0f64 * 10.0).sqrt(), 100.0);
        near(anon[2], 0.0, 10.0, 10.0);
        // 10 faults of 0.1 ms a second.
        near(projections[2].stall_ms_per_s, 0.0, 1.0, 1.0);
        assert_eq!(projections[2].freed_bytes[1], 7 * PAGE);
        let fits = Projector::affordable(&projections, 4.0).unwrap();
        assert_eq!(fits.older_than_ms, 5000);
        assert_eq!(Projector::affordable(&projections, 0.5), None);
    }

    /// Four times the price, half of the pages: the cost decides, not the age.
    #[test]
    fn a_slow_backend_makes_only_older_pages_affordable() {
        let histogram = histogram(&[
            ("1000", 1000, 0),
            ("5000", 400, 0),
            ("30000", 250, 0),
            (OLDER, 5000, 0),
        ]);
        let age_at = |backend, ns| {
            let mut cost = RefaultCost::default();
            cost.set_swap(&[(backend, 1)]);
            cost.measure(backend, 1, ns);
            let projections = Projector::new(PAGE).project(&histogram, &cost);
            Projector::affordable(&projections, 5.0).map(|p| p.older_than_ms)
        };
        assert_eq!(age_at(Backend::Zram, 5_000), Some(1000));
        assert_eq!(age_at(Backend::Ssd, 100_000), Some(5000));
        assert_eq!(age_at(Backend::Disk, 8_000_000), None);
    }

    #[test]
    fn observation_corrects_what_is_expected() {
        let histogram = histogram(&[("1000", 800, 0), ("2000", 200, 0), (OLDER, 9000, 0)]);
        let cost = RefaultCost::default();
        let mut projector = Projector::new(PAGE);
        for _ in 0..60 {
            let projection = projector.project(&histogram, &cost)[1];
            // A stream that is never read again: of 200 pages a second only 20 come back.
            projector.observe(PageType::Anon, &projection, 10_000, 200);
        }
        let projection = projector.project(&histogram, &cost)[1];
        let expected = projection.refaults_per_s[0].expected;
        assert!((expected - 20.0).abs() < 0.5, "{expected}");
        assert_eq!(projection.refaults_per_s[0].high, 200.0);
        // What is too little to learn from is not learned.
        let before = projector.correction();
        projector.observe(PageType::Anon, &projection, 10, 5000);
        assert_eq!(projector.correction(), before);
    }

    #[test]
    fn promotion_by_share_of_the_fast_tier() {
        let histogram = histogram(&[("1000", 500, 100), ("5000", 200, 100), (OLDER, 100, 0)]);
        assert_eq!(promotion_age(&histogram, 0.6), Some(1000));
        assert_eq!(promotion_age(&histogram, 0.3), Some(500));
        // 80 %: 200 of the 300 pages between 1 and 5 s.
        assert_eq!(promotion_age(&histogram, 0.8), Some(3667));
        assert_eq!(promotion_age(&histogram, 0.9), Some(5000));
        assert_eq!(promotion_age(&histogram, 0.95), None);
        assert_eq!(promotion_age(&histogram, 1.5), None);
        let empty = Histogram::new(&"1s".parse().unwrap());
        assert_eq!(promotion_age(&empty, 0.5), None);
    }

    proptest! {
        /// Older means fewer bytes; bounds hold; nothing is negative or not a number.
        #[test]
        fn projections_are_ordered(
            bounds in prop::collection::btree_set(0u64..600_000, 1..31),
            amounts in prop::collection::vec((0u64..1 << 40, 0u64..1 << 40), 32),
        ) {
            let mut text = String::new();
            for (bound, (anon, file)) in bounds.iter().zip(&amounts) {
                text += &format!("{bound} anon={anon} file={file}\n");
            }
            text += &format!("{OLDER} anon={} file={}\n", amounts[31].0, amounts[31].1);
            let histogram: Histogram = text.parse().unwrap();
            let projections = Projector::new(PAGE).project(&histogram, &RefaultCost::default());
            prop_assert_eq!(projections.len(), bounds.len());
            for pair in projections.windows(2) {
                prop_assert!(pair[0].freed_bytes[0] >= pair[1].freed_bytes[0]);
                prop_assert!(pair[0].freed_bytes[1] >= pair[1].freed_bytes[1]);
            }
            let last = projections.last().unwrap();
            prop_assert_eq!(last.freed_bytes, [amounts[31].0, amounts[31].1]);
            for projection in &projections {
                for rate in projection.refaults_per_s.iter().chain([&projection.stall_ms_per_s]) {
                    prop_assert!(rate.low >= 0.0 && rate.low <= rate.expected * (1.0 + 1e-9));
                    prop_assert!(rate.expected <= rate.high * (1.0 + 1e-9));
                }
            }
            if let Some(age_ms) = promotion_age(&histogram, 0.5) {
                prop_assert!(age_ms <= *bounds.last().unwrap());
            }
        }
    }
}
