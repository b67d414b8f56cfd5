// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! [`AgeMap`] records ages, [`Histogram`] sums them up, and [`proactive::Controller`] decides from
//! both.

#![warn(missing_docs)]

pub mod agemap;
pub mod budget;
pub mod clear;
pub mod generations;
pub mod mix;
pub mod oldest;
pub mod proactive;
pub mod reuse;
pub mod sample;
pub mod statistics;
pub mod table;
pub mod thrashing;
pub mod units;
pub mod whatif;
pub mod workingset;

pub use agemap::{AgeMap, Facts, Look};
pub use generations::{ByType, Generations, PageType};
pub use proactive::{Controller, Decision, Spec};
pub use table::{PageSet, TableBits};
pub use workingset::{Bin, Histogram, Intervals, OldestPages};
