// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! [`Monitor`] samples a [`Space`] and keeps its regions; a [`scheme::Scheme`] acts on them.

#![warn(missing_docs)]

pub mod action;
mod apply;
pub mod attrs;
pub mod filter;
pub mod goal;
mod intervals;
pub mod lru_sort;
pub mod module;
pub mod monitor;
pub mod params;
pub mod profile;
pub mod quota;
pub mod reclaim;
pub mod region;
pub mod scheme;
pub mod score;
pub mod space;
pub mod target;
#[cfg(test)]
mod testing;

pub use action::Action;
pub use attrs::Attrs;
pub use filter::PageFilters;
pub use monitor::{Monitor, Wait};
pub use profile::Profile;
pub use region::Region;
pub use scheme::Scheme;
pub use space::{Applied, Space};
pub use target::{Target, TargetId};
