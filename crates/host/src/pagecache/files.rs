// SPDX-License-Identifier: Apache-2.0
//! The ages of all file pages: what is cached and what was accessed, in one age map.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::generations::{Generations, LABEL_UNSEEN, LABELS, Sizes};
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::accessed::{Accessed, Accesses, Block};
use super::cached::{CachedFile, Mapped, Owner};
use super::dropped::Dropped;
use super::gather::{Asked, Gather, Gathered, Word};
use super::readers::{AccessNotes, CacheReader, NotFollowed};
use super::shown::{Key, WalkReport};
use super::slots::Slots;
use super::uses::{Unshown, Uses};
use super::walk::CacheWalk;
use crate::access::AccessError;
use crate::clock::{monotonic_ns, thread_cpu_ns};

/// The results and the cost of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilesLook {
    /// The report of the walk.
    #[serde(flatten)]
    pub walk: WalkReport,
    /// Pages accessed since the previous look.
    pub young_pages: u64,
    /// Events since then that reported new pages.
    pub events: u64,
    /// Events that were lost, so that some accessed pages look older than they are.
    pub dropped: u64,
    /// Inodes that were reused for another file while they were walked.
    pub void: u64,
    /// Files beyond [`FILES_MAX`], which no age includes.
    pub unfollowed: u64,
    /// CPU time in total, ns.
    pub cpu_ns: u64,
}

/// The ages of all files.
pub struct FileAges {
    walk: Box<dyn CacheReader>,
    accessed: Box<dyn AccessNotes>,
    map: AgeMap,
    slots: Slots,
    files: HashMap<Key, CachedFile>,
    /// Accesses since the last look that have been fetched already.
    pending: Accesses,
    unshown: Unshown,
    dropped: Dropped,
    /// Pages dropped and read again since the start, by cgroup.
    refaulted: HashMap<u64, u64>,
    returned_bounds: Option<Intervals>,
    /// Pages the last look found accessed, by cgroup and by their idle time until then.
    returned: HashMap<u64, Histogram>,
    looks: u32,
    last_look_ms: u64,
}

impl FileAges {
    /// Starts following files. Ages are distinguished up to `horizon_ms`.
    ///
    /// # Errors
    /// The errors of [`CacheWalk::open`] and [`Accessed::open`].
    pub fn open(horizon_ms: u64) -> Result<Self, AccessError> {
        let walk = CacheWalk::open()?;
        Ok(Self::new(
            Box::new(walk),
            Box::new(Accessed::open()?),
            horizon_ms,
        ))
    }

    /// Shows only what is cached, if accesses need not or cannot be followed. This costs readers of
    /// files nothing, and every page is of unknown age.
    ///
    /// # Errors
    /// The errors of [`CacheWalk::open`].
    pub fn resident(horizon_ms: u64) -> Result<Self, AccessError> {
        let walk = CacheWalk::open()?;
        Ok(Self::new(Box::new(walk), Box::new(NotFollowed), horizon_ms))
    }

    /// Like [`open`](Self::open), for looks that include mappings: [`look_with`](Self::look_with).
    ///
    /// # Errors
    /// The errors of [`CacheWalk::with_frames`] and [`Accessed::open`].
    pub fn with_frames(horizon_ms: u64) -> Result<Self, AccessError> {
        let walk = CacheWalk::with_frames()?;
        Ok(Self::new(
            Box::new(walk),
            Box::new(Accessed::open()?),
            horizon_ms,
        ))
    }

    /// Uses the given readers.
    pub fn new(
        walk: Box<dyn CacheReader>,
        accessed: Box<dyn AccessNotes>,
        horizon_ms: u64,
    ) -> Self {
        let now_ms = clock_ms();
        FileAges {
            walk,
            accessed,
            map: AgeMap::new(now_ms, horizon_ms),
            slots: Slots::default(),
            files: HashMap::new(),
            pending: Accesses::default(),
            unshown: Unshown::default(),
            dropped: Dropped::default(),
            refaulted: HashMap::new(),
            returned_bounds: None,
            returned: HashMap::new(),
            looks: 0,
            last_look_ms: now_ms,
        }
    }

    /// Looks at the whole page cache once. `owned` tells whether the pages of a cgroup count, by
    /// its kernfs id.
    ///
    /// # Errors
    /// The programs cannot run. Errors of single files are in the report.
    pub fn look(&mut self, owned: &dyn Fn(u64) -> bool) -> Result<FilesLook, AccessError> {
        self.look_with(owned, None)
    }

    /// Like [`look`](Self::look). With `mapped`, a page is as young as its last access through a
    /// descriptor or a mapping.
    ///
    /// # Errors
    /// As [`look`](Self::look).
    pub fn look_with(
        &mut self,
        owned: &dyn Fn(u64) -> bool,
        mapped: Option<&Mapped<'_>>,
    ) -> Result<FilesLook, AccessError> {
        let began_ns = thread_cpu_ns();
        // Accesses first: a page accessed after this counts for the next look.
        self.take_in_accesses()?;
        let accesses = std::mem::take(&mut self.pending);
        let now_ms = clock_ms();
        self.looks = self.looks.wrapping_add(1);
        let asked = Asked {
            accesses: &accesses,
            owned,
            mapped,
        };
        let mut gather = Gather::new(asked, &mut self.slots, &mut self.files, self.looks);
        let walk = self.walk.walk(&mut gather)?;
        let Gathered {
            mut words,
            given_up,
            mapped,
            void,
            unfollowed,
        } = gather.finish();
        let mut report = FilesLook {
            walk,
            events: accesses.events,
            dropped: accesses.dropped,
            void,
            unfollowed,
            ..FilesLook::default()
        };
        words.sort_unstable_by_key(|word| word.at);
        let at = (self.looks, now_ms);
        let back = self.dropped.look(&mut words, &mut self.files, at);
        for (cgroup, pages) in back {
            *self.refaulted.entry(cgroup).or_default() += pages;
        }
        self.count_returned(&words, now_ms);
        self.unshown.add_blocks(&mapped);
        report.young_pages = self.take_in(&words);
        self.map.advance(now_ms);
        let look = self.looks;
        let slots = &mut self.slots;
        self.files.retain(|_, file| {
            let stays = file.look == look;
            if !stays {
                slots.give_back(file.slot);
            }
            stays
        });
        given_up.into_iter().for_each(|slot| slots.give_back(slot));
        self.last_look_ms = now_ms;
        report.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(report)
    }

    /// Passes the tables to the age map, and returns the number of young pages. `words` must be
    /// sorted.
    fn take_in(&mut self, words: &[Word]) -> u64 {
        let mut look = self.map.look();
        for table in words.chunk_by(|a, b| a.at / 8 == b.at / 8) {
            let mut bits = TableBits::default();
            let mut files = PageSet::NONE;
            for word in table {
                let at = (word.at % 8) as usize;
                bits.present[at] |= word.present;
                bits.young[at] |= word.young;
                bits.swapped[at] |= word.out;
                let there = word.present | word.out;
                files[at] |= if word.is_file { there } else { 0 };
            }
            let facts = Facts {
                index: table[0].at / 8,
                bits: &bits,
                files,
                parts: &[],
            };
            // Tables come in ascending order.
            let _ = look.table(facts);
        }
        look.finish().young
    }

    /// Fetches the accesses so far, without looking at what is cached.
    ///
    /// # Errors
    /// The errors of [`Accessed::look`].
    pub fn take_in_accesses(&mut self) -> Result<(), AccessError> {
        let later = self.accessed.look()?;
        self.unshown.add(&later);
        self.pending.add(later);
        Ok(())
    }

    /// Returns the pages used since the last call: through descriptors up to now, and through
    /// mappings up to the last look. The first call only starts recording.
    ///
    /// # Errors
    /// The errors of [`Accessed::look`].
    pub fn take_uses(&mut self) -> Result<Uses, AccessError> {
        self.take_in_accesses()?;
        Ok(self.unshown.take())
    }

    /// The file that contains a block, if the last look found it.
    pub fn file_of(&self, block: &Block) -> Option<&CachedFile> {
        self.files.get(&(block.inode, block.number))
    }

    /// Accesses since the last look, as far as they have been fetched.
    pub fn pending(&self) -> &Accesses {
        &self.pending
    }

    /// The pages of a file that were not accessed for this long, as runs of indexes. Only pages
    /// charged to cgroups for which `owns` returns true, given a kernfs id.
    pub fn cold(
        &self,
        file: &CachedFile,
        older_than_ms: u64,
        owns: &dyn Fn(u64) -> bool,
    ) -> Vec<Range<u64>> {
        let first = file.slot.first;
        let mut runs: Vec<Range<u64>> = Vec::new();
        for (_, all) in file.owned().filter(|(owner, _)| owns(owner.cgroup)) {
            self.map
                .runs_older_than(all, self.last_look_ms, older_than_ms, |run| {
                    let pages = run.pages.start - first..run.pages.end - first;
                    match runs.last_mut() {
                        Some(last) if last.end == pages.start => last.end = pages.end,
                        _ => runs.push(pages),
                    }
                    ControlFlow::Continue(())
                });
        }
        runs
    }

    /// Whether the last look found a page of a file present.
    pub fn is_present(&self, file: &CachedFile, page: u64) -> bool {
        let state = self.map.page(file.slot.first + page);
        state.is_some_and(|state| !state.swapped)
    }

    /// Notes that pages of a file were dropped: if read again, they count as returned.
    pub fn note_dropped(&mut self, file: &CachedFile, pages: &Range<u64>) {
        self.dropped.add(file, pages, clock_ms());
    }

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

    /// Counts accessed pages by the labels they had until now.
    fn count_returned(&mut self, words: &[Word], now_ms: u64) {
        let Some(bounds) = &self.returned_bounds else {
            return;
        };
        let mut sums: HashMap<u64, Box<Sizes>> = HashMap::new();
        let files = self.files.values().filter(|file| file.look == self.looks);
        for file in files.filter(|file| file.can_be_dropped()) {
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

    /// All files that have pages of the cgroups of the last look.
    pub fn files(&self) -> impl Iterator<Item = &CachedFile> {
        self.files.values()
    }

    /// The time when the last look began, on the clock of ages.
    pub fn last_look_ms(&self) -> u64 {
        self.last_look_ms
    }

    /// How long files have been followed, in ms.
    pub fn observed_ms(&self) -> u64 {
        let since_ms = self.map.generations().unseen_since_ms();
        self.last_look_ms
            .saturating_sub(since_ms.unwrap_or(self.last_look_ms))
    }

    /// The pages of a file by age, and the minimum ages of its oldest and its youngest page, in ms.
    pub fn ages(&self, file: &CachedFile, intervals: &Intervals) -> (Histogram, u64, u64) {
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        let (mut oldest, mut youngest) = (u8::MAX, LABEL_UNSEEN);
        let range = file.slot.first..file.slot.first + file.slot.pages();
        self.map.count_within(range, |label, page_type, pages| {
            sizes[usize::from(label)][page_type as usize] += pages;
            if pages > 0 && label >= LABEL_UNSEEN {
                oldest = oldest.min(label);
                youngest = youngest.max(label);
            }
        });
        let window = self.map.generations();
        let mut histogram = Histogram::new(intervals);
        histogram.add_window(window, &sizes, self.last_look_ms, OldestPages::AtLeast);
        let at_least = |label| {
            let bounds = window.age_bounds_ms(label, self.last_look_ms);
            bounds.map_or(0, |(at_least, _)| at_least)
        };
        (histogram, at_least(oldest), at_least(youngest))
    }

    /// Pages that can be dropped, by age, of cgroups for which `owns` returns true.
    pub fn droppable(&self, owns: &dyn Fn(u64) -> bool) -> Box<Sizes> {
        let mut sizes: Box<Sizes> = Box::new([[0; 2]; LABELS]);
        for file in self.files.values().filter(|file| file.can_be_dropped()) {
            for (_, pages) in file.owned().filter(|(owner, _)| owns(owner.cgroup)) {
                self.map.count_within(pages, |label, page_type, pages| {
                    sizes[usize::from(label)][page_type as usize] += pages;
                });
            }
        }
        sizes
    }

    /// All pages by owner, age and type. Anon is shared memory, which has an inode but goes to
    /// swap.
    pub fn sizes_by_owner(&self) -> HashMap<Owner, Box<Sizes>> {
        let mut found: HashMap<Owner, Box<Sizes>> = HashMap::new();
        for file in self.files.values() {
            for (owner, pages) in file.owned() {
                let sizes = found
                    .entry(owner)
                    .or_insert_with(|| Box::new([[0; 2]; LABELS]));
                self.map.count_within(pages, |label, page_type, pages| {
                    sizes[usize::from(label)][page_type as usize] += pages;
                });
            }
        }
        found
    }

    /// The generations of the age map.
    pub fn generations(&self) -> &Generations {
        self.map.generations()
    }

    /// The path of a file below the root of its file system; see [`CacheWalk::path`].
    ///
    /// # Errors
    /// The program cannot run.
    pub fn path(&mut self, file: &CachedFile) -> Result<Option<PathBuf>, AccessError> {
        self.walk.path(&file.on, &file.inode)
    }

    /// Bytes of memory used, in addition to maps in the kernel.
    pub fn memory_bytes(&self) -> usize {
        self.map.memory_bytes()
            + self.dropped.memory_bytes()
            + self.unshown.memory_bytes()
            + self.files.capacity() * (size_of::<CachedFile>() + size_of::<(u64, u64)>() + 1)
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

fn clock_ms() -> u64 {
    monotonic_ns() / 1_000_000
}
