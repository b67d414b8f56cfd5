// SPDX-License-Identifier: Apache-2.0
//! Checking the simulated machine against counts taken from real kernels.
//!
//! A reference is a CSV of measured rows: one run of one trace in a memory cgroup at its limit, in
//! three phases. [`rows`] reads it, [`replay`] runs a trace as the reference did, [`verify`]
//! compares the two, and [`mutation`] finds out which rules the counts depend on.

mod cell;
pub mod mutation;
mod raw;
pub mod replay;
pub mod rows;
pub mod verify;
pub mod yardsticks;

pub use cell::{Cell, Guest, MEMBERS_MAX, Measured, Members, Phase, Run, TURN};
pub use raw::ReferenceError;
pub use rows::COLUMNS;
