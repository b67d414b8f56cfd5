// SPDX-License-Identifier: Apache-2.0
//! What a look changes in 64 pages of a table.

use super::LookCounts;
use super::leaf::{self, Changes};
use crate::generations::{LABEL_UNSEEN, Label, PageType, Sizes};

/// The observations of 64 pages, one bit per page.
pub(super) struct Word {
    pub present: u64,
    pub young: u64,
    pub swapped: u64,
    pub files: u64,
    pub old_files: u64,
    /// All 64 were present in the previous look.
    pub was_full: bool,
}

impl Word {
    #[inline]
    pub fn update(
        &self,
        lanes: &mut leaf::Lanes,
        label: Label,
        sizes: &mut Sizes,
        swapped: &mut [u64; 2],
        returned: &mut Sizes,
        counts: &mut LookCounts,
    ) {
        let (occupied, was_swapped) = match self.was_full {
            true => (u64::MAX, 0),
            false => leaf::occupied_and_swapped(lanes),
        };
        let was_present = occupied & !was_swapped;
        counts.present += pages(self.present);
        let changed = self.young
            | (self.present ^ was_present)
            | (self.swapped ^ was_swapped)
            | ((self.files ^ self.old_files) & occupied);
        if changed == 0 {
            return;
        }
        let appeared = self.present & !occupied;
        let marked = self.young | appeared;
        let changes = Changes {
            marked,
            gone: occupied & !(self.present | self.swapped),
            swapped_out: self.swapped & was_present,
            returned: self.present & was_swapped,
        };
        let retyped = (self.files ^ self.old_files) & occupied;
        let leaving = was_present & (marked | changes.gone | changes.swapped_out | retyped);
        let back = self.young & occupied;
        let mut each_type = |page_type: PageType, files: u64, old_files: u64| {
            let t = page_type as usize;
            if leaving == back {
                // The usual case: pages leave their age only because they were accessed.
                leaf::by_label(lanes, leaving & old_files, |old, n| {
                    sizes[usize::from(old)][t] -= n;
                    returned[usize::from(old)][t] += n;
                });
            } else {
                leaf::by_label(lanes, leaving & old_files, |old, n| {
                    sizes[usize::from(old)][t] -= n
                });
                leaf::by_label(lanes, back & old_files, |old, n| {
                    returned[usize::from(old)][t] += n
                });
            }
            if marked & files != 0 {
                sizes[usize::from(label)][t] += pages(marked & files);
            }
            // Pages that join the sizes under the label they had.
            let arriving = self.present & !marked & (changes.returned | retyped) & files;
            if arriving != 0 {
                leaf::by_label(lanes, arriving, |old, n| sizes[usize::from(old)][t] += n);
            }
            if (self.swapped | was_swapped) != 0 {
                swapped[t] += pages(self.swapped & files);
                swapped[t] -= pages(was_swapped & old_files);
            }
        };
        if self.files & self.old_files != u64::MAX {
            each_type(PageType::Anon, !self.files, !self.old_files);
        }
        if self.files | self.old_files != 0 {
            each_type(PageType::File, self.files, self.old_files);
        }
        counts.young += pages(self.young);
        if changes.gone | changes.swapped_out | changes.returned == 0 {
            leaf::mark(lanes, marked, label);
        } else {
            leaf::apply(lanes, changes, label);
            counts.gone += pages(changes.gone);
            counts.swapped_out += pages(changes.swapped_out);
            counts.refaulted += pages(changes.returned);
        }
        if appeared != 0 {
            counts.appeared += pages(appeared);
        }
        let unknown = self.swapped & !occupied;
        if unknown != 0 {
            let changes = Changes {
                marked: unknown,
                swapped_out: unknown,
                ..Changes::default()
            };
            leaf::apply(lanes, changes, LABEL_UNSEEN);
        }
    }
}

/// The number of set bits. Most words are full or empty, and a count takes a dozen instructions if
/// the code may assume only the oldest x86-64.
#[inline]
fn pages(bits: u64) -> u64 {
    match bits {
        0 => 0,
        u64::MAX => 64,
        bits => u64::from(bits.count_ones()),
    }
}
