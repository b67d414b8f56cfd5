// SPDX-License-Identifier: Apache-2.0
//! Miss-ratio curves: the misses of a policy for every size of the pool.
//!
//! [`exact()`] counts them, in one pass for LRU and one run per size for the others. [`sampled()`]
//! estimates them from a few samples of the pages, with the spread of the samples as error bars.

mod exact;
mod interval_distance;
mod sampled;
mod sizes;
mod stack_distance;

pub use exact::exact;
pub use interval_distance::IntervalDistances;
pub use sampled::{Samples, SamplingPlan, read_samples, sampled};
pub use sizes::{SizeSpec, spread_sizes};
pub use stack_distance::StackDistances;

use crate::yardstick::Yardstick;

/// One point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Pages in the pool.
    pub size_pages: usize,
    /// Misses of all accesses; estimated in sampled curves.
    pub misses: f64,
    /// Half the width of the 95 % confidence interval of `misses`; 0 when counted.
    pub misses_error: f64,
}

/// The curve of one policy on one trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// The trace.
    pub trace: String,
    /// The policy.
    pub policy: String,
    /// Accesses of the trace.
    pub accesses: u64,
    /// Different pages of the trace; estimated in sampled curves.
    pub footprint_pages: u64,
    /// Share of the pages in each sample; `None` when counted.
    pub sampling_rate: Option<f64>,
    /// By size, rising; only of sizes that the policy's pool can have.
    pub points: Vec<Point>,
}

/// Those of the sizes whose pool, `scaled` as it is simulated, the policy can have.
fn possible(spec: &impl Yardstick, sizes: &[usize], scaled: impl Fn(usize) -> usize) -> Vec<usize> {
    let is_possible = |size: &usize| scaled(*size) >= spec.capacity_min();
    sizes.iter().copied().filter(is_possible).collect()
}

impl Curve {
    /// The miss ratio at a point, with its error.
    #[must_use]
    pub fn ratio(&self, point: &Point) -> (f64, f64) {
        let accesses = self.accesses.max(1) as f64;
        (point.misses / accesses, point.misses_error / accesses)
    }
}
