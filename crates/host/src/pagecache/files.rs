// SPDX-License-Identifier: Apache-2.0
//! The ages of all file pages: what is cached and what was accessed, in one age map.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;

use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::generations::{Generations, idle_for};
use agewise_policy::table::{PageSet, TableBits};
use agewise_policy::workingset::{Histogram, Intervals};

use super::accessed::{AccessNotes, Accessed};
use super::accesses::{Accesses, Block};
use super::cached::{CachedFile, Cold, Mapped, Owner};
use super::dropped::Dropped;
use super::gather::{Asked, Gather, Gathered, Word};
use super::readers::{CacheReader, NotFollowed};
use super::sampled::Sampled;
use super::shown::{Key, WalkReport};
use super::slots::{Slot, Slots};
use super::unreached::Unreached;
use super::uses::{Unshown, Uses};
use super::walk::CacheWalk;
use crate::access::AccessError;
use crate::clock::{monotonic_ns, thread_cpu_ns};

/// The results and the cost of one look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilesLook {
    #[serde(flatten)]
    pub walk: WalkReport,
    /// Pages accessed since the previous look.
    pub young_pages: u64,
    /// Events since then that reported new pages.
    pub events: u64,
    /// Events that were lost, so that some accessed pages look older than they are.
    pub dropped: u64,
    /// Times a program did not run, because it was running on that CPU already: at most as many
    /// events were lost.
    pub missed: u64,
    /// Inodes that were reused for another file while they were walked.
    pub void: u64,
    /// Files beyond [`FILES_MAX`], and sparse ones of more than 4 PiB, which no age includes.
    pub unfollowed: u64,
    /// Large files accessed so often that one block in eight is followed.
    pub sampled: u64,
    /// CPU time in total, ns.
    pub cpu_ns: u64,
}

/// The ages of all files.
pub struct FileAges {
    walk: Box<dyn CacheReader>,
    accessed: Box<dyn AccessNotes>,
    pub(super) map: AgeMap,
    slots: Slots,
    /// Slots whose pages leave the age map with the look.
    given_up: Vec<Slot>,
    pub(super) files: HashMap<Key, CachedFile>,
    /// Accesses since the last look that have been fetched already.
    pending: Accesses,
    unshown: Unshown,
    /// Files followed by sample; `may_sample` says whether there may be more.
    pub(super) sampled: Sampled,
    may_sample: bool,
    dropped: Dropped,
    /// Pages dropped and read again since the start, by cgroup.
    pub(super) refaulted: HashMap<u64, u64>,
    pub(super) returned_bounds: Option<Intervals>,
    /// Pages the last look found accessed, by cgroup and by their idle time until then.
    pub(super) returned: HashMap<u64, Histogram>,
    pub(super) looks: u32,
    pub(super) last_look_ms: u64,
    /// When the last look that lacked many accesses was.
    lost_ms: Option<u64>,
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
            given_up: Vec::new(),
            files: HashMap::new(),
            pending: Accesses::default(),
            unshown: Unshown::default(),
            sampled: Sampled::default(),
            may_sample: false,
            dropped: Dropped::default(),
            refaulted: HashMap::new(),
            returned_bounds: None,
            returned: HashMap::new(),
            looks: 0,
            last_look_ms: now_ms,
            lost_ms: None,
        }
    }

    /// From now on follows only a sample of the blocks of large files that are accessed very often,
    /// so that their readers are not slowed down. Their ages are estimates then, and none of their
    /// pages can be dropped.
    pub fn allow_sample(&mut self) {
        self.may_sample = true;
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
        let walked = self.walk.walk(&mut gather);
        let Gathered {
            mut words,
            given_up,
            mapped,
            void,
            unfollowed,
            cut_short,
        } = gather.finish();
        self.given_up.extend(given_up);
        let walk = match walked {
            Ok(walk) => walk,
            Err(error) => {
                // They count at the next look.
                self.pending = accesses;
                return Err(error);
            }
        };
        if accesses.lacks_many() {
            self.lost_ms = Some(now_ms);
        }
        let mut report = FilesLook {
            walk,
            events: accesses.events,
            dropped: accesses.dropped,
            missed: accesses.missed,
            void,
            unfollowed,
            ..FilesLook::default()
        };
        let unreached = Unreached {
            cut_short: &cut_short,
            accesses: &accesses,
            look: self.looks,
        };
        unreached.keep(&mut self.files, &self.map, &mut words);
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
        self.remove_gone();
        self.choose_sampled(&accesses, now_ms.saturating_sub(self.last_look_ms));
        report.sampled = self.sampled.count();
        self.last_look_ms = now_ms;
        report.cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        Ok(report)
    }

    /// Removes files that the look did not find, and frees slots.
    fn remove_gone(&mut self) {
        let look = self.looks;
        let slots = &mut self.slots;
        self.files.retain(|_, file| {
            let stays = file.look == look;
            if !stays {
                slots.give_back(file.slot);
            }
            stays
        });
        self.given_up
            .drain(..)
            .for_each(|slot| slots.give_back(slot));
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

    /// Decides which files are followed by sample until they are no longer cached.
    fn choose_sampled(&mut self, accesses: &Accesses, elapsed_ms: u64) {
        let files = &self.files;
        for slot in self.sampled.remove_gone(|key| files.contains_key(key)) {
            self.accessed.sample(slot, 0);
        }
        if !self.may_sample {
            return;
        }
        for key in self.sampled.busy(accesses, elapsed_ms) {
            if self.files.contains_key(&key)
                && let Some(slot) = self.sampled.add(key)
            {
                self.accessed.sample(slot, key.0);
            }
        }
    }

    /// Whether only a sample of the blocks of a file is followed.
    pub fn is_sampled(&self, file: &CachedFile) -> bool {
        self.sampled.has(&file.inode.key())
    }

    /// The block that is followed in place of this one; itself, unless its file is followed by
    /// sample.
    pub fn stand_in(&self, block: &Block) -> Block {
        self.sampled.stand_in(block)
    }

    /// The blocks, by index, for which the accesses of this one stand: itself, unless its file is
    /// followed by sample.
    pub fn stands_for(&self, block: &Block) -> Range<u32> {
        self.sampled.stands_for(block)
    }

    /// Fetches the accesses so far, without looking at what is cached.
    ///
    /// # Errors
    /// The errors of [`AccessNotes::look`].
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
    /// The errors of [`AccessNotes::look`].
    pub fn take_uses(&mut self) -> Result<Uses, AccessError> {
        self.take_in_accesses()?;
        Ok(self.unshown.take())
    }

    /// The file that contains a block, if the last look found it.
    pub fn file_of(&self, block: &Block) -> Option<&CachedFile> {
        self.files.get(&(block.inode, block.number))
    }

    /// Whether many accesses were lost within this time before the last look, or after it: a page
    /// that seems to be as old may have been accessed since.
    pub fn has_lost_within(&self, age_ms: u64) -> bool {
        let is_within = |at: u64| self.last_look_ms.saturating_sub(at) < age_ms;
        self.pending.lacks_many() || self.lost_ms.is_some_and(is_within)
    }

    /// Accesses since the last look, as far as they have been fetched.
    pub fn pending(&self) -> &Accesses {
        &self.pending
    }

    /// The times since which a page must have been idle, to have this age at the last look.
    pub fn idle_for(&self, age_ms: u64) -> Range<u64> {
        idle_for(self.last_look_ms, age_ms)
    }

    /// The pages of a file that [`Cold`] selects, as runs of indexes. None of a file followed by
    /// sample.
    pub fn cold(&self, file: &CachedFile, cold: &Cold<'_>) -> Vec<Range<u64>> {
        let first = file.slot.first;
        let mut runs: Vec<Range<u64>> = Vec::new();
        if self.is_sampled(file) {
            return runs;
        }
        let is_owned = |owner: &Owner| (cold.owns)(owner.cgroup);
        for (_, all) in file.owned().filter(|(owner, _)| is_owned(owner)) {
            self.map.runs_idle_since(all, &cold.since_ms, |run| {
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

    /// Pages that were dropped and read again since the start.
    pub fn refaulted_pages(&self) -> u64 {
        self.refaulted.values().sum()
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

fn clock_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::super::fake::{Shared, cold_pages, file};
    use super::super::shown::CacheKind;
    use super::*;

    #[test]
    fn accesses_outlast_a_walk_that_failed() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        shared.0.lock().unwrap().files = vec![file(1, CacheKind::File, 7, 64)];
        ages.look(&|_| true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        shared.0.lock().unwrap().files[0].read = 0xff;
        let failure = || AccessError::Unsupported {
            what: "walking",
            why: "it was taken away".into(),
        };
        shared.0.lock().unwrap().failure = Some(failure);
        assert!(ages.look(&|_| true).is_err());
        shared.0.lock().unwrap().failure = None;
        assert_eq!(ages.look(&|_| true).unwrap().young_pages, 8);
        assert_eq!(cold_pages(&ages, 20), [56]);
    }

    #[test]
    fn after_a_loss_nothing_is_known_to_be_as_old() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        ages.look(&|_| true).unwrap();
        assert!(!ages.has_lost_within(3_600_000));
        shared.0.lock().unwrap().missed = 1;
        assert_eq!(ages.look(&|_| true).unwrap().missed, 1);
        assert!(!ages.has_lost_within(3_600_000), "for one that was missed");
        shared.0.lock().unwrap().dropped = 1;
        ages.take_in_accesses().unwrap();
        assert!(ages.has_lost_within(1), "since the last look");
        ages.look(&|_| true).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        ages.look(&|_| true).unwrap();
        assert!(ages.has_lost_within(3_600_000), "as far as known");
        assert!(!ages.has_lost_within(20), "seen since");
    }

    #[test]
    fn what_is_not_followed_counts_once() {
        let shared = Shared::default();
        let mut ages = shared.ages(3_600_000);
        let mut large = file(1, CacheKind::File, 7, 64);
        large.blocks = 5;
        shared.0.lock().unwrap().files = vec![large, file(2, CacheKind::File, 7, 1)];
        ages.slots = Slots::used_up();
        assert_eq!(ages.look(&|_| true).unwrap().unfollowed, 2);
    }
}
