// SPDX-License-Identifier: Apache-2.0
//! The ages of the pages of all files: what is there and what was accessed, in one age map.

use std::collections::HashMap;
use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use agewise_policy::agemap::{AgeMap, Facts};
use agewise_policy::generations::{LABEL_UNSEEN, LABELS, Sizes};
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::accessed::{Accessed, Accesses, Block};
use super::layout::Leaf;
use super::slots::{Slot, Slots};
use super::walk::{CacheKind, CacheSink, CacheWalk, Inode, SuperBlock, WalkReport};
use crate::access::{AccessError, PAGE_BYTES};
use crate::clock::{monotonic_ns, thread_cpu_ns};

/// Files followed, at most. What more there are is counted, not aged.
pub const FILES_MAX: usize = 4 << 20;

/// One file in the cache.
#[derive(Clone, Debug)]
pub struct CachedFile {
    /// The inode.
    pub inode: Inode,
    /// Where it lies.
    pub on: Arc<SuperBlock>,
    /// Kernfs id of the cgroup that most of its pages are charged to; 0 without.
    pub cgroup: u64,
    /// Pages in the cache.
    pub pages: u64,
    /// Pages dirty or being written back, with all of their folios.
    pub dirty_pages: u64,
    slot: Slot,
    /// The look that saw it last.
    look: u32,
}

/// What one look met and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct FilesLook {
    /// The walk.
    #[serde(flatten)]
    pub walk: WalkReport,
    /// Pages accessed since the look before.
    pub young_pages: u64,
    /// Events since then that told of pages not noted before.
    pub events: u64,
    /// Events that were lost: something accessed looks older than it is.
    pub dropped: u64,
    /// Inodes that became others while they were walked.
    pub void: u64,
    /// Files beyond [`FILES_MAX`]: counted in no age.
    pub unfollowed: u64,
    /// CPU time of all of it, ns.
    pub cpu_ns: u64,
}

/// The ages of all files.
pub struct FileAges {
    walk: CacheWalk,
    accessed: Accessed,
    map: AgeMap,
    slots: Slots,
    files: HashMap<(u64, u64), CachedFile>,
    /// Accesses since the last look that were asked for already.
    pending: Accesses,
    looks: u32,
    last_look_ms: u64,
}

impl FileAges {
    /// Begins to follow. Ages are told apart up to `horizon_ms`.
    ///
    /// # Errors
    /// Those of [`CacheWalk::open`] and [`Accessed::open`].
    pub fn open(horizon_ms: u64) -> Result<Self, AccessError> {
        let walk = CacheWalk::open()?;
        let accessed = Accessed::open()?;
        let now_ms = clock_ms();
        Ok(FileAges {
            walk,
            accessed,
            map: AgeMap::new(now_ms, horizon_ms),
            slots: Slots::default(),
            files: HashMap::new(),
            pending: Accesses::default(),
            looks: 0,
            last_look_ms: now_ms,
        })
    }

    /// Looks at the whole page cache once. `owned` says which cgroups' pages count, by kernfs id.
    ///
    /// # Errors
    /// The programs do not run. What happens to single files is in the report.
    pub fn look(&mut self, owned: &dyn Fn(u64) -> bool) -> Result<FilesLook, AccessError> {
        let began_ns = thread_cpu_ns();
        // Accesses first: a page accessed after this belongs to the next look.
        self.glance()?;
        let accesses = std::mem::take(&mut self.pending);
        let now_ms = clock_ms();
        self.looks = self.looks.wrapping_add(1);
        let mut gather = Gather {
            accesses: &accesses,
            owned,
            slots: &mut self.slots,
            files: &mut self.files,
            look: self.looks,
            words: Vec::new(),
            given_up: Vec::new(),
            open: None,
            void: 0,
            unfollowed: 0,
        };
        let walk = self.walk.walk(&|_| true, &mut gather)?;
        let (mut words, given_up) = (gather.words, gather.given_up);
        let mut report = FilesLook {
            walk,
            events: accesses.events,
            dropped: accesses.dropped,
            void: gather.void,
            unfollowed: gather.unfollowed,
            ..FilesLook::default()
        };
        words.sort_unstable_by_key(|word| word.at);
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

    /// Hands the age map its tables. `words` are sorted.
    fn take_in(&mut self, words: &[Word]) -> u64 {
        let mut look = self.map.look();
        for table in words.chunk_by(|a, b| a.at / 8 == b.at / 8) {
            let mut bits = TableBits::default();
            let mut files = PageSet::NONE;
            for word in table {
                let at = (word.at % 8) as usize;
                bits.present[at] |= word.present;
                bits.young[at] |= word.young;
                files[at] |= if word.is_file { word.present } else { 0 };
            }
            let facts = Facts {
                index: table[0].at / 8,
                bits: &bits,
                files,
                parts: &[],
            };
            // They come in rising order.
            let _ = look.table(facts);
        }
        look.finish().young
    }

    /// Takes in what was accessed until now, without looking at what is there.
    ///
    /// # Errors
    /// Those of [`Accessed::look`].
    pub fn glance(&mut self) -> Result<(), AccessError> {
        let later = self.accessed.look()?;
        self.pending.add(later);
        Ok(())
    }

    /// What was accessed since the last look, as far as glances know.
    pub fn pending(&self) -> &Accesses {
        &self.pending
    }

    /// Pages of a file not accessed for so long, as runs of indices.
    pub fn cold(&self, file: &CachedFile, older_than_ms: u64) -> Vec<Range<u64>> {
        let first = file.slot.first;
        let all = first..first + file.slot.pages();
        let mut runs = Vec::new();
        self.map
            .runs_older_than(all, self.last_look_ms, older_than_ms, |run| {
                runs.push(run.pages.start - first..run.pages.end - first);
                ControlFlow::Continue(())
            });
        runs
    }

    /// All files that have pages of the cgroups asked for.
    pub fn files(&self) -> impl Iterator<Item = &CachedFile> {
        self.files.values()
    }

    /// When the last look began, by the clock of ages.
    pub fn last_look_ms(&self) -> u64 {
        self.last_look_ms
    }

    /// How long files have been followed, ms.
    pub fn observed_ms(&self) -> u64 {
        let since_ms = self.map.generations().unseen_since_ms();
        self.last_look_ms
            .saturating_sub(since_ms.unwrap_or(self.last_look_ms))
    }

    /// The pages of a file by age, and the least ages of its oldest and of its youngest page, ms.
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

    /// Where a file is, below the root of its file system: see [`CacheWalk::path`].
    ///
    /// # Errors
    /// The program does not run.
    pub fn path(&mut self, file: &CachedFile) -> Result<Option<PathBuf>, AccessError> {
        self.walk.path(&file.on, &file.inode)
    }

    /// Bytes of memory that following takes, besides the maps in the kernel.
    pub fn memory_bytes(&self) -> usize {
        self.map.memory_bytes()
            + self.files.capacity() * (size_of::<CachedFile>() + size_of::<(u64, u64)>() + 1)
    }
}

fn clock_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// 64 page numbers of the age map, or the part of them that belongs to one file.
struct Word {
    /// Page number / 64.
    at: u64,
    present: u64,
    young: u64,
    is_file: bool,
}

/// Takes what the walk shows.
struct Gather<'a> {
    accesses: &'a Accesses,
    owned: &'a dyn Fn(u64) -> bool,
    slots: &'a mut Slots,
    files: &'a mut HashMap<(u64, u64), CachedFile>,
    look: u32,
    words: Vec<Word>,
    /// Slots that nobody has any more, once this look is over.
    given_up: Vec<Slot>,
    open: Option<Open>,
    void: u64,
    unfollowed: u64,
}

/// The file being shown.
struct Open {
    file: CachedFile,
    /// Its pages by cgroup.
    owners: Vec<(u64, u64)>,
    /// Where its words begin.
    words_from: usize,
    /// Its slot is the one that it had before.
    is_known: bool,
}

impl CacheSink for Gather<'_> {
    fn leaves(&mut self, on: &Arc<SuperBlock>, inode: &Inode, leaves: &[Leaf]) {
        for leaf in leaves.iter().filter(|leaf| (self.owned)(leaf.cgroup)) {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => match self.begin(on, inode) {
                    Some(open) => open,
                    None => continue,
                },
            };
            self.add(&mut open, leaf);
            self.open = Some(open);
        }
    }

    fn end(&mut self, _: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let Some(mut open) = self.open.take() else {
            return;
        };
        let key = (inode.address, inode.number);
        if valid {
            let most = open.owners.iter().max_by_key(|(id, pages)| (*pages, *id));
            open.file.cgroup = most.map_or(0, |(id, _)| *id);
            if let Some(old) = self.files.insert(key, open.file).filter(|_| !open.is_known) {
                self.given_up.push(old.slot);
            }
            return;
        }
        // What was known of it goes at the end of the look, with its slot.
        self.void += 1;
        self.words.truncate(open.words_from);
        if !open.is_known {
            self.given_up.push(open.file.slot);
        }
    }
}

impl Gather<'_> {
    /// The file, in the slot that it has, or in a new one where it has none or grew out of it: then
    /// it is being written, and its pages are young.
    fn begin(&mut self, on: &Arc<SuperBlock>, inode: &Inode) -> Option<Open> {
        let needed = inode.size_bytes.div_ceil(PAGE_BYTES);
        let known = self.files.get(&(inode.address, inode.number));
        let same = known.filter(|file| {
            file.inode.generation == inode.generation
                && file.on.device == on.device
                && file.slot.holds(needed)
        });
        let slot = match same {
            Some(file) => Some(file.slot),
            None if known.is_none() && self.files.len() >= FILES_MAX => None,
            None => self.slots.take(needed),
        };
        let Some(slot) = slot else {
            self.unfollowed += 1;
            return None;
        };
        Some(Open {
            file: CachedFile {
                inode: *inode,
                on: Arc::clone(on),
                cgroup: 0,
                pages: 0,
                dirty_pages: 0,
                slot,
                look: self.look,
            },
            owners: Vec::new(),
            words_from: self.words.len(),
            is_known: same.is_some(),
        })
    }

    fn add(&mut self, open: &mut Open, leaf: &Leaf) {
        let file = &mut open.file;
        file.pages += leaf.pages();
        file.dirty_pages += u64::from(leaf.unclean().count_ones()) << leaf.shift();
        match open.owners.iter_mut().find(|(id, _)| *id == leaf.cgroup) {
            Some((_, pages)) => *pages += leaf.pages(),
            None => open.owners.push((leaf.cgroup, leaf.pages())),
        }
        // A bit of a leaf above the last level stands for more than one page.
        let parts = 1u64 << leaf.shift();
        for part in 0..parts {
            let first_page = leaf.first_page() + 64 * part;
            let present = match parts {
                1 => leaf.present,
                _ if leaf.present >> (64 * part / parts) & 1 == 1 => u64::MAX,
                _ => 0,
            };
            let page = file.slot.first + first_page;
            // A slot of less than 64 pages begins within a word. Beyond the size that the inode had
            // there is no room: those pages are in the totals, and in the ages from the next look
            // on.
            let room = file.slot.pages().saturating_sub(first_page).min(64);
            let present = present & u64::MAX.checked_shr(64 - room as u32).unwrap_or(0);
            self.words.push(Word {
                at: page / 64,
                present: present << (page % 64),
                young: (present & self.young(&file.inode, first_page)) << (page % 64),
                is_file: file.on.kind != CacheKind::Shmem,
            });
        }
    }

    fn young(&self, inode: &Inode, first_page: u64) -> u64 {
        let pages = PAGES_PER_TABLE as u64;
        let block = Block {
            inode: inode.address,
            number: inode.number as u32,
            block: (first_page / pages) as u32,
        };
        let set = self.accesses.blocks.get(&block);
        set.map_or(0, |set| set[(first_page % pages / 64) as usize])
    }
}
