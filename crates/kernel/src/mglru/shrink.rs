// SPDX-License-Identifier: Apache-2.0
//! How much to evict from a lruvec at a priority, when to age it first, and when to stop
//! (`try_to_shrink_lruvec`).

use crate::folio::FolioType;
use crate::ids::LruvecId;
use crate::lru::{Lru, Lruvec};
use crate::reclaim::migration::demotion_target;
use crate::reclaim::watermark::is_above;
use crate::reclaim::{Reclaimer, SWAP_CLUSTER_MAX, ScanControl};
use crate::world::{Protection, World};

use super::ablation::Part;
use super::aging::evictable;
use super::evict::{evict_batch, evict_round, out_of_generations};
use super::generation::State;
use super::memcg_rotate::{self, Rotation};
use super::profile::{AgingRule, ReclaimLoop};
use super::walk::age;
use super::{MIN_LRU_BATCH, MIN_NR_GENS};

/// Reclaims from one lruvec for a cgroup's limit or a proactive request
/// (`lru_gen_shrink_lruvec`).
pub(crate) fn shrink_lruvec<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) {
    lru.drain_cpu(sc.cpu);
    lru.mglru_machine.walk.present = sc.reclaimer == Reclaimer::Proactive;
    if try_to_shrink(lru, world, lruvec, sc) {
        memcg_rotate::rotate(lru, lruvec, Rotation::Young);
    }
    lru.mglru_machine.walk.present = false;
}

/// Evicts what the priority requires. Returns whether the lruvec has run low on cold pages.
pub(super) fn try_to_shrink<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) -> bool {
    let swappiness = swappiness(lru, world, lruvec, sc);
    match lru.mglru.profile.reclaim_loop {
        ReclaimLoop::Rounds => shrink_in_rounds(lru, world, lruvec, sc, swappiness),
        ReclaimLoop::Batches => shrink_in_batches(lru, world, lruvec, sc, swappiness),
    }
}

fn shrink_in_rounds<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    swappiness: u32,
) -> bool {
    let mut scanned = 0;
    let low = loop {
        let Some(amount) = amount_or_age(lru, world, lruvec, sc, swappiness) else {
            break true;
        };
        if amount == 0 {
            break false;
        }
        let delta = evict_round(lru, world, lruvec, sc, swappiness);
        scanned += delta;
        if delta == 0 || scanned >= amount || should_abort(lru, world, lruvec, sc) {
            break false;
        }
    };
    if sc.seen.unqueued_dirty > 0 && sc.seen.unqueued_dirty == sc.seen.file_taken {
        world.wake_flusher(lru.lruvecs[lruvec.index()].node);
    }
    low
}

/// Pages to scan; `None` after an aging or below `memory.min` (`get_nr_to_scan`, before 2026).
fn amount_or_age<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &ScanControl,
    swappiness: u32,
) -> Option<u64> {
    let memcg = lru.lruvecs[lruvec.index()].memcg;
    if world.protection(sc.target, memcg).below_min() {
        return None;
    }
    let due = aging_due(lru, lruvec, sc, swappiness);
    let state = &lru.lruvecs[lruvec.index()].mglru;
    let total = if out_of_generations(lru, lruvec, swappiness) {
        0
    } else {
        evictable_pages(state, swappiness)
    };
    if total > 0 && !lru.memcgs[memcg.index()].online {
        return Some(total);
    }
    if !due || sc.priority == crate::reclaim::DEF_PRIORITY {
        return Some(total >> sc.priority);
    }
    if age(lru, world, lruvec, swappiness, false) {
        None
    } else {
        Some(0)
    }
}

fn shrink_in_batches<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
    swappiness: u32,
) -> bool {
    let memcg = lru.lruvecs[lruvec.index()].memcg;
    let total = evictable_pages(&lru.lruvecs[lruvec.index()].mglru, swappiness);
    let protection = world.protection(sc.target, memcg);
    let mut amount = protection.leave(sc, total);
    if lru.memcgs[memcg.index()].online {
        amount >>= sc.priority;
    }
    let mut low = false;
    while amount > 0 {
        if world.protection(sc.target, memcg).below_min() {
            return true;
        }
        let due = aging_due(lru, lruvec, sc, swappiness);
        if due {
            low |= age(lru, world, lruvec, swappiness, false);
        }
        let batch = amount.min(MIN_LRU_BATCH);
        let delta = evict_batch(lru, world, lruvec, sc, swappiness, batch);
        if delta == 0 || should_abort(lru, world, lruvec, sc) || due && sc.is_global() {
            break;
        }
        amount = amount.saturating_sub(delta);
    }
    low
}

/// Whether to age before evicting (`should_run_aging`).
pub(super) fn aging_due(lru: &Lru, lruvec: LruvecId, sc: &ScanControl, swappiness: u32) -> bool {
    let profile = &lru.mglru.profile;
    if out_of_generations(lru, lruvec, swappiness) {
        return true;
    }
    let state = &lru.lruvecs[lruvec.index()].mglru;
    match profile.aging {
        AgingRule::SpareGeneration => {
            let min_seq = super::aging::evictable_min_seq(state.min_seq, swappiness);
            sc.priority != crate::reclaim::DEF_PRIORITY
                && !lru.mglru.ablation.lacks(Part::EarlyAging)
                && min_seq + MIN_NR_GENS as u64 == state.max_seq
        }
        AgingRule::Ratio | AgingRule::RatioByFile => {
            let leading = if swappiness == 0 || profile.aging == AgingRule::RatioByFile {
                FolioType::File
            } else {
                FolioType::Anon
            };
            state.min_seq[leading.index()] + MIN_NR_GENS as u64 == state.max_seq
                && !lru.mglru.ablation.lacks(Part::EarlyAging)
                && is_lopsided(state, swappiness)
        }
    }
}

/// Whether there are too many young pages or too few old ones.
fn is_lopsided(state: &State, swappiness: u32) -> bool {
    let pages = |seq: u64| -> u64 {
        FolioType::ALL
            .into_iter()
            .filter(|&t| evictable(t, swappiness) && state.min_seq[t.index()] <= seq)
            .map(|t| state.pages_of(seq, t))
            .sum()
    };
    let total = evictable_pages(state, swappiness);
    let young = pages(state.max_seq);
    let old = pages(state.max_seq - MIN_NR_GENS as u64);
    young * MIN_NR_GENS as u64 > total || old * (MIN_NR_GENS as u64 + 2) < total
}

/// Pages of the evictable types in all generations.
pub(super) fn evictable_pages(state: &State, swappiness: u32) -> u64 {
    FolioType::ALL
        .into_iter()
        .filter(|&t| evictable(t, swappiness))
        .map(|t| state.total_pages(t))
        .sum()
}

/// Swappiness, 0..=201; 0 if anon pages cannot leave, neither to swap nor to a slower
/// node (`get_swappiness`).
pub(super) fn swappiness<W: World>(
    lru: &Lru,
    world: &W,
    lruvec: LruvecId,
    sc: &ScanControl,
) -> u32 {
    let Lruvec { memcg, node, .. } = lru.lruvecs[lruvec.index()];
    let can_leave = world.swap_free_pages(memcg) >= MIN_LRU_BATCH
        || demotion_target(lru, world, node, sc).is_some();
    if !sc.may_swap || !can_leave {
        return 0;
    }
    sc.swappiness
        .unwrap_or(lru.memcgs[memcg.index()].swappiness)
}

/// Whether the call has reclaimed enough (`should_abort_scan`).
pub(super) fn should_abort<W: World>(
    lru: &Lru,
    world: &W,
    lruvec: LruvecId,
    sc: &ScanControl,
) -> bool {
    if !sc.is_global() && lru.mglru.profile.reclaim_loop == ReclaimLoop::Rounds {
        return false;
    }
    if sc.nr_reclaimed >= sc.nr_to_reclaim.max(2 << sc.order) {
        return true;
    }
    if sc.reclaimer != Reclaimer::Kswapd || sc.order > 0 {
        return false;
    }
    let zones = world.zones(lru.lruvecs[lruvec.index()].node);
    zones[..=sc.reclaim_idx]
        .iter()
        .filter(|zone| zone.managed_pages > 0)
        .all(|zone| is_above(zone, 0, zone.high_pages + MIN_LRU_BATCH, sc.reclaim_idx))
}

impl Protection {
    /// Whether `memory.min` forbids any reclaim.
    #[must_use]
    pub fn below_min(&self) -> bool {
        self.min_pages > 0 && self.min_pages >= self.usage_pages
    }

    /// Whether usage is within `memory.low`.
    #[must_use]
    pub fn below_low(&self) -> bool {
        self.low_pages > 0 && self.low_pages >= self.usage_pages
    }

    /// The unprotected part of a list of `pages`, at least one chunk; records in `sc` if something
    /// was skipped because of `memory.low` (`apply_proportional_protection`).
    #[must_use]
    pub fn leave(&self, sc: &mut ScanControl, pages: u64) -> u64 {
        if self.min_pages == 0 && self.low_pages == 0 {
            return pages;
        }
        let protected = if !sc.memcg_low_reclaim && self.low_pages > self.min_pages {
            sc.memcg_low_skipped = true;
            self.low_pages
        } else {
            self.min_pages
        };
        let usage = self.usage_pages.max(protected);
        let spared = u128::from(pages) * u128::from(protected) / (u128::from(usage) + 1);
        let spared = u64::try_from(spared).unwrap_or(pages);
        pages.saturating_sub(spared).max(SWAP_CLUSTER_MAX)
    }
}
