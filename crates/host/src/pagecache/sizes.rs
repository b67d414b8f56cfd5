// SPDX-License-Identifier: Apache-2.0
//! The pages of files by age, of files followed whole and of those followed by sample.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::generations::{ByType, LABEL_UNSEEN, LABELS, Sizes};
use agewise_policy::table::PAGES_PER_TABLE;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::accesses::Block;
use super::cached::{CachedFile, Owner};
use super::files::FileAges;
use super::gather::Word;
use super::sampled::add_scaled;

impl FileAges {
    /// From the next look on, counts accessed pages by how long they had been idle.
    pub fn keep_returned(&mut self, bounds: Intervals) {
        self.returned_bounds = Some(bounds);
    }

    /// Pages the last look found accessed, by their idle time until then, and the number of pages
    /// dropped and read again since the start. Only of cgroups for which `owns` returns true.
    /// `None` unless [`keep_returned`](Self::keep_returned) was called.
    pub fn returned(&self, owns: &dyn Fn(u64) -> bool) -> Option<(Histogram, u64)> {
        let mut sum = Histogram::new(self.returned_bounds.as_ref()?);
        let of = self.returned.iter().filter(|(cgroup, _)| owns(**cgroup));
        of.for_each(|(_, returned)| sum.add(returned));
        let refaulted = self.refaulted.iter().filter(|(cgroup, _)| owns(**cgroup));
        Some((sum, refaulted.map(|(_, pages)| pages).sum()))
    }

    /// Forgets which pages the last look found accessed.
    pub fn forget_returned(&mut self) {
        self.returned.clear();
    }

    /// Counts accessed pages by the labels they had until now.
    pub(super) fn count_returned(&mut self, words: &[Word], now_ms: u64) {
        let Some(bounds) = &self.returned_bounds else {
            return;
        };
        let mut sums: HashMap<u64, Box<Sizes>> = HashMap::new();
        let files = self.files.values().filter(|file| file.look == self.looks);
        for file in files.filter(|file| self.is_droppable(file)) {
            for (owner, pages) in file.owned() {
                let mut young = young_pages(words, pages).peekable();
                if young.peek().is_none() {
                    continue;
                }
                let sizes = sums.entry(owner.cgroup);
                let sizes = sizes.or_insert_with(|| Box::new([[0; 2]; LABELS]));
                for before in young.filter_map(|page| self.map.page(page)) {
                    sizes[usize::from(before.label)][before.page_type as usize] += 1;
                }
            }
        }
        let window = self.map.generations();
        let histogram = |sizes: &Sizes| {
            let mut returned = Histogram::new(bounds);
            returned.add_window(window, sizes, now_ms, OldestPages::AtLeast);
            returned
        };
        let sums = sums.iter();
        self.returned = sums
            .map(|(cgroup, sizes)| (*cgroup, histogram(sizes)))
            .collect();
    }

    /// The pages of a file by age, and the minimum ages of its oldest and its youngest page, in ms.
    /// Only pages charged to cgroups for which `owns` returns true.
    pub fn ages(
        &self,
        file: &CachedFile,
        intervals: &Intervals,
        owns: &dyn Fn(u64) -> bool,
    ) -> (Histogram, u64, u64) {
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        let sample = self.sample_of(file);
        for (_, pages) in file.owned().filter(|(owner, _)| owns(owner.cgroup)) {
            self.count(pages, sample.as_deref(), &mut sizes);
        }
        let (mut oldest, mut youngest) = (u8::MAX, LABEL_UNSEEN);
        for label in (LABEL_UNSEEN..).take_while(|label| usize::from(*label) < LABELS) {
            if sizes[usize::from(label)] != [0; 2] {
                oldest = oldest.min(label);
                youngest = youngest.max(label);
            }
        }
        let window = self.map.generations();
        let mut histogram = Histogram::new(intervals);
        histogram.add_window(window, &sizes, self.last_look_ms, OldestPages::AtLeast);
        let at_least = |label| {
            let bounds = window.age_bounds_ms(label, self.last_look_ms);
            bounds.map_or(0, |(at_least, _)| at_least)
        };
        (histogram, at_least(oldest), at_least(youngest))
    }

    /// Whether pages of a file can be dropped. Of a file followed by sample it is not known which
    /// of them are cold.
    pub(super) fn is_droppable(&self, file: &CachedFile) -> bool {
        file.can_be_dropped() && !self.is_sampled(file)
    }

    /// Pages that can be dropped, by age, of cgroups for which `owns` returns true.
    pub fn droppable(&self, owns: &dyn Fn(u64) -> bool) -> Box<Sizes> {
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for file in self.files.values().filter(|file| self.is_droppable(file)) {
            for (_, pages) in file.owned().filter(|(owner, _)| owns(owner.cgroup)) {
                self.count(pages, None, &mut sizes);
            }
        }
        sizes
    }

    /// All pages by owner, age and type. Anon is shared memory, which has an inode but goes to
    /// swap.
    pub fn sizes_by_owner(&self) -> HashMap<Owner, Box<Sizes>> {
        let mut found: HashMap<Owner, Box<Sizes>> = HashMap::new();
        for file in self.files.values() {
            let sample = self.sample_of(file);
            for (owner, pages) in file.owned() {
                let sizes = found
                    .entry(owner)
                    .or_insert_with(|| Box::new([[0; 2]; LABELS]));
                self.count(pages, sample.as_deref(), sizes);
            }
        }
        found
    }

    /// The files followed by sample.
    pub fn sampled_files(&self) -> impl Iterator<Item = &CachedFile> {
        self.sampled.keys().filter_map(|key| self.files.get(key))
    }

    /// The blocks of a file that have pages, ascending, with the keys used for accesses. The time
    /// depends on their number, not on the size of the file.
    pub fn blocks<'a>(&'a self, file: &'a CachedFile) -> impl Iterator<Item = Block> + 'a {
        let first = file.slot.first / PAGES_PER_TABLE as u64;
        let tables = self.map.tables_within(file.numbers());
        tables.map(move |table| file.inode.block(table - first))
    }

    /// The pages by age of each block that is followed of a file.
    pub fn sampled_blocks<'a>(
        &'a self,
        file: &'a CachedFile,
    ) -> impl Iterator<Item = Box<Sizes>> + 'a {
        let is_followed = |block: &Block| self.sampled.stand_in(block) == *block;
        self.blocks(file).filter(is_followed).map(|block| {
            let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
            let (pages, first) = (block.pages(), file.slot.first);
            self.count(first + pages.start..first + pages.end, None, &mut sizes);
            sizes
        })
    }

    /// The pages of a file by type, of cgroups for which `owns` returns true.
    pub fn pages_of(&self, file: &CachedFile, owns: &dyn Fn(u64) -> bool) -> ByType<u64> {
        let mut total = [0; 2];
        for (_, pages) in file.owned().filter(|(owner, _)| owns(owner.cgroup)) {
            self.map.count_within(pages, |_, page_type, pages| {
                total[page_type as usize] += pages;
            });
        }
        total
    }

    /// The pages of the blocks that are followed, by age, if a file is followed by sample.
    fn sample_of(&self, file: &CachedFile) -> Option<Box<Sizes>> {
        if !self.is_sampled(file) {
            return None;
        }
        let mut sum: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for sizes in self.sampled_blocks(file) {
            for (sum, pages) in sum.iter_mut().flatten().zip(sizes.iter().flatten()) {
                *sum += pages;
            }
        }
        Some(sum)
    }

    /// Adds the pages of a range to `sizes` by age, which is that of `sample` if there is one.
    fn count(&self, pages: Range<u64>, sample: Option<&Sizes>, sizes: &mut Sizes) {
        let mut total = [0; 2];
        self.map.count_within(pages, |label, page_type, pages| {
            total[page_type as usize] += pages;
            if sample.is_none() {
                sizes[usize::from(label)][page_type as usize] += pages;
            }
        });
        if let Some(sample) = sample {
            add_scaled(sizes, sample, total);
        }
    }
}

/// The pages of a range that are young according to `words`, which must be sorted.
fn young_pages(words: &[Word], pages: Range<u64>) -> impl Iterator<Item = u64> + '_ {
    let from = words.partition_point(|word| word.at < pages.start / 64);
    let of = words[from..]
        .iter()
        .take_while(move |word| word.at * 64 < pages.end);
    let young = of.filter(|word| word.young != 0).flat_map(|word| {
        let bits = (0..64).filter(|bit| word.young >> bit & 1 == 1);
        bits.map(|bit| word.at * 64 + bit)
    });
    young.filter(move |page| pages.contains(page))
}
