// SPDX-License-Identifier: Apache-2.0
//! When an allocation gives up on reclaim, and which task the OOM killer selects.

use super::MAX_RECLAIM_RETRIES;
use crate::world::ZoneState;

/// Counts the direct reclaim retries of one allocation (`should_reclaim_retry`).
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocRetry {
    no_progress_rounds: u32,
}

impl AllocRetry {
    /// A round of direct reclaim has reclaimed `reclaimed_pages`, and the allocation still fails.
    /// Returns whether to retry: only if some zone of the nodes up to `highest` (its state, and
    /// pages that could be reclaimed), with all that is reclaimable free, would be above `min` plus
    /// its reserve for such requests, and at most for 16 rounds without progress.
    pub fn after_reclaim(
        &mut self,
        reclaimed_pages: u64,
        (order, highest): (u32, usize),
        nodes: &[([ZoneState; 4], [u64; 4])],
    ) -> bool {
        const COSTLY_ORDER: u32 = 3;
        if reclaimed_pages > 0 && order <= COSTLY_ORDER {
            self.no_progress_rounds = 0;
        } else {
            self.no_progress_rounds += 1;
        }
        self.no_progress_rounds <= MAX_RECLAIM_RETRIES
            && nodes
                .iter()
                .flat_map(|(zones, reclaimable)| zones.iter().zip(reclaimable).take(highest + 1))
                .filter(|(zone, _)| zone.managed_pages > 0)
                .any(|(zone, reclaimable)| {
                    let keep = zone.min_pages + zone.reserve_pages[highest.min(3)];
                    zone.free_pages + reclaimable > keep
                })
    }
}

/// The badness of a task in pages (`oom_badness`): what killing it frees, adjusted by its
/// `oom_score_adj` (-1000..=1000, thousandths of `total_pages`). `None` if it must not be killed.
#[must_use]
pub fn badness(
    rss_pages: u64,
    swap_pages: u64,
    page_table_pages: u64,
    oom_score_adj: i32,
    total_pages: u64,
) -> Option<i64> {
    if oom_score_adj <= -1000 {
        return None;
    }
    let points = rss_pages
        .saturating_add(swap_pages)
        .saturating_add(page_table_pages);
    let shift = i128::from(oom_score_adj) * i128::from(total_pages / 1000);
    let points = i128::from(points) + shift;
    Some(i64::try_from(points).unwrap_or(if points < 0 { i64::MIN } else { i64::MAX }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_rounds_without_progress_are_enough() {
        let zones = [ZoneState {
            managed_pages: 1000,
            free_pages: 1,
            min_pages: 10,
            ..ZoneState::default()
        }; 4];
        let mut retry = AllocRetry::default();
        for _ in 0..16 {
            assert!(retry.after_reclaim(0, (0, 3), &[(zones, [100; 4])]));
        }
        assert!(!retry.after_reclaim(0, (0, 3), &[(zones, [100; 4])]));
        assert!(retry.after_reclaim(1, (0, 3), &[(zones, [100; 4])]));
        // Nothing is left to reclaim on the first node.
        assert!(!retry.after_reclaim(1, (0, 3), &[(zones, [0; 4])]));
        assert!(retry.after_reclaim(1, (0, 3), &[(zones, [0; 4]), (zones, [100; 4])]));
        // What could be reclaimed lies where the request cannot go.
        assert!(!retry.after_reclaim(1, (0, 1), &[(zones, [0, 0, 100, 0])]));
    }

    #[test]
    fn score_adjustment_shifts_by_thousandths() {
        assert_eq!(badness(500, 20, 3, 0, 1_000_000), Some(523));
        assert_eq!(badness(500, 20, 3, 1, 1_000_000), Some(1523));
        assert_eq!(badness(500, 0, 0, -1, 1_000_000), Some(-500));
        assert_eq!(badness(500, 0, 0, -1000, 1_000_000), None);
    }
}
