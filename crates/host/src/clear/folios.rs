// SPDX-License-Identifier: Apache-2.0
//! Finds the pages that must be passed to `MADV_COLD` together. Pure functions.
//!
//! The kernel keeps the page cache in large folios where the file system supports them. If a range
//! covers only part of one, `MADV_COLD` splits it; where it cannot (locked, or with buffers in use)
//! the accessed bits stay set (`madvise_cold_or_pageout_pte_range`, 6.8 to 6.18). So ranges of
//! files are extended to whole folios. No interface reports their bounds, but a folio is contiguous
//! in memory and in the file, and aligned to its size in both.

use std::ops::Range;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

/// Folio orders up to 2 MiB.
const ORDERS: std::ops::RangeInclusive<u32> = 1..=9;

/// Returns the `wanted` pages of a table, and all pages that may be in the same folio as one of
/// them. `frames` returns the frame number of a page, or `None` if it is not present.
pub fn whole(wanted: &PageSet, frames: impl Fn(usize) -> Option<u64>) -> PageSet {
    let mut whole = *wanted;
    let frames: [Option<u64>; PAGES_PER_TABLE] = std::array::from_fn(frames);
    let mut end = 0;
    while end < PAGES_PER_TABLE {
        let piece = piece_from(&frames, end);
        end = piece.end;
        let mut at = piece.start;
        while let Some(page) = next_wanted(wanted, at..piece.end) {
            let block = frames[page].and_then(|frame| block(frame, page, &piece));
            let block = block.unwrap_or(page..page + 1);
            at = block.end;
            block.for_each(|page| whole[page / 64] |= 1 << (page % 64));
        }
    }
    whole
}

/// The pages from `first` on whose frames are consecutive.
fn piece_from(frames: &[Option<u64>; PAGES_PER_TABLE], first: usize) -> Range<usize> {
    let pairs = frames[first..].windows(2);
    let follow = pairs.take_while(|pair| pair[0].is_some_and(|frame| pair[1] == Some(frame + 1)));
    first..first + 1 + follow.count()
}

fn next_wanted(wanted: &PageSet, pages: Range<usize>) -> Option<usize> {
    let mut at = pages.start;
    while at < pages.end {
        let rest = wanted[at / 64] >> (at % 64);
        if rest != 0 {
            let page = at + rest.trailing_zeros() as usize;
            return (page < pages.end).then_some(page);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

/// The largest aligned block of frames around `page` within its piece.
fn block(frame: u64, page: usize, piece: &Range<usize>) -> Option<Range<usize>> {
    ORDERS.rev().find_map(|order| {
        let first = page.checked_sub((frame % (1 << order)) as usize)?;
        let end = first + (1 << order);
        (piece.start <= first && end <= piece.end).then_some(first..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(pages: impl IntoIterator<Item = usize>) -> PageSet {
        let mut bits = PageSet::default();
        for page in pages {
            bits[page / 64] |= 1 << (page % 64);
        }
        bits
    }

    #[test]
    fn a_page_grows_to_its_block_and_no_further() {
        // Frames 0x1000 + page: one piece of 512, aligned.
        let one_piece = |page: usize| Some(0x1000 + page as u64);
        assert_eq!(whole(&bits([77]), one_piece), PageSet::ALL);
        // A folio of 16 at page 32, among scattered frames.
        let sixteen = |page: usize| match page {
            32..48 => Some(0x7f0 + page as u64 - 32),
            _ => Some(0x10_0000 + 7919 * page as u64),
        };
        assert_eq!(whole(&bits([33, 40]), sixteen), bits(32..48));
        assert_eq!(whole(&bits([31, 48]), sixteen), bits([31, 48]));
        // Not present: nothing to extend.
        assert_eq!(whole(&bits([5]), |_| None), bits([5]));
    }

    #[test]
    fn a_block_with_a_hole_is_not_one_piece() {
        let holed = |page: usize| (page != 9).then_some(0x1000 + page as u64);
        assert_eq!(whole(&bits([2]), holed), bits(0..8));
        assert_eq!(whole(&bits([8]), holed), bits([8]));
    }

    proptest! {
        /// Whatever the folios are, none with a wanted page is covered only in part.
        #[test]
        fn no_folio_is_covered_in_part(
            orders in prop::collection::vec((0u32..=9, 1u64..1 << 20), 1..40),
            wanted in any::<[u64; 8]>(),
            sparse in any::<[u64; 8]>(),
        ) {
            let mut frames = Vec::new();
            let mut folios = Vec::new();
            for (order, at) in orders {
                let size = 1usize << order;
                if frames.len() + size <= PAGES_PER_TABLE {
                    folios.push(frames.len()..frames.len() + size);
                    frames.extend((0..size as u64).map(|page| Some((at << 9) + page)));
                }
            }
            frames.resize(PAGES_PER_TABLE, None);
            let wanted: PageSet = PageSet::from_words(|word| {
                let there = (0..64).filter(|bit| frames[word * 64 + bit].is_some());
                let there = there.fold(0, |bits, bit| bits | 1u64 << bit);
                wanted[word] & sparse[word] & there
            });
            let whole = whole(&wanted, |page| frames[page]);
            let has = |bits: &PageSet, page: usize| bits[page / 64] >> (page % 64) & 1 == 1;
            for folio in folios {
                let is_wanted = folio.clone().any(|page| has(&wanted, page));
                if is_wanted {
                    prop_assert!(folio.clone().all(|page| has(&whole, page)));
                }
            }
            for (page, frame) in frames.iter().enumerate() {
                prop_assert!(!has(&wanted, page) || has(&whole, page));
                prop_assert!(!has(&whole, page) || frame.is_some());
            }
        }
    }
}
