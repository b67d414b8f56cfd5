// SPDX-License-Identifier: Apache-2.0
#![doc = include_str!("../README.md")]
//!
//! # Where to begin
//!
//! [`Lru`] holds the state of a machine, [`World`] is what it asks of the rest, and
//! [`mglru::Profile`] is what differs between kernel versions.

pub mod batch;
pub mod classic;
pub mod folio;
pub mod ids;
pub mod lru;
pub mod mglru;
pub mod page_table;
pub mod reclaim;
pub mod refault_distance;
pub mod shadow;
pub mod work;
pub mod world;

pub use folio::{Flag, Folio, FolioType, Pfn};
pub use ids::{LruvecId, MemcgId, MmId, NodeId};
pub use lru::{AddContext, Lru, LruConfig, Mode};
pub use mglru::Profile;
pub use world::World;
