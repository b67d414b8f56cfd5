// SPDX-License-Identifier: Apache-2.0
//! What the commands, the daemon and the benchmarks of agewise share: units and output formats,
//! signals and waiting, naming targets. Not a stable interface.

pub mod children;
pub mod observe;
pub mod output;
pub mod pause;
pub mod progress;
pub mod signal;
pub mod units;
pub mod whatif;
