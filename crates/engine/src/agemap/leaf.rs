// SPDX-License-Identifier: Apache-2.0
//! The bytes of one table, eight at a time in a `u64`: lane `i` of word `w` is page `8 * w + i`.
//! Plain integer arithmetic, so that it is the same on every machine and the compiler may use
//! whatever vectors there are.

use crate::generations::Label;
use crate::table::PAGES_PER_TABLE;

/// Set in a byte: the page is in swap, and the label says how old it was when it left.
pub(super) const SWAPPED: u8 = 0x80;

/// `u64` words in a leaf.
const LANE_WORDS: usize = PAGES_PER_TABLE / 8;

/// One byte a page of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf(pub [u64; LANE_WORDS]);

/// The bytes of 64 pages, those of one word of a [`PageBits`](crate::table::PageBits).
pub(super) type Lanes = [u64; 8];

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// 0xff in lane `i` where bit `i` of the index is set.
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

/// One bit a lane from the top bit of each lane.
#[inline]
fn gather(high_bits: u64) -> u64 {
    ((high_bits & HIGH) >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
}

/// The top bit of each lane that is not zero. Only the top bits mean anything.
#[inline]
fn nonzero(lanes: u64) -> u64 {
    ((lanes & !HIGH) + !HIGH) | lanes
}

/// What to change in the bytes of 64 pages, a bit a page. A page in none keeps its byte.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Gets the label alone.
    pub marked: u64,
    /// Gets nothing: the page is gone.
    pub gone: u64,
    /// Gets the swapped bit on top of the label it has.
    pub swapped_out: u64,
    /// Loses the swapped bit.
    pub returned: u64,
}

impl Leaf {
    /// Every byte the same.
    pub fn filled(byte: u8) -> Self {
        Leaf([LOW * u64::from(byte); LANE_WORDS])
    }

    /// The byte of one page.
    pub fn byte(&self, page: usize) -> u8 {
        (self.0[page / 8] >> (8 * (page % 8))) as u8
    }

    /// The bytes of word `word` of the bits.
    #[inline]
    pub fn lanes(&self, word: usize) -> &Lanes {
        self.0[8 * word..8 * word + 8]
            .try_into()
            .expect("eight words of lanes")
    }

    /// The bytes of word `word` of the bits.
    #[inline]
    pub fn lanes_mut(&mut self, word: usize) -> &mut Lanes {
        (&mut self.0[8 * word..8 * word + 8])
            .try_into()
            .expect("eight words of lanes")
    }
}

/// A bit for each page whose byte is not zero, and one for each that is swapped.
#[inline]
pub(super) fn occupied_and_swapped(lanes: &Lanes) -> (u64, u64) {
    let (mut occupied, mut swapped) = (0, 0);
    for (i, lane) in lanes.iter().enumerate() {
        occupied |= gather(nonzero(*lane)) << (8 * i);
        swapped |= gather(*lane) << (8 * i);
    }
    (occupied, swapped)
}

/// A bit for each page whose byte is exactly this.
#[inline]
pub(super) fn equal_to(lanes: &Lanes, byte: u8) -> u64 {
    let wanted = LOW * u64::from(byte);
    let mut equal = 0;
    for (i, lane) in lanes.iter().enumerate() {
        equal |= gather(!nonzero(lane ^ wanted)) << (8 * i);
    }
    equal
}

/// A bit for each page that is present with a label from `first` to `last` (1 ..= 127).
#[inline]
pub(super) fn labelled_within(lanes: &Lanes, first: Label, last: Label) -> u64 {
    // A lane below 0x80 carries into its top bit when it plus 0x80 - n is 0x80 or more: lane >= n.
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

/// Gives pages of 64 a label: what [`apply`] does when nothing else changes.
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

/// The labels alone, without the swapped bits.
#[inline]
pub(super) fn labels(lanes: &Lanes) -> Lanes {
    lanes.map(|lane| lane & !HIGH)
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
            prop_assert_eq!(equal_to(&lanes, byte), bits(&bytes, |b| b == byte));
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
