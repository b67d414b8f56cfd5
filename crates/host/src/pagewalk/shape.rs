// SPDX-License-Identifier: Apache-2.0
//! How large pages are, and with them the tables that map them.
//!
//! A table fills one page with entries of 8 bytes, so the size of a page decides everything: what a
//! table maps, what a leaf above the last level maps, how many levels there are. Everything outside
//! this module counts in pages of 4 KiB and in ranges of 2 MiB; a larger page is 4 or 16 such pages
//! that share one entry.

use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits, WORDS_PER_TABLE};

use crate::page::PAGE_BYTES;

/// The shape of page tables on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    page_shift: u32,
}

impl Shape {
    /// Pages of 4 KiB: x86-64, and most AArch64.
    pub const PAGES_4K: Shape = Shape { page_shift: 12 };

    /// The shape for pages of this size; `None` if it is not one of x86-64 or AArch64 (4, 16, 64
    /// KiB).
    pub fn of_pages(bytes: u64) -> Option<Self> {
        let page_shift = match (std::env::consts::ARCH, bytes) {
            (_, PAGE_BYTES) => 12,
            ("aarch64", 0x4000) => 14,
            ("aarch64", 0x1_0000) => 16,
            _ => return None,
        };
        Some(Shape { page_shift })
    }

    /// Bits of an address within a page.
    pub fn page_shift(self) -> u32 {
        self.page_shift
    }

    /// Bytes in a page.
    pub fn page_bytes(self) -> u64 {
        1 << self.page_shift
    }

    /// Bytes that 512 entries map, which is what the walk copies at a time.
    pub fn part_bytes(self) -> u64 {
        (PAGES_PER_TABLE as u64) << self.page_shift
    }

    /// Bytes that one entry maps this many levels above the last.
    pub fn entry_bytes(self, level: u32) -> u64 {
        1 << (self.page_shift + level * (self.page_shift - 3))
    }

    /// The kernel's direct map starts at a multiple of this power of two (`ARM64_MEMSTART_ALIGN`;
    /// on x86-64 1 GiB).
    pub fn direct_map_shift(self) -> u32 {
        if self.page_shift == 16 { 29 } else { 30 }
    }

    /// Adjacent entries that may share an accessed bit (`CONT_PTE_SHIFT`).
    pub fn contiguous_entries(self) -> usize {
        match self.page_shift {
            12 => 16,
            14 => 128,
            _ => 32,
        }
    }

    /// Pages of 4 KiB per entry, as a power of two.
    fn pages_shift(self) -> u32 {
        self.page_shift - PAGE_BYTES.trailing_zeros()
    }

    /// The entry among the 512 of a part that maps `page` of the 2 MiB range at `va`, and the
    /// number of that page within the entry.
    pub fn entry_of(self, va: u64, page: usize) -> (usize, u64) {
        let at = va % self.part_bytes() / PAGE_BYTES + page as u64;
        let entry = at >> self.pages_shift();
        (entry as usize, at - (entry << self.pages_shift()))
    }

    /// The pages of the 2 MiB range at `va`, given one bit for each of the 512 entries of its part.
    pub fn pages_of(self, entries: &TableBits, va: u64) -> TableBits {
        let (first, _) = self.entry_of(va, 0);
        let widen = |entries: &PageSet| self.widened(entries, first);
        TableBits {
            present: widen(&entries.present),
            young: widen(&entries.young),
            dirty: widen(&entries.dirty),
            swapped: widen(&entries.swapped),
        }
    }

    fn widened(self, entries: &PageSet, first: usize) -> PageSet {
        let per_word = 64 >> self.pages_shift();
        let pages = u64::MAX >> (64 - (1 << self.pages_shift()));
        debug_assert!(first.is_multiple_of(per_word * WORDS_PER_TABLE));
        PageSet::from_words(|word| {
            let at = first + word * per_word;
            let set = entries[at / 64] >> (at % 64);
            (0..per_word)
                .filter(|entry| set >> entry & 1 == 1)
                .fold(0, |all, entry| all | pages << (entry << self.pages_shift()))
        })
    }
}

#[cfg(test)]
impl Shape {
    /// The shape for pages of `1 << page_shift` bytes, whatever this machine is.
    pub const fn with_page_shift(page_shift: u32) -> Self {
        Shape { page_shift }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::TABLE_BYTES;
    use proptest::prelude::*;

    #[test]
    fn tables_have_the_sizes_that_the_architecture_gives_them() {
        let sizes = |page_shift| {
            let shape = Shape::with_page_shift(page_shift);
            [
                shape.part_bytes(),
                shape.entry_bytes(1),
                shape.entry_bytes(2),
            ]
        };
        assert_eq!(sizes(12), [2 << 20, 2 << 20, 1 << 30]);
        assert_eq!(sizes(14), [8 << 20, 32 << 20, 64 << 30]);
        assert_eq!(sizes(16), [32 << 20, 512 << 20, 4 << 40]);
    }

    #[test]
    fn sizes_of_other_machines_are_refused() {
        assert_eq!([8192, 0].map(Shape::of_pages), [None; 2]);
        assert_eq!(Shape::of_pages(4096).unwrap(), Shape::PAGES_4K);
    }

    proptest! {
        /// A page of 4 KiB is in a set if the entry that maps it is.
        #[test]
        fn every_page_of_an_entry_is_what_the_entry_is(
            page_shift in prop::sample::select(&[12u32, 14, 16][..]),
            entries in any::<[u64; 8]>(),
            table in 0u64..64,
        ) {
            let shape = Shape::with_page_shift(page_shift);
            let entries = TableBits { young: PageSet::new(entries), ..TableBits::default() };
            let va = table * TABLE_BYTES;
            let pages = shape.pages_of(&entries, va);
            for page in 0..PAGES_PER_TABLE {
                let address = va + page as u64 * PAGE_BYTES;
                let entry = (address >> page_shift) as usize % 512;
                prop_assert_eq!(pages.young.contains(page), entries.young.contains(entry));
                let within = address % shape.page_bytes() / PAGE_BYTES;
                prop_assert_eq!(shape.entry_of(va, page), (entry, within));
            }
            prop_assert!(pages.present.is_empty());
        }
    }
}
