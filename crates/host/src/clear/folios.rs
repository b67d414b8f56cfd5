// SPDX-License-Identifier: Apache-2.0
//! Which pages must be given to `MADV_COLD` together. Pure.
//!
//! The kernel keeps the page cache in large folios where the file system knows them. A range that
//! covers a part of one makes `MADV_COLD` split it, and where it cannot (locked, with buffers that
//! are in use) the accessed bits stay as they were (`madvise_cold_or_pageout_pte_range`, 6.8 to
//! 6.18). So ranges of files grow to whole folios. Their bounds are not told to anybody, but a folio
//! lies in memory as in the file: in one piece, at a multiple of its size.

use agewise_engine::table::{PAGES_PER_TABLE, PageBits};

/// Orders of folios, the largest first; 2 MiB and less.
const ORDERS: std::ops::RangeInclusive<u32> = 1..=9;

/// `wanted` pages of a table, and all that may be in a folio with one of them. `frames` gives the
/// frame number of each page, or `None` of one that is not there.
pub fn whole(wanted: &PageBits, frames: impl Fn(usize) -> Option<u64>) -> PageBits {
    let mut whole = *wanted;
    let mut done = 0;
    for page in 0..PAGES_PER_TABLE {
        let is_wanted = wanted[page / 64] >> (page % 64) & 1 == 1;
        if !is_wanted || page < done {
            continue;
        }
        let Some((first, end)) = ORDERS
            .rev()
            .find_map(|order| block(&frames, page, 1 << order))
        else {
            continue;
        };
        for page in first..end {
            whole[page / 64] |= 1 << (page % 64);
        }
        done = end;
    }
    whole
}

/// The pages of the aligned block of `size` frames that `page` lies in, if all of it is mapped here
/// in one piece.
fn block(frames: &impl Fn(usize) -> Option<u64>, page: usize, size: u64) -> Option<(usize, usize)> {
    let frame = frames(page)?;
    let before = frame % size;
    let first = page.checked_sub(before as usize)?;
    let end = first + size as usize;
    if end > PAGES_PER_TABLE {
        return None;
    }
    // Where it is not, its ends tell most of the time.
    let mut pages = (first..end).zip(frame - before..);
    let is_one_piece = frames(end - 1) == Some(frame - before + size - 1)
        && pages.all(|(page, wanted)| frames(page) == Some(wanted));
    is_one_piece.then_some((first, end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bits(pages: impl IntoIterator<Item = usize>) -> PageBits {
        let mut bits = PageBits::default();
        for page in pages {
            bits[page / 64] |= 1 << (page % 64);
        }
        bits
    }

    #[test]
    fn a_page_grows_to_its_block_and_no_further() {
        // Frames 0x1000 + page: one piece of 512, aligned.
        let one_piece = |page: usize| Some(0x1000 + page as u64);
        assert_eq!(whole(&bits([77]), one_piece), [u64::MAX; 8]);
        // A folio of 16 at page 32, among frames that belong to nothing.
        let sixteen = |page: usize| match page {
            32..48 => Some(0x7f0 + page as u64 - 32),
            _ => Some(0x10_0000 + 7919 * page as u64),
        };
        assert_eq!(whole(&bits([33, 40]), sixteen), bits(32..48));
        assert_eq!(whole(&bits([31, 48]), sixteen), bits([31, 48]));
        // Not there: nothing to grow into.
        assert_eq!(whole(&bits([5]), |_| None), bits([5]));
    }

    #[test]
    fn a_block_with_a_hole_is_not_one_piece() {
        let holed = |page: usize| (page != 9).then_some(0x1000 + page as u64);
        assert_eq!(whole(&bits([2]), holed), bits(0..8));
        assert_eq!(whole(&bits([8]), holed), bits([8]));
    }

    proptest! {
        /// Whatever the folios are, none that has a wanted page is covered in part.
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
            let wanted: PageBits = std::array::from_fn(|word| {
                let there = (0..64).filter(|bit| frames[word * 64 + bit].is_some());
                let there = there.fold(0, |bits, bit| bits | 1u64 << bit);
                wanted[word] & sparse[word] & there
            });
            let whole = whole(&wanted, |page| frames[page]);
            let has = |bits: &PageBits, page: usize| bits[page / 64] >> (page % 64) & 1 == 1;
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
