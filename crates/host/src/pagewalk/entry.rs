// SPDX-License-Identifier: Apache-2.0
//! What one x86-64 page-table entry says (`arch/x86/include/asm/pgtable_types.h`, `pgtable_64.h`).
//!
//! Present to the kernel is more than present to the MMU: a PROT_NONE page (or one marked for NUMA
//! balancing) has the present bit clear and bit 8 set, still holds memory, and keeps the accessed
//! bit it had. Its frame number is stored inverted (the L1TF mitigation).
//!
//! An entry that is not present and not zero is, by its top five bits (the "swap type"):
//! - below 23: a page on swap device `type`. Every kernel configuration leaves at least 23 types
//!   to devices (32, less 1 for markers, 1 hwpoison, 3 migration, 4 device-private memory).
//! - 31: a marker (userfaultfd write protection or poison, or a guard page: which of these is not
//!   told apart here). Holds no memory.
//! - otherwise: migration (the page is resident, on its way), hwpoison, device-private; or swap
//!   device 23 and up on a kernel built without some of those. Not distinguished: all count as
//!   "other", their age unknown for this scan.
//!
//! Not visible at all in page tables: swapped-out shared memory (the entry is simply empty), and
//! pages in the swap cache or page cache that nobody maps.

/// Present to the MMU.
pub const PRESENT: u64 = 1;
/// User space may access it.
pub const USER: u64 = 1 << 2;
/// Accessed since the bit was last cleared.
pub const ACCESSED: u64 = 1 << 5;
/// Written since the bit was last cleared.
pub const DIRTY: u64 = 1 << 6;
/// A leaf above the last level.
pub const HUGE: u64 = 1 << 7;
/// Present to the kernel only, where [`PRESENT`] is clear.
pub const PROTNONE: u64 = 1 << 8;
/// No memory management for this page: zero page, vdso, device memory.
pub const SPECIAL: u64 = 1 << 9;
/// Dirty, saved while the entry is write-protected (Linux 6.6 and later; unused before).
pub const SAVED_DIRTY: u64 = 1 << 57;
/// Bits that neither the architecture nor Linux uses in a present entry.
pub const UNUSED: u64 = 0x1f << 52;
/// The frame's address, as wide as the architecture allows.
pub const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Entries not present, not zero and below this are on a swap device.
pub const FIRST_SPECIAL_SWAP: u64 = FIRST_SPECIAL_TYPE << 59;

const FIRST_SPECIAL_TYPE: u64 = 23;

/// A page's place on a swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwapEntry {
    /// The kernel's number of the device (its order in `/proc/swaps`, holes aside).
    pub device: u8,
    /// The page's slot there.
    pub slot: u64,
}

/// How entries of this machine are to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFormat {
    /// Bits of an entry that are the frame's address here: bounded by the physical address width,
    /// without the memory-encryption bit of AMD SME and SEV.
    pub address_mask: u64,
    /// No frame that the kernel manages starts at this address or above.
    pub address_end: u64,
}

impl EntryFormat {
    /// Bits that must be zero in an entry that is present to the MMU and not special. Frames are
    /// bounded by the next power of two behind the end of memory: one mask tells.
    pub fn reserved(&self, encryption_mask: u64) -> u64 {
        let beyond = !(self.address_end.max(1).next_power_of_two() - 1);
        (ADDRESS & !self.address_mask & !encryption_mask) | UNUSED | (beyond & self.address_mask)
    }

    /// Frame number of a last-level entry that is present to the kernel.
    pub fn pfn(&self, entry: u64) -> Option<u64> {
        (entry & (PRESENT | PROTNONE) != 0).then(|| self.frame(entry))
    }

    /// The same for a leaf above the last level (the frame at its beginning; its lowest address bit
    /// is an attribute, so take the frame as aligned). Such an entry stays present to the kernel
    /// with [`HUGE`] alone, while the page is split or migrated (`pmd_mkinvalid`).
    pub fn leaf_pfn(&self, entry: u64) -> Option<u64> {
        (entry & (PRESENT | PROTNONE | HUGE) != 0).then(|| self.frame(entry))
    }

    /// First frame of a 2 MiB leaf; 0 where nothing is there.
    pub fn huge_pfn(&self, entry: u64) -> u64 {
        self.leaf_pfn(entry).unwrap_or(0) & !0x1ff
    }

    fn frame(&self, entry: u64) -> u64 {
        let stored = if entry & PRESENT == 0 { !entry } else { entry };
        (stored & self.address_mask) >> 12
    }

    /// Swap device and slot of an entry that is on one.
    pub fn swap_entry(&self, entry: u64) -> Option<SwapEntry> {
        let swapped = entry != 0 && entry & (PRESENT | PROTNONE) == 0 && entry < FIRST_SPECIAL_SWAP;
        swapped.then_some(SwapEntry {
            device: (entry >> 59) as u8,
            slot: (!entry << 5) >> 14,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: EntryFormat = EntryFormat {
        address_mask: 0x0000_3fff_ffff_f000,
        address_end: 1 << 40,
    };

    /// `__swp_entry` of pgtable_64.h, written down from its definition.
    fn kernel_swap_pte(device: u64, slot: u64) -> u64 {
        (!slot << 14 >> 5) | (device << 59)
    }

    #[test]
    fn swap_entries_decode_what_the_kernel_encodes() {
        for (device, slot) in [(0, 1), (0, 0x12345), (7, (1 << 40) + 3), (22, 99)] {
            let got = FORMAT.swap_entry(kernel_swap_pte(device, slot));
            assert_eq!(
                got,
                Some(SwapEntry {
                    device: device as u8,
                    slot
                })
            );
        }
        assert_eq!(FORMAT.swap_entry(kernel_swap_pte(31, 2)), None, "a marker");
        assert_eq!(FORMAT.swap_entry(kernel_swap_pte(27, 2)), None, "migration");
        assert_eq!(FORMAT.swap_entry(0), None);
    }

    #[test]
    fn protnone_frames_are_stored_inverted() {
        let frame = 0x12_3456_u64;
        assert_eq!(FORMAT.pfn((frame << 12) | PRESENT | USER), Some(frame));
        let inverted = (!(frame << 12) & ADDRESS) | PROTNONE | ACCESSED;
        assert_eq!(FORMAT.pfn(inverted), Some(frame));
        assert_eq!(FORMAT.swap_entry(inverted), None);
        assert_eq!(FORMAT.pfn(kernel_swap_pte(0, 5)), None);
        let splitting = (!(frame << 12) & ADDRESS) | HUGE | ACCESSED;
        assert_eq!(FORMAT.leaf_pfn(splitting), Some(frame));
    }
}
