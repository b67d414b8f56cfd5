// SPDX-License-Identifier: Apache-2.0
//! Workloads: what the processes of the simulated machine do.

mod effects;
pub mod kernel_trace;
pub mod library;
pub mod random;
pub mod spec;
mod stream;
