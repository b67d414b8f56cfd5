// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! [`Lru`] holds the state of a machine, [`World`] is what it asks of the rest, and
//! [`mglru::Profile`] is what differs between kernel versions.

#![warn(missing_docs)]

pub mod batch;
mod cgroups;
pub mod classic;
mod drain;
pub mod folio;
pub mod ids;
mod lists;
pub mod lru;
pub mod mglru;
pub mod page_table;
pub mod reclaim;
pub mod refault_distance;
mod reports;
pub mod shadow;
pub mod tracepoint;
pub mod work;
pub mod world;

pub use cgroups::LruConfig;
pub use folio::{Flag, Folio, FolioType, Pfn};
pub use ids::{LruvecId, MemcgId, MmId, NodeId};
pub use lru::{Lru, Mode};
pub use mglru::Profile;
pub use reports::AddContext;
pub use world::World;
