// SPDX-License-Identifier: Apache-2.0
//! Differences between kernel versions, as data and the small functions that read it. Nothing else
//! in the multi-gen LRU depends on a version. `docs/inside/profiles.md` describes the differences.
//!
//! `7.2` is Linux 7.2 (rework of 6.14 and of 2026), `6.12` the long-term kernel before that rework,
//! `6.14` the result of that rework alone, `v6` the patch set of January 2022.

use crate::folio::{Flag, Folio, FolioType};

use super::ablation::{Ablation, Part};
pub use super::decisions::{
    AgingRule, DebugfsSyntax, FaultMark, MemcgOrder, ReclaimLoop, TypeChoice, UsageCount,
};

/// A kernel version, as a set of decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name on command lines.
    pub name: &'static str,
    /// The most generations of a lruvec (`MAX_NR_GENS`), 4..=7. The kernel refuses to be built with
    /// fewer than 4 (`init_lru_gen`); the patch set made it an option, `CONFIG_NR_LRU_GENS`.
    pub generations: u8,
    /// Usage classes within a generation (`MAX_NR_TIERS`), 2..=4; an option of the patch set too,
    /// `CONFIG_TIERS_PER_GEN`.
    pub tiers: u8,
    /// How uses are counted.
    pub usage: UsageCount,
    /// What a fault with recency does.
    pub fault_mark: FaultMark,
    /// Whether the first sighting of an accessed bit promotes a folio that carries no mark yet.
    pub first_sighting_promotes: bool,
    /// When eviction ages first.
    pub aging: AgingRule,
    /// Scan target and batches of a pass.
    pub reclaim_loop: ReclaimLoop,
    /// Which type is evicted.
    pub type_choice: TypeChoice,
    /// Gains of tier 0 and of the tier compared with it.
    pub tier_gain: (u64, u64),
    /// A refault is recent if the shadow's generation is closer than this to `max_seq`; `None`: if
    /// it is still the oldest one.
    pub refault_window: Option<u64>,
    /// Whether file generations may run ahead of anon ones.
    pub file_may_lead: bool,
    /// Protected folios go to the young end of the next generation, not to its old end.
    pub protect_to_head: bool,
    /// Dirty and writeback folios are moved up by sorting, not isolated (v6).
    pub sorts_dirty: bool,
    /// Whether a reclaimer that must not start I/O leaves folios that need it where they are.
    pub isolation_needs_io: bool,
    /// Whether kswapd may write dirty file folios (before 2026).
    pub kswapd_writes_files: bool,
    /// The flusher is woken after each isolated batch, not after the whole pass.
    pub flusher_per_batch: bool,
    /// Whether kswapd ages every cgroup before each pass (v6).
    pub kswapd_ages_all: bool,
    /// The order of cgroups in global reclaim.
    pub memcg_order: MemcgOrder,
    /// Whether a removed cgroup's folios move to its parent at once.
    pub reparents_on_offline: bool,
    /// Whether swappiness 201 ("anon only") exists.
    pub has_swappiness_max: bool,
    /// Whether switching at run time has an intermediate state in which reclaim tries both
    /// structures.
    pub has_switching_state: bool,
    /// Bits of the generation token in the shadow of an anon folio; file shadows have 36.
    pub anon_token_bits: u32,
    /// Whether the shadow limit of a cgroup under multi-gen sees its list sizes; 7.2 reads counters
    /// that multi-gen does not keep.
    pub shadow_limit_counts_lists: bool,
    /// Syntax of the debugfs files.
    pub debugfs: DebugfsSyntax,
}

/// Linux 7.2.
pub const V7_2: Profile = Profile {
    name: "7.2",
    generations: 4,
    tiers: 4,
    usage: UsageCount::WorkingsetLast,
    fault_mark: FaultMark::Reference,
    first_sighting_promotes: false,
    aging: AgingRule::SpareGeneration,
    reclaim_loop: ReclaimLoop::Batches,
    type_choice: TypeChoice::AllTiers,
    tier_gain: (2, 3),
    refault_window: Some(4),
    file_may_lead: true,
    protect_to_head: true,
    sorts_dirty: false,
    isolation_needs_io: false,
    kswapd_writes_files: false,
    flusher_per_batch: true,
    kswapd_ages_all: false,
    memcg_order: MemcgOrder::MemcgLru,
    reparents_on_offline: true,
    has_swappiness_max: true,
    has_switching_state: true,
    anon_token_bits: 31,
    shadow_limit_counts_lists: false,
    debugfs: DebugfsSyntax::LongIds,
};

/// Linux 6.12.
pub const V6_12: Profile = Profile {
    name: "6.12",
    generations: 4,
    tiers: 4,
    usage: UsageCount::WorkingsetSecond,
    fault_mark: FaultMark::Activate,
    first_sighting_promotes: true,
    aging: AgingRule::Ratio,
    reclaim_loop: ReclaimLoop::Rounds,
    type_choice: TypeChoice::TierZero,
    tier_gain: (1, 2),
    refault_window: None,
    file_may_lead: false,
    protect_to_head: false,
    sorts_dirty: false,
    isolation_needs_io: true,
    kswapd_writes_files: true,
    flusher_per_batch: false,
    kswapd_ages_all: false,
    memcg_order: MemcgOrder::MemcgLru,
    reparents_on_offline: false,
    has_swappiness_max: false,
    has_switching_state: false,
    anon_token_bits: 36,
    shadow_limit_counts_lists: true,
    debugfs: DebugfsSyntax::ShortIds,
};

/// Linux 6.12 with the rework of 6.14: uses, refaults, types and generations are judged as in 7.2,
/// while faults, swap and the reclaim loop are those of 6.12. It is mainline's answer to
/// undistinguished refaults, for comparison with other solutions; no such kernel was measured.
pub const V6_14: Profile = Profile {
    name: "6.14",
    usage: UsageCount::WorkingsetLast,
    first_sighting_promotes: false,
    aging: AgingRule::SpareGeneration,
    type_choice: TypeChoice::AllTiers,
    tier_gain: (2, 3),
    refault_window: Some(4),
    file_may_lead: true,
    protect_to_head: true,
    ..V6_12
};

/// The patch set of January 2022.
pub const V6: Profile = Profile {
    name: "v6",
    aging: AgingRule::RatioByFile,
    sorts_dirty: true,
    kswapd_ages_all: true,
    memcg_order: MemcgOrder::Cursor,
    debugfs: DebugfsSyntax::Patches,
    ..V6_12
};

/// Every profile, the default first.
pub const PROFILES: [&Profile; 4] = [&V7_2, &V6_14, &V6_12, &V6];

impl Default for Profile {
    fn default() -> Self {
        V7_2
    }
}

impl Profile {
    /// Looks up a profile by name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    // ---- usage

    /// Width of the refs field in bits, 0..=2 (`LRU_REFS_WIDTH`).
    #[inline]
    #[must_use]
    pub fn refs_width(&self) -> u32 {
        u32::from(self.tiers) - 2
    }

    /// The largest count that the refs field holds, 0, 1 or 3.
    #[inline]
    #[must_use]
    pub fn refs_max(&self) -> u32 {
        (1 << self.refs_width()) - 1
    }

    /// Counted uses, at most 1, 2 or 4 (`folio_lru_refs`).
    #[inline]
    #[must_use]
    pub fn uses(&self, folio: &Folio) -> u32 {
        match self.usage {
            UsageCount::WorkingsetSecond => folio.refs() + u32::from(folio.has(Flag::Workingset)),
            UsageCount::WorkingsetLast if folio.has(Flag::Referenced) => folio.refs() + 1,
            UsageCount::WorkingsetLast => 0,
        }
    }

    /// The tier that a count of uses stands for (`lru_tier_from_refs`).
    #[inline]
    #[must_use]
    pub fn tier_of(&self, uses: u32, workingset: bool) -> usize {
        match self.usage {
            UsageCount::WorkingsetSecond => ceil_log2(uses + 1),
            UsageCount::WorkingsetLast if workingset => usize::from(self.tiers) - 1,
            UsageCount::WorkingsetLast => ceil_log2(uses),
        }
    }

    /// The tier of a folio.
    #[inline]
    #[must_use]
    pub fn tier(&self, folio: &Folio) -> usize {
        self.tier_of(self.uses(folio), folio.has(Flag::Workingset))
    }

    /// Whether sorting moves the folio up regardless of the threshold, because of its many uses.
    #[inline]
    #[must_use]
    pub fn always_protected(&self, folio: &Folio) -> bool {
        let most = 1 << self.refs_width();
        match self.usage {
            UsageCount::WorkingsetSecond => self.uses(folio) == most,
            UsageCount::WorkingsetLast => {
                self.uses(folio) + u32::from(folio.has(Flag::Workingset)) == most + 1
            }
        }
    }

    /// Whether moving this folio up counts as protection (a lazy promotion does not).
    #[inline]
    #[must_use]
    pub fn counts_as_protected(&self, folio: &Folio) -> bool {
        self.usage == UsageCount::WorkingsetSecond || !self.always_protected(folio)
    }

    /// Whether tier 0 has a `protected` counter.
    #[inline]
    #[must_use]
    pub fn counts_protected(&self, tier: usize) -> bool {
        self.usage == UsageCount::WorkingsetLast || tier > 0
    }

    /// One access through a file descriptor (`lru_gen_inc_refs`).
    #[inline]
    pub fn mark_accessed(&self, folio: &mut Folio) {
        if folio.has(Flag::Unevictable) {
            return;
        }
        match self.usage {
            UsageCount::WorkingsetSecond => {
                if !folio.has(Flag::Referenced) {
                    folio.set(Flag::Referenced);
                } else if !folio.has(Flag::Workingset) {
                    folio.set(Flag::Workingset);
                } else {
                    folio.set_refs((folio.refs() + 1).min(self.refs_max()));
                }
            }
            UsageCount::WorkingsetLast => {
                if !folio.has(Flag::Referenced) {
                    folio.set(Flag::Referenced);
                    folio.set_refs(0);
                } else if folio.refs() == self.refs_max() {
                    folio.set(Flag::Workingset);
                } else {
                    folio.set_refs(folio.refs() + 1);
                }
            }
        }
    }

    /// Marks a folio brought in by a fault with recency, before it is queued.
    #[inline]
    pub fn mark_faulted(&self, folio: &mut Folio, ablation: Ablation) {
        if folio.has(Flag::Unevictable) || ablation.lacks(Part::FaultMark) {
            return;
        }
        match self.fault_mark {
            FaultMark::Activate => folio.set(Flag::Active),
            FaultMark::Reference if folio.has(Flag::Workingset) => folio.set(Flag::Active),
            FaultMark::Reference if !folio.has(Flag::Referenced) => self.mark_accessed(folio),
            FaultMark::Reference => {}
        }
    }

    /// Clears the usage marks before an event that makes a folio young or moves it up a generation.
    #[inline]
    pub fn clear_uses(&self, folio: &mut Folio) {
        folio.clear(Flag::Referenced);
        folio.set_refs(0);
        if self.usage == UsageCount::WorkingsetSecond {
            folio.clear(Flag::Workingset);
        }
    }

    /// Cold advice: clears the marks that the profile clears at once, and returns whether the folio
    /// may stay where it is.
    pub fn deactivate_in_place(&self, folio: &mut Folio, oldest_slot: u32) -> bool {
        match self.usage {
            UsageCount::WorkingsetSecond => false,
            UsageCount::WorkingsetLast => {
                folio.clear(Flag::Referenced);
                folio.clear(Flag::Workingset);
                folio.set_refs(0);
                folio.generation() == Some(oldest_slot)
            }
        }
    }

    // ---- accessed bits

    /// An accessed bit was found by a walk, or near it by rmap with a walk object
    /// (`folio_update_gen`). Returns whether the folio is promoted to the youngest generation.
    #[inline]
    pub fn sighted_by_walk(&self, folio: &mut Folio) -> bool {
        if !self.first_sighting_promotes
            && !folio.has_any(Flag::Referenced as u32 | Flag::Workingset as u32)
        {
            folio.set(Flag::Referenced);
            folio.set_refs(0);
            return false;
        }
        if folio.generation().is_none() {
            if self.first_sighting_promotes {
                // The reclaimer that isolated it keeps it because of this mark.
                folio.set(Flag::Referenced);
            }
            return false;
        }
        self.clear_uses(folio);
        if !self.first_sighting_promotes {
            folio.set(Flag::Workingset);
        }
        true
    }

    /// An accessed bit was found by rmap without a walk object (`lru_gen_set_refs`). Returns
    /// whether to activate the folio, unless it is already in the youngest generation.
    #[inline]
    pub fn sighted_by_rmap(&self, folio: &mut Folio, youngest: bool) -> bool {
        if self.first_sighting_promotes {
            if folio.generation().is_none() {
                folio.set(Flag::Referenced);
            } else if !youngest {
                self.clear_uses(folio);
            }
            return folio.generation().is_some();
        }
        if !folio.has_any(Flag::Referenced as u32 | Flag::Workingset as u32) {
            folio.set(Flag::Referenced);
            folio.set_refs(0);
            return false;
        }
        if self.uses(folio) > 1 {
            self.clear_uses(folio);
            folio.set(Flag::Workingset);
        } else {
            self.mark_accessed(folio);
        }
        true
    }

    // ---- insertion

    /// The generation that a folio enters (`lru_gen_folio_seq`). With `rotate` it goes to the tail,
    /// because reclaim is waiting for it.
    #[inline]
    #[must_use]
    pub fn insertion_seq(
        &self,
        folio: &Folio,
        max_seq: u64,
        min_seq: [u64; 2],
        rotate: bool,
    ) -> u64 {
        let folio_type = folio.folio_type();
        let min_seq = min_seq[folio_type.index()];
        let active = folio.has(Flag::Active);
        let needs_time = folio_type == FolioType::Anon && !folio.has(Flag::Swapcache)
            || folio.has(Flag::Reclaim)
                && folio.has_any(Flag::Dirty as u32 | Flag::Writeback as u32);
        match self.usage {
            UsageCount::WorkingsetSecond => {
                if active {
                    max_seq
                } else if needs_time {
                    max_seq - 1
                } else if rotate || min_seq + 2 >= max_seq {
                    min_seq
                } else {
                    min_seq + 1
                }
            }
            UsageCount::WorkingsetLast => {
                let workingset = folio.has(Flag::Workingset);
                let oldest = u64::from(self.generations) - 1;
                let distance = if active {
                    1 - u64::from(workingset)
                } else if rotate {
                    oldest
                } else if needs_time {
                    1
                } else if workingset || folio.has(Flag::Referenced) {
                    oldest - 1
                } else {
                    oldest
                };
                // A new lruvec has four generations however many it may have.
                max_seq.saturating_sub(distance).max(min_seq)
            }
        }
    }

    /// Clears the flags that entering a list consumes.
    #[inline]
    pub fn settle(&self, folio: &mut Folio) {
        let active = folio.test_clear(Flag::Active);
        if active && self.usage == UsageCount::WorkingsetSecond {
            folio.clear(Flag::Referenced);
            folio.set_refs(0);
        }
    }

    // ---- eviction

    /// Clears the marks that isolation for reclaim drops.
    #[inline]
    pub fn isolated(&self, folio: &mut Folio) {
        let referenced = folio.has(Flag::Referenced);
        if !referenced {
            folio.set_refs(0);
        }
        if self.usage == UsageCount::WorkingsetSecond {
            if !referenced {
                folio.clear(Flag::Workingset);
            }
            folio.clear(Flag::Referenced);
        }
    }

    /// Bits of the generation token in a shadow.
    #[must_use]
    pub fn token_bits(&self, folio_type: FolioType) -> u32 {
        match folio_type {
            FolioType::Anon => self.anon_token_bits,
            FolioType::File => 36,
        }
    }
}

/// `order_base_2`: log2 of the smallest power of two that is at least `n`.
#[inline]
fn ceil_log2(n: u32) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}
