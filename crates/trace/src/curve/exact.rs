// SPDX-License-Identifier: Apache-2.0
//! Exact curves, by counting.

use rayon::prelude::*;

use super::{Curve, Point, StackDistances, possible};
use crate::DenseTrace;
use crate::yardstick::Yardstick;

/// Counts the misses of policies at these sizes. If a policy needs one run per size, the sizes run
/// in parallel; the result does not depend on the number of threads.
#[must_use]
pub fn exact(
    name: &str,
    trace: &DenseTrace,
    policies: &[impl Yardstick],
    sizes: &[usize],
) -> Vec<Curve> {
    policies
        .par_iter()
        .map(|spec| {
            let sizes = possible(spec, sizes, |size| size);
            let misses = if spec.is_stack() && sizes.len() > 1 {
                StackDistances::of(trace).misses(&sizes)
            } else {
                sizes
                    .par_iter()
                    .with_max_len(1)
                    .map(|&size| spec.misses(trace, size))
                    .collect()
            };
            let point = |(&size_pages, misses): (&usize, u64)| Point {
                size_pages,
                misses: misses as f64,
                misses_error: 0.0,
            };
            Curve {
                trace: name.to_string(),
                policy: spec.name().to_string(),
                accesses: trace.accesses().len() as u64,
                footprint_pages: trace.page_count() as u64,
                sampling_rate: None,
                points: sizes.iter().zip(misses).map(point).collect(),
            }
        })
        .collect()
}
