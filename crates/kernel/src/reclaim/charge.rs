// SPDX-License-Identifier: Apache-2.0
//! Handling a charge that exceeds a limit (`try_charge_memcg`).
//!
//! The world keeps counters and stocks; this module decides. A charge first takes from the CPU's
//! stock, then tries [`CHARGE_BATCH`] pages, then exactly what it needs, and only then comes here.

use super::MAX_RECLAIM_RETRIES;

/// Pages charged at once, so that the surplus serves the next charges (`MEMCG_CHARGE_BATCH`).
pub const CHARGE_BATCH: u64 = 64;

/// Largest charge that is retried after reclaim freed something (`1 << PAGE_ALLOC_COSTLY_ORDER`).
const SMALL_CHARGE_PAGES: u64 = 8;

/// The next step of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeStep {
    /// Try to charge again, from the stock first; on failure reclaim again and report it.
    Retry,
    /// Return all CPUs' stocks of the cgroup to its counter, then try again.
    DrainStocks,
    /// Invoke the cgroup's OOM killer, then call [`ChargeRetry::after_oom`].
    Oom,
    /// Fail the charge (`ENOMEM`); the caller can do without it.
    Fail,
}

/// A charge that has hit its limit.
#[derive(Clone, Copy, Debug)]
pub struct ChargeRetry {
    nr_pages: u64,
    no_retry: bool,
    drained: bool,
    retries: u32,
}

impl ChargeRetry {
    /// A charge of `nr_pages` pages. `no_retry`: the caller can do without it (`__GFP_NORETRY`,
    /// readahead).
    #[must_use]
    pub fn new(nr_pages: u64, no_retry: bool) -> ChargeRetry {
        ChargeRetry {
            nr_pages,
            no_retry,
            drained: false,
            retries: MAX_RECLAIM_RETRIES,
        }
    }

    /// To be called after a round of reclaim: `room_pages` are now available below the limit,
    /// `reclaimed_pages` of them due to this round.
    pub fn after_reclaim(&mut self, room_pages: u64, reclaimed_pages: u64) -> ChargeStep {
        if room_pages >= self.nr_pages {
            return ChargeStep::Retry;
        }
        if !self.drained {
            self.drained = true;
            return ChargeStep::DrainStocks;
        }
        if self.no_retry {
            return ChargeStep::Fail;
        }
        if reclaimed_pages > 0 && self.nr_pages <= SMALL_CHARGE_PAGES {
            return ChargeStep::Retry;
        }
        if self.retries > 0 {
            self.retries -= 1;
            return ChargeStep::Retry;
        }
        ChargeStep::Oom
    }

    /// To be called after the OOM killer. A kill makes room and resets the number of retries;
    /// without a kill the charge fails.
    pub fn after_oom(&mut self, killed: bool) -> ChargeStep {
        if !killed {
            return ChargeStep::Fail;
        }
        self.retries = MAX_RECLAIM_RETRIES;
        ChargeStep::Retry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fruitless_reclaim_drains_once_and_kills_after_eighteen_rounds() {
        let mut charge = ChargeRetry::new(1, false);
        assert_eq!(charge.after_reclaim(0, 0), ChargeStep::DrainStocks);
        for _ in 0..16 {
            assert_eq!(charge.after_reclaim(0, 0), ChargeStep::Retry);
        }
        assert_eq!(charge.after_reclaim(0, 0), ChargeStep::Oom);
        assert_eq!(charge.after_oom(true), ChargeStep::Retry);
        assert_eq!(charge.after_reclaim(0, 0), ChargeStep::Retry);
        assert_eq!(charge.after_oom(false), ChargeStep::Fail);
    }

    #[test]
    fn progress_keeps_a_small_charge_trying() {
        let mut charge = ChargeRetry::new(1, false);
        assert_eq!(charge.after_reclaim(0, 5), ChargeStep::DrainStocks);
        for _ in 0..100 {
            assert_eq!(charge.after_reclaim(0, 1), ChargeStep::Retry);
        }
        let mut huge = ChargeRetry::new(512, false);
        assert_eq!(huge.after_reclaim(0, 32), ChargeStep::DrainStocks);
        for _ in 0..16 {
            assert_eq!(huge.after_reclaim(40, 32), ChargeStep::Retry);
        }
        assert_eq!(huge.after_reclaim(40, 32), ChargeStep::Oom);
    }

    #[test]
    fn readahead_gives_up_at_once() {
        let mut charge = ChargeRetry::new(1, true);
        assert_eq!(charge.after_reclaim(0, 9), ChargeStep::DrainStocks);
        assert_eq!(charge.after_reclaim(0, 9), ChargeStep::Fail);
        assert_eq!(
            ChargeRetry::new(1, true).after_reclaim(1, 1),
            ChargeStep::Retry
        );
    }
}
