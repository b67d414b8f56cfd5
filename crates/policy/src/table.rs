// SPDX-License-Identifier: Apache-2.0
//! What one page table looked like: the unit in which access facts reach the engine.

/// Base pages covered by one last-level page table (x86-64, arm64 with 4 KiB pages).
pub const PAGES_PER_TABLE: usize = 512;

/// Words of 64 page bits in one table.
pub const WORDS_PER_TABLE: usize = PAGES_PER_TABLE / 64;

/// One bit a page of a 2 MiB-aligned range; bit `i % 64` of word `i / 64` is page `i`.
pub type PageBits = [u64; WORDS_PER_TABLE];

/// Whether no bit is set. Folded word by word: comparing arrays calls a function for each, which
/// costs more than all that is done for a table whose pages were not accessed.
#[inline]
pub fn is_none(bits: &PageBits) -> bool {
    bits.iter().fold(0, |all, word| all | word) == 0
}

/// Whether all bits are set.
#[inline]
pub fn is_every(bits: &PageBits) -> bool {
    bits.iter().fold(u64::MAX, |all, word| all & word) == u64::MAX
}

/// How many bits are set.
#[inline]
pub fn pages_in(bits: &PageBits) -> u64 {
    bits.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// One look at a 2 MiB-aligned range of an address space. A 2 MiB leaf shows as 512 equal bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableBits {
    /// The page is mapped.
    pub present: PageBits,
    /// The page is mapped and its accessed bit is set. A subset of `present`.
    pub young: PageBits,
    /// The page is mapped and its dirty bit is set. A subset of `present`.
    pub dirty: PageBits,
    /// The slot holds a swap entry. Disjoint from `present`.
    pub swapped: PageBits,
}

impl TableBits {
    /// What was seen of these pages alone.
    pub fn within(&self, pages: &PageBits) -> Self {
        let clip = |bits: &PageBits| std::array::from_fn(|word| bits[word] & pages[word]);
        TableBits {
            present: clip(&self.present),
            young: clip(&self.young),
            dirty: clip(&self.dirty),
            swapped: clip(&self.swapped),
        }
    }
}
