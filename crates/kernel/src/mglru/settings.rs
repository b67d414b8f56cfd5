// SPDX-License-Identifier: Apache-2.0
//! Run-time settings of the multi-gen LRU, and per-machine state outside its lruvecs.

use rand_pcg::Pcg32;

use crate::folio::{Folio, Pfn};
use crate::refault_distance::Rule;

use super::ablation::Ablation;
use super::generation::State;
use super::profile::{MemcgOrder, Profile};
use super::{GENERATIONS_MAX, MIN_LRU_BATCH, NR_ZONES};

/// Settings of the multi-gen LRU. Changing them takes effect at the next decision.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Differences between kernel versions.
    pub profile: Profile,
    /// Whether walks clear the accessed bits of leaf entries (`enabled` bit 0x2).
    pub walks_leaves: bool,
    /// Whether accessed bits of non-leaf entries are used (`enabled` bit 0x4).
    pub uses_table_bits: bool,
    /// Whether the processor sets accessed bits itself (`arch_has_hw_pte_young`). Without them
    /// there are no walks, whatever the two settings above say.
    pub hw_accessed_bit: bool,
    /// Kill a task instead of evicting memory used in the last `min_ttl_ms`; 0 for never.
    pub min_ttl_ms: u32,
    /// Keep statistics of all generations, not only of the oldest and the youngest
    /// (`CONFIG_LRU_GEN_STATS`).
    pub history: bool,
    /// The order of cgroups in global reclaim; `None` for the profile's.
    pub memcg_order: Option<MemcgOrder>,
    /// Probability, from 0 (never) to 1 (always), that a walk visits a process that has not run
    /// since the previous walk, as if it had been scheduled in between. It is drawn for each such
    /// process at each walk; the classic LRU has no walks and does not use it.
    ///
    /// On a real machine this happens between two agings of one reclaim call. One such event
    /// empties the Bloom filter of 6.12 for good, so some counts have two possible values. The
    /// default comes from runs of 6.12 on one virtual CPU: 5 events in about 70 pairs of agings.
    pub reschedule_chance: f64,
    /// The rule by which pages read back from a short distance skip the oldest generation.
    pub refault_distance: Option<Rule>,
    /// Features switched off, for experiments.
    pub ablation: Ablation,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            profile: Profile::default(),
            walks_leaves: true,
            uses_table_bits: true,
            hw_accessed_bit: true,
            min_ttl_ms: 0,
            history: false,
            memcg_order: None,
            reschedule_chance: 0.07,
            refault_distance: None,
            ablation: Ablation::default(),
        }
    }
}

impl Settings {
    /// Whether aging walks page tables (`should_walk_mmu`).
    #[inline]
    #[must_use]
    pub fn walks(&self) -> bool {
        self.hw_accessed_bit && self.walks_leaves
    }

    /// Whether walks use the bits of non-leaf entries (`should_clear_pmd_young`).
    #[inline]
    #[must_use]
    pub fn clears_table_bits(&self) -> bool {
        self.hw_accessed_bit && self.uses_table_bits
    }
}

/// The walk object of a reclaimer (`struct lru_gen_mm_walk`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Walk {
    /// Whether the reclaimer has one: kswapd and proactive requests always do, others after an
    /// aging.
    pub(super) present: bool,
    /// Changes of sizes not yet flushed to the lruvec, by slot, type and zone.
    nr_pages: [[[i64; NR_ZONES]; 2]; GENERATIONS_MAX],
    /// Pages moved since the last flush.
    pub(super) batched: u64,
}

impl Walk {
    /// Counts a move between generations.
    #[inline]
    pub(super) fn count_move(&mut self, folio: &Folio, old: u32, new: u32) {
        let (t, zone) = (folio.folio_type().index(), folio.zone());
        let nr_pages = folio.nr_pages();
        self.nr_pages[old as usize][t][zone] -= nr_pages.cast_signed();
        self.nr_pages[new as usize][t][zone] += nr_pages.cast_signed();
        self.batched += nr_pages;
    }

    /// Applies the changes to a lruvec (`reset_batch_size`).
    pub(super) fn flush(&mut self, state: &mut State) {
        if self.batched == 0 {
            return;
        }
        self.batched = 0;
        let used = ..state.generations as usize;
        let held = self.nr_pages[used].as_flattened_mut().as_flattened_mut();
        let kept = state.nr_pages[used].as_flattened_mut().as_flattened_mut();
        for (kept, held) in kept.iter_mut().zip(held) {
            *kept += std::mem::take(held);
        }
    }
}

/// Machine-wide state outside the lruvecs.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Folios found dirty in page tables, not yet passed to the world.
    pub(super) dirtied: Vec<Pfn>,
    /// Folios isolated in the current round, and those to retry.
    pub(super) isolated: Vec<Pfn>,
    pub(super) retried: Vec<Pfn>,
    /// The current reclaimer's walk object.
    pub(super) walk: Walk,
    /// Random number generator for bins and probabilities.
    pub(crate) rng: Pcg32,
}

impl Machine {
    /// A machine whose random choices are determined by `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Machine {
        Machine {
            dirtied: Vec::new(),
            isolated: Vec::with_capacity(MIN_LRU_BATCH as usize),
            retried: Vec::with_capacity(MIN_LRU_BATCH as usize),
            walk: Walk::default(),
            rng: Pcg32::new(seed, 0x0a02_bdbf_7bb3_c0a7),
        }
    }
}
