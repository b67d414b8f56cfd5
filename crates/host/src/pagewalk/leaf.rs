// SPDX-License-Identifier: Apache-2.0
//! Entries above the last level that map memory themselves.

use agewise_policy::table::{PageSet, TableBits};

use super::entry::Bits;
use super::extract::Extract;

/// The state of the 512 pages of one sight under a leaf above the last level.
pub(super) fn leaf_bits(bits: &Bits, entry: u64) -> &'static Extract {
    let said = bits.said(entry, bits.leaf_mapped);
    if said.present {
        return &LEAVES[2 + usize::from(said.young) + 2 * usize::from(said.dirty)];
    }
    &LEAVES[usize::from(said.swapped || said.other)]
}

/// The possible states: nothing, other; then present: idle, young, dirty, young and dirty.
static LEAVES: [Extract; 6] = {
    const NONE: PageSet = PageSet::NONE;
    const ALL: PageSet = PageSet::ALL;
    const fn leaf(present: PageSet, young: PageSet, dirty: PageSet, other: PageSet) -> Extract {
        let bits = TableBits {
            present,
            young,
            dirty,
            swapped: NONE,
        };
        Extract { bits, other }
    }
    [
        leaf(NONE, NONE, NONE, NONE),
        leaf(NONE, NONE, NONE, ALL),
        leaf(ALL, NONE, NONE, NONE),
        leaf(ALL, ALL, NONE, NONE),
        leaf(ALL, NONE, ALL, NONE),
        leaf(ALL, ALL, ALL, NONE),
    ]
};
