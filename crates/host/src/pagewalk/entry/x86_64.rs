// SPDX-License-Identifier: Apache-2.0
//! Page-table entries of x86-64 (`arch/x86/include/asm/pgtable_types.h`, `pgtable_64.h`).
//!
//! A page hidden from the MMU has bit 8 set, and its frame number is stored inverted (the L1TF
//! mitigation), like slots of swap devices.

use super::{Bits, FIRST_SPECIAL_TYPE, PRESENT};

/// User space may access it.
pub const USER: u64 = 1 << 2;
/// Accessed since the bit was last cleared.
pub const ACCESSED: u64 = 1 << 5;
/// Written since the bit was last cleared.
pub const DIRTY: u64 = 1 << 6;
/// A leaf above the last level.
pub const HUGE: u64 = 1 << 7;
/// Present to the kernel only, if [`PRESENT`] is clear.
pub const PROTNONE: u64 = 1 << 8;
/// The kernel does not manage this page's memory: zero page, vdso, device memory.
pub const SPECIAL: u64 = 1 << 9;
/// Dirty bit saved while the entry is write-protected (Linux 6.6 and later; unused before). The bit
/// below it marked device memory before 6.17.
pub const SAVED_DIRTY: u64 = 1 << 58;
/// The address of the frame, as wide as the architecture allows.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Entries that are neither present nor zero and are below this are on a swap device: the type is
/// in the top bits.
pub const FIRST_SPECIAL_SWAP: u64 = FIRST_SPECIAL_TYPE << 59;

/// The meaning of all bits.
pub const BITS: Bits = Bits {
    mapped: PRESENT | PROTNONE,
    leaf_mapped: PRESENT | PROTNONE | HUGE,
    special: SPECIAL,
    accessed: ACCESSED,
    dirty: DIRTY | SAVED_DIRTY,
    writable: 0,
    read_only: 0,
    contiguous: 0,
    required: PRESENT | USER,
    unused: 0x1f << 52,
    address: ADDRESS,
    inverts: true,
    swap_type_shift: 59,
    table: (PRESENT | HUGE, PRESENT),
    pointer: USER,
    pointer_mmu: ACCESSED | DIRTY,
};

#[cfg(test)]
mod tests {
    use super::super::{EntryFormat, Shape};
    use super::*;

    const FORMAT: EntryFormat = EntryFormat {
        bits: &BITS,
        address_mask: 0x0000_3fff_ffff_f000,
        address_end: 1 << 40,
        shape: Shape::PAGES_4K,
    };

    /// `__swp_entry` of pgtable_64.h, reimplemented from its definition.
    fn kernel_swap_pte(device: u64, slot: u64) -> u64 {
        (!slot << 14 >> 5) | (device << 59)
    }

    fn is_swapped(entry: u64) -> bool {
        BITS.said(entry, BITS.mapped).swapped
    }

    #[test]
    fn pages_on_swap_devices_are_told_from_other_entries() {
        for (device, slot) in [(0, 1), (0, 0x12345), (7, (1 << 40) + 3), (22, 99)] {
            assert!(is_swapped(kernel_swap_pte(device, slot)));
        }
        assert!(!is_swapped(kernel_swap_pte(31, 2)), "a marker");
        assert!(!is_swapped(kernel_swap_pte(27, 2)), "migration");
        assert!(!is_swapped(0));
    }

    #[test]
    fn protnone_frames_are_stored_inverted() {
        let frame = 0x12_3456_u64;
        assert_eq!(FORMAT.pfn((frame << 12) | PRESENT | USER), Some(frame));
        let inverted = (!(frame << 12) & ADDRESS) | PROTNONE | ACCESSED;
        assert_eq!(FORMAT.pfn(inverted), Some(frame));
        assert!(!is_swapped(inverted));
        assert_eq!(FORMAT.pfn(kernel_swap_pte(0, 5)), None);
        let splitting = (!(frame << 12) & ADDRESS) | HUGE | ACCESSED;
        assert_eq!(FORMAT.leaf_pfn(splitting), Some(frame));
    }
}
