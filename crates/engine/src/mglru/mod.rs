// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU (`mm/vmscan.c`, `mm/workingset.c`, `include/linux/mm_inline.h`), as pure policy.

#![allow(dead_code, reason = "eviction and walks follow in the next commits")]

mod aging;
mod bloom;
mod control;
mod evict;
mod generation;
mod insert;
mod memcg_lru;
mod mm_list;
pub mod profile;
mod refault;
mod settings;

pub(crate) use evict::shrink_lruvec;
pub use evict::shrink_node;
pub use generation::State;
pub(crate) use insert::{add_folio, del_folio, reparent};
pub use memcg_lru::MemcgLru;
pub(crate) use memcg_lru::{memcg_lru_offline, memcg_lru_online};
pub use mm_list::{MmList, MmTable};
pub(crate) use mm_list::{mm_add, mm_del};
pub use profile::Profile;
pub(crate) use refault::{eviction_shadow, refault};
pub use settings::{Machine, Settings};

/// `MIN_NR_GENS`: the two youngest generations are never evicted.
pub const MIN_NR_GENS: usize = 2;

/// `MAX_NR_GENS`: generations a lruvec can hold.
pub const MAX_NR_GENS: usize = 4;

/// `MAX_NR_TIERS`: classes of use within a generation.
pub const MAX_NR_TIERS: usize = 4;

/// Zones of a node.
pub const NR_ZONES: usize = 4;

/// `MIN_LRU_BATCH`: folios isolated at a time, on a 64-bit machine.
pub const MIN_LRU_BATCH: u64 = 64;

/// `MAX_LRU_BATCH`: folios examined or moved under one hold of the LRU lock.
pub const MAX_LRU_BATCH: u64 = 64 * MIN_LRU_BATCH;

/// `vm.swappiness` unless set.
pub const DEFAULT_SWAPPINESS: u32 = 60;

/// Largest ordinary swappiness.
pub const MAX_SWAPPINESS: u32 = 200;

/// Evict anon only (`SWAPPINESS_ANON_ONLY`).
pub const SWAPPINESS_ANON_ONLY: u32 = 201;

/// The slot of a generation: sequence numbers wrap around the lists (`lru_gen_from_seq`).
#[inline]
#[must_use]
pub fn generation_of(seq: u64) -> u32 {
    (seq % MAX_NR_GENS as u64) as u32
}
