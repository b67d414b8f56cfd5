// SPDX-License-Identifier: Apache-2.0
//! Clocks, and a limit on bytes per second.

use crate::clock;

/// The longest single sleep while waiting for the rate limit, so that a cancellation is noticed
/// soon.
pub(super) const NAP_NS: u64 = 50_000_000;

/// The clock of an eviction; tests use one that does not wait.
pub trait Clock {
    /// Monotonic time, in ns.
    fn now_ns(&self) -> u64;
    /// CPU time of the calling thread, in ns.
    fn cpu_ns(&self) -> u64;
    /// Sleeps; a signal may end it early.
    fn sleep_ns(&self, ns: u64);
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        clock::monotonic_ns()
    }

    fn cpu_ns(&self) -> u64 {
        clock::thread_cpu_ns()
    }

    fn sleep_ns(&self, ns: u64) {
        std::thread::sleep(std::time::Duration::from_nanos(ns));
    }
}

/// A token bucket: `rate_bytes_per_s` on average, with bursts of up to a tenth of a second.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate_bytes_per_s: u64,
    /// Bytes x 10^9, so that no fraction of a byte is lost; negative when in debt.
    level: i128,
    filled_ns: u64,
}

const NS: i128 = 1_000_000_000;

impl TokenBucket {
    /// Creates a full bucket. The rate is at least one byte per second.
    pub fn new(rate_bytes_per_s: u64, now_ns: u64) -> Self {
        let rate_bytes_per_s = rate_bytes_per_s.max(1);
        let mut bucket = Self {
            rate_bytes_per_s,
            level: 0,
            filled_ns: now_ns,
        };
        bucket.level = bucket.capacity();
        bucket
    }

    fn capacity(&self) -> i128 {
        i128::from((self.rate_bytes_per_s / 10).max(1)) * NS
    }

    /// Time to wait before anything may be taken; 0 if something may be taken now.
    pub fn wait_ns(&mut self, now_ns: u64) -> u64 {
        let passed_ns = i128::from(now_ns.saturating_sub(self.filled_ns));
        self.filled_ns = self.filled_ns.max(now_ns);
        let rate = i128::from(self.rate_bytes_per_s);
        self.level = (self.level + passed_ns * rate).min(self.capacity());
        if self.level > 0 {
            return 0;
        }
        u64::try_from(-self.level / rate + 1).unwrap_or(u64::MAX)
    }

    /// Takes `bytes`, going into debt if necessary; the next call waits for the debt. So the
    /// average holds for calls of any size, and no call is too large.
    pub fn take(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * NS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_holds_for_any_size_of_call() {
        for call_bytes in [1, 4096, 1 << 20, 1 << 30] {
            let rate = 256 << 20;
            let mut bucket = TokenBucket::new(rate, 0);
            let (mut now_ns, mut taken) = (0, 0u64);
            for _ in 0..200 {
                let wait_ns = bucket.wait_ns(now_ns);
                now_ns += wait_ns;
                assert_eq!(bucket.wait_ns(now_ns), 0, "what is waited for is there");
                bucket.take(call_bytes);
                taken += call_bytes;
            }
            let allowed = rate as f64 * (now_ns as f64 / 1e9) + rate as f64 / 10.0;
            assert!(
                taken as f64 <= allowed + call_bytes as f64 + 1.0,
                "{call_bytes}"
            );
            // The rate is used up, except for at most one call and one burst.
            assert!(now_ns == 0 || taken as f64 >= allowed - rate as f64 / 10.0 - 1.0);
        }
    }

    #[test]
    fn idling_saves_up_no_more_than_a_burst_and_clocks_may_stand_still() {
        let mut bucket = TokenBucket::new(1000, 5);
        assert_eq!(bucket.wait_ns(u64::MAX), 0);
        bucket.take(100);
        assert!(bucket.wait_ns(u64::MAX) > 0);
        let mut slow = TokenBucket::new(0, 100);
        slow.take(10);
        assert!(slow.wait_ns(50) >= 9_000_000_000);
    }
}
