// SPDX-License-Identifier: Apache-2.0
//! The refault-distance rework: a simpler test for whether a refaulting page joins the working set
//! (source document "refault-distance" by Kairui Song, and the third version of the series,
//! 2023-09, for how anon and file pages count together).
//!
//! Evicted pages form an imaginary, read-only "shadow LRU" behind the inactive list. A counter of
//! evictions gives each page its position: a page evicted `SP` evictions ago is `SP` pages deep. If
//! `SP` is less than the length of the active list, the page would still be in memory had it
//! started there. Two throttles prevent this from activating every page:
//!
//! 1. pages that came back leave holes in the shadow LRU that are not filled, so pages far down
//!    appear even farther away ([`Rule::holes_widen_distance`]);
//! 2. once the active side is as long as the inactive one, `SP` is compared with the latter: pages
//!    used once do not challenge active pages ([`Rule::long_active_throttles`]).
//!
//! Only evictions advance the age. In the mainline test, activations do so too.

mod credit;
mod holes;
pub(crate) mod multi_gen;

pub use credit::PromotionCredit;
pub use holes::Holes;

use crate::classic::{Counts, List};
use crate::folio::FolioType;

/// The rule, with a switch for each of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Throttle 1. Off: distances are shortened by the share of evicted pages that came back.
    pub holes_widen_distance: bool,
    /// Throttle 2. Off: distances are compared with the active side however long it is.
    pub long_active_throttles: bool,
    /// Activations advance the age too, as in the mainline test.
    pub activations_age: bool,
}

impl Default for Rule {
    fn default() -> Self {
        Rule::DOCUMENT
    }
}

impl Rule {
    /// The rule of the document: both throttles, and only evictions advance the age.
    pub const DOCUMENT: Rule = Rule {
        holes_widen_distance: true,
        long_active_throttles: true,
        activations_age: false,
    };

    /// Whether to activate a page `distance` pages deep in the shadow LRU, given the list sizes of
    /// the cgroup that evicted it. Without free swap, anon pages do not compete: they cannot make
    /// room.
    #[must_use]
    pub fn activates(
        &self,
        distance: u64,
        folio_type: FolioType,
        sizes: &Counts,
        free_swap: bool,
    ) -> bool {
        let swappable = |list| if free_swap { sizes.pages(list) } else { 0 };
        let active = sizes.pages(List::ActiveFile) + swappable(List::ActiveAnon);
        let inactive_anon = swappable(List::InactiveAnon);
        let inactive_file = sizes.pages(List::InactiveFile);
        let inactive = inactive_anon + inactive_file;
        if self.long_active_throttles && active >= inactive {
            return distance < inactive;
        }
        // A page also competes with the inactive pages of the other type.
        let others = match folio_type {
            FolioType::Anon => inactive_file,
            FolioType::File => inactive_anon,
        };
        distance < active + others
    }

    /// The distance that the rule uses; `holes` gives the share of the shadow LRU that is holes.
    #[must_use]
    pub fn effective_distance(&self, distance: u64, holes: &Holes) -> u64 {
        if self.holes_widen_distance {
            distance
        } else {
            holes.fill(distance)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of the anon and file lists, each as (inactive, active).
    fn sizes(anon: (u64, u64), file: (u64, u64)) -> Counts {
        let mut counts = Counts::default();
        counts.pages[List::InactiveAnon.index()] = anon.0;
        counts.pages[List::ActiveAnon.index()] = anon.1;
        counts.pages[List::InactiveFile.index()] = file.0;
        counts.pages[List::ActiveFile.index()] = file.1;
        counts
    }

    /// The smallest distance that does not activate.
    fn bound(rule: Rule, folio_type: FolioType, sizes: &Counts, free_swap: bool) -> u64 {
        (0..)
            .find(|&distance| !rule.activates(distance, folio_type, sizes, free_swap))
            .unwrap()
    }

    #[test]
    fn the_shorter_list_bounds_the_distance() {
        use FolioType::File;
        let rule = Rule::default();
        assert_eq!(bound(rule, File, &sizes((0, 0), (300, 100)), true), 100);
        assert_eq!(bound(rule, File, &sizes((0, 0), (100, 300)), true), 100);
        assert_eq!(bound(rule, File, &sizes((0, 0), (200, 200)), true), 200);
        assert_eq!(bound(rule, File, &sizes((0, 0), (300, 0)), true), 0);
    }

    #[test]
    fn without_the_second_throttle_a_long_active_list_invites_more() {
        let rule = Rule {
            long_active_throttles: false,
            ..Rule::default()
        };
        let sizes = sizes((0, 0), (100, 300));
        assert_eq!(bound(rule, FolioType::File, &sizes, true), 300);
    }

    #[test]
    fn anon_lists_count_only_with_free_swap() {
        use FolioType::{Anon, File};
        let rule = Rule::default();
        let sizes = sizes((400, 50), (200, 100));
        // A = 150 < 600: the other type's inactive pages compete, those of the same type do not.
        assert_eq!(bound(rule, File, &sizes, true), 150 + 400);
        assert_eq!(bound(rule, Anon, &sizes, true), 150 + 200);
        assert_eq!(bound(rule, File, &sizes, false), 100);
        assert_eq!(bound(rule, Anon, &sizes, false), 100 + 200);
    }

    #[test]
    fn holes_are_estimated_by_what_came_back() {
        let mut holes = Holes::default();
        assert_eq!(holes.fill(100), 0);
        holes.evicted(1000);
        assert_eq!(holes.fill(100), 100);
        holes.returned(250);
        assert_eq!(holes.fill(100), 75);
        holes.returned(10_000);
        assert_eq!(holes.fill(100), 0);
        let rule = Rule::default();
        assert_eq!(rule.effective_distance(100, &holes), 100);
    }
}
