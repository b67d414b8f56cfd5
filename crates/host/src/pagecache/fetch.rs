// SPDX-License-Identifier: Apache-2.0
//! Takes in accesses between two looks at the cache.

use std::collections::HashMap;
use std::ops::Range;

use agewise_policy::generations::{ByType, LABELS, Sizes};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::accessed::{Accesses, Block};
use super::between::{Between, ThroughMappings};
use super::cached::CachedFile;
use super::files::{FileAges, clock_ms};
use super::shown::CacheKind;
use super::uses::Uses;
use crate::access::AccessError;

impl FileAges {
    /// Fetches the accesses so far, without looking at what is cached. Pages that the last look
    /// found become as young as they are.
    ///
    /// # Errors
    /// The errors of [`Accessed::look`](super::accessed::Accessed::look).
    pub fn take_in_accesses(&mut self) -> Result<(), AccessError> {
        let later = self.fetch()?;
        self.take_in_between(&later, clock_ms());
        self.pending.add(later);
        Ok(())
    }

    /// Fetches the accesses since the last time.
    pub(super) fn fetch(&mut self) -> Result<Accesses, AccessError> {
        let later = self.accessed.look()?;
        self.unshown.add(&later);
        Ok(later)
    }

    /// Makes the accessed pages that the last look found as young as they are.
    fn take_in_between(&mut self, later: &Accesses, now_ms: u64) {
        if self.looks == 0 {
            return;
        }
        self.count_returned_between(later, now_ms);
        let mut unaged = Uses::new();
        for (block, pages) in &later.blocks {
            let touched = self.touch(block, pages, now_ms);
            if !touched.is_empty() {
                *self.between.aged.entry(*block).or_default() |= touched;
            }
            let missed = pages.without(&touched);
            if !missed.is_empty() {
                unaged.insert(*block, missed);
            }
        }
        if !unaged.is_empty() {
            self.between.add_unaged(now_ms, unaged);
        }
        self.map.advance(now_ms);
        self.aged_ms = now_ms;
    }

    /// After a look, gives the pages that it found and the one before it did not the times of their
    /// accesses. Those that are `mapped` may have been accessed later.
    pub(super) fn take_in_unaged(&mut self, between: Between, mapped: &Uses) {
        for (at_ms, uses) in between.unaged {
            for (block, pages) in uses {
                let mapped = mapped.get(&block).copied().unwrap_or_default();
                self.touch(&block, &pages.without(&mapped), at_ms);
            }
        }
    }

    /// Counts the pages that a look found accessed through mappings, before it ends.
    pub(super) fn count_mapped(&mut self, mapped: &Uses) {
        let mut pages: HashMap<u64, ByType<u64>> = HashMap::new();
        for (block, set) in mapped {
            let Some(file) = self.file_of(block) else {
                continue;
            };
            let page_type = usize::from(file.on.kind != CacheKind::Shmem);
            for page in set.pages() {
                let cgroup = file.cgroup_of(block.pages().start + page as u64);
                pages.entry(cgroup).or_default()[page_type] += 1;
            }
        }
        self.through_mappings = ThroughMappings {
            since_ms: self.last_look_ms,
            pages,
        };
    }

    /// Pages that the last look found accessed through mappings, of cgroups for which `owns`
    /// returns true, and the times between which that was. They count as accessed right before the
    /// look.
    pub fn through_mappings(&self, owns: &dyn Fn(u64) -> bool) -> (Range<u64>, ByType<u64>) {
        let found = &self.through_mappings;
        let of = found.pages.iter().filter(|(cgroup, _)| owns(**cgroup));
        let sum = of.fold([0; 2], |sum: ByType<u64>, (_, pages)| {
            [sum[0] + pages[0], sum[1] + pages[1]]
        });
        (found.since_ms..self.last_look_ms, sum)
    }

    /// Gives pages of a block the time of an access. Returns those that the last look found.
    fn touch(&mut self, block: &Block, pages: &PageSet, at_ms: u64) -> PageSet {
        let file = self.files.get(&(block.inode, block.number));
        let Some(place) = file.and_then(|file| Place::of(file, block)) else {
            return PageSet::NONE;
        };
        let touched = self.map.touch(place.table, &place.in_table(pages), at_ms);
        place.in_block(&touched)
    }

    /// Counts the pages that are accessed for the first time since the last look by the labels they
    /// had until now.
    fn count_returned_between(&mut self, later: &Accesses, now_ms: u64) {
        if self.returned_bounds.is_none() {
            return;
        }
        let mut sums: HashMap<u64, Box<Sizes>> = HashMap::new();
        for (block, pages) in &later.blocks {
            let file = self.files.get(&(block.inode, block.number));
            let Some(file) = file.filter(|file| self.is_droppable(file)) else {
                continue;
            };
            let known = self.between.aged.get(block).copied().unwrap_or_default();
            for page in pages.without(&known).pages() {
                let page = block.pages().start + page as u64;
                let before = self.map.page(file.slot.first + page);
                if let Some(before) = before.filter(|_| self.is_present(file, page)) {
                    let sizes = sums.entry(file.cgroup_of(page));
                    let sizes = sizes.or_insert_with(|| Box::new([[0; 2]; LABELS]));
                    sizes[usize::from(before.label)][before.page_type as usize] += 1;
                }
            }
        }
        let mut returned = std::mem::take(&mut self.between.returned);
        self.add_returned(&sums, now_ms, &mut returned);
        self.between.returned = returned;
    }
}

/// The place of a block in the age map.
struct Place {
    table: u64,
    /// The first page within the table, and the number of pages: a small file shares a table.
    first: usize,
    room: usize,
}

impl Place {
    /// `None` if the file had less room when the last look found it.
    fn of(file: &CachedFile, block: &Block) -> Option<Self> {
        let start = block.pages().start;
        let room = file.slot.pages().checked_sub(start)?;
        let (first, pages) = (file.slot.first + start, PAGES_PER_TABLE as u64);
        (room > 0).then_some(Place {
            table: first / pages,
            first: (first % pages) as usize,
            room: room.min(pages) as usize,
        })
    }

    fn in_table(&self, pages: &PageSet) -> PageSet {
        let pages = *pages & PageSet::range(0..self.room);
        PageSet::from_words(|word| {
            let word = word.checked_sub(self.first / 64);
            word.map_or(0, |word| pages[word] << (self.first % 64))
        })
    }

    fn in_block(&self, pages: &PageSet) -> PageSet {
        let words = pages.words();
        PageSet::from_words(|word| {
            let word = words.get(word + self.first / 64);
            word.map_or(0, |word| word >> (self.first % 64))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::pagecache::fake::{FakeFile, Shared, file};
    use crate::pagecache::{CacheKind, FileAges};

    /// A pause between accesses, and somewhat less than that.
    const PAUSE: Duration = Duration::from_millis(30);
    const LESS_MS: u64 = 25;

    /// Pages of each file that were not accessed for less than a pause, by the number of the file.
    fn old_pages(ages: &FileAges) -> Vec<(u64, u64)> {
        let mut files: Vec<_> = ages.files().collect();
        files.sort_by_key(|file| file.inode.number);
        let old = files.into_iter().map(|file| {
            let runs = ages.cold(file, LESS_MS, &|_| true).into_iter();
            let pages = runs.map(|pages| pages.end - pages.start).sum();
            (file.inode.number, pages)
        });
        old.collect()
    }

    /// Three small files that share a table, and a large one.
    fn files() -> Vec<FakeFile> {
        let small = |number| file(number, CacheKind::File, 7, 40);
        let mut large = file(4, CacheKind::File, 7, 64);
        large.blocks = 3;
        vec![small(1), small(2), small(3), large]
    }

    #[test]
    fn a_page_is_as_old_as_its_access_and_not_as_young_as_the_look() {
        let shared = Shared::default();
        let read = |number: usize, pages| shared.0.lock().unwrap().files[number - 1].read = pages;
        shared.0.lock().unwrap().files = files();
        let mut ages = shared.ages(3_600_000);
        ages.keep_returned("1h".parse().unwrap());
        ages.look(&|_| true).unwrap();
        std::thread::sleep(PAUSE);
        // A file that the look did not find is read too.
        let new = FakeFile {
            read: 0b111,
            ..file(5, CacheKind::File, 7, 3)
        };
        shared.0.lock().unwrap().files.push(new);
        read(2, 0b11);
        read(4, 1 << 63);
        ages.take_in_accesses().unwrap();
        assert_eq!(ages.generations().pages(), [0, 120 + 3 * 64]);
        std::thread::sleep(PAUSE);
        read(2, 0b10);
        read(3, 0b1);
        ages.take_in_accesses().unwrap();
        read(1, 0b1111);
        let look = ages.look(&|_| true).unwrap();
        assert_eq!(look.young_pages, 4 + 2 + 1 + 3 + 3, "each counts once");
        let old = [(1, 36), (2, 39), (3, 39), (4, 3 * 64), (5, 3)];
        assert_eq!(old_pages(&ages), old);
        let (returned, _) = ages.returned(&|_| true).unwrap();
        assert_eq!(
            returned.total(),
            [0, 4 + 2 + 1 + 3],
            "what is new did not return"
        );
    }
}
