// SPDX-License-Identifier: Apache-2.0
//! Access sources and movers on a real Linux machine. The readers hold no policy: `agewise-policy`
//! decides what to do with what they report.

pub mod access;
pub mod activate;
mod advice;
pub mod agent;
mod bpf;
pub mod budgeted;
pub mod capability;
pub mod cgroup;
pub mod clear;
pub mod clock;
pub mod container;
pub mod damon;
pub mod error;
pub mod faults;
pub mod fileio;
pub mod frame_set;
#[cfg(feature = "testing")]
pub mod fuzz;
pub mod guest;
pub mod interim;
pub mod kernel_source;
pub mod look;
pub mod lru_gen;
pub mod memory;
pub mod moments;
pub mod mover;
mod octal;
pub mod page;
pub mod pagecache;
pub mod pagewalk;
mod patient;
pub mod pressure;
pub mod process;
pub mod recorder;
pub mod root;
pub mod source;
pub mod swap;
pub mod throttle;
pub mod untrusted;
pub mod vma;
pub mod whatif;
