// SPDX-License-Identifier: Apache-2.0
//! How much of each list a pass scans: inactive target, pass flags and scan counts.

use super::Settings;
use super::lists::{Counts, List};
use super::stats;
use crate::folio::FolioType;
use crate::ids::{LruvecId, MemcgId, NodeId};
use crate::lru::Lru;
use crate::reclaim::migration::demotion_target;
use crate::reclaim::{SWAP_CLUSTER_MAX, ScanControl};
use crate::world::World;

/// Swappiness 201: scan only anon, whatever the costs (7.2, `memory.reclaim swappiness=max`).
pub const SWAPPINESS_ANON_ONLY: u32 = 201;

/// Twice the neutral swappiness: the sum of the shares of anon and file (`MAX_SWAPPINESS`).
const MAX_SWAPPINESS: u32 = 200;

/// log2 of the 4 KiB pages in 1 GiB.
const GIB_SHIFT: u32 = 18;

/// How scan counts are divided between the types (`enum scan_balance`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Equal pressure on both types.
    Equal,
    /// By cost and swappiness: the shares of anon and file.
    Fract([u64; 2]),
    /// Only anon.
    Anon,
    /// Only file.
    File,
}

/// Whether the inactive list is too short to give pages a fair chance of a second use
/// (`inactive_is_low`): 1 GiB keeps a quarter inactive, 1 TiB 1 %. The size is multiplied by
/// `scale`.
#[must_use]
pub fn inactive_is_low(inactive_pages: u64, active_pages: u64, scale: u64) -> bool {
    let gib = (inactive_pages + active_pages).saturating_mul(scale) >> GIB_SHIFT;
    inactive_pages.saturating_mul(inactive_ratio(gib)) < active_pages
}

/// Active pages allowed per inactive page on a list pair of `gib` GiB.
#[must_use]
pub fn inactive_ratio(gib: u64) -> u64 {
    if gib == 0 {
        1
    } else {
        gib.saturating_mul(10).isqrt()
    }
}

/// [`inactive_is_low`] with the sizes that decisions of this lruvec use.
#[inline]
#[must_use]
pub fn lruvec_inactive_is_low(lru: &Lru, lruvec: LruvecId, folio_type: FolioType) -> bool {
    is_low(&stats::counts(lru, lruvec), folio_type, &lru.classic)
}

fn is_low(counts: &Counts, folio_type: FolioType, settings: &Settings) -> bool {
    let (inactive, active) = counts.inactive_active(folio_type);
    inactive_is_low(inactive, active, settings.size_scale)
}

/// Starts a pass over a node from the target's costs and sizes (`prepare_scan_control`).
pub fn prepare(lru: &Lru, world: &impl World, node: NodeId, sc: &mut ScanControl) {
    let target = lru.memcgs[sc.target.index()].lruvecs[node.index()];
    let counts = stats::counts(lru, target);
    let state = &lru.lruvecs[target.index()].classic;
    let cgroup_reclaim = sc.is_cgroup_reclaim();
    let balance = &mut sc.classic;
    balance.cost = state.cost;
    for folio_type in FolioType::ALL {
        let i = folio_type.index();
        balance.may_deactivate[i] = balance.force_deactivate
            || counts.activations[i] != state.activations_snapshot[i]
            || is_low(&counts, folio_type, &lru.classic);
    }
    balance.cache_trim_mode = counts.pages(List::InactiveFile) >> sc.priority != 0
        && !balance.may_deactivate[FolioType::File.index()]
        && !balance.no_cache_trim_mode;
    balance.file_is_tiny = !cgroup_reclaim
        && !balance.may_deactivate[FolioType::Anon.index()]
        && file_is_tiny(lru, world, node, sc.priority);
}

/// Whether file pages and free memory together stay below the high watermarks while there is anon
/// to scan.
fn file_is_tiny(lru: &Lru, world: &impl World, node: NodeId, priority: u32) -> bool {
    let node_pages = |list| -> u64 {
        let on_node = lru.lruvecs.iter().filter(|lruvec| lruvec.node == node);
        on_node.map(|lruvec| lruvec.classic.total_pages(list)).sum()
    };
    let zones = world.zones(node);
    let free: u64 = zones.iter().map(|zone| zone.free_pages).sum();
    let high: u64 = zones.iter().map(|zone| zone.high_pages).sum();
    node_pages(List::InactiveFile) + node_pages(List::ActiveFile) + free <= high
        && node_pages(List::InactiveAnon) >> priority != 0
}

/// Ends a reclaim call: saves the current counts of refault activations (`snapshot_refaults`).
pub fn snapshot_refaults(lru: &mut Lru, target: MemcgId, node: NodeId) {
    let target = lru.memcgs[target.index()].lruvecs[node.index()];
    let activations = stats::counts(lru, target).activations;
    lru.lruvecs[target.index()].classic.activations_snapshot = activations;
}

/// Pages to scan of each evictable list of a lruvec in this pass (`get_scan_count`).
pub fn scan_counts(
    lru: &Lru,
    world: &impl World,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) -> [u64; 4] {
    let lruvec = &lru.lruvecs[lruvec.index()];
    let memcg = &lru.memcgs[lruvec.memcg.index()];
    let swappiness = sc.swappiness.unwrap_or(memcg.swappiness);
    let can_leave = world.swap_free_pages(lruvec.memcg) > 0
        || demotion_target(lru, world, lruvec.node, sc).is_some();
    let balance = choose(sc, swappiness, sc.may_swap && can_leave);
    let protection = world.protection(sc.target, lruvec.memcg);
    List::ALL.map(|list| {
        let size = lruvec.classic.size_pages(list, sc.reclaim_idx);
        let mut scan = protection.leave(sc, size) >> sc.priority;
        if scan == 0 && !memcg.online {
            scan = size.min(SWAP_CLUSTER_MAX);
        }
        balance.apply(scan, list.folio_type() == FolioType::File, memcg.online)
    })
}

fn choose(sc: &ScanControl, swappiness: u32, can_swap: bool) -> Balance {
    if !can_swap || (sc.is_cgroup_reclaim() && swappiness == 0) {
        Balance::File
    } else if swappiness == SWAPPINESS_ANON_ONLY {
        Balance::Anon
    } else if sc.priority == 0 && swappiness > 0 {
        Balance::Equal
    } else if sc.classic.file_is_tiny {
        Balance::Anon
    } else if sc.classic.cache_trim_mode {
        Balance::File
    } else {
        Balance::Fract(shares(sc.classic.cost, swappiness))
    }
}

/// Shares of anon and file according to their costs (`calculate_pressure_balance`). Without cost
/// they follow swappiness; a type that alone has cost keeps a share, so that it is tried again.
#[must_use]
pub fn shares(cost: [u64; 2], swappiness: u32) -> [u64; 2] {
    let both = cost[0] + cost[1];
    let [anon, file] = cost.map(|own| both + own);
    let total = anon + file + 1;
    let anon_share = u64::from(swappiness) * total / (anon + 1);
    let file_share = u64::from(MAX_SWAPPINESS.saturating_sub(swappiness)) * total / (file + 1);
    [anon_share, file_share]
}

impl Balance {
    /// The part of `scan` pages for a list of anon or file.
    fn apply(self, scan: u64, file: bool, online: bool) -> u64 {
        match self {
            Balance::Equal => scan,
            Balance::Anon => u64::from(!file) * scan,
            Balance::File => u64::from(file) * scan,
            Balance::Fract([anon_share, file_share]) => {
                let part =
                    u128::from(scan) * u128::from(if file { file_share } else { anon_share });
                let whole = u128::from(anon_share + file_share).max(1);
                let share = if online {
                    part / whole
                } else {
                    part.div_ceil(whole)
                };
                u64::try_from(share).unwrap_or(scan)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inactive_ratio_follows_the_table() {
        let table = [(0, 1), (1, 3), (10, 10), (100, 31), (1024, 101)];
        for (gib, ratio) in table {
            assert_eq!(inactive_ratio(gib), ratio, "{gib} GiB");
        }
    }

    #[test]
    fn below_one_gib_inactive_is_low_iff_smaller() {
        assert!(!inactive_is_low(4000, 4000, 1));
        assert!(inactive_is_low(3999, 4000, 1));
        // 1 GiB: three active pages per inactive page.
        let gib = 1 << GIB_SHIFT;
        assert!(!inactive_is_low(gib / 4, gib * 3 / 4, 1));
        assert!(inactive_is_low(gib / 4 - 1, gib * 3 / 4 + 1, 1));
        // The same at about a thousandth of the size.
        assert!(!inactive_is_low(66, 196, 1020));
        assert!(inactive_is_low(65, 196, 1020));
        assert!(inactive_is_low(66, 196, 1));
    }

    #[test]
    fn shares_follow_the_hand_worked_cases() {
        assert_eq!(shares([0, 0], 60), [60, 140]);
        // Only anon has cost: 17.6 %, not 0.
        let [anon, file] = shares([100_000, 0], 60);
        assert_eq!((anon, file), (89, 419));
        // Only file has cost.
        let [anon, file] = shares([0, 100_000], 60);
        assert_eq!((anon, file), (179, 209));
    }

    #[test]
    fn four_thousand_costly_anon_pages_are_first_scanned_at_priority_nine() {
        let shares = shares([100_000, 0], 60);
        let scans: Vec<u64> = (5..=12)
            .rev()
            .map(|priority| Balance::Fract(shares).apply(4000 >> priority, false, true))
            .collect();
        assert_eq!(scans, [0, 0, 0, 1, 2, 5, 10, 21]);
    }

    #[test]
    fn an_offline_cgroup_rounds_up() {
        let balance = Balance::Fract([60, 140]);
        assert_eq!(balance.apply(1, false, true), 0);
        assert_eq!(balance.apply(1, false, false), 1);
        assert_eq!(balance.apply(0, false, false), 0);
    }
}
