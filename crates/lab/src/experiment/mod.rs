// SPDX-License-Identifier: Apache-2.0
//! Experiments: one workload or trace under several policies and seeds, and tests of the
//! differences.

pub mod balloon;
pub mod contender;
pub mod damon;
pub mod histogram;
pub mod machine_run;
pub mod matrix;
pub mod replay;
pub mod settings;
pub mod speed;
pub mod statistics;
mod task;
