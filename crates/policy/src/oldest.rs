// SPDX-License-Identifier: Apache-2.0
//! Which cold memory goes first if not all of it may go: the oldest, whatever fits.
//!
//! Pages of one generation are alike, and some of what is asked to go stays. Hence passes: each
//! takes the oldest generations that no pass before took, as many as fit entirely, or else a part
//! of one. No page is in two passes, so a rehearsal makes the same ones.

use std::collections::BTreeMap;
use std::ops::Range;

/// Cold memory that is taken in passes.
#[derive(Clone, Debug)]
pub struct OldestFirst {
    /// Pages that no pass has taken, by the time since which they have been idle.
    left: BTreeMap<u64, u64>,
    passes_left: u32,
    /// All that has been idle since before this was taken.
    taken_ms: u64,
}

impl OldestFirst {
    /// Memory by the time since which it has been idle, as
    /// [`idle_pages`](crate::Generations::idle_pages) returns it, in any order and of any number
    /// of windows. The last of `passes_max` passes takes all that is left.
    pub fn new(idle: impl IntoIterator<Item = (u64, u64)>, passes_max: u32) -> Self {
        let mut left = BTreeMap::new();
        for (since_ms, pages) in idle {
            let sum: &mut u64 = left.entry(since_ms).or_default();
            *sum = sum.saturating_add(pages);
        }
        OldestFirst {
            left,
            passes_left: passes_max,
            taken_ms: 0,
        }
    }

    /// The next pass: the times since which its memory has been idle, if `pages_max` pages may
    /// still go. `None` if nothing is left.
    pub fn next_pass(&mut self, pages_max: u64) -> Option<Range<u64>> {
        self.passes_left = self.passes_left.checked_sub(1)?;
        let (start_ms, mut sum) = (self.taken_ms, 0u64);
        while let Some(oldest) = self.left.first_entry() {
            sum = sum.saturating_add(*oldest.get());
            if sum > pages_max && self.taken_ms > start_ms && self.passes_left > 0 {
                break;
            }
            self.taken_ms = oldest.remove_entry().0.saturating_add(1);
        }
        (self.taken_ms > start_ms).then_some(start_ms..self.taken_ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::generations::{Generations, LABELS, PageType, Sizes, idle_for};

    #[test]
    fn the_oldest_go_first_as_far_as_all_of_a_generation_fits() {
        let mut window = Generations::new(0, 8, 3_600_000);
        for second in 1..=4 {
            let _ = window.advance(second * 1000);
        }
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for (label, _) in window.iter().take(3) {
            sizes[usize::from(label)] = [100, 10];
        }
        let passes = |age_ms, passes_max, pages_max: &[u64]| {
            let since_ms = idle_for(10_000, age_ms);
            let idle = window.idle_pages(&sizes, PageType::File, &since_ms);
            let mut oldest_first = OldestFirst::new(idle, passes_max);
            let passes = pages_max
                .iter()
                .map_while(|max| oldest_first.next_pass(*max));
            passes
                .map(|pass| (pass.start, pass.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(passes(500, 9, &[30, 30]), [(0, 3001)], "all of it");
        // Of what does not fit, the oldest goes in part, not something of every age.
        assert_eq!(passes(500, 9, &[25, 5, 1]), [(0, 2001), (2001, 3001)]);
        assert_eq!(passes(500, 9, &[9]), [(0, 1001)]);
        assert_eq!(passes(500, 2, &[9, 9, 9]), [(0, 1001), (1001, 3001)]);
        assert_eq!(passes(3_600_000, 9, &[u64::MAX]), []);
    }

    proptest! {
        /// Each pass takes what a search over all possible ends finds.
        #[test]
        fn passes_are_those_of_a_search(
            idle in prop::collection::vec((0u64..20, 1u64..50), 0..40),
            passes_max in 1u32..12,
            rooms in prop::collection::vec(0u64..200, 12),
        ) {
            let mut oldest_first = OldestFirst::new(idle.clone(), passes_max);
            let mut start = 0;
            for (pass, room) in (1..=passes_max).zip(rooms) {
                let pages = |end: u64| -> u64 {
                    let taken = idle.iter().filter(|(since, _)| (start..end).contains(since));
                    taken.map(|(_, pages)| pages).sum()
                };
                let ends: Vec<u64> = idle.iter().map(|(since, _)| since + 1).collect();
                let left = ends.iter().copied().filter(|end| *end > start);
                let wanted = match pass == passes_max {
                    true => left.max(),
                    false => {
                        let fitting = left.clone().filter(|end| pages(*end) <= room);
                        fitting.max().or(left.min())
                    }
                };
                let found = oldest_first.next_pass(room);
                prop_assert_eq!(found.clone(), wanted.map(|end| start..end));
                start = found.map_or(start, |pass| pass.end);
            }
            prop_assert_eq!(oldest_first.next_pass(u64::MAX), None);
        }
    }
}
