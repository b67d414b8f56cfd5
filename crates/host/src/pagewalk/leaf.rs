// SPDX-License-Identifier: Apache-2.0
//! Entries above the last level that map memory themselves.

use agewise_policy::table::{PageSet, TableBits};

use super::entry::Bits;

/// The state of the 512 pages of one sight under a leaf above the last level.
pub(super) fn leaf_bits(bits: &Bits, entry: u64) -> &'static TableBits {
    let said = bits.said(entry, bits.leaf_mapped);
    match said.present {
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
