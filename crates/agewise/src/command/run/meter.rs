// SPDX-License-Identifier: Apache-2.0
//! Peak and mean of resident memory over time, from samples at irregular intervals.

use std::time::{Duration, Instant};

/// Measures an amount of memory over time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    peak_bytes: u64,
    /// Integral of bytes over time, in byte-nanoseconds.
    integral: u128,
    measured: Duration,
    last: Option<(Instant, u64)>,
}

impl Meter {
    /// Takes a sample: `bytes` from now until the next sample.
    pub fn sample(&mut self, now: Instant, bytes: u64) {
        self.settle(now);
        self.last = Some((now, bytes));
        self.peak_bytes = self.peak_bytes.max(bytes);
    }

    /// Accounts for the time since the last sample.
    fn settle(&mut self, now: Instant) {
        if let Some((since, bytes)) = self.last {
            let span = now.saturating_duration_since(since);
            self.integral = self
                .integral
                .saturating_add(u128::from(bytes) * span.as_nanos());
            self.measured += span;
        }
    }

    /// Ends the measurement.
    pub fn end(&mut self, now: Instant) {
        self.settle(now);
        self.last = None;
    }

    /// The largest sample.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// The mean over time; the peak if no time has passed.
    pub fn mean_bytes(&self) -> u64 {
        match self.measured.as_nanos() {
            0 => self.peak_bytes,
            nanoseconds => u64::try_from(self.integral / nanoseconds).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_over_time_and_not_over_samples() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut meter = Meter::default();
        assert_eq!((meter.peak_bytes(), meter.mean_bytes()), (0, 0));
        meter.sample(at(0), 100);
        assert_eq!(meter.mean_bytes(), 100);
        meter.sample(at(10), 200);
        meter.sample(at(11), 200);
        meter.end(at(40));
        // 10 ms at 100 and 30 ms at 200.
        assert_eq!((meter.peak_bytes(), meter.mean_bytes()), (200, 175));
        meter.end(at(100));
        assert_eq!(meter.mean_bytes(), 175, "after the end nothing counts");
    }
}
