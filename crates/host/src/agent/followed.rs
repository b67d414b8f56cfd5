// SPDX-License-Identifier: Apache-2.0
//! What is followed of one process (everything or a sample), and estimates for the whole.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::agemap::{AgeMap, RangeSizes};
use agewise_policy::generations::{ByType, Generations, LABEL_UNSEEN, LABELS, Label, Sizes};
use agewise_policy::sample::{
    self, Area, Bounds, Identity, Level, Margin, Piece, Spread, choose, level_for, sampled, scale,
};
use agewise_policy::workingset::Intervals;

use super::{Agent, Space};
use crate::access::{AddressRange, PAGE_BYTES, Resolution};
use crate::process::Status;
use crate::vma::{Vma, VmaKind};

/// [`Area::kind`] of memory that belongs to no file.
const ANON: u8 = 0;

/// Where shared memory comes from: its file, or the program of processes that were forked, by
/// device and inode.
pub(super) type Origin = (u64, u64);

/// What a range that is read belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartOf {
    /// Index in [`Followed::mappings`].
    pub mapping: u32,
    /// Whether all of that mapping is followed.
    pub is_whole: bool,
}

/// The ranges that are read, and the mapping of each.
#[derive(Debug, Default)]
pub(super) struct Followed {
    level: Level,
    whole_limit: u64,
    files_whole: bool,
    block_pages: u64,
    areas: Vec<Area>,
    /// Whether the ranges have been chosen for the current areas.
    is_chosen: bool,
    /// Ascending, disjoint: mappings, or blocks of them.
    pub ranges: Vec<AddressRange>,
    /// The mapping of each range.
    pub of: Vec<PartOf>,
    /// Indexes of the mappings that are followed at least in part, ascending.
    pub mappings: Vec<u32>,
    /// Resident pages by type, as the kernel counted them at the last look.
    known: ByType<u64>,
    swapped_pages: u64,
}

impl Agent {
    /// Chooses what to follow of each process: everything if that is little or single pages are
    /// wanted, otherwise the same fraction of each.
    pub(super) fn follow(&mut self) {
        let tells_pages = self.source.abilities().resolution == Resolution::Page;
        let sample = self.config.sample.filter(|_| tells_pages);
        let bounds = sample.unwrap_or_default();
        let resident = self.spaces().map(|space| space.resident_pages).sum();
        let level = sample.map_or(0, |bounds| level_for(resident, 0, &bounds));
        for space in self.spaces.values_mut() {
            space.take_mappings();
        }
        let is_sample = level > 0 || self.spaces.values().any(|space| space.followed.level() > 0);
        if is_sample {
            let areas = self.spaces().map(|space| space.followed.areas());
            let limit = sample::whole_limit(areas, bounds.whole_pages);
            self.whole_limit = self.whole_limit.min(limit);
        }
        let whole_limit = self.whole_limit;
        // The page cache needs to know all accesses through mappings to the pages it counts.
        let files_whole = self.cache.is_some();
        // A page that only one of several processes follows would count as its own, so those that
        // share much have the coarsest sample of any: no sample becomes finer. Little, such as a
        // library, is not worth a coarse sample of everything else.
        let much = bounds.whole_pages;
        let shares = |space: &Space| space.shares_sample(whole_limit, files_whole, much);
        let shared: Vec<Vec<Origin>> = self.spaces().map(shares).collect();
        let mut coarsest: HashMap<Origin, Level> = HashMap::new();
        for (space, origins) in self.spaces.values().zip(&shared) {
            for origin in origins {
                let level = coarsest.entry(*origin).or_insert(level);
                *level = space.followed.level().max(*level);
            }
        }
        for (space, origins) in self.spaces.values_mut().zip(&shared) {
            let levels = origins.iter().map(|origin| coarsest[origin]);
            let level = levels.fold(level, Level::max);
            space
                .followed
                .choose(level, whole_limit, &bounds, files_whole);
        }
    }
}

impl Space {
    /// The sampling level at a page: one block in 2^level is followed. `None` if this page is not.
    pub fn level_at(&self, page: u64) -> Option<Level> {
        self.followed.level_at(page)
    }
}

/// Pages that are followed.
pub(super) struct FollowedSizes {
    /// In blocks, each of which represents an area; all pages of a process without a sample.
    pub sampled: Sizes,
    /// In mappings that are followed whole beside blocks.
    pub whole: Sizes,
}

/// Estimates for a whole process from its sample, in pages.
pub(super) struct Estimate {
    /// Counted in blocks, and in mappings followed whole.
    pub sampled: Sizes,
    pub whole: Sizes,
    /// Estimate of all resident pages, by label.
    pub scaled: Sizes,
    /// The margin of each bin, in pages.
    pub margins: Vec<ByType<Margin>>,
}

impl Followed {
    /// Sets the current mappings, and whether their pages may be shared.
    pub fn set_mappings<'v>(&mut self, mappings: impl Iterator<Item = (&'v Vma, bool)>) {
        let areas: Vec<Area> = mappings
            .map(|(vma, is_shared)| area(vma, is_shared))
            .collect();
        self.is_chosen &= areas == self.areas;
        self.areas = areas;
    }

    /// Chooses which parts are followed. Does nothing if neither the mappings nor the arguments
    /// changed. With `files_whole`, mappings of files and shared memory are followed whole,
    /// whatever their size.
    pub fn choose(&mut self, level: Level, whole_limit: u64, bounds: &Bounds, files_whole: bool) {
        // A sample never becomes finer: blocks added late would have no history.
        let level = level.max(self.level);
        let whole_limit = if level == 0 { u64::MAX } else { whole_limit };
        let is_same =
            (level, whole_limit, files_whole) == (self.level, self.whole_limit, self.files_whole);
        if self.is_chosen && is_same {
            return;
        }
        self.is_chosen = true;
        (self.level, self.whole_limit, self.files_whole) = (level, whole_limit, files_whole);
        self.block_pages = bounds.block_pages;
        self.ranges.clear();
        self.of.clear();
        self.mappings.clear();
        let mut pieces = choose(&self.areas, level, bounds.block_pages, whole_limit);
        if files_whole {
            let is_of_file = |area: usize| self.areas[area].kind != ANON;
            pieces.retain(|piece| !is_of_file(piece.area));
            let files = (0..self.areas.len()).filter(|area| is_of_file(*area));
            pieces.extend(files.map(|area| Piece {
                pages: self.areas[area].pages.clone(),
                area,
                is_whole: true,
            }));
            pieces.sort_by_key(|piece| piece.pages.start);
        }
        for piece in pieces {
            let number = piece.area as u32;
            if self.mappings.last() != Some(&number) {
                self.mappings.push(number);
            }
            self.ranges.push(AddressRange {
                start: piece.pages.start * PAGE_BYTES,
                end: piece.pages.end * PAGE_BYTES,
            });
            self.of.push(PartOf {
                mapping: self.mappings.len() as u32 - 1,
                is_whole: piece.is_whole,
            });
        }
    }

    /// How coarse the sample is; 0 if everything is followed.
    pub fn level(&self) -> Level {
        self.level
    }

    fn level_at(&self, page: u64) -> Option<Level> {
        let at = self
            .ranges
            .partition_point(|range| pages(range).end <= page);
        let is_within = self.ranges.get(at)?.start <= page * PAGE_BYTES;
        let is_whole = self.of[at].is_whole;
        is_within.then_some(if is_whole { 0 } else { self.level })
    }

    /// The mappings (by index) that are followed by sample at any level above 0.
    pub fn sampled(&self, whole_limit: u64, files_whole: bool) -> impl Iterator<Item = usize> {
        sampled(&self.areas, whole_limit)
            .filter(move |area| !files_whole || self.areas[*area].kind == ANON)
    }

    /// The mappings as areas of the sample.
    pub fn areas(&self) -> &[Area] {
        &self.areas
    }

    /// Whether any mapping is followed only in part.
    pub fn is_sample(&self) -> bool {
        self.of.iter().any(|of| !of.is_whole)
    }

    /// Sets the kernel's page counts, to which the sample is scaled.
    pub fn set_known(&mut self, status: &Status) {
        let pages = |bytes: u64| bytes / PAGE_BYTES;
        self.known = [
            pages(status.rss_anon_bytes.saturating_add(status.rss_shmem_bytes)),
            pages(status.rss_file_bytes),
        ];
        self.swapped_pages = pages(status.swap_bytes);
    }

    /// Resident pages by type as the kernel counted them.
    pub fn known(&self) -> ByType<u64> {
        self.known
    }

    /// Resident pages as the kernel counted them.
    pub fn known_pages(&self) -> u64 {
        self.known.iter().sum()
    }

    /// Pages in swap as the kernel counted them.
    pub fn swapped_pages(&self) -> u64 {
        self.swapped_pages
    }

    /// Bytes of memory used.
    pub fn memory_bytes(&self) -> usize {
        self.areas.capacity() * size_of::<Area>()
            + self.ranges.capacity() * size_of::<AddressRange>()
            + self.of.capacity() * size_of::<PartOf>()
            + self.mappings.capacity() * size_of::<u32>()
    }

    /// Estimates the ages of the whole process from what is followed. With `bounds`, also the
    /// margin of each bin.
    pub fn estimate(&self, map: &AgeMap, now_ms: u64, bounds: Option<&Intervals>) -> Estimate {
        let window = map.generations();
        let bins = bounds.map_or(0, |bounds| bounds.bounds_ms().len() + 1);
        let bin_of = bounds.map(|bounds| bins_of_labels(window, now_ms, bounds));
        let mut spreads = [Spread::new(bins), Spread::new(bins)];
        let mut sampled: Sizes = [[0; 2]; LABELS];
        let mut block = [vec![0; bins], vec![0; bins]];
        for (range, of) in self.ranges.iter().zip(&self.of) {
            if of.is_whole {
                continue;
            }
            block.iter_mut().for_each(|bins| bins.fill(0));
            map.count_within(pages(range), |label, page_type, n| {
                sampled[usize::from(label)][page_type as usize] += n;
                if let Some(bin_of) = &bin_of {
                    block[page_type as usize][bin_of[usize::from(label)]] += n;
                }
            });
            for (spread, block) in spreads.iter_mut().zip(&block) {
                spread.add(block);
            }
        }
        let whole = subtract(window.sizes(), &sampled);
        let scaled = scale(&whole, &sampled, self.known);
        let sum = |sizes: &Sizes, page_type: usize| -> u64 {
            sizes.iter().map(|by_type| by_type[page_type]).sum()
        };
        let of_type = |page_type: usize| {
            let represented = sum(&scaled, page_type).saturating_sub(sum(&whole, page_type));
            spreads[page_type].margins(represented)
        };
        let [anon, file] = [of_type(0), of_type(1)];
        Estimate {
            sampled,
            whole,
            scaled,
            margins: anon.into_iter().zip(file).map(|(a, f)| [a, f]).collect(),
        }
    }

    /// What is followed of some mappings (by index).
    pub fn sizes_of(&self, map: &AgeMap, is_meant: impl Fn(usize) -> bool) -> FollowedSizes {
        let is_sample = self.is_sample();
        let mut all = FollowedSizes {
            sampled: [[0; 2]; LABELS],
            whole: [[0; 2]; LABELS],
        };
        for (range, of) in self.ranges.iter().zip(&self.of) {
            if is_meant(self.mappings[of.mapping as usize] as usize) {
                let sizes = match is_sample && of.is_whole {
                    true => &mut all.whole,
                    false => &mut all.sampled,
                };
                map.count_within(pages(range), |label, page_type, n| {
                    sizes[usize::from(label)][page_type as usize] += n;
                });
            }
        }
        all
    }

    /// The ages in a range, such as a mapping; blocks are scaled to the areas they represent.
    pub fn sizes_within(&self, map: &AgeMap, wanted: Range<u64>) -> RangeSizes {
        if !self.is_sample() {
            return map.sizes_within(wanted);
        }
        let mut sum = RangeSizes {
            sizes: Box::new([[0; 2]; LABELS]),
            swapped: [0; 2],
        };
        let first = self
            .ranges
            .partition_point(|range| pages(range).end <= wanted.start);
        for (range, of) in self.ranges.iter().zip(&self.of).skip(first) {
            let pages = pages(range);
            if pages.start >= wanted.end {
                break;
            }
            let weight = match of.is_whole {
                true => 1,
                false => 1u64 << self.level.min(63),
            };
            let within = pages.start.max(wanted.start)..pages.end.min(wanted.end);
            let found = map.sizes_within(within);
            for (sum, found) in sum.sizes.iter_mut().zip(found.sizes.iter()) {
                sum[0] += found[0].saturating_mul(weight);
                sum[1] += found[1].saturating_mul(weight);
            }
            sum.swapped[0] += found.swapped[0].saturating_mul(weight);
            sum.swapped[1] += found.swapped[1].saturating_mul(weight);
        }
        sum
    }
}

impl Estimate {
    /// Scales up pages counted among the sampled ones of each label, and adds those counted whole.
    pub fn scaled_up(&self, counted: &FollowedSizes) -> Sizes {
        std::array::from_fn(|label| {
            std::array::from_fn(|page_type| {
                let of = self.sampled[label][page_type];
                let stands_for = self.scaled[label][page_type] - self.whole[label][page_type];
                let part = u128::from(counted.sampled[label][page_type]) * u128::from(stands_for);
                let more = part.checked_div(of.into()).unwrap_or(0) as u64;
                counted.whole[label][page_type] + more
            })
        })
    }
}

impl FollowedSizes {
    /// Pages of all labels and types.
    pub fn pages(&self) -> u64 {
        let all = self.sampled.iter().chain(&self.whole);
        all.flatten().sum()
    }
}

/// `sizes` minus `part`.
pub(super) fn subtract(sizes: &Sizes, part: &Sizes) -> Sizes {
    std::array::from_fn(|label| {
        std::array::from_fn(|page_type| {
            sizes[label][page_type].saturating_sub(part[label][page_type])
        })
    })
}

fn pages(range: &AddressRange) -> Range<u64> {
    range.start / PAGE_BYTES..range.end / PAGE_BYTES
}

/// A file that several processes map is sampled by file offset, so that all follow the same pages.
fn area(vma: &Vma, is_shared: bool) -> Area {
    let identity = match vma.inode {
        inode if inode != 0 && is_shared => Identity::File {
            seed: inode ^ vma.device.rotate_left(40),
            first_page: vma.offset / PAGE_BYTES,
        },
        _ => Identity::Address,
    };
    Area {
        pages: pages(&vma.range),
        identity,
        kind: match vma.kind {
            VmaKind::Anon => ANON,
            VmaKind::FilePrivate => 1,
            VmaKind::FileShared => 2,
            VmaKind::Shmem => 3,
            VmaKind::Hugetlb | VmaKind::Special => 4,
        },
    }
}

/// The bin of each label, by the middle of its interval.
pub(super) fn bins_of_labels(
    window: &Generations,
    now_ms: u64,
    bounds: &Intervals,
) -> [usize; LABELS] {
    let bounds_ms = bounds.bounds_ms();
    let bin = |age_ms: u64| bounds_ms.partition_point(|bound| *bound < age_ms);
    let mut bins = [0; LABELS];
    let mut end_ms = now_ms;
    for (label, generation) in window.iter().rev() {
        let label: Label = label;
        let birth_ms = generation.birth_ms.min(end_ms);
        bins[usize::from(label)] = bin(now_ms.saturating_sub(birth_ms.midpoint(end_ms)));
        end_ms = birth_ms;
    }
    let since_ms = window.unseen_since_ms().unwrap_or(now_ms);
    bins[usize::from(LABEL_UNSEEN)] = bin(now_ms.saturating_sub(since_ms));
    bins
}
