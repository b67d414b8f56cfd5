// SPDX-License-Identifier: Apache-2.0
//! LRU stack distances of sampled pages, with bounds because the order within a look is unknown.
//!
//! Pages are in the order of their last use on a line of positions; a Fenwick tree counts how many
//! are beyond a position. Those of one look are adjacent, so the least and the greatest distance
//! over all orders within looks are two more such counts.

use super::{NONE, Slot};

/// How many other pages were used since the last use of a page: a pool holds the page if it has
/// more pages than this. Within a look the order of uses is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Distance {
    /// In the best order.
    pub least: u32,
    /// In the assumed order.
    pub likely: u32,
    /// In the worst order.
    pub most: u32,
}

/// Pages by their last use.
#[derive(Clone, Debug)]
pub(super) struct Stack {
    /// Fenwick tree over the positions: how many pages are at them.
    tree: Vec<u32>,
    /// The page at each position.
    owner: Vec<Slot>,
    /// The position of each page.
    at: Vec<u32>,
    /// The first position of each look, ascending.
    looks: Vec<u32>,
    next: u32,
    live: u32,
}

const NOWHERE: u32 = u32::MAX;

impl Stack {
    /// For this many pages.
    pub fn new(slots: usize) -> Self {
        Stack {
            tree: vec![0; 2 * slots],
            owner: vec![NONE; 2 * slots],
            at: vec![NOWHERE; slots],
            looks: Vec::new(),
            next: 0,
            live: 0,
        }
    }

    /// Takes in a look: the pages used in it, each once, in the assumed order. Returns the distance
    /// of each; `None` if it is new.
    pub fn look(&mut self, used: &[Slot]) -> Vec<Option<Distance>> {
        if used.is_empty() {
            // Nothing would ever remove it from the list of looks.
            return Vec::new();
        }
        if self.next as usize + used.len() > self.owner.len() {
            self.compact();
        }
        let before = self.next;
        let mut known: Vec<u32> = used
            .iter()
            .map(|slot| self.at[usize::from(*slot)])
            .collect();
        known.retain(|at| *at != NOWHERE);
        known.sort_unstable();
        // The bounds refer to the state before this look.
        let bounds: Vec<Option<(u32, u32)>> = used
            .iter()
            .map(|slot| self.bounds(self.at[usize::from(*slot)], used.len(), &known))
            .collect();
        self.looks.push(before);
        let mut found = Vec::with_capacity(used.len());
        for (slot, bounds) in used.iter().zip(bounds) {
            found.push(bounds.map(|(least, most)| Distance {
                least,
                likely: self.beyond(self.at[usize::from(*slot)] + 1),
                most,
            }));
            self.remove(*slot);
            self.push(*slot);
        }
        found
    }

    /// Least and greatest distance of a page last used at position `at` and now again in a look of
    /// `used` pages. `known` are the positions of those of them that are not new, ascending.
    fn bounds(&self, at: u32, used: usize, known: &[u32]) -> Option<(u32, u32)> {
        if at == NOWHERE {
            return None;
        }
        let look = self.looks.partition_point(|start| *start <= at);
        let begin = self.looks[look - 1];
        let end = self.looks.get(look).copied().unwrap_or(self.next);
        let least = self.beyond(end);
        // All pages of its previous look and of later ones, and those of this look that are not
        // among them.
        let again = known.len() - known.partition_point(|other| *other < begin);
        let most = self.beyond(begin) + (used - again) as u32 - 1;
        Some((least, most))
    }

    /// The position of a page: the later it was used, the greater; greatest of all for a new one.
    pub fn position(&self, slot: Slot) -> u32 {
        self.at[usize::from(slot)]
    }

    /// Removes a page that is gone.
    pub fn remove(&mut self, slot: Slot) {
        let at = std::mem::replace(&mut self.at[usize::from(slot)], NOWHERE);
        if at != NOWHERE {
            self.owner[at as usize] = NONE;
            self.add(at, u32::MAX);
            self.live -= 1;
        }
    }

    fn push(&mut self, slot: Slot) {
        self.at[usize::from(slot)] = self.next;
        self.owner[self.next as usize] = slot;
        self.add(self.next, 1);
        self.next += 1;
        self.live += 1;
    }

    /// Number of pages at position `from` and beyond.
    fn beyond(&self, from: u32) -> u32 {
        self.live - self.below(from)
    }

    /// Number of pages at positions below `to`.
    fn below(&self, to: u32) -> u32 {
        let (mut at, mut below) = (to as usize, 0u32);
        while at > 0 {
            below = below.wrapping_add(self.tree[at - 1]);
            at &= at - 1;
        }
        below
    }

    /// Adds to the count at a position, modulo 2^32.
    fn add(&mut self, position: u32, count: u32) {
        let mut at = position as usize + 1;
        while at <= self.tree.len() {
            self.tree[at - 1] = self.tree[at - 1].wrapping_add(count);
            at += at & at.wrapping_neg();
        }
    }

    /// Closes the gaps between pages, keeping their order.
    fn compact(&mut self) {
        // Positions are assigned again from 0 without gaps.
        self.looks = self.looks.iter().map(|start| self.below(*start)).collect();
        self.looks.dedup();
        let order: Vec<Slot> = self.owner.iter().copied().filter(|o| *o != NONE).collect();
        self.tree.fill(0);
        self.owner.fill(NONE);
        (self.next, self.live) = (0, 0);
        for slot in order {
            self.push(slot);
        }
        let next = self.next;
        self.looks.retain(|start| *start < next);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The distance of a page in a list of looks, by plainly counting the pages in between.
    fn naive(looks: &[Vec<Slot>], at: usize, place: usize) -> Option<Distance> {
        let page = looks[at][place];
        let last = (0..at).rev().find(|look| looks[*look].contains(&page))?;
        let distinct = |pages: Vec<Slot>| {
            let mut pages: Vec<Slot> = pages.into_iter().filter(|p| *p != page).collect();
            pages.sort_unstable();
            pages.dedup();
            pages.len() as u32
        };
        let used_later = |look: usize| (look + 1..at).any(|l| looks[l].contains(&page));
        assert!(!used_later(last));
        let between: Vec<Slot> = looks[last + 1..at].concat();
        let was = looks[last].iter().position(|p| *p == page)?;
        let around = [&looks[last][was..], &between, &looks[at][..place]].concat();
        let all = [&looks[last][..], &between, &looks[at]].concat();
        Some(Distance {
            least: distinct(between),
            likely: distinct(around),
            most: distinct(all),
        })
    }

    proptest! {
        #[test]
        fn distances_are_those_of_plain_counting(
            looks in prop::collection::vec(
                prop::collection::btree_set(0u16..24, 0..16).prop_map(|s| s.into_iter().collect()),
                1..40,
            ),
            turn in any::<u64>(),
        ) {
            let mut looks: Vec<Vec<Slot>> = looks;
            for (number, look) in looks.iter_mut().enumerate() {
                let seed = turn ^ number as u64;
                look.sort_by_key(|page| crate::mix::hash(seed ^ u64::from(*page) << 32));
            }
            let mut stack = Stack::new(24);
            for at in 0..looks.len() {
                let found = stack.look(&looks[at]);
                for (place, found) in found.into_iter().enumerate() {
                    prop_assert_eq!(found, naive(&looks, at, place), "look {} page {}", at, place);
                }
            }
        }

        /// With one page per look nothing is unknown.
        #[test]
        fn one_page_a_look_is_exact(pages in prop::collection::vec(0u16..12, 1..200)) {
            let mut stack = Stack::new(12);
            for page in pages {
                if let Some(found) = stack.look(&[page])[0] {
                    prop_assert_eq!(found.least, found.likely);
                    prop_assert_eq!(found.most, found.likely);
                }
            }
        }
    }

    #[test]
    fn looks_that_show_no_use_take_no_memory() {
        let mut stack = Stack::new(4);
        stack.look(&[0, 1]);
        let capacity = |of: &Stack| [of.tree.capacity(), of.at.capacity(), of.looks.capacity()];
        let before = capacity(&stack);
        for _ in 0..100_000 {
            stack.look(&[]);
        }
        assert_eq!(capacity(&stack), before);
        assert_eq!(stack.look(&[0])[0].map(|found| found.most), Some(1));
    }

    #[test]
    fn what_is_gone_counts_no_more() {
        let mut stack = Stack::new(4);
        stack.look(&[0]);
        stack.look(&[1]);
        stack.look(&[2]);
        stack.remove(1);
        assert_eq!(stack.look(&[0])[0].map(|d| d.likely), Some(1));
        assert_eq!(stack.look(&[1])[0], None);
    }
}
