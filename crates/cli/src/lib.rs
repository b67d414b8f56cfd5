// SPDX-License-Identifier: Apache-2.0
//! Shared by the commands, the daemon and the benchmarks of agewise: units and output formats,
//! signals and waiting, target names. It is not a stable interface.

pub mod children;
pub mod counters;
pub mod observe;
pub mod output;
pub mod prices;
pub mod progress;
pub mod signal;
pub mod units;
pub mod usage;
pub mod whatif;
