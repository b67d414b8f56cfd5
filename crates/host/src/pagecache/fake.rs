// SPDX-License-Identifier: Apache-2.0
//! A made-up page cache, for tests of everything that follows one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use super::accessed::AccessNotes;
use super::accesses::{Accesses, Block};
use super::cached::Cold;
use super::files::FileAges;
use super::frames::{Folios, Frames};
use super::layout::{Leaf, Slots};
use super::readers::CacheReader;
use super::sampled::is_chosen;
use super::shown::{CacheKind, CacheSink, Inode, SuperBlock, WalkReport};
use crate::access::{AccessError, PAGE_BYTES};

/// Start of the fake array of `struct page`.
const BASE: u64 = 0xffff_ea00_0000_0000;

/// A file with up to 64 pages in each of its blocks.
#[derive(Clone, Copy, Debug)]
pub struct FakeFile {
    pub number: u64,
    pub kind: CacheKind,
    pub cgroup: u64,
    /// From this block on pages are charged to this cgroup instead.
    pub other: Option<(u32, u64)>,
    /// Pages present at the start of each block.
    pub pages: u32,
    pub blocks: u32,
    /// Size that it claims, if that is larger.
    pub sparse_bytes: u64,
    /// Frame of its first page; those of its block follow it.
    pub frame: u64,
    /// Pages of each block read through descriptors since the last look.
    pub read: u64,
}

impl FakeFile {
    fn size_bytes(&self) -> u64 {
        let last = u64::from(self.blocks - 1) * PAGES_PER_TABLE as u64;
        let end = (last + u64::from(self.pages)) * PAGE_BYTES;
        end.max(self.sparse_bytes)
    }
}

/// A file that nobody has read.
pub fn file(number: u64, kind: CacheKind, cgroup: u64, pages: u32) -> FakeFile {
    FakeFile {
        number,
        kind,
        cgroup,
        other: None,
        pages,
        blocks: 1,
        sparse_bytes: 0,
        frame: number * 100,
        read: 0,
    }
}

/// A list of files that a test can change, and whose looks it can make fail.
#[derive(Debug, Default)]
pub struct FakeCache {
    pub files: Vec<FakeFile>,
    pub failure: Option<fn() -> AccessError>,
    /// Whether accesses are no longer noted.
    pub is_blind: bool,
    /// Accesses recorded since the last look.
    pub events: u64,
    /// Accesses lost since the last look.
    pub dropped: u64,
    /// Accesses that no program saw since the last look.
    pub missed: u64,
    /// Files that a walk does not reach, by number.
    pub unreached: Vec<u64>,
    /// Inodes followed by sample.
    pub sampled: Vec<u64>,
}

/// The cache, shared by a test and the two readers.
#[derive(Clone, Debug, Default)]
pub struct Shared(pub Arc<Mutex<FakeCache>>);

impl Shared {
    /// Ages from readers of this cache.
    pub fn ages(&self, horizon_ms: u64) -> FileAges {
        FileAges::new(Box::new(self.clone()), Box::new(self.clone()), horizon_ms)
    }
}

fn address(file: &FakeFile) -> u64 {
    1 << 40 | file.number << 10
}

impl CacheReader for Shared {
    fn walk(&mut self, sink: &mut dyn CacheSink) -> Result<WalkReport, AccessError> {
        let cache = self.0.lock().unwrap();
        if let Some(failure) = cache.failure {
            return Err(failure());
        }
        let mut report = WalkReport::default();
        for file in &cache.files {
            let on = Arc::new(SuperBlock {
                address: 1 << 41,
                magic: 0,
                fs_type: "fake".into(),
                device: 1,
                kind: file.kind,
            });
            if cache.unreached.contains(&file.number) {
                sink.cut_short(&on);
                continue;
            }
            let inode = Inode {
                address: address(file),
                number: file.number,
                generation: 0,
                size_bytes: file.size_bytes(),
                links: 1,
            };
            let leaf = |block: u32| {
                let mut leaf = Leaf::at(u64::from(block) * PAGES_PER_TABLE as u64);
                leaf.present = u64::MAX >> (64 - file.pages);
                let other = file.other.filter(|(from, _)| block >= *from);
                leaf.cgroup = other.map_or(file.cgroup, |(_, cgroup)| cgroup);
                leaf
            };
            let leaves: Vec<Leaf> = (0..file.blocks).map(leaf).collect();
            let folio = |page: u64| BASE + (file.frame + page) * 64;
            let slots: Slots = std::array::from_fn(|page| folio(page as u64));
            let slots = vec![slots; leaves.len()];
            let folios = Folios::new(&slots, Frames::new(BASE + 64, 1, 64));
            report.pages += leaves.iter().map(Leaf::pages).sum::<u64>();
            sink.leaves(&on, &inode, &leaves, &folios);
            sink.end(&on, &inode, true);
        }
        Ok(report)
    }

    fn walk_inode(&mut self, wanted: u64, sink: &mut dyn CacheSink) -> Result<u64, AccessError> {
        let files = std::mem::take(&mut self.0.lock().unwrap().files);
        let only = files.iter().filter(|file| address(file) == wanted);
        self.0.lock().unwrap().files = only.copied().collect();
        let walked = self.walk(sink).map(|report| report.pages);
        self.0.lock().unwrap().files = files;
        walked
    }

    fn path(&mut self, _: &SuperBlock, _: &Inode) -> Result<Option<PathBuf>, AccessError> {
        Ok(None)
    }
}

/// A block of a file.
pub fn block(file: &FakeFile, block: u32) -> Block {
    Block {
        inode: address(file),
        number: file.number as u32,
        block,
    }
}

/// How many pages of each file have this age, in ascending order.
pub fn cold_pages(ages: &FileAges, age_ms: u64) -> Vec<u64> {
    let cold = Cold {
        since_ms: ages.idle_for(age_ms),
        owns: &|_| true,
    };
    let pages = |file| {
        ages.cold(file, &cold)
            .iter()
            .map(|run| run.end - run.start)
            .sum()
    };
    let mut of_files: Vec<u64> = ages.files().map(pages).collect();
    of_files.sort_unstable();
    of_files
}

impl AccessNotes for Shared {
    fn peek(&mut self, wanted: &Block) -> Result<PageSet, AccessError> {
        let mut pages = PageSet::NONE;
        let cache = self.0.lock().unwrap();
        let is_of = |file: &&FakeFile| block(file, wanted.block) == *wanted;
        if let Some(file) = cache.files.iter().find(is_of) {
            pages[0] = file.read;
        }
        Ok(pages)
    }

    fn look(&mut self) -> Result<Accesses, AccessError> {
        let mut cache = self.0.lock().unwrap();
        if cache.is_blind {
            let why = "they are not noted".into();
            let what = "accesses";
            return Err(AccessError::Unsupported { what, why });
        }
        let mut found = Accesses {
            events: std::mem::take(&mut cache.events),
            dropped: std::mem::take(&mut cache.dropped),
            missed: std::mem::take(&mut cache.missed),
            ..Accesses::default()
        };
        let sampled = cache.sampled.clone();
        for file in &mut cache.files {
            let mut pages = PageSet::NONE;
            pages[0] = std::mem::take(&mut file.read);
            let is_whole = !sampled.contains(&address(file));
            let blocks = (0..file.blocks).map(|at| block(file, at));
            let followed = blocks.filter(|at| is_whole || is_chosen(at));
            found.blocks.extend(followed.map(|block| (block, pages)));
        }
        Ok(found)
    }

    fn sample(&mut self, _: usize, inode: u64) {
        self.0.lock().unwrap().sampled.push(inode);
    }
}
