// SPDX-License-Identifier: Apache-2.0
//! Which blocks are followed.

use std::ops::Range;

use super::Level;
use crate::mix::hash;

/// What identifies the blocks of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Their addresses: memory of one process, or of processes that were forked.
    Address,
    /// A file that several processes map, at places of their own: its pages.
    File {
        /// A number of the file.
        seed: u64,
        /// Page of the file at the first address.
        first_page: u64,
    },
}

/// A mapping, in pages of the address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    /// Page numbers: address / page size.
    pub pages: Range<u64>,
    /// What names its blocks.
    pub identity: Identity,
    /// Neighbours of one kind count as one mapping: changes of protection split mappings, and split
    /// them again.
    pub kind: u8,
}

/// Something that is followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Page numbers.
    pub pages: Range<u64>,
    /// Number of the area it lies in.
    pub area: usize,
    /// Its mapping is followed whole; otherwise it stands for 2^level like it.
    pub is_whole: bool,
}

/// What is followed of these areas (ascending, disjoint), in ascending order: mappings of up to
/// `whole_limit` pages whole, of the others one block in 2^`level`. At level 0 everything is.
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

/// The size in pages up to which mappings are followed whole, so that those of all processes
/// together have no more than `pages_max`: a power of two less one, or 0.
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

/// Size in pages and number of areas of each mapping: areas of one kind without a hole between.
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

/// The block followed of stratum number `stratum`: 2^`level` blocks, at a multiple of as many. Of
/// its two halves the hash takes one, and of that the half that a finer sample would.
fn chosen(seed: u64, stratum: u64, level: Level) -> u64 {
    let levels = (1..=level).rev();
    levels.fold(stratum, |at, level| at * 2 + upper_half(seed, at, level))
}

/// Whether the upper half (1) of stratum number `stratum` is taken, or the lower one (0).
pub(super) fn upper_half(seed: u64, stratum: u64, level: Level) -> u64 {
    hash(seed ^ u64::from(level).rotate_left(56) ^ stratum) >> 63
}
