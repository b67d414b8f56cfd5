// SPDX-License-Identifier: Apache-2.0
//! The policies of agewise. Pure: no I/O, no wall clock, no threads, no globals, no unseeded
//! randomness. Each world (a real host, the lab's simulated machine) hands the engine facts and
//! carries out what it decides.

pub mod agemap;
pub mod batch;
pub mod classic;
pub mod damon;
pub mod folio;
pub mod generations;
pub mod heat;
pub mod ids;
pub mod lru;
pub mod mglru;
pub mod page_table;
pub mod proactive;
pub mod reclaim;
pub mod refault_distance;
pub mod shadow;
pub mod table;
pub mod thrashing;
pub mod work;
pub mod workingset;
pub mod world;
