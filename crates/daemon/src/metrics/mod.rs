// SPDX-License-Identifier: Apache-2.0
//! Metrics in the OpenMetrics text format, or in the older Prometheus format for clients that do
//! not request OpenMetrics.

mod ages;
pub mod families;
pub mod family;
mod held;
mod rows;
pub mod shown;
pub mod text;
mod whatif;
