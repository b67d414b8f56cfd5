// SPDX-License-Identifier: Apache-2.0
//! Working-set reporting: how much memory is how old, per node and target.

pub mod divide;
mod histogram;
mod intervals;
pub mod report;

pub use histogram::{Bin, Histogram, NO_UPPER_BOUND_MS, OldestPages, ParseError, Slice};
pub use intervals::{BINS_MAX, INTERVALS_MAX, IntervalError, Intervals};
