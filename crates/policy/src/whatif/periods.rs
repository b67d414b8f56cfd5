// SPDX-License-Identifier: Apache-2.0
//! The time of counting, divided into periods that are compared with one another: where they
//! differ, the time to come will differ as well.

use crate::statistics::student;

/// The most periods that are kept apart.
pub(super) const PERIODS: usize = 8;

/// When each period began. Two periods become one whenever there would be too many, so that their
/// number does not depend on how long the observation lasts.
#[derive(Clone, Debug)]
pub(super) struct Periods {
    /// Ascending; the last is that of the current period.
    began_ms: Vec<u64>,
    /// How long the current period has to be before another begins.
    length_ms: u64,
    last_look_ms: u64,
}

impl Periods {
    pub fn new(now_ms: u64) -> Self {
        Periods {
            began_ms: vec![now_ms],
            length_ms: 1,
            last_look_ms: now_ms,
        }
    }

    /// The index of the current period.
    pub fn current(&self) -> usize {
        self.began_ms.len() - 1
    }

    /// Enters the period of a look, which shows what was used since the last one. Returns whether
    /// each two periods became one: those with the indices 0 and 1 are now 0, and so on.
    pub fn enter(&mut self, now_ms: u64) -> bool {
        let last_ms = std::mem::replace(&mut self.last_look_ms, now_ms);
        if last_ms - self.began_ms[self.current()] < self.length_ms {
            return false;
        }
        let is_full = self.began_ms.len() == PERIODS;
        if is_full {
            let pairs = self.began_ms.chunks(2).map(|pair| pair[0]).collect();
            self.began_ms = pairs;
            self.length_ms = (last_ms - self.began_ms[0]) / (PERIODS as u64 / 2);
        }
        self.began_ms.push(last_ms);
        is_full
    }

    /// Half the width of the 95 % interval of a rate in a time as long as that of counting, which
    /// the unsteadiness of the rate causes, per second. `counts` are counts by period. 0 until a
    /// second period has begun.
    pub fn half_width(&self, counts: impl Fn(usize) -> f64) -> f64 {
        let ends = self.began_ms[1..].iter().chain([&self.last_look_ms]);
        // The current period may be shorter than the others: each counts by its length.
        let periods: Vec<(f64, f64)> = (self.began_ms.iter().zip(ends).enumerate())
            .filter(|(_, (began, end))| end > began)
            .map(|(period, (began, end))| (counts(period), (end - began) as f64 / 1000.0))
            .collect();
        let count = periods.len() as f64;
        if count < 2.0 {
            return 0.0;
        }
        let sum = |of: fn(&(f64, f64)) -> f64| periods.iter().map(of).sum::<f64>();
        let (all, seconds) = (sum(|of| of.0), sum(|of| of.1));
        let mean = all / seconds;
        let off = |(counted, length): &(f64, f64)| length * (counted / length - mean).powi(2);
        let variance = periods.iter().map(off).sum::<f64>() / seconds * count / (count - 1.0);
        // The mean that was counted and the one to come vary alike.
        student(count - 1.0) * (variance * 2.0 / count).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is counted at a look is in the period in which it happened.
        #[test]
        fn periods_hold_what_happened_in_them(steps in prop::collection::vec(1..500u64, 1..300)) {
            let mut periods = Periods::new(1000);
            let mut by_period = [0u64; PERIODS];
            let mut now_ms = 1000;
            for step in steps {
                if periods.enter(now_ms + step) {
                    for period in 0..PERIODS {
                        let pair = by_period.get(2 * period..2 * period + 2);
                        by_period[period] = pair.map_or(0, |of| of[0] + of[1]);
                    }
                }
                now_ms += step;
                by_period[periods.current()] += step;
            }
            // Each millisecond was counted once, so counts are lengths.
            let began = periods.began_ms.iter().chain([&now_ms]);
            let began: Vec<u64> = began.copied().collect();
            for (period, ends) in began.windows(2).enumerate() {
                prop_assert_eq!(by_period[period], ends[1] - ends[0]);
            }
            prop_assert!(began.len() <= PERIODS + 1);
            prop_assert!(periods.half_width(|period| by_period[period] as f64) < 1e-6);
        }
    }

    #[test]
    fn a_rate_that_doubles_is_as_uncertain_as_it_varies() {
        let mut periods = Periods::new(0);
        assert_eq!(periods.half_width(|_| 10.0), 0.0);
        for look in 1..=5 {
            periods.enter(look * 1000);
        }
        assert_eq!(periods.current(), 4);
        let steady = periods.half_width(|_| 10.0);
        assert!(steady.abs() < 1e-9);
        // 10, 20, 10, 20, 10 a second: a deviation of 5.5, times 2.78 for five values.
        let varying = periods.half_width(|period| [10.0, 20.0][period % 2]);
        assert!(
            (varying - 2.776 * 5.477 * (2.0f64 / 5.0).sqrt()).abs() < 0.05,
            "{varying}"
        );
    }
    /// What began in the last moments counts as well.
    #[test]
    fn the_current_period_counts() {
        for looks in [2, 10, 20, 45, 1280] {
            let mut periods = Periods::new(0);
            for look in 1..=looks {
                periods.enter(look * 1000);
            }
            let last = periods.current();
            let half = periods.half_width(|period| f64::from(u8::from(period == last)));
            assert!(half > 0.0, "{looks}");
        }
    }
}
