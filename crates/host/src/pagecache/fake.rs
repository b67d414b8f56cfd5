// SPDX-License-Identifier: Apache-2.0
//! A made-up page cache, for tests of everything that follows one.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use agewise_policy::table::PageSet;

use super::accessed::{Accesses, Block};
use super::files::FileAges;
use super::frames::{Folios, Frames};
use super::layout::{Leaf, Slots};
use super::readers::{AccessNotes, CacheReader};
use super::shown::{CacheKind, CacheSink, Inode, SuperBlock, WalkReport};
use crate::access::AccessError;

/// Start of the fake array of `struct page`.
const BASE: u64 = 0xffff_ea00_0000_0000;

/// A file of up to 64 pages.
#[derive(Clone, Copy, Debug)]
pub struct FakeFile {
    pub number: u64,
    pub kind: CacheKind,
    pub cgroup: u64,
    pub pages: u32,
    /// Frame of its first page; the others follow it.
    pub frame: u64,
    /// Pages read through descriptors since the last look.
    pub read: u64,
}

/// A file that nobody has read.
pub fn file(number: u64, kind: CacheKind, cgroup: u64, pages: u32) -> FakeFile {
    FakeFile {
        number,
        kind,
        cgroup,
        pages,
        frame: number * 100,
        read: 0,
    }
}

/// A list of files that a test can change, and whose looks it can make fail.
#[derive(Debug, Default)]
pub struct FakeCache {
    pub files: Vec<FakeFile>,
    pub failure: Option<fn() -> AccessError>,
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
        for file in &cache.files {
            let on = Arc::new(SuperBlock {
                address: 1 << 41,
                fs_type: "fake".into(),
                device: 1,
                kind: file.kind,
            });
            let inode = Inode {
                address: address(file),
                number: file.number,
                generation: 0,
                size_bytes: u64::from(file.pages) * 4096,
                links: 1,
                pages: file.pages.into(),
            };
            let mut leaf = Leaf::default();
            leaf.present = u64::MAX >> (64 - file.pages);
            leaf.cgroup = file.cgroup;
            let folio = |page: u64| BASE + (file.frame + page) * 64;
            let slots: Slots = std::array::from_fn(|page| folio(page as u64));
            let slots = [slots];
            let folios = Folios::new(&slots, Frames::new(BASE + 64, 1, 64));
            sink.leaves(&on, &inode, &[leaf], &folios);
            sink.end(&on, &inode, true);
        }
        Ok(WalkReport::default())
    }

    fn walk_inode(&mut self, wanted: u64, sink: &mut dyn CacheSink) -> Result<(), AccessError> {
        let files = std::mem::take(&mut self.0.lock().unwrap().files);
        let only = files.iter().filter(|file| address(file) == wanted);
        self.0.lock().unwrap().files = only.copied().collect();
        let walked = self.walk(sink).map(|_| ());
        self.0.lock().unwrap().files = files;
        walked
    }

    fn path(&mut self, _: &SuperBlock, _: &Inode) -> Result<Option<PathBuf>, AccessError> {
        Ok(None)
    }
}

fn block(file: &FakeFile) -> Block {
    Block {
        inode: address(file),
        number: file.number as u32,
        block: 0,
    }
}

impl AccessNotes for Shared {
    fn peek(&mut self, wanted: &Block) -> Result<PageSet, AccessError> {
        let mut pages = PageSet::NONE;
        let cache = self.0.lock().unwrap();
        if let Some(file) = cache.files.iter().find(|file| block(file) == *wanted) {
            pages[0] = file.read;
        }
        Ok(pages)
    }

    fn look(&mut self) -> Result<Accesses, AccessError> {
        let mut found = Accesses::default();
        for file in &mut self.0.lock().unwrap().files {
            let mut pages = PageSet::NONE;
            pages[0] = std::mem::take(&mut file.read);
            found.blocks.insert(block(file), pages);
        }
        Ok(found)
    }
}
