// SPDX-License-Identifier: Apache-2.0
//! One pass over the lists of a lruvec.

use super::active::shrink_active;
use super::balance::{lruvec_inactive_is_low, scan_counts};
use super::inactive::shrink_inactive;
use super::lists::List;
use crate::folio::FolioType;
use crate::ids::LruvecId;
use crate::lru::Lru;
use crate::reclaim::migration::demotion_target;
use crate::reclaim::{DEF_PRIORITY, Reclaimer, SWAP_CLUSTER_MAX, ScanControl};
use crate::world::World;

/// Scans a lruvec at the priority of `sc` (`shrink_lruvec` of the classic LRU): chunks of the lists
/// in turn until the counts are used up or, once enough has been reclaimed, until both types have
/// been scanned in the intended proportion. Active anon alone neither starts nor continues the
/// loop.
pub fn shrink_lruvec<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    sc: &mut ScanControl,
) {
    let mut rest = ScanRest::new(scan_counts(lru, world, lruvec, sc));
    let proportional = sc.reclaimer == Reclaimer::Direct && sc.priority == DEF_PRIORITY;
    let mut reclaimed = 0;
    while rest.goes_on() {
        for list in List::ALL {
            let chunk = rest.take_chunk(list);
            if chunk > 0 {
                reclaimed += shrink_list(lru, world, lruvec, list, chunk, sc);
            }
        }
        if reclaimed < sc.nr_to_reclaim || proportional {
            continue;
        }
        if !rest.level() {
            break;
        }
    }
    sc.nr_reclaimed += reclaimed;
    let node = lru.lruvecs[lruvec.index()].node;
    let leaves = world.has_swap() || demotion_target(lru, world, node, sc).is_some();
    if leaves && lruvec_inactive_is_low(lru, lruvec, FolioType::Anon) {
        shrink_active(lru, world, lruvec, List::ActiveAnon, SWAP_CLUSTER_MAX, sc);
    }
}

fn shrink_list<W: World>(
    lru: &mut Lru,
    world: &mut W,
    lruvec: LruvecId,
    list: List,
    nr_to_scan: u64,
    sc: &mut ScanControl,
) -> u64 {
    if !list.is_active() {
        return shrink_inactive(lru, world, lruvec, list, nr_to_scan, sc);
    }
    if sc.classic.may_deactivate[list.folio_type().index()] {
        shrink_active(lru, world, lruvec, list, nr_to_scan, sc);
    } else {
        sc.classic.skipped_deactivate = true;
    }
    0
}

/// The remaining and the intended scan counts of each list.
struct ScanRest {
    left: [u64; 4],
    target: [u64; 4],
}

impl ScanRest {
    fn new(target: [u64; 4]) -> ScanRest {
        ScanRest {
            left: target,
            target,
        }
    }

    fn goes_on(&self) -> bool {
        [List::InactiveAnon, List::InactiveFile, List::ActiveFile]
            .iter()
            .any(|list| self.left[list.index()] > 0)
    }

    fn take_chunk(&mut self, list: List) -> u64 {
        let left = &mut self.left[list.index()];
        let chunk = SWAP_CLUSTER_MAX.min(*left);
        *left -= chunk;
        chunk
    }

    fn of_type(lists: &[u64; 4], folio_type: FolioType) -> u64 {
        lists[List::new(folio_type, false).index()] + lists[List::new(folio_type, true).index()]
    }

    /// Called when enough has been reclaimed: gives up the type with less left and cuts the other
    /// down to the same share of its target. Returns false if one type is done and scanning should
    /// end.
    fn level(&mut self) -> bool {
        let [anon, file] = FolioType::ALL.map(|folio_type| Self::of_type(&self.left, folio_type));
        if anon == 0 || file == 0 {
            return false;
        }
        let (stopped, left) = if file > anon {
            (FolioType::Anon, anon)
        } else {
            (FolioType::File, file)
        };
        let percentage = left * 100 / (Self::of_type(&self.target, stopped) + 1);
        for active in [false, true] {
            self.left[List::new(stopped, active).index()] = 0;
            let other = List::new(stopped.other(), active).index();
            let scanned = self.target[other] - self.left[other];
            let meant = self.target[other] * (100 - percentage) / 100;
            self.left[other] = meant.saturating_sub(scanned);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_anon_alone_does_not_keep_the_loop() {
        assert!(!ScanRest::new([0, 500, 0, 0]).goes_on());
        assert!(ScanRest::new([0, 0, 0, 1]).goes_on());
        assert!(ScanRest::new([1, 0, 0, 0]).goes_on());
    }

    #[test]
    fn the_smaller_type_stops_and_the_other_is_cut_to_its_proportion() {
        // Anon: 100 intended and 40 left, 39 % (of 101). File: 1000 intended, 900 left.
        let mut rest = ScanRest {
            left: [20, 20, 500, 400],
            target: [50, 50, 600, 400],
        };
        assert!(rest.level());
        // Inactive file: 61 % of 600 is 366, and 100 were already scanned. Active: 244, and none
        // were scanned.
        assert_eq!(rest.left, [0, 0, 266, 244]);
        // The proportion has already been reached: nothing is left.
        let mut met = ScanRest {
            left: [500, 400, 90, 0],
            target: [600, 400, 100, 0],
        };
        assert!(met.level());
        assert_eq!(met.left, [0, 44, 0, 0]);
    }

    #[test]
    fn a_single_type_ends_with_the_target() {
        let mut rest = ScanRest::new([0, 0, 64, 64]);
        assert!(!rest.level());
    }
}
