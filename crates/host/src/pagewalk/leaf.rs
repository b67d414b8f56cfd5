// SPDX-License-Identifier: Apache-2.0
//! Entries above the last level that map memory themselves.

use agewise_policy::table::{PageSet, TableBits};

use super::machine::Machine;

/// The state of the 512 pages of one sight under a leaf above the last level. The huge zero page is
/// no memory of a process, and always looks accessed.
pub(super) fn leaf_bits(machine: &Machine, entry: u64) -> &'static TableBits {
    let bits = machine.format.bits;
    let said = bits.said(entry, bits.leaf_mapped);
    let frame = machine.huge_zero;
    let is_zero = frame.is_some() && machine.format.leaf_pfn(entry) == frame;
    match said.present && !is_zero {
        true => &LEAVES[1 + usize::from(said.young) + 2 * usize::from(said.dirty)],
        false => &LEAVES[0],
    }
}

/// The possible states: not present; then present: idle, young, dirty, young and dirty.
static LEAVES: [TableBits; 5] = {
    const NONE: PageSet = PageSet::NONE;
    const ALL: PageSet = PageSet::ALL;
    const fn leaf(present: PageSet, young: PageSet, dirty: PageSet) -> TableBits {
        TableBits {
            present,
            young,
            dirty,
            swapped: NONE,
        }
    }
    [
        leaf(NONE, NONE, NONE),
        leaf(ALL, NONE, NONE),
        leaf(ALL, ALL, NONE),
        leaf(ALL, NONE, ALL),
        leaf(ALL, ALL, ALL),
    ]
};

#[cfg(test)]
mod tests {
    use super::super::entry::x86_64::{ACCESSED, BITS, DIRTY, HUGE, USER};
    use super::super::entry::{EntryFormat, PRESENT};
    use super::super::shape::Shape;
    use super::*;

    #[test]
    fn the_huge_zero_page_is_no_memory_of_a_process() {
        let format = EntryFormat {
            bits: &BITS,
            address_mask: 0x3fff_ffff_f000,
            address_end: 1 << 40,
            shape: Shape::PAGES_4K,
        };
        let mut machine = Machine {
            direct_map: 0,
            levels: 4,
            format,
            encryption_mask: 0,
            huge_zero: None,
        };
        let zero = 0x5600_0000 | PRESENT | USER | ACCESSED | HUGE;
        assert!(leaf_bits(&machine, zero).young.is_full(), "it is not known");
        machine.huge_zero = Some(0x5600_0000 >> 12);
        assert!(leaf_bits(&machine, zero).present.is_empty());
        let written = 0x5620_0000 | PRESENT | USER | ACCESSED | DIRTY | HUGE;
        assert!(leaf_bits(&machine, written).dirty.is_full());
        assert!(leaf_bits(&machine, 0).present.is_empty());
    }
}
