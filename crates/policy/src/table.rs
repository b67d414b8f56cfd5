// SPDX-License-Identifier: Apache-2.0
//! The state of one page table: the unit in which access facts arrive.

use std::ops::{BitAnd, BitAndAssign, BitOr, BitOrAssign, Index, IndexMut, Not, Range};

/// Bytes in a page, the unit of every count: on kernels with larger pages, one of those is several
/// of these.
pub const PAGE_BYTES: u64 = 4096;

/// Base pages covered by one last-level page table (x86-64, arm64 with 4 KiB pages).
pub const PAGES_PER_TABLE: usize = 512;

/// Words of 64 pages in one table.
pub const WORDS_PER_TABLE: usize = PAGES_PER_TABLE / 64;

/// A set of pages of one table, by number: 0 ..= 511.
///
/// Indexing returns words of 64 pages, for loops that process them together: bit `i % 64` of word
/// `i / 64` is page `i`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct PageSet([u64; WORDS_PER_TABLE]);

impl PageSet {
    /// No page.
    pub const NONE: PageSet = PageSet([0; WORDS_PER_TABLE]);
    /// All 512 pages.
    pub const ALL: PageSet = PageSet([u64::MAX; WORDS_PER_TABLE]);

    /// The set with these words.
    pub const fn new(words: [u64; WORDS_PER_TABLE]) -> Self {
        PageSet(words)
    }

    /// The set whose word number `w` is `word(w)`.
    #[inline]
    pub fn from_words(word: impl FnMut(usize) -> u64) -> Self {
        PageSet(std::array::from_fn(word))
    }

    /// The pages of a range; pages beyond the table are left out.
    pub fn range(pages: Range<usize>) -> Self {
        PageSet::from_words(|word| {
            let from = pages.start.saturating_sub(64 * word).min(64);
            let to = pages.end.saturating_sub(64 * word).min(64);
            match to.saturating_sub(from) {
                0 => 0,
                length => (u64::MAX >> (64 - length)) << from,
            }
        })
    }

    /// The words of 64 pages.
    #[inline]
    pub const fn words(&self) -> &[u64; WORDS_PER_TABLE] {
        &self.0
    }

    /// The words, to change them.
    #[inline]
    pub fn words_mut(&mut self) -> &mut [u64; WORDS_PER_TABLE] {
        &mut self.0
    }

    /// Whether it contains no page. It folds word by word: comparing arrays would call a function
    /// each time, which costs more than all other work for a table without accessed pages.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// Whether it contains all 512 pages.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.0.iter().fold(u64::MAX, |all, word| all & word) == u64::MAX
    }

    /// How many pages it contains.
    #[inline]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether it contains a page; `false` for one beyond the table.
    #[inline]
    pub fn contains(&self, page: usize) -> bool {
        self.0
            .get(page / 64)
            .is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Adds a page.
    ///
    /// # Panics
    /// If the page is beyond the table.
    #[inline]
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// These pages except those of `other`.
    #[inline]
    pub fn without(&self, other: &PageSet) -> Self {
        PageSet::from_words(|word| self.0[word] & !other.0[word])
    }

    /// The pages, in ascending order.
    pub fn pages(&self) -> impl Iterator<Item = usize> + '_ {
        let words = self.0.iter().enumerate();
        words.flat_map(|(word, bits)| {
            let mut left = *bits;
            std::iter::from_fn(move || {
                let page = (left != 0).then(|| 64 * word + left.trailing_zeros() as usize);
                left &= left.wrapping_sub(1);
                page
            })
        })
    }

    /// The runs of neighbouring pages, in ascending order.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, |word| word)?;
            at = self.next(start, |word| !word).unwrap_or(PAGES_PER_TABLE);
            Some(start..at)
        })
    }

    /// The first page from `at` on that is set after `of` is applied to each word.
    fn next(&self, at: usize, of: impl Fn(u64) -> u64) -> Option<usize> {
        let mut from = at % 64;
        (at / 64..WORDS_PER_TABLE).find_map(|word| {
            let rest = of(self.0[word]) >> from << from;
            from = 0;
            (rest != 0).then(|| 64 * word + rest.trailing_zeros() as usize)
        })
    }
}

impl FromIterator<usize> for PageSet {
    fn from_iter<I: IntoIterator<Item = usize>>(pages: I) -> Self {
        let mut set = PageSet::NONE;
        pages.into_iter().for_each(|page| set.insert(page));
        set
    }
}

impl Index<usize> for PageSet {
    type Output = u64;

    #[inline]
    fn index(&self, word: usize) -> &u64 {
        &self.0[word]
    }
}

impl IndexMut<usize> for PageSet {
    #[inline]
    fn index_mut(&mut self, word: usize) -> &mut u64 {
        &mut self.0[word]
    }
}

impl BitAnd for PageSet {
    type Output = PageSet;

    #[inline]
    fn bitand(self, other: PageSet) -> PageSet {
        PageSet::from_words(|word| self.0[word] & other.0[word])
    }
}

impl BitAndAssign for PageSet {
    #[inline]
    fn bitand_assign(&mut self, other: PageSet) {
        *self = *self & other;
    }
}

impl BitOr for PageSet {
    type Output = PageSet;

    #[inline]
    fn bitor(self, other: PageSet) -> PageSet {
        PageSet::from_words(|word| self.0[word] | other.0[word])
    }
}

impl BitOrAssign for PageSet {
    #[inline]
    fn bitor_assign(&mut self, other: PageSet) {
        *self = *self | other;
    }
}

impl Not for PageSet {
    type Output = PageSet;

    #[inline]
    fn not(self) -> PageSet {
        PageSet::from_words(|word| !self.0[word])
    }
}

/// What one look saw of a 2 MiB-aligned range of an address space. A 2 MiB leaf shows as 512 equal
/// bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBits {
    /// The page is mapped.
    pub present: PageSet,
    /// The page is mapped and its accessed bit is set. A subset of `present`.
    pub young: PageSet,
    /// The page is mapped and its dirty bit is set. A subset of `present`.
    pub dirty: PageSet,
    /// The slot holds a swap entry. Disjoint from `present`.
    pub swapped: PageSet,
}

impl TableBits {
    /// What was seen of only these pages.
    pub fn within(&self, pages: &PageSet) -> Self {
        TableBits {
            present: self.present & *pages,
            young: self.young & *pages,
            dirty: self.dirty & *pages,
            swapped: self.swapped & *pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn words() -> impl Strategy<Value = [u64; 8]> {
        let word = prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>()];
        prop::array::uniform8(word)
    }

    fn model(set: &PageSet) -> BTreeSet<usize> {
        (0..PAGES_PER_TABLE)
            .filter(|page| set.contains(*page))
            .collect()
    }

    proptest! {
        #[test]
        fn a_set_of_pages_is_a_set(a in words(), b in words(), page in 0usize..512) {
            let (a, b) = (PageSet::new(a), PageSet::new(b));
            let (of_a, of_b) = (model(&a), model(&b));
            prop_assert_eq!(a.len(), of_a.len() as u64);
            prop_assert_eq!(a.is_empty(), of_a.is_empty());
            prop_assert_eq!(a.is_full(), of_a.len() == PAGES_PER_TABLE);
            prop_assert!(a.pages().eq(of_a.iter().copied()));
            prop_assert_eq!(a.pages().collect::<PageSet>(), a);
            prop_assert_eq!(model(&(a & b)), &of_a & &of_b);
            prop_assert_eq!(model(&(a | b)), &of_a | &of_b);
            prop_assert_eq!(model(&a.without(&b)), &of_a - &of_b);
            prop_assert_eq!(!a | a, PageSet::ALL);
            let mut with = a;
            with.insert(page);
            prop_assert!(with.contains(page) && !with.contains(PAGES_PER_TABLE + page));
        }

        #[test]
        fn runs_are_the_pages(words in words()) {
            let set = PageSet::new(words);
            let mut last_end = None;
            let mut back = PageSet::NONE;
            for run in set.runs() {
                prop_assert!(!run.is_empty() && last_end.is_none_or(|end| run.start > end));
                last_end = Some(run.end);
                back |= PageSet::range(run);
            }
            prop_assert_eq!(back, set);
        }

        #[test]
        fn a_range_is_its_pages(start in 0usize..600, end in 0usize..600) {
            let pages = start.min(512)..end.min(512);
            prop_assert_eq!(PageSet::range(start..end), pages.collect::<PageSet>());
        }
    }
}
