// SPDX-License-Identifier: Apache-2.0
//! The lab: a simulated machine, its workloads, and experiments on workloads and traces. The same
//! build and seed always give the same bytes.

pub mod experiment;
pub mod fuzz;
pub mod heatmap;
mod kernel_pool;
pub mod machine;
pub mod plot;
pub mod proactive;
pub mod reference;
pub mod reproduce;
mod reuse_pool;
pub mod study;
mod svg;
pub mod whatif;
pub mod workload;
pub mod yardstick;
