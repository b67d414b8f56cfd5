// SPDX-License-Identifier: Apache-2.0
//! The page cache as seen by an agent in user space: what is cached, what was accessed, and
//! dropping cold pages.
//!
//! The costs are figures of `docs/inside/measurements.md`:
//!
//! | operation | ns | source |
//! |---|---|---|
//! | access that passes a tracepoint | 80 | 6.7 % of a `pread` of 4 KiB |
//! | inode looked at | 560 | a walk of 165 000 inodes |
//! | resident page looked at | 5 | 1.3 ms a GiB of one large file |
//! | a run dropped: `posix_fadvise` between two of `cachestat` | 1500 | the mover for files |
//! | each page of it | 600 | the mover for files |

use std::collections::BTreeMap;
use std::ops::Range;

use agewise_kernel::folio::{Flag, Pfn};
use agewise_kernel::ids::MemcgId;
use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};

use super::page_cache::Entry;
use super::{FileId, Machine, TableSeen};

const NOTE_NS: u64 = 80;
const INODE_NS: u64 = 560;
const PAGE_NS: u64 = 5;
const DROP_CALL_NS: u64 = 1_500;
const DROP_PAGE_NS: u64 = 600;

impl Machine {
    /// Starts recording accesses to files, at the cost of recording them.
    pub fn follow_files(&mut self) {
        self.follows_files = true;
    }

    /// Time of reads that are not memory stalls, in ns: of pages that were never in memory, or left
    /// without a shadow.
    pub fn first_read_ns(&self) -> u64 {
        self.first_read_ns
    }

    /// Records a read, a fault or a first write, which passes a tracepoint.
    pub(super) fn note_file_access(&mut self, file: u32, pages: Range<u32>) {
        if self.follows_files && !pages.is_empty() {
            self.sys.now_ns += NOTE_NS;
            let cache = &mut self.sys.files[file as usize].cache;
            pages.for_each(|index| cache.note_access(index));
        }
    }

    /// Looks at all pages of files charged to a cgroup or its descendants, and clears recorded
    /// accesses if `clears`; by file and by number of the first page / 512.
    pub fn look_at_files(
        &mut self,
        memcg: MemcgId,
        clears: bool,
    ) -> BTreeMap<(FileId, u64), TableSeen> {
        let mut tables = BTreeMap::new();
        let mut pages = 0;
        for (file, number) in self.sys.files.iter().zip(0..) {
            for (index, pfn) in file.cache.pages() {
                pages += 1;
                let owner = self.sys.memcg_of(&self.lru.folios, pfn);
                if self.lru.is_descendant(owner, memcg) {
                    let at = u64::from(index) / PAGES_PER_TABLE as u64;
                    let table = tables.entry((FileId(number), at));
                    self.see(
                        table.or_insert_with(|| TableSeen::of_file(FileId(number), at)),
                        index,
                        pfn,
                    );
                }
            }
        }
        if clears {
            let files = &mut self.sys.files;
            files
                .iter_mut()
                .for_each(|file| file.cache.clear_accesses());
        }
        self.sys.now_ns += self.sys.files.len() as u64 * INODE_NS + pages * PAGE_NS;
        tables
    }

    /// Looks at some pages of a file (ascending runs) without changing anything. A page counts as
    /// accessed if any of its mappings does.
    pub fn look_at_file_pages(&mut self, file: FileId, runs: &[Range<u64>]) -> Vec<TableSeen> {
        let mut seen: Vec<TableSeen> = Vec::new();
        for index in runs.iter().cloned().flatten() {
            self.sys.now_ns += PAGE_NS;
            let Some(pfn) = self.cached(file, index) else {
                continue;
            };
            let at = index / PAGES_PER_TABLE as u64;
            if seen.last().is_none_or(|last| last.index != at) {
                seen.push(TableSeen::of_file(file, at));
            }
            let Some(table) = seen.last_mut() else {
                continue;
            };
            self.see(table, index as u32, pfn);
            let mut mappings = (0..).map_while(|n| self.sys.frames.mapping(pfn, n));
            let is_young = |mapping: agewise_kernel::page_table::Mapping| {
                let leaf = self.sys.tables.leaf(mapping.mm, mapping.vpn);
                leaf.is_some_and(|leaf| leaf.young())
            };
            if mappings.any(is_young) {
                table.bits.young.insert(index as usize % PAGES_PER_TABLE);
            }
        }
        seen
    }

    /// Drops the pages of these runs that are clean and not accessed: unmapped ones by
    /// `posix_fadvise`, which leaves no shadow, and pages mapped by one process by paging them out.
    /// Returns how many were tried, and which ones left.
    pub fn drop_file_pages(
        &mut self,
        file: FileId,
        runs: &[Range<u64>],
        even_young: bool,
    ) -> (u64, Vec<u64>) {
        let looked = self.look_at_file_pages(file, runs);
        let (mut unmapped, mut mapped) = (Vec::new(), Vec::new());
        for table in looked {
            let young = if even_young {
                PageSet::NONE
            } else {
                table.bits.young
            };
            let idle = table
                .bits
                .present
                .without(&young)
                .without(&table.bits.dirty);
            for slot in idle.pages() {
                let index = table.index * PAGES_PER_TABLE as u64 + slot as u64;
                match self.cached(file, index) {
                    Some(pfn) if self.sys.frames.mapcount(pfn) == 0 => unmapped.push((index, pfn)),
                    Some(pfn) if self.sys.frames.mapcount(pfn) == 1 => mapped.push((index, pfn)),
                    _ => {}
                }
            }
        }
        let tried = (unmapped.len() + mapped.len()) as u64;
        self.sys.now_ns += runs.len() as u64 * DROP_CALL_NS + tried * DROP_PAGE_NS;
        for (index, pfn) in &unmapped {
            self.lru.folio_removed(*pfn);
            self.sys
                .set_cache_entry(file.0, *index as u32, Entry::Empty);
            self.sys.free_frame(&mut self.lru.folios, *pfn);
        }
        let chosen: Vec<Pfn> = mapped.iter().map(|(_, pfn)| *pfn).collect();
        if !chosen.is_empty() {
            self.reclaim_folios(&chosen);
        }
        let all = unmapped.iter().chain(&mapped).map(|(index, _)| *index);
        let mut left: Vec<u64> = all
            .filter(|index| self.cached(file, *index).is_none())
            .collect();
        left.sort_unstable();
        (tried, left)
    }

    /// The frame of a page of a file, if it is in memory.
    fn cached(&self, file: FileId, index: u64) -> Option<Pfn> {
        let cache = &self.sys.files[file.0 as usize].cache;
        let index = u32::try_from(index).ok().filter(|at| *at < cache.len())?;
        match cache.get(index) {
            Entry::Present(pfn) => Some(pfn),
            Entry::Empty | Entry::Shadow(_) => None,
        }
    }

    fn see(&self, table: &mut TableSeen, index: u32, pfn: Pfn) {
        let slot = index as usize % PAGES_PER_TABLE;
        let Some((file, _)) = table.file else { return };
        table.bits.present.insert(slot);
        if self.sys.files[file.0 as usize].cache.was_accessed(index) {
            table.bits.young.insert(slot);
        }
        let busy = Flag::Dirty as u32 | Flag::Writeback as u32;
        if self.lru.folios[pfn].has_any(busy) {
            table.bits.dirty.insert(slot);
        }
    }
}

impl TableSeen {
    /// 512 pages of a file of which nothing has been seen.
    pub fn of_file(file: FileId, index: u64) -> TableSeen {
        TableSeen {
            index,
            bits: TableBits::default(),
            file: Some((file, index * PAGES_PER_TABLE as u64)),
        }
    }
}
