// SPDX-License-Identifier: Apache-2.0
//! Entries above the last level that map memory themselves.

use agewise_policy::table::{PageSet, TableBits};

use super::entry::{ACCESSED, DIRTY, HUGE, PRESENT, PROTNONE, SAVED_DIRTY, SPECIAL};
use super::extract::Extract;

/// What a leaf above the last level says of the 512 pages of one sight.
pub(super) fn leaf_bits(entry: u64) -> &'static Extract {
    // The kernel holds a huge entry for present when any of these is set (`pmd_present`): it
    // clears the present bit for a moment while it splits or migrates the page.
    let mapped = entry & (PRESENT | PROTNONE | HUGE) != 0;
    if !mapped {
        return if entry == 0 { &LEAVES[0] } else { &LEAVES[1] };
    }
    if entry & SPECIAL != 0 {
        return &LEAVES[0];
    }
    let young = usize::from(entry & ACCESSED != 0);
    let dirty = usize::from(entry & (DIRTY | SAVED_DIRTY) != 0);
    &LEAVES[2 + young + 2 * dirty]
}

/// What a leaf may say: nothing, another thing; then present: idle, young, dirty, young and dirty.
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
