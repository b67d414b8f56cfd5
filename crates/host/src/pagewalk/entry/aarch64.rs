// SPDX-License-Identifier: Apache-2.0
//! Page-table entries of AArch64 (`arch/arm64/include/asm/pgtable-hwdef.h`,
//! `pgtable-prot.h`, `pgtable.h`; 6.1 and 6.12).
//!
//! The accessed bit is the access flag: the MMU sets it if it can (FEAT_HAFDBS), otherwise the
//! kernel does on a fault. A page is dirty if software marked it so, or if it is writable and the
//! MMU has cleared "read only" since.
//!
//! Linux 6.10 moved the mark of pages hidden from the MMU, and with it the format of swap entries.
//! Addresses of more than 48 bits have another layout (FEAT_LPA2), which is not supported.

use super::{Bits, PRESENT};

/// Together with [`PRESENT`]: a page at the last level, a pointer to a table above it. Above the
/// last level, [`PRESENT`] alone is a block.
pub const TABLE: u64 = 1 << 1;
/// The MMU clears it on the first write to a page that is [`WRITABLE`].
pub const READ_ONLY: u64 = 1 << 7;
/// The access flag.
pub const ACCESSED: u64 = 1 << 10;
/// Not global: belongs to one address space. Since Linux 6.10: present to the kernel if [`PRESENT`]
/// is clear.
pub const NOT_GLOBAL: u64 = 1 << 11;
/// The process may write, and the MMU may make the page writable (DBM).
pub const WRITABLE: u64 = 1 << 51;
/// One of several adjacent entries that the MMU may treat as one.
pub const CONTIGUOUS: u64 = 1 << 52;
/// The kernel's own dirty bit.
pub const DIRTY: u64 = 1 << 55;
/// The kernel does not manage this page's memory.
pub const SPECIAL: u64 = 1 << 56;
/// Before Linux 6.10: present to the kernel if [`PRESENT`] is clear.
pub const PROTNONE_BEFORE: u64 = 1 << 58;
/// Before Linux 6.10: a block being split or migrated.
pub const INVALID_BEFORE: u64 = 1 << 59;
/// The address of the frame without FEAT_LPA2, if pages have 4 KiB; for larger ones the lowest bits
/// are zero (for 64 KiB bits 48 to 51 of the address, where memory is as large).
pub const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// The meaning of all bits since Linux 6.10.
pub const BITS: Bits = Bits {
    mapped: PRESENT | NOT_GLOBAL,
    leaf_mapped: PRESENT | NOT_GLOBAL,
    special: SPECIAL,
    accessed: ACCESSED,
    dirty: DIRTY,
    writable: WRITABLE,
    read_only: READ_ONLY,
    contiguous: CONTIGUOUS,
    required: PRESENT | TABLE | NOT_GLOBAL,
    unused: 0x3 << 48,
    address: ADDRESS,
    inverts: false,
    swap_type_shift: 6,
    table: (PRESENT | TABLE, PRESENT | TABLE),
    pointer: 0,
    // FEAT_HAFT: pointers to tables have an access flag, too.
    pointer_mmu: ACCESSED,
};

/// The meaning of all bits before Linux 6.10.
pub const BITS_BEFORE: Bits = Bits {
    mapped: PRESENT | PROTNONE_BEFORE,
    leaf_mapped: PRESENT | PROTNONE_BEFORE | INVALID_BEFORE,
    swap_type_shift: 3,
    ..BITS
};

#[cfg(test)]
mod tests {
    use super::super::{EntryFormat, Shape};
    use super::*;

    const fn format(bits: &'static Bits) -> EntryFormat {
        EntryFormat {
            bits,
            address_mask: ADDRESS,
            address_end: 1 << 40,
            shape: Shape::PAGES_4K,
        }
    }
    const NOW: EntryFormat = format(&BITS);
    const BEFORE: EntryFormat = format(&BITS_BEFORE);

    /// A page of a process, read-only or not yet written, like `_PAGE_SHARED`.
    const PAGE: u64 = PRESENT | TABLE | NOT_GLOBAL | READ_ONLY | 0x40 | 0x300 | 3 << 53;

    fn is_swapped(bits: &Bits, entry: u64) -> bool {
        bits.said(entry, bits.mapped).swapped
    }

    #[test]
    fn pages_on_swap_devices_are_told_from_other_entries() {
        for (device, slot) in [(0, 1), (0, 0x12345), (7, (1 << 40) + 3), (22, 99)] {
            // With and without the bit for exclusive anonymous pages (bit 2).
            for exclusive in [0, 4] {
                let entry = device << 6 | slot << 12 | exclusive;
                assert!(is_swapped(&BITS, entry));
                let entry = device << 3 | slot << 8 | exclusive;
                assert!(is_swapped(&BITS_BEFORE, entry));
            }
        }
        assert!(!is_swapped(&BITS, 31 << 6 | 2 << 12), "a marker");
        assert!(!is_swapped(&BITS_BEFORE, 27 << 3 | 2 << 8), "migration");
        assert!(!is_swapped(&BITS, 0));
    }

    #[test]
    fn hidden_pages_keep_their_frames() {
        let frame = 0x12_3456_u64;
        let hidden = (frame << 12 | PAGE | ACCESSED) & !PRESENT;
        assert_eq!(NOW.pfn(hidden), Some(frame));
        assert_eq!(BEFORE.pfn(hidden | PROTNONE_BEFORE), Some(frame));
        assert!(!is_swapped(&BITS_BEFORE, hidden | PROTNONE_BEFORE));
        assert_eq!(BEFORE.leaf_pfn(hidden | INVALID_BEFORE), Some(frame));
    }

    #[test]
    fn a_page_is_dirty_by_software_or_by_the_mmu() {
        let said = |entry| BITS.said(entry, BITS.mapped);
        assert!(!said(PAGE).dirty && !said(PAGE | WRITABLE).dirty);
        assert!(said(PAGE | DIRTY).dirty);
        assert!(said((PAGE | WRITABLE) & !READ_ONLY).dirty);
        assert!(!said(PAGE).young && said(PAGE | ACCESSED).young);
    }

    #[test]
    fn what_cannot_be_of_a_process_is_bad() {
        let reserved = NOW.reserved(0);
        assert!(!BITS.is_bad(0x5000 | PAGE, reserved));
        // Execute-only: user space may not read it.
        assert!(!BITS.is_bad(0x5000 | PAGE & !0x40, reserved));
        // The page may have branch target enforcement (guarded).
        assert!(!BITS.is_bad(0x5000 | PAGE | 1 << 50, reserved));
        for bad in [
            0x5000 | PAGE & !TABLE,
            0x5000 | PAGE & !NOT_GLOBAL,
            1 << 48 | PAGE,
            1 << 40 | PAGE,
        ] {
            assert!(BITS.is_bad(bad, reserved), "{bad:#x}");
            assert!(!BITS.is_bad(bad | SPECIAL, reserved), "{bad:#x}");
        }
    }
}
