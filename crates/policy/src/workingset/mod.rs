// SPDX-License-Identifier: Apache-2.0
//! Working-set reporting: how much memory has which age, per node and target.

mod bin;
pub mod divide;
mod histogram;
mod intervals;
pub mod report;

pub use bin::{Bin, NO_UPPER_BOUND_MS};
pub use histogram::{Histogram, OldestPages, ParseError, Slice};
pub use intervals::{BINS_MAX, INTERVALS_MAX, IntervalError, Intervals};
