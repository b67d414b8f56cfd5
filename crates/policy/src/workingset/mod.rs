// SPDX-License-Identifier: Apache-2.0
//! Working-set reporting: how much memory has which age, per node and target.

pub mod divide;
mod histogram;
mod intervals;
pub mod report;

pub use histogram::{Histogram, OldestPages, ParseError, Slice};
pub use intervals::{BINS_MAX, Bin, INTERVALS_MAX, IntervalError, Intervals, NO_UPPER_BOUND_MS};
