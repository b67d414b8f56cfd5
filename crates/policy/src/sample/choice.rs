// SPDX-License-Identifier: Apache-2.0
//! Selects the blocks to follow.

use std::ops::Range;

use super::Level;
use crate::mix::hash;

/// What identifies the blocks of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Their addresses: memory of one process, or of processes that were forked.
    Address,
    /// Pages of a file that several processes map, each at its own addresses.
    File {
        /// A number that identifies the file.
        seed: u64,
        /// The page of the file that is mapped at the first address.
        first_page: u64,
    },
}

/// A mapping, in pages of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Page numbers: address / page size.
    pub pages: Range<u64>,
    /// What identifies its blocks.
    pub identity: Identity,
    /// Neighbours of the same kind count as one mapping, because changes of protection split
    /// mappings.
    pub kind: u8,
}

/// A range of pages that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Page numbers.
    pub pages: Range<u64>,
    /// Index of the area that contains it.
    pub area: usize,
    /// Whether its mapping is followed whole; otherwise it represents 2^level blocks.
    pub is_whole: bool,
}

/// Selects what to follow of these areas (ascending, disjoint), in ascending order: mappings of up
/// to `whole_limit` pages whole, and one block in 2^`level` of the others. Level 0 follows
/// everything.
pub fn choose(areas: &[Area], level: Level, block_pages: u64, whole_limit: u64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut from = 0;
    for (pages, count) in mappings(areas) {
        let is_whole = level == 0 || pages <= whole_limit;
        for (number, area) in areas.iter().enumerate().skip(from).take(count) {
            if is_whole {
                pieces.push(Piece {
                    pages: area.pages.clone(),
                    area: number,
                    is_whole,
                });
            } else {
                blocks(number, area, level, block_pages, &mut pieces);
            }
        }
        from += count;
    }
    pieces
}

/// The areas (by index) that [`choose`] does not follow whole at any level above 0.
pub fn sampled(areas: &[Area], whole_limit: u64) -> impl Iterator<Item = usize> + '_ {
    let mut from = 0;
    mappings(areas).flat_map(move |(pages, count)| {
        let end = from + count;
        let start = std::mem::replace(&mut from, end);
        if pages > whole_limit {
            start..end
        } else {
            end..end
        }
    })
}

/// The size in pages up to which mappings are followed whole, so that those of all processes
/// together have at most `pages_max` pages: a power of two less one, or 0.
pub fn whole_limit<'a>(processes: impl Iterator<Item = &'a [Area]>, pages_max: u64) -> u64 {
    let mut by_size = [0u64; 65];
    for areas in processes {
        for (pages, _) in mappings(areas) {
            let sum = &mut by_size[(u64::BITS - pages.leading_zeros()) as usize];
            *sum = sum.saturating_add(pages);
        }
    }
    let mut sum = 0u64;
    let fits = by_size.iter().take_while(|pages| {
        sum = sum.saturating_add(**pages);
        sum <= pages_max
    });
    match fits.count() {
        0 => 0,
        bits => u64::MAX.checked_shr(65 - bits as u32).unwrap_or(0),
    }
}

/// Size in pages and number of areas of each mapping: adjacent areas of one kind.
fn mappings(areas: &[Area]) -> impl Iterator<Item = (u64, usize)> + '_ {
    areas
        .chunk_by(|a, b| a.pages.end == b.pages.start && a.kind == b.kind)
        .map(|group| {
            let pages = group.iter().map(|area| area.pages.end - area.pages.start);
            (pages.sum(), group.len())
        })
}

fn blocks(number: usize, area: &Area, level: Level, block_pages: u64, out: &mut Vec<Piece>) {
    let (seed, first) = match area.identity {
        Identity::Address => (0, area.pages.start),
        Identity::File { seed, first_page } => (seed, first_page),
    };
    let end = first + (area.pages.end - area.pages.start);
    let (first_block, end_block) = (first / block_pages, end.div_ceil(block_pages));
    for stratum in first_block >> level..=(end_block - 1) >> level {
        let start = chosen(seed, stratum, level) * block_pages;
        let (from, to) = (start.max(first), (start + block_pages).min(end));
        if from < to {
            out.push(Piece {
                pages: area.pages.start + (from - first)..area.pages.start + (to - first),
                area: number,
                is_whole: false,
            });
        }
    }
}

/// The block followed in stratum number `stratum`, which is 2^`level` blocks aligned to as many.
/// The hash selects one of its halves, and within it the half that a finer sample would select.
fn chosen(seed: u64, stratum: u64, level: Level) -> u64 {
    let levels = (1..=level).rev();
    levels.fold(stratum, |at, level| at * 2 + upper_half(seed, at, level))
}

/// Whether the upper half (1) or the lower half (0) of stratum number `stratum` is selected.
pub(super) fn upper_half(seed: u64, stratum: u64, level: Level) -> u64 {
    hash(seed ^ u64::from(level).rotate_left(56) ^ stratum) >> 63
}
