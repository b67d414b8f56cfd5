// SPDX-License-Identifier: Apache-2.0
//! Decodes a page-table entry, by the bits of each architecture ([`x86_64`], [`aarch64`]).
//!
//! Present to the kernel covers more than present to the MMU: a PROT_NONE page (or one marked for
//! NUMA balancing) is hidden from the MMU, but still uses memory and keeps its accessed bit.
//!
//! An entry that is neither present nor zero has a swap type:
//! - below 23: a page on swap device `type`. Every kernel configuration leaves at least 23 types to
//!   devices (32, minus 1 for markers, 1 hwpoison, 3 migration, 4 device-private memory).
//! - 31: a marker (userfaultfd write protection or poison, or a guard page; not distinguished
//!   here). Uses no memory.
//! - otherwise: migration (the page is resident but moving), hwpoison, device-private; or swap
//!   device 23 and up on a kernel built without some of those. Not distinguished: such a page
//!   counts as absent in this scan.
//!
//! Page tables do not show swapped-out shared memory (the entry is simply empty), nor pages in the
//! swap cache or page cache that no process maps.

use super::layout::Ctl;
use super::shape::Shape;
use crate::page::PAGE_BYTES;

pub mod aarch64;
pub mod x86_64;

/// Present to the MMU, on every architecture supported here.
pub const PRESENT: u64 = 1;

const FIRST_SPECIAL_TYPE: u64 = 23;
const TYPES: u64 = 32;

/// The meaning of the bits of an entry.
#[derive(Debug, PartialEq, Eq)]
pub struct Bits {
    /// A page is present to the kernel if any of these is set.
    pub mapped: u64,
    /// The same for a leaf above the last level, which is hidden from the MMU for a moment while it
    /// is split or migrated (`pmd_mkinvalid`).
    pub leaf_mapped: u64,
    /// The kernel does not manage this page's memory: zero page, vdso, device memory.
    pub special: u64,
    /// Accessed since the bit was last cleared.
    pub accessed: u64,
    /// Written since it was last cleaned, if any of these is set.
    pub dirty: u64,
    /// If this is set and [`read_only`](Self::read_only) is not, the page was written, too. 0: no
    /// such bit.
    pub writable: u64,
    /// The MMU clears it on the first write.
    pub read_only: u64,
    /// One of several adjacent entries that share an accessed bit
    /// ([`Shape::contiguous_entries`]): the MMU may set it in any of them. 0: no such bit.
    pub contiguous: u64,
    /// Set in every entry of a process that is present to the MMU and not special.
    pub required: u64,
    /// Bits that neither the architecture nor Linux uses in such an entry.
    pub unused: u64,
    /// The address of the frame, as wide as the architecture allows.
    pub address: u64,
    /// Whether the frame is stored inverted if the entry is not present to the MMU.
    pub inverts: bool,
    /// Position of the lowest of the five swap-type bits.
    pub swap_type_shift: u32,
    /// (mask, value): an entry masked with the first equals the second if it points to a lower
    /// table.
    pub table: (u64, u64),
    /// Set in every pointer to a lower table of a process.
    pub pointer: u64,
    /// The MMU may set it in such a pointer at any time.
    pub pointer_mmu: u64,
}

/// The bit meanings known for this architecture. If there are several, the kernel version decides,
/// and a test with one of agewise's own pages finds out which applies.
pub(super) fn known_here() -> &'static [&'static Bits] {
    match std::env::consts::ARCH {
        "x86_64" => &[&x86_64::BITS],
        "aarch64" => &[&aarch64::BITS_BEFORE, &aarch64::BITS],
        _ => &[],
    }
}

/// The state of the page, or of the pages of the leaf, that an entry maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    pub present: bool,
    pub young: bool,
    pub dirty: bool,
    pub swapped: bool,
}

/// How to read page-table entries of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFormat {
    /// The meaning of the bits.
    pub bits: &'static Bits,
    /// Address bits of an entry on this machine: limited to the physical address width, without the
    /// memory-encryption bit of AMD SME and SEV.
    pub address_mask: u64,
    /// No frame managed by the kernel starts at or above this address.
    pub address_end: u64,
    /// How large pages are.
    pub shape: Shape,
}

impl EntryFormat {
    /// Bits that must be zero in an entry that is present to the MMU and not special. Frames are
    /// limited to the next power of two after the end of memory, so that one mask suffices.
    pub fn reserved(&self, encryption_mask: u64) -> u64 {
        let beyond = !(self.address_end.max(1).next_power_of_two() - 1);
        self.reserved_anywhere(encryption_mask) | (beyond & self.address_mask)
    }

    /// The same without a limit to frames.
    fn reserved_anywhere(&self, encryption_mask: u64) -> u64 {
        let bits = self.bits;
        (bits.address & !self.address_mask & !encryption_mask) | bits.unused
    }

    /// Whether an entry is that of a process, except that its frame is past the end of memory: of a
    /// device, such as a file on persistent memory.
    pub(super) fn is_beyond(&self, entry: u64, encryption_mask: u64) -> bool {
        self.bits.is_bad(entry, self.reserved(encryption_mask))
            && !self
                .bits
                .is_bad(entry, self.reserved_anywhere(encryption_mask))
    }

    /// The frame number, in units of 4 KiB, in a last-level entry that is present to the kernel.
    pub fn pfn(&self, entry: u64) -> Option<u64> {
        (entry & self.bits.mapped != 0).then(|| self.frame(entry))
    }

    /// The same for a leaf above the last level: its first frame. The lowest address bit is an
    /// attribute there, so treat the frame as aligned.
    pub fn leaf_pfn(&self, entry: u64) -> Option<u64> {
        (entry & self.bits.leaf_mapped != 0).then(|| self.frame(entry))
    }

    /// The frame at `va` of a leaf that maps `bytes`; 0 if there is none.
    pub fn pfn_in_leaf(&self, entry: u64, bytes: u64, va: u64) -> u64 {
        let first = self.leaf_pfn(entry).unwrap_or(0) & !(bytes / PAGE_BYTES - 1);
        first + va % bytes / PAGE_BYTES
    }

    fn frame(&self, entry: u64) -> u64 {
        let inverted = self.bits.inverts && entry & PRESENT == 0;
        let stored = if inverted { !entry } else { entry };
        (stored & self.address_mask) >> 12
    }
}

impl Bits {
    /// The parameters that the walk needs.
    pub(super) fn ctl(&self) -> Ctl {
        Ctl {
            type_mask: self.table.0,
            type_table: self.table.1,
            pointer_bits: self.pointer,
            mmu_bits: self.pointer_mmu,
            ..Default::default()
        }
    }

    fn swap_type(&self, entry: u64) -> u64 {
        entry >> self.swap_type_shift & (TYPES - 1)
    }

    /// Decodes an entry that is present if any of the bits `mapped` is set.
    #[inline]
    pub(super) fn said(&self, entry: u64, mapped: u64) -> Said {
        let is_mapped = entry & mapped != 0;
        let present = is_mapped && entry & self.special == 0;
        let gone = entry != 0 && !is_mapped;
        let on_device = self.swap_type(entry) < FIRST_SPECIAL_TYPE;
        let written = entry & self.writable != 0 && entry & self.read_only == 0;
        Said {
            present,
            young: present && entry & self.accessed != 0,
            dirty: present && (entry & self.dirty != 0 || written),
            swapped: gone && on_device,
        }
    }

    /// Whether an entry cannot be in a page table of a process; `reserved` bits must be zero.
    #[inline]
    pub(super) fn is_bad(&self, entry: u64, reserved: u64) -> bool {
        entry & PRESENT != 0
            && entry & self.special == 0
            && (entry & self.required != self.required || entry & reserved != 0)
    }
}
