// SPDX-License-Identifier: Apache-2.0
//! What a memory reclaimer in user space decides. Pure: no I/O, no wall clock, no threads, no
//! globals, no unseeded randomness. The host (real processes) and the lab (a simulated machine) hand
//! it facts and carry out what it decides.

pub mod agemap;
pub mod clear;
pub mod generations;
pub mod heat;
pub mod proactive;
pub mod sample;
pub mod table;
pub mod thrashing;
pub mod workingset;
