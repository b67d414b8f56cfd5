// SPDX-License-Identifier: Apache-2.0
//! Miss-ratio curves: the misses of a policy for every memory size.
//!
//! [`exact()`] counts them, in one pass for LRU and one run per size for the others. [`sampled()`]
//! estimates them from a few samples of the pages, with error bars from the spread of the samples.

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
    /// Memory size in pages.
    pub size_pages: usize,
    /// Misses among all accesses; estimated in sampled curves.
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
    /// Number of accesses in the trace.
    pub accesses: u64,
    /// Number of different pages in the trace; estimated in sampled curves.
    pub footprint_pages: u64,
    /// Share of the pages in each sample; `None` when counted.
    pub sampling_rate: Option<f64>,
    /// In ascending order of size; only sizes that the policy supports.
    pub points: Vec<Point>,
}

/// The sizes that the policy supports, in ascending order, after `scaled` gives the simulated size.
fn possible(spec: &impl Yardstick, sizes: &[usize], scaled: impl Fn(usize) -> usize) -> Vec<usize> {
    let is_possible = |size: &usize| scaled(*size) >= spec.capacity_min();
    let mut possible: Vec<usize> = sizes.iter().copied().filter(is_possible).collect();
    possible.sort_unstable();
    possible
}

impl Curve {
    /// The miss ratio at a point, and its error; `None` without accesses.
    #[must_use]
    pub fn ratio(&self, point: &Point) -> Option<(f64, f64)> {
        let accesses = self.accesses as f64;
        (self.accesses > 0).then(|| (point.misses / accesses, point.misses_error / accesses))
    }

    /// The size, the miss ratio and its error of each point; none without accesses.
    pub fn ratios(&self) -> impl Iterator<Item = (usize, f64, f64)> {
        self.points.iter().filter_map(|point| {
            let (ratio, error) = self.ratio(point)?;
            Some((point.size_pages, ratio, error))
        })
    }
}
