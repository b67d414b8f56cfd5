// SPDX-License-Identifier: Apache-2.0
//! Which of the pages that left come back at once.
//!
//! A page that comes back before as many others have left as the headroom holds would have stayed
//! in memory without the headroom: it is what the headroom itself costs.

use std::collections::{BTreeMap, VecDeque};

use super::{FOLLOWED_MAX, Seen};
use crate::table::PAGES_PER_TABLE;

/// Follows a sample of the pages that leave, until as many others have left as the headroom holds.
#[derive(Clone, Debug)]
pub(super) struct Returns<S> {
    headroom_pages: u64,
    /// Pages that left so far.
    left: u64,
    /// In the order in which they left.
    followed: VecDeque<Followed<S>>,
    /// Pages that are no longer followed, and those of them that had come back.
    judged: u64,
    back: u64,
}

#[derive(Clone, Copy, Debug)]
struct Followed<S> {
    space: S,
    page: u64,
    /// How many had left before it.
    at: u64,
    is_back: bool,
}

impl<S: Copy + Ord> Returns<S> {
    pub fn new() -> Self {
        Returns {
            headroom_pages: 0,
            left: 0,
            followed: VecDeque::new(),
            judged: 0,
            back: 0,
        }
    }

    /// As many pages are kept free from now on.
    pub fn keep_free(&mut self, pages: u64) {
        self.headroom_pages = pages;
    }

    /// A page left.
    pub fn add(&mut self, space: S, page: u64) {
        let one_in = 1 + self.headroom_pages / FOLLOWED_MAX;
        if self.left.is_multiple_of(one_in) {
            self.followed.push_back(Followed {
                space,
                page,
                at: self.left,
                is_back: false,
            });
        }
        self.left += 1;
        let oldest = self.left.saturating_sub(self.headroom_pages);
        while let Some(page) = self.followed.front().filter(|page| page.at < oldest) {
            self.judged += 1;
            self.back += u64::from(page.is_back);
            self.followed.pop_front();
        }
    }

    /// Takes in what is present now.
    pub fn look(&mut self, seen: &BTreeMap<S, Vec<Seen>>) {
        for followed in self.followed.iter_mut().filter(|page| !page.is_back) {
            let pages = PAGES_PER_TABLE as u64;
            let (index, slot) = (followed.page / pages, (followed.page % pages) as usize);
            let tables = seen.get(&followed.space).map_or(&[][..], Vec::as_slice);
            let at = tables.binary_search_by_key(&index, |seen| seen.index);
            // One that may not be moved now has not left: it was seen to stay.
            let is_back = |seen: &Seen| (seen.bits.present & seen.movable).contains(slot);
            followed.is_back = at.is_ok_and(|at| is_back(&tables[at]));
        }
    }

    /// How many were judged since the last call, and how many of them had come back.
    pub fn take(&mut self) -> (u64, u64) {
        let judged = std::mem::take(&mut self.judged);
        (judged, std::mem::take(&mut self.back))
    }

    /// Follows none of those that left until now.
    pub fn forget(&mut self) {
        self.followed.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{PageSet, TableBits};

    fn present(pages: &[u64]) -> BTreeMap<u32, Vec<Seen>> {
        let mut bits = TableBits::default();
        for page in pages {
            bits.present.insert(*page as usize);
        }
        let seen = Seen {
            index: 0,
            bits,
            movable: PageSet::ALL,
        };
        BTreeMap::from([(1, vec![seen])])
    }

    #[test]
    fn what_comes_back_counts_until_as_many_have_left_as_the_headroom_holds() {
        let mut returns = Returns::new();
        returns.keep_free(10);
        (0..20).for_each(|page| returns.add(1, page));
        assert_eq!(returns.take(), (10, 0), "pages 0 to 9 stayed out");
        // The first one comes too late.
        returns.look(&present(&[0, 12, 13]));
        (20..40).for_each(|page| returns.add(1, page));
        assert_eq!(returns.take(), (20, 2));
        returns.look(&present(&[35]));
        returns.forget();
        (40..70).for_each(|page| returns.add(1, page));
        assert_eq!(returns.take(), (20, 0), "pages 40 to 59");
    }

    #[test]
    fn a_large_headroom_follows_a_sample() {
        let mut returns = Returns::new();
        returns.keep_free(20 * FOLLOWED_MAX);
        (0..100 * FOLLOWED_MAX).for_each(|page| returns.add(1, page));
        let followed = returns.followed.len() as u64;
        assert!(
            (FOLLOWED_MAX / 2..=FOLLOWED_MAX).contains(&followed),
            "{followed}"
        );
        let (judged, _) = returns.take();
        assert!(
            (3 * FOLLOWED_MAX..4 * FOLLOWED_MAX).contains(&judged),
            "{judged}"
        );
    }
}
