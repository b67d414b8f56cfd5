// SPDX-License-Identifier: Apache-2.0
//! The policy for clearing accessed bits.

/// The means that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// Whichever is cheaper, within the limits.
    Auto,
    /// `MADV_COLD` only.
    Cold,
    /// `clear_refs` only.
    Refs,
}

/// How to clear.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClearPolicy {
    /// Which means to use.
    pub means: Means,
    /// Minimum time between two clears, as the finest bin of the histogram needs.
    pub min_interval_ns: u64,
    /// CPU time per scan for clearing; tables take turns to stay within it. `None`: no limit.
    pub budget_ns: Option<u64>,
    /// Largest share of time for which `clear_refs` may stall page faults of the target.
    pub max_stall_share: f64,
    /// If at most this share of present pages needs `clear_refs`, they wait for a minute and count
    /// as young until then. 0: they never wait.
    pub refs_wait_ratio: f64,
}

impl Default for ClearPolicy {
    fn default() -> Self {
        ClearPolicy {
            means: Means::Auto,
            min_interval_ns: 0,
            budget_ns: None,
            max_stall_share: 0.005,
            refs_wait_ratio: 0.01,
        }
    }
}

impl ClearPolicy {
    /// Clears every young page in every scan, whatever it costs.
    pub fn exact() -> Self {
        ClearPolicy {
            refs_wait_ratio: 0.0,
            ..Self::default()
        }
    }
}
