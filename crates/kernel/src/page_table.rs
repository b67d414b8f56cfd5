// SPDX-License-Identifier: Apache-2.0
//! Page tables as seen by the aging walk and the reverse map.
//!
//! Addresses are virtual page numbers (`vpn`, bytes / 4096). The geometry is that of x86-64: 512
//! entries per level, so a last-level table covers 2 MiB and a PMD table 1 GiB.

use crate::folio::Pfn;
use crate::ids::MmId;

/// Pages covered by one last-level table, and by one 2 MiB leaf.
pub const PAGES_PER_PMD: u64 = 512;

/// Pages covered by one PMD table (1 GiB): the granularity at which a walk yields.
pub const PAGES_PER_PUD: u64 = 512 * 512;

/// A leaf entry. While present it refers to a frame; otherwise the world may use the upper bits as
/// it likes (a swap slot, a shadow), as long as bit 0 stays clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pte(pub u64);

impl Pte {
    const PRESENT: u64 = 1;
    const ACCESSED: u64 = 1 << 5;
    const DIRTY: u64 = 1 << 6;
    const SPECIAL: u64 = 1 << 9;
    const PFN_SHIFT: u32 = 12;

    /// An entry that maps `pfn`, accessed and clean, as left by a fault on x86.
    #[inline]
    #[must_use]
    pub fn map(pfn: Pfn) -> Pte {
        Pte((u64::from(pfn.0) << Self::PFN_SHIFT) | Self::PRESENT | Self::ACCESSED)
    }

    /// An entry that maps the shared zero page (or another frame reclaim must not touch).
    #[inline]
    #[must_use]
    pub fn special() -> Pte {
        Pte(Self::PRESENT | Self::ACCESSED | Self::SPECIAL)
    }

    /// Whether it maps a frame.
    #[inline]
    #[must_use]
    pub fn present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Whether it maps the zero page or another frame that is not a folio.
    #[inline]
    #[must_use]
    pub fn is_special(self) -> bool {
        self.0 & Self::SPECIAL != 0
    }

    /// Whether it is present and its accessed bit is set.
    #[inline]
    #[must_use]
    pub fn young(self) -> bool {
        self.0 & (Self::PRESENT | Self::ACCESSED) == Self::PRESENT | Self::ACCESSED
    }

    /// Whether its dirty bit is set.
    #[inline]
    #[must_use]
    pub fn dirty(self) -> bool {
        self.0 & Self::DIRTY != 0
    }

    /// Sets the accessed bit, and the dirty bit on a write.
    #[inline]
    pub fn touch(&mut self, write: bool) {
        self.0 |= Self::ACCESSED | if write { Self::DIRTY } else { 0 };
    }

    /// Clears the accessed bit and returns whether it was set.
    #[inline]
    pub fn test_clear_young(&mut self) -> bool {
        let was = self.0 & Self::ACCESSED != 0;
        self.0 &= !Self::ACCESSED;
        was
    }

    /// Clears the dirty bit and returns whether it was set.
    #[inline]
    pub fn test_clear_dirty(&mut self) -> bool {
        let was = self.dirty();
        self.0 &= !Self::DIRTY;
        was
    }

    /// The frame it maps. Only meaningful while present and not special.
    #[inline]
    #[must_use]
    pub fn pfn(self) -> Pfn {
        debug_assert!(self.present() && !self.is_special());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "frames are numbered by u32"
        )]
        Pfn((self.0 >> Self::PFN_SHIFT) as u32)
    }
}

/// A last-level page table. Its entries map folios of one page; a 2 MiB folio is mapped by a
/// [`Pmd::Leaf`] and must be split before single pages of it can be mapped.
pub type PteTable = [Pte; PAGES_PER_PMD as usize];

/// What maps one 2 MiB-aligned range.
#[derive(Debug)]
pub enum Pmd<'a> {
    /// Nothing is mapped.
    None,
    /// One 2 MiB leaf.
    Leaf(&'a mut Pte),
    /// A table of 4 KiB leaves.
    Table(&'a mut PteTable),
}

/// A mapping of a folio, from the reverse map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The address space.
    pub mm: MmId,
    /// The page number of the folio's first page.
    pub vpn: u64,
}

/// A mapped range of an address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Vma {
    /// First page.
    pub start_vpn: u64,
    /// One past the last page.
    pub end_vpn: u64,
    /// Whether a file (not shared memory) backs it.
    pub file: bool,
    /// Shared memory (tmpfs, MAP_SHARED|MAP_ANONYMOUS): swap-backed but not anonymous.
    pub shmem: bool,
    /// `VM_LOCKED`.
    pub locked: bool,
    /// `VM_EXEC`.
    pub exec: bool,
    /// `VM_SHARED`.
    pub shared: bool,
    /// `VM_SEQ_READ`, `VM_RAND_READ` or a file opened NOREUSE: accesses are not significant
    /// (`vma_has_recency` is false).
    pub no_recency: bool,
    /// `VM_SPECIAL`, hugetlb, DAX or inaccessible: neither walked nor looked around in.
    pub special: bool,
}

impl Vma {
    /// Whether the page belongs to the range.
    #[inline]
    #[must_use]
    pub fn contains(&self, vpn: u64) -> bool {
        (self.start_vpn..self.end_vpn).contains(&vpn)
    }
}
