// SPDX-License-Identifier: Apache-2.0
//! The Linux kernel's page reclaim as a library: the multi-gen LRU, the classic active and inactive
//! lists, refault distance, and reclaim of nodes, zones and memory cgroups. Pure and deterministic:
//! the machine around it is a [`world::World`].

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
