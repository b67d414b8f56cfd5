// SPDX-License-Identifier: Apache-2.0
//! How accessed bits may be cleared.

use serde::Serialize;

/// Which means may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Means {
    /// Whichever costs less, within the limits.
    Auto,
    /// `MADV_COLD` only.
    Cold,
    /// `clear_refs` only.
    Refs,
}

/// How to clear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClearPolicy {
    /// Which means.
    pub means: Means,
    /// No page is cleared again sooner: what the finest bin of the histogram needs, not more.
    pub min_interval_ns: u64,
    /// CPU time for clearing in one scan; tables take turns to stay within it. `None`: no limit.
    pub budget_ns: Option<u64>,
    /// No range is longer: how long one call holds the target's mmap lock (16 MiB: 0.2 ms).
    pub max_run_bytes: u64,
    /// Largest share of time for which `clear_refs` may hold up page faults of the target.
    pub max_stall_share: f64,
    /// Longest such time; beyond it `clear_refs` is not used (except by [`Means::Refs`]).
    pub max_stall_ns: u64,
    /// Share of present pages up to which those that only `clear_refs` clears wait for a minute;
    /// until then they are taken for young. 0: none waits.
    pub refs_wait_ratio: f64,
}

impl Default for ClearPolicy {
    fn default() -> Self {
        ClearPolicy {
            means: Means::Auto,
            min_interval_ns: 0,
            budget_ns: None,
            max_run_bytes: 16 << 20,
            max_stall_share: 0.005,
            max_stall_ns: 100_000_000,
            refs_wait_ratio: 0.01,
        }
    }
}

impl ClearPolicy {
    /// Every young page is cleared in every scan, whatever that takes.
    pub fn exact() -> Self {
        ClearPolicy {
            refs_wait_ratio: 0.0,
            ..Self::default()
        }
    }
}
