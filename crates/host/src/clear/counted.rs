// SPDX-License-Identifier: Apache-2.0
//! How many pages of a table that was not cleared were accessed since the last look. Pure.
//!
//! Young bits that were left tell of accesses since the last clear, several looks ago. What has become
//! young since the last look was accessed in between, that is certain. Of what was young already
//! nobody knows. But how many there are is known on average: as many pages are accessed in one
//! interval as in another, and in the first interval after a clear their number is exact. So for
//! each page that came, one that was young already is taken to have rested.
//!
//! Which one is a matter of chance, but not of even chance: pages that were not young before the clear
//! either are accessed rarely, and rest first; those that were young at once then rest last. If all
//! were picked alike, what ceases to be accessed for good would seem too young for ever after
//! (seven times the error, on memory accessed by chance).
//!
//! All of that holds for what goes on as it did. A table is trusted to do so by how long it has
//! ([`Counted::may_wait`]): one that is touched once, by a scan or a garbage collector, never is.
//!
//! Sums by age come out right that way; the age of a single page may be wrong by as many looks as its
//! clear was put off, both ways. That is for who counts, not for who acts on pages.

use agewise_policy::table::PageSet;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// For each look that a clear is put off a table must have gone on as it did for so many looks: if it
/// ends right then, it seems to last longer than it did by an eighth at most.
const TRUST_LOOKS: u32 = 8;

/// So many pages that come are no accident.
const COMES_PAGES: u16 = 32;

/// What is known of a table from its last looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counted {
    /// Young at the first look after the last clear, and after the clear before.
    first: PageSet,
    first_before: PageSet,
    /// Young at the last look, and at the last one before the clear.
    last: PageSet,
    last_before: PageSet,
    /// Taken for accessed at the last look.
    accessed: PageSet,
    /// Looks since the clear.
    looks: u8,
    /// Looks for which it has gone on as it did, about.
    steady_looks: u8,
    /// More pages were young at the first look than before.
    is_burst: bool,
    /// Pages that came at the second look after the clear, and after the clear before.
    second_pages: u16,
    second_pages_before: u16,
    /// Pages present at the last look.
    present_pages: u16,
}

impl Counted {
    /// The first look after a clear, which is exact.
    pub fn first(&mut self, present: &PageSet, young: &PageSet) {
        let before = self.first.len();
        // More than before is not what it did, and might be a burst, or a look that came late. Less is exact
        // by now.
        let is_burst = young.len() > before + before / 4 + 16;
        *self = Counted {
            is_burst,
            steady_looks: match before {
                0 => 0,
                _ if is_burst => self.steady_looks / 2,
                _ => self.steady_looks.saturating_add(self.looks),
            },
            first: *young,
            first_before: self.first,
            last: *young,
            last_before: self.last,
            accessed: *young,
            looks: 1,
            second_pages: 0,
            second_pages_before: match self.looks {
                // It was not looked at twice between these clears.
                ..2 => self.second_pages_before,
                _ => self.second_pages,
            },
            present_pages: present.len() as u16,
        };
    }

    /// Whether its clear may be put off at the look number `looks` since the last one.
    pub fn may_wait(&self, looks: u32) -> bool {
        !self.is_burst && u32::from(self.steady_looks) >= looks.saturating_mul(TRUST_LOOKS)
    }

    /// A look after that: the pages to take for accessed since the look before. `None` where pages came
    /// or went, which says that nothing is as it was.
    ///
    /// Of what was accessed at the look before as many rest as came at the second look; of what rested
    /// then, as many rest on as came after the second. So there are as many pages of each age at each look.
    pub fn again(&mut self, present: &PageSet, young: &PageSet, chance: u64) -> Option<PageSet> {
        let came = and_not(young, &self.last);
        let present_pages = present.len() as u16;
        let is_as_before =
            std::mem::replace(&mut self.present_pages, present_pages) == present_pages;
        self.looks = self.looks.saturating_add(1);
        if self.looks == 2 {
            self.second_pages = came.len() as u16;
            if self.has_ended() {
                self.steady_looks = 0;
                (self.last, self.accessed) = (*young, came);
                return is_as_before.then_some(came);
            }
        }
        let second = u64::from(self.second_pages);
        let after_second = young.len().saturating_sub(self.first.len() + second);
        let rested = and_not(&self.last, &self.accessed);
        let mut random = Pcg64Mcg::seed_from_u64(chance);
        let again = self.without(&self.accessed, second, &mut random);
        let awake = self.without(&rested, after_second, &mut random);
        self.last = *young;
        self.accessed =
            PageSet::from_words(|word| came[word] | (again[word] | awake[word]) & young[word]);
        is_as_before.then_some(self.accessed)
    }

    /// Far fewer pages came at the second look than after the clear before: what used to come by chance
    /// does not come any more, so that what was there does not either.
    fn has_ended(&self) -> bool {
        let before = self.second_pages_before;
        before >= COMES_PAGES && self.second_pages < before / 4
    }

    /// These pages but for about `count`, from those that seem to be accessed most rarely on.
    fn without(&self, pages: &PageSet, mut count: u64, random: &mut impl Rng) -> PageSet {
        if count == 0 {
            return *pages;
        }
        let of = |word: usize| (pages[word], self.last_before[word], self.first_before[word]);
        let classes: [PageSet; 3] = [
            PageSet::from_words(|word| of(word).0 & !of(word).1),
            PageSet::from_words(|word| of(word).0 & of(word).1 & !of(word).2),
            PageSet::from_words(|word| of(word).0 & of(word).1 & of(word).2),
        ];
        classes.iter().fold(PageSet::NONE, |kept, class| {
            let all = class.len();
            let left = keep(class, all.saturating_sub(count), random);
            count = count.saturating_sub(all);
            PageSet::from_words(|word| kept[word] | left[word])
        })
    }
}

fn and_not(bits: &PageSet, not: &PageSet) -> PageSet {
    PageSet::from_words(|word| bits[word] & !not[word])
}

/// `count` of these pages, about: each with the same probability, in steps of 1/256.
fn keep(pages: &PageSet, count: u64, random: &mut impl Rng) -> PageSet {
    let all = pages.len();
    if count >= all {
        return *pages;
    }
    let share = (count * 256 + all / 2) / all;
    PageSet::from_words(|word| match pages[word] {
        0 => 0,
        bits => bits & with_density(share, random),
    })
}

/// A word each bit of which is set with a probability of `share` / 256, by its binary digits: an or with
/// a random word makes a density p (1 + p) / 2, an and p / 2.
fn with_density(share: u64, random: &mut impl Rng) -> u64 {
    if share >= 256 {
        return u64::MAX;
    }
    (0..8).fold(0, |word, digit| match share >> digit & 1 {
        0 => word & random.next_u64(),
        _ => word | random.next_u64(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: PageSet = PageSet::ALL;

    fn after(young: &PageSet) -> Counted {
        let mut counted = Counted::default();
        counted.first(&ALL, young);
        counted
    }

    #[test]
    fn densities_are_as_asked() {
        let mut random = Pcg64Mcg::new(7);
        for share in [0, 1, 64, 128, 200, 255, 256] {
            let set: u32 = (0..4096)
                .map(|_| with_density(share, &mut random).count_ones())
                .sum();
            let density = f64::from(set) / (4096.0 * 64.0);
            assert!(
                (density - share as f64 / 256.0).abs() < 0.005,
                "{share}: {density}"
            );
        }
    }

    #[test]
    fn what_came_newly_is_accessed_and_as_much_of_the_rest_has_rested() {
        let old = PageSet::new([0xffff_ffff; 8]);
        let came = PageSet::new([0xff << 40; 8]);
        let young: PageSet = PageSet::from_words(|word| old[word] | came[word]);
        let mut sum = 0;
        for chance in 0..200 {
            let accessed = after(&old).again(&ALL, &young, chance).unwrap();
            assert!((0..8).all(|word| accessed[word] & came[word] == came[word]));
            assert!((0..8).all(|word| accessed[word] & !young[word] == 0));
            sum += accessed.len();
        }
        let mean = sum as f64 / 200.0;
        assert!((mean - 256.0).abs() < 2.0, "{mean} of 256");
    }

    #[test]
    fn what_was_young_before_rests_last() {
        let mut counted = after(&PageSet::new([0xff; 8]));
        counted.again(&ALL, &PageSet::new([0xffff; 8]), 1).unwrap();
        // Eight of each word were not young before the clear, and as many come now.
        counted.first(&ALL, &PageSet::new([0xff_ffff; 8]));
        let accessed = counted
            .again(&ALL, &PageSet::new([0xffff_ffff; 8]), 1)
            .unwrap();
        assert_eq!(accessed, PageSet::new([0xff00_ffff; 8]));
        // The next eight: now those that were not young at once are next.
        let mut counted = after(&PageSet::new([0xff; 8]));
        counted.again(&ALL, &PageSet::new([0xffff; 8]), 1).unwrap();
        counted.first(&ALL, &PageSet::new([0xffff; 8]));
        let accessed = counted
            .again(&ALL, &PageSet::new([0xff_ffff; 8]), 1)
            .unwrap();
        assert_eq!(accessed, PageSet::new([0xff_00ff; 8]));
    }

    #[test]
    fn trust_comes_with_time_and_goes_with_a_burst() {
        let young = PageSet::new([0xff; 8]);
        let mut counted = after(&young);
        for looks in 0..=2 * TRUST_LOOKS {
            assert_eq!(counted.may_wait(1), looks >= TRUST_LOOKS, "{looks}");
            assert_eq!(counted.may_wait(2), looks >= 2 * TRUST_LOOKS, "{looks}");
            counted.first(&ALL, &young);
        }
        counted.first(&ALL, &PageSet::new([0xffff; 8]));
        assert!(!counted.may_wait(1));
    }

    #[test]
    fn what_used_to_come_and_does_not_tells_of_an_end() {
        let (young, more) = (PageSet::new([0xff; 8]), PageSet::new([0xffff; 8]));
        let mut counted = after(&young);
        counted.again(&ALL, &more, 1).unwrap();
        counted.first(&ALL, &young);
        assert_eq!(counted.again(&ALL, &young, 1), Some(PageSet::NONE));
        assert!(!counted.may_wait(2));
    }

    /// Successive looks at one table, and neighbours at one look, do not pick the same pages.
    #[test]
    fn each_chance_is_another_one() {
        let more = PageSet::new([0xffff_ffff_ffff; 8]);
        let picked = |chance| {
            after(&PageSet::new([0xffff_ffff; 8]))
                .again(&ALL, &more, chance)
                .unwrap()
        };
        for chance in 0..64 {
            assert_ne!(picked(chance), picked(chance + 1), "{chance}");
            assert_ne!(picked(chance), picked(chance | 1 << 32), "{chance}");
        }
    }

    #[test]
    fn where_nothing_comes_everything_is_accessed_again() {
        assert_eq!(after(&ALL).again(&ALL, &ALL, 3), Some(ALL));
    }

    #[test]
    fn pages_that_come_or_go_end_it() {
        let mut present = ALL;
        present[3] &= !1;
        let mut counted = after(&ALL);
        assert_eq!(counted.again(&present, &present, 3), None);
        assert_eq!(
            counted.again(&present, &present, 3),
            Some(present),
            "as before"
        );
    }

    /// A scan through the table: what it has left behind has rested, all of it.
    #[test]
    fn a_scan_leaves_what_it_has_passed() {
        let young = |words: usize| -> PageSet {
            PageSet::from_words(|word| if word < words { u64::MAX } else { 0 })
        };
        let mut counted = after(&young(1));
        for words in 2..=8 {
            let accessed = counted.again(&ALL, &young(words), 3).unwrap();
            let expected: PageSet =
                PageSet::from_words(|word| if word == words - 1 { u64::MAX } else { 0 });
            assert_eq!(accessed, expected, "{words}");
        }
    }
}
