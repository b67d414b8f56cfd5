// SPDX-License-Identifier: Apache-2.0
//! The multi-gen LRU (`mm/vmscan.c`, `mm/workingset.c`, `include/linux/mm_inline.h`) as pure
//! policy.

pub mod ablation;
mod aging;
mod bloom;
mod command;
mod control;
mod debugfs;
mod decisions;
mod evict;
mod generation;
mod global;
mod insert;
mod isolate;
mod look_around;
#[cfg(test)]
mod machine_for_tests;
mod memcg_lru;
mod memcg_rotate;
mod min_ttl;
mod mm_list;
mod mm_members;
pub mod profile;
#[cfg(test)]
mod profile_tests;
mod refault;
mod reparent;
mod scan;
mod settings;
mod shrink;
mod switch;
pub mod sysfs;
mod verify;
mod walk;

pub use command::{Command, WriteError, age_for_report, run, write};
pub use debugfs::{MemcgNames, render};
pub use generation::State;
pub use global::shrink_node;
pub(crate) use insert::{add_folio, del_folio};
pub(crate) use look_around::{look_around, report_dirtied};
pub use memcg_lru::MemcgLru;
pub(crate) use memcg_rotate::{memcg_lru_offline, memcg_lru_online};
pub use min_ttl::age_node;
pub use mm_list::{MmList, MmTable};
pub(crate) use mm_members::{mm_add, mm_del};
pub use profile::Profile;
pub(crate) use refault::{eviction_shadow, refault};
pub(crate) use reparent::reparent;
pub use settings::{Machine, Settings};
pub(crate) use shrink::shrink_lruvec;
pub use switch::{Switch, set_enabled};

/// `MIN_NR_GENS`: the two youngest generations are never evicted.
pub const MIN_NR_GENS: usize = 2;

/// The most generations that a profile can ask for: a folio has three bits for its own, or none.
/// The kernel's `MAX_NR_GENS` is [`Profile::generations`].
pub const GENERATIONS_MAX: usize = 7;

/// The most tiers that a profile can ask for: a folio has two bits for its uses. The kernel's
/// `MAX_NR_TIERS` is [`Profile::tiers`].
pub const TIERS_MAX: usize = 4;

/// Zones of a node.
pub const NR_ZONES: usize = 4;

/// `MIN_LRU_BATCH`: folios isolated at a time, on a 64-bit machine.
pub const MIN_LRU_BATCH: u64 = 64;

/// `MAX_LRU_BATCH`: folios examined or moved per hold of the LRU lock.
pub const MAX_LRU_BATCH: u64 = 64 * MIN_LRU_BATCH;

/// Default of `vm.swappiness`.
pub const DEFAULT_SWAPPINESS: u32 = 60;

/// Largest ordinary swappiness.
pub const MAX_SWAPPINESS: u32 = 200;

/// Evict anon only (`SWAPPINESS_ANON_ONLY`).
pub const SWAPPINESS_ANON_ONLY: u32 = 201;

/// Length of a clock tick (`CONFIG_HZ=250`): births and `min_ttl` are kept in ticks.
pub const JIFFY_NS: u64 = 4_000_000;

/// `msecs_to_jiffies`: rounds up; values beyond 31 bits mean practically forever.
#[inline]
fn msecs_to_jiffies(ms: u32) -> u64 {
    const MAX_JIFFY_OFFSET: u64 = (i64::MAX as u64 >> 1) - 1;
    if ms.cast_signed() < 0 {
        MAX_JIFFY_OFFSET
    } else {
        (u64::from(ms) * 1_000_000).div_ceil(JIFFY_NS)
    }
}

/// `jiffies_to_msecs`: in 32 bits, as in the kernel.
#[inline]
fn jiffies_to_msecs(jiffies: u64) -> u32 {
    jiffies.wrapping_mul(JIFFY_NS / 1_000_000) as u32
}

/// Converts ns to whole ticks.
#[inline]
fn jiffies(ns: u64) -> u64 {
    ns / JIFFY_NS
}
