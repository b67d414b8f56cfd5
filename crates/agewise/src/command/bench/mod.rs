// SPDX-License-Identifier: Apache-2.0
//! `agewise bench`: what agewise costs on this machine, how true it sees, and whether it harms.

pub mod evict;
pub mod live;
pub mod parts;
pub mod proc_files;
pub mod statistics;
pub mod tally;

/// Bytes in a base page.
const PAGE_BYTES: u64 = agewise_host::eye::PAGE_BYTES;
