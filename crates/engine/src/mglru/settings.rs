// SPDX-License-Identifier: Apache-2.0
//! Run-time settings of the multi-gen LRU, and what a machine keeps for it beside its lruvecs.

use rand_pcg::Pcg32;

use super::profile::{Ablation, MemcgOrder, Profile};

/// Settings of the multi-gen LRU. Changing them takes effect at the next decision.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What differs between kernel versions.
    pub profile: Profile,
    /// Accessed bits of leaves are cleared in walks (`enabled` bit 0x2).
    pub walks_leaves: bool,
    /// Accessed bits of tables are used (`enabled` bit 0x4).
    pub uses_table_bits: bool,
    /// Kill a task rather than evict what was used in the last `min_ttl_ms`; 0 never.
    pub min_ttl_ms: u32,
    /// Keep statistics of all generations, not only of the oldest and the youngest
    /// (`CONFIG_LRU_GEN_STATS`).
    pub history: bool,
    /// The order of cgroups in global reclaim; the profile's unless set.
    pub memcg_order: Option<MemcgOrder>,
    /// Chance that the process is scheduled between two agings of one reclaim call, 0..=1: what
    /// decides whether the second walk looks at it.
    pub reschedule_chance: f64,
    /// The first access through a file descriptor keeps the uses that a refault restored, which
    /// the kernel overwrites.
    pub keep_restored_refs: bool,
    /// Features switched off, for experiments.
    pub ablation: Ablation,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            profile: Profile::default(),
            walks_leaves: true,
            uses_table_bits: true,
            min_ttl_ms: 0,
            history: false,
            memcg_order: None,
            reschedule_chance: 0.0,
            keep_restored_refs: false,
            ablation: Ablation::default(),
        }
    }
}

/// State of the machine that no lruvec owns.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Random bins and chances.
    pub(crate) rng: Pcg32,
}

impl Machine {
    /// A machine whose random choices follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Machine {
        Machine {
            rng: Pcg32::new(seed, 0x0a02_bdbf_7bb3_c0a7),
        }
    }
}
