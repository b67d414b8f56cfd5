// SPDX-License-Identifier: Apache-2.0
//! Access sources and movers on a real Linux machine. Readers hold no policy; what to do with what
//! they see is decided in `agewise-policy`.

pub mod access;
pub mod agent;
pub mod capability;
pub mod cgroup;
pub mod clear;
pub mod clock;
mod complaints;
pub mod damon;
pub mod error;
pub mod faults;
#[cfg(feature = "testing")]
pub mod fuzz;
pub mod glance;
pub mod heated;
pub mod kernel_source;
pub mod lru_gen;
pub mod memory;
pub mod mover;
mod octal;
pub mod pagewalk;
pub mod pressure;
pub mod process;
pub mod raise;
pub mod recorder;
pub mod root;
pub mod source;
pub mod swap;
pub mod throttle;
pub mod untrusted;
pub mod vma;
