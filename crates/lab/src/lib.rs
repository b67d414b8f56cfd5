// SPDX-License-Identifier: Apache-2.0
//! The lab: a simulated machine, its workloads, the field's traces and the experiments on them.
//! Same build and same seed give the same bytes out.

pub mod experiment;
pub mod heatmap;
mod kernel_pool;
pub mod machine;
pub mod plot;
pub mod proactive;
pub mod reference;
pub mod reproduce;
mod svg;
pub mod workload;
pub mod yardstick;
