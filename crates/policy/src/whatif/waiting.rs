// SPDX-License-Identifier: Apache-2.0
//! Whether the tasks of a cgroup wait for memory more than is allowed.
//!
//! Waiting fluctuates: at a limit that suits, every third second may exceed what is allowed, and
//! now and then one is twice as much. So it is too much if it exceeds that clearly over two
//! seconds, or a little for several seconds in a row. For it never to do so for more than five,
//! samples have to come about every half second.

use super::Prices;

/// Counters of a cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// The time, ms.
    pub now_ms: u64,
    /// Pages that have come back so far, from swap and from files.
    pub faults: [u64; 2],
    /// Time for which some task of the cgroup has waited for memory so far, us; `None` if the
    /// kernel does not report it. It is then computed from faults and prices: the kernel's count of
    /// the machine is no bound, but a mean over the processors, on which others may wait less.
    pub waited_us: Option<u64>,
    /// Memory charged to it; `None` if that is not known.
    pub usage_bytes: Option<u64>,
    /// Accessed bits were cleared recently, and will then be left alone for so long that it is
    /// better to wait: the kernel cannot see what is in use, and would take pages that are.
    pub is_blind: bool,
}

/// Over this period waiting is too much if it is [`MUCH`] times what is allowed.
pub(super) const WINDOW_MS: u64 = 2_000;
pub(super) const MUCH: f64 = 2.0;
/// Each second of this period may not exceed what is allowed.
const ROW_MS: u64 = 3_500;
pub(super) const SECOND_MS: u64 = 1_000;

/// What is known of the last seconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    /// Counters of the last two seconds, oldest first.
    samples: Vec<Facts>,
    /// Where the seconds in a row begin that exceed what is allowed.
    over_since: Option<Facts>,
}

impl Waiting {
    /// Begins with these counters.
    pub(super) fn new(facts: Facts) -> Self {
        Waiting {
            samples: vec![facts],
            over_since: None,
        }
    }

    /// Adds a sample.
    pub(super) fn add(&mut self, facts: Facts, prices: Prices, wait_max: f64) {
        self.samples.push(facts);
        let second = self.within(SECOND_MS);
        let is_whole = facts.now_ms.saturating_sub(second.now_ms) >= SECOND_MS;
        if exceeds(second, facts, SECOND_MS, prices, wait_max) {
            self.over_since.get_or_insert(second);
        } else if is_whole {
            self.over_since = None;
        }
        let keep_ms = self.within(WINDOW_MS).now_ms;
        self.samples.retain(|of| of.now_ms >= keep_ms);
    }

    /// Forgets how much was waited before the newest sample, but not for how long.
    pub(super) fn forget(&mut self) {
        let newest = self.samples.len().saturating_sub(1);
        self.samples.drain(..newest);
    }

    /// Whether the last second exceeded what is allowed.
    pub(super) fn is_over(&self) -> bool {
        self.over_since.is_some()
    }

    /// The sample since which the newest one shows too much waiting, if it does.
    pub(super) fn harm(&self, prices: Prices, wait_max: f64) -> Option<Facts> {
        let now = *self.samples.last()?;
        let (window, second) = (self.within(WINDOW_MS), self.within(SECOND_MS));
        if exceeds(window, now, WINDOW_MS, prices, wait_max * MUCH) {
            return Some(window);
        }
        let in_row = self
            .over_since
            .filter(|_| exceeds(second, now, SECOND_MS, prices, wait_max));
        in_row.filter(|since| now.now_ms.saturating_sub(since.now_ms) >= ROW_MS)
    }

    /// The newest sample that is at least this old, or the oldest.
    fn within(&self, period_ms: u64) -> Facts {
        let now_ms = self.samples.last().map_or(0, |of| of.now_ms);
        let before = now_ms.saturating_sub(period_ms);
        let old = self.samples.iter().rev().find(|of| of.now_ms <= before);
        old.or(self.samples.first()).copied().unwrap_or_default()
    }
}

/// Whether tasks waited for more than this share of a whole period between two samples. It may not
/// have passed yet: what is enough for all of it is too much for a part.
fn exceeds(from: Facts, to: Facts, period_ms: u64, prices: Prices, wait_max: f64) -> bool {
    let period_ms = to.ms_since(from).max(period_ms as f64);
    to.waited_ms_since(from, prices) > wait_max * period_ms
}

impl Facts {
    pub(super) fn ms_since(self, from: Facts) -> f64 {
        self.now_ms.saturating_sub(from.now_ms).max(1) as f64
    }

    pub(super) fn faults_since(self, from: Facts) -> [f64; 2] {
        [0, 1].map(|of: usize| self.faults[of].saturating_sub(from.faults[of]) as f64)
    }

    /// The share of the time that tasks waited between two samples.
    pub(super) fn wait_ratio_since(self, from: Facts, prices: Prices) -> f64 {
        self.waited_ms_since(from, prices) / self.ms_since(from)
    }

    /// How long tasks waited between two samples: the kernel's own count, or faults times prices.
    fn waited_ms_since(self, from: Facts, prices: Prices) -> f64 {
        let counted = self.waited_us.zip(from.waited_us);
        match counted {
            Some((to_us, from_us)) => to_us.saturating_sub(from_us) as f64 / 1e3,
            None => {
                let [anon, file] = self.faults_since(from);
                (anon * prices.anon_ns.likely + file * prices.file_ns.likely) / 1e6
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices::exact(0.0, 0.0);
    const MAX: f64 = 0.1;

    /// Waiting in each half second, as a share of it. Returns when it was too much, and since when.
    fn too_much(shares: impl IntoIterator<Item = f64>) -> Option<(u64, u64)> {
        let (mut waiting, mut facts) = (Waiting::default(), Facts::default());
        let mut waited_us = 0.0;
        for share in shares {
            facts.waited_us = Some(waited_us as u64);
            waiting.add(facts, PRICES, MAX);
            if let Some(since) = waiting.harm(PRICES, MAX) {
                return Some((facts.now_ms, since.now_ms));
            }
            facts.now_ms += 500;
            waited_us += share * 500_000.0;
        }
        None
    }

    #[test]
    fn what_fluctuates_around_what_is_allowed_is_no_harm() {
        assert_eq!(too_much([0.09; 100]), None);
        let every_third_second = [0.09, 0.06, 0.05, 0.09, 0.15, 0.15].repeat(30);
        assert_eq!(too_much(every_third_second), None);
        let three_in_row = [[0.11; 6], [0.05; 6]].concat().repeat(10);
        assert_eq!(too_much(three_in_row), None);
        let twice_as_much_for_a_second = [&[0.09; 8][..], &[0.2; 2]].concat().repeat(10);
        assert_eq!(too_much(twice_as_much_for_a_second), None);
    }

    #[test]
    fn a_little_too_much_is_harm_after_three_and_a_half_seconds_and_much_at_once() {
        assert_eq!(too_much([0.11; 100]), Some((3500, 0)));
        assert_eq!(too_much([0.25; 100]), Some((2000, 0)));
        assert_eq!(too_much([1.0; 100]), Some((500, 0)));
        let after_a_while = [&[0.05; 20][..], &[0.3; 10]].concat();
        assert_eq!(too_much(after_a_while), Some((11_500, 9_500)));
    }

    #[test]
    fn how_long_it_has_waited_outlives_how_much() {
        let (mut waiting, mut facts) = (Waiting::default(), Facts::default());
        for half in 0..=7 {
            facts.now_ms = half * 500;
            facts.waited_us = Some(half * 60_000);
            waiting.add(facts, PRICES, MAX);
            if half == 6 {
                waiting.forget();
            }
        }
        assert!(waiting.is_over() && waiting.harm(PRICES, MAX).is_none());
        for half in 8..=9 {
            facts.now_ms = half * 500;
            facts.waited_us = Some(half * 60_000);
            waiting.add(facts, PRICES, MAX);
        }
        let since = waiting.harm(PRICES, MAX);
        assert_eq!(since.map(|of| of.now_ms), Some(0));
    }
}
