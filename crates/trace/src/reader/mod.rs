// SPDX-License-Identifier: Apache-2.0
//! One reader per file. Each has a `FORMAT` that the registry lists. `simple` reads those in which
//! a line or a record is at most one request.

pub mod adaptsize;
pub mod arc;
pub mod cache2k;
pub mod column;
pub mod corda;
pub mod csv;
pub mod damon;
pub mod lackey;
pub mod lirs;
pub mod oracle_general;
pub mod ucsd;

mod simple;

#[cfg(test)]
pub(crate) mod testing;
