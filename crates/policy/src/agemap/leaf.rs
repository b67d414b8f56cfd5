// SPDX-License-Identifier: Apache-2.0
//! The bytes of one table, eight at a time in a `u64`: lane `i` of word `w` is page `8 * w + i`.
//! Plain integer arithmetic, and vectors of sixteen bytes where the result is one bit per byte.

use wide::u8x16;

use crate::generations::Label;
use crate::table::{PAGES_PER_TABLE, PageSet, WORDS_PER_TABLE};

/// Set in a byte: the page is in swap, and the label says how old it was when it left.
pub(super) const SWAPPED: u8 = 0x80;

/// `u64` words in a leaf.
const LANE_WORDS: usize = PAGES_PER_TABLE / 8;

/// The bytes of one table, one per page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf(pub [u64; LANE_WORDS]);

/// The bytes of 64 pages, those of one word of a [`PageSet`](crate::table::PageSet).
pub(super) type Lanes = [u64; 8];

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// A table with fewer pages than this to count is counted page by page: one pass over the table
/// costs as much as about ten of them.
const FEW_IN_TABLE: u64 = 16;
/// A pass that found fewer pages than this was not worthwhile.
const POOR_PASS: u64 = 8;
/// Maximum number of such passes.
const POOR_PASSES_MAX: u32 = 2;

/// 0xff in each byte `i` where bit `i` of the index is set.
const SPREAD: [u64; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut lane = 0;
        while lane < 8 {
            if bits >> lane & 1 == 1 {
                table[bits] |= 0xff << (8 * lane);
            }
            lane += 1;
        }
        bits += 1;
    }
    table
};

/// Collects the top bit of each lane in one byte, one bit per lane.
#[inline]
fn gather(high_bits: u64) -> u64 {
    ((high_bits & HIGH) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// What to change in the bytes of 64 pages, one bit per page. Bytes of pages without a bit stay.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Pages whose byte becomes the label alone.
    pub marked: u64,
    /// Pages that are gone: their byte becomes zero.
    pub gone: u64,
    /// Pages whose byte keeps its label and gains the swapped bit.
    pub swapped_out: u64,
    /// Pages whose byte loses the swapped bit.
    pub returned: u64,
}

impl Leaf {
    /// A leaf in which all bytes are the same.
    pub fn filled(byte: u8) -> Self {
        Leaf([LOW * u64::from(byte); LANE_WORDS])
    }

    /// The byte of one page.
    pub fn byte(&self, page: usize) -> u8 {
        (self.0[page / 8] >> (8 * (page % 8))) as u8
    }

    /// The bytes of the 64 pages of word `word`.
    #[inline]
    pub fn lanes(&self, word: usize) -> &Lanes {
        self.0[8 * word..8 * word + 8]
            .try_into()
            .expect("eight words of lanes")
    }

    /// Calls `count` with each label of the pages and how many pages have it, possibly several
    /// times for one label. Makes one pass over the table for each label while passes find many
    /// pages, then goes page by page.
    #[inline]
    pub fn by_label(&self, pages: &PageSet, mut count: impl FnMut(Label, u64)) {
        let mut left = *pages;
        let mut passes = match pages.len() {
            0..FEW_IN_TABLE => 0,
            _ => POOR_PASSES_MAX,
        };
        for word in 0..WORDS_PER_TABLE {
            while left[word] != 0 {
                let label = label_of(self.lanes(word), left[word].trailing_zeros());
                if passes == 0 {
                    count(label, 1);
                    left[word] &= left[word] - 1;
                    continue;
                }
                let mut found = 0;
                for (at, left) in left.words_mut().iter_mut().enumerate().skip(word) {
                    let same = *left & labelled(self.lanes(at), label);
                    found += u64::from(same.count_ones());
                    *left &= !same;
                }
                count(label, found);
                passes -= u32::from(found < POOR_PASS);
            }
        }
    }

    /// Sets the label of pages; equals [`apply`] if nothing else changes.
    #[inline]
    pub fn mark(&mut self, marked: &PageSet, label: Label) {
        for (word, marked) in marked.words().iter().enumerate() {
            mark(self.lanes_mut(word), *marked, label);
        }
    }

    /// The bytes of the 64 pages of word `word`, to change them.
    #[inline]
    pub fn lanes_mut(&mut self, word: usize) -> &mut Lanes {
        (&mut self.0[8 * word..8 * word + 8])
            .try_into()
            .expect("eight words of lanes")
    }
}

const _: () = assert!(cfg!(target_endian = "little"), "lane 0 is byte 0");

/// One bit for each of 64 pages: the top bit of what `question` returns for its byte.
#[inline]
fn ask(lanes: &Lanes, question: impl Fn(u8x16) -> u8x16) -> u64 {
    let bytes: &[u8; 64] = bytemuck::cast_ref(lanes);
    let sixteens = bytes.chunks_exact(16).rev();
    sixteens.fold(0, |answers, sixteen| {
        let answer = question(bytemuck::pod_read_unaligned(sixteen));
        answers << 16 | u64::from(answer.to_bitmask())
    })
}

/// A bit for each page whose byte is not zero, and one for each page in swap.
#[inline]
pub(super) fn occupied_and_swapped(lanes: &Lanes) -> (u64, u64) {
    let empty = ask(lanes, |bytes| bytes.simd_eq(u8x16::ZERO));
    // The top bit of each byte is the answer: it is the swapped bit.
    let swapped = ask(lanes, |bytes| bytes);
    (!empty, swapped)
}

/// A bit for each page with this label, present or swapped.
#[inline]
pub(super) fn labelled(lanes: &Lanes, label: Label) -> u64 {
    let (label, mask) = (u8x16::splat(label), u8x16::splat(!SWAPPED));
    ask(lanes, |bytes| (bytes & mask).simd_eq(label))
}

/// A bit for each present page with a label from `first` to `last` (1 ..= 127).
#[inline]
pub(super) fn labelled_within(lanes: &Lanes, first: Label, last: Label) -> u64 {
    // For a lane below 0x80, adding 0x80 - n sets the top bit exactly if lane >= n.
    let at_least = LOW * u64::from(0x80 - first);
    let above = LOW * u64::from(0x7f - last);
    let mut within = 0;
    for (i, lane) in lanes.iter().enumerate() {
        let label = lane & !HIGH;
        let inside = (label + at_least) & !(label + above) & !lane;
        within |= gather(inside) << (8 * i);
    }
    within
}

/// Calls `count` with labels and how many of the pages have each. Pages of one age are usually
/// adjacent, so whole words are compared with the first label while many pages are left.
#[inline]
pub(super) fn by_label(lanes: &Lanes, pages: u64, mut count: impl FnMut(Label, u64)) {
    let mut left = pages;
    while left.count_ones() > 3 {
        let label = label_of(lanes, left.trailing_zeros());
        let same = left & labelled(lanes, label);
        count(label, u64::from(same.count_ones()));
        left &= !same;
    }
    while left != 0 {
        count(label_of(lanes, left.trailing_zeros()), 1);
        left &= left - 1;
    }
}

/// Sets the label of some of 64 pages; equals [`apply`] if nothing else changes.
#[inline]
pub(super) fn mark(lanes: &mut Lanes, marked: u64, label: Label) {
    let label = LOW * u64::from(label);
    for (i, lane) in lanes.iter_mut().enumerate() {
        let spread = SPREAD[(marked >> (8 * i)) as usize & 0xff];
        *lane = *lane & !spread | label & spread;
    }
}

/// Changes the bytes of 64 pages.
#[inline]
pub(super) fn apply(lanes: &mut Lanes, changes: Changes, label: Label) {
    let label = LOW * u64::from(label);
    for (i, lane) in lanes.iter_mut().enumerate() {
        let spread = |bits: u64| SPREAD[(bits >> (8 * i)) as usize & 0xff];
        let marked = spread(changes.marked);
        let mut bytes = *lane & !(marked | spread(changes.gone)) | label & marked;
        bytes |= HIGH & spread(changes.swapped_out);
        bytes &= !(HIGH & spread(changes.returned));
        *lane = bytes;
    }
}

/// The label of one page of 64.
#[inline]
pub(super) fn label_of(lanes: &Lanes, page: u32) -> Label {
    (lanes[page as usize / 8] >> (8 * (page % 8))) as u8 & !SWAPPED
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lanes_of(bytes: &[u8]) -> Lanes {
        std::array::from_fn(|i| u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().unwrap()))
    }

    fn bits(bytes: &[u8], wanted: impl Fn(u8) -> bool) -> u64 {
        bytes
            .iter()
            .enumerate()
            .fold(0, |bits, (i, byte)| bits | u64::from(wanted(*byte)) << i)
    }

    proptest! {
        #[test]
        fn lanes_say_what_bytes_say(
            bytes in prop::collection::vec(any::<u8>(), 64),
            byte: u8,
            first in 1u8..=127,
            last in 1u8..=127,
        ) {
            let lanes = lanes_of(&bytes);
            prop_assert_eq!(
                occupied_and_swapped(&lanes),
                (bits(&bytes, |b| b != 0), bits(&bytes, |b| b >= SWAPPED))
            );
            for label in [byte, bytes[0]].map(|byte| byte & !SWAPPED) {
                prop_assert_eq!(labelled(&lanes, label), bits(&bytes, |b| b & !SWAPPED == label));
            }
            prop_assert_eq!(
                labelled_within(&lanes, first, last),
                bits(&bytes, |b| b >= first && b <= last)
            );
            for page in 0..64 {
                prop_assert_eq!(label_of(&lanes, page), bytes[page as usize] & 0x7f);
            }
        }

        #[test]
        fn apply_changes_what_it_is_told(
            bytes in prop::collection::vec(any::<u8>(), 64),
            kinds in prop::collection::vec(0u8..5, 64),
            label in 1u8..=127,
        ) {
            let of = |kind| bits(&kinds, |k| k == kind);
            let changes =
                Changes { marked: of(1), gone: of(2), swapped_out: of(3), returned: of(4) };
            let mut lanes = lanes_of(&bytes);
            apply(&mut lanes, changes, label);
            let wanted: Vec<u8> = bytes.iter().zip(&kinds).map(|(byte, kind)| match kind {
                1 => label,
                2 => 0,
                3 => byte | SWAPPED,
                4 => byte & !SWAPPED,
                _ => *byte,
            }).collect();
            prop_assert_eq!(lanes, lanes_of(&wanted));
        }
    }
}
