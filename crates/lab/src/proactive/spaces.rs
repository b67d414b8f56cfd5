// SPDX-License-Identifier: Apache-2.0
//! Where an agent's pages are: the address spaces of a cgroup, and its cached files.

use std::collections::BTreeMap;
use std::ops::Range;

use agewise_kernel::ids::MemcgId;
use agewise_policy::generations::ByType;
use agewise_policy::table::{PAGES_PER_TABLE, PageSet};

use crate::machine::{Clearing, FileId, Machine, ProcessId, TableSeen};

/// A space in which pages are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Space {
    /// The address space of a process.
    Process(ProcessId),
    /// A file, with its own page numbers.
    File(FileId),
}

/// Result of a scan; the tables of a space are in ascending order.
pub(super) type Tables = BTreeMap<Space, Vec<TableSeen>>;

/// The file memory that an agent manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileMemory {
    None,
    /// Pages mapped by processes, as part of their memory.
    Mapped,
    /// All pages charged to the cgroup, each once, as pages of their file.
    Cached,
}

/// The memory of a cgroup, as seen and moved by an agent.
pub(super) struct Spaces {
    pub memcg: MemcgId,
    files: FileMemory,
    /// File pages found in memory by some scan.
    known: BTreeMap<(FileId, u64), PageSet>,
    /// Pages it dropped and has not seen since.
    dropped: BTreeMap<(FileId, u64), PageSet>,
    /// Dropped pages that returned and have not been reported yet.
    back_pages: u64,
}

impl Spaces {
    pub fn new(memcg: MemcgId, files: FileMemory) -> Spaces {
        Spaces {
            memcg,
            files,
            known: BTreeMap::new(),
            dropped: BTreeMap::new(),
            back_pages: 0,
        }
    }

    /// Whether it manages file memory that no process maps.
    pub fn has_cache(&self) -> bool {
        self.files == FileMemory::Cached
    }

    /// Scans all of it and clears accessed bits. `hide` changes what page tables show.
    pub fn look(
        &mut self,
        machine: &mut Machine,
        clearing: Clearing,
        mut hide: impl FnMut(ProcessId, &mut TableSeen),
    ) -> Tables {
        let mut tables = Tables::new();
        let mut touched: BTreeMap<(FileId, u64), PageSet> = BTreeMap::new();
        for process in machine.live_processes(self.memcg) {
            let seen = tables.entry(Space::Process(process)).or_default();
            machine.look_at(process, clearing, |table| {
                let mut table = *table;
                hide(process, &mut table);
                match (table.file, self.files) {
                    (None, _) | (Some(_), FileMemory::Mapped) => seen.push(table),
                    (Some(_), FileMemory::None) => {}
                    (Some((file, first)), FileMemory::Cached) => {
                        for slot in table.bits.young.pages() {
                            let (at, slot) = place(first + slot as u64);
                            touched.entry((file, at)).or_default().insert(slot);
                        }
                    }
                }
            });
        }
        if self.has_cache() {
            machine.follow_files();
            let files = machine.look_at_files(self.memcg, clearing != Clearing::None);
            self.add_files(files, &touched, &mut tables);
        }
        tables
    }

    /// Adds each page of a file once, with accesses by descriptors and by all mappings. Evicted
    /// pages count as swapped out.
    fn add_files(
        &mut self,
        mut files: BTreeMap<(FileId, u64), TableSeen>,
        touched: &BTreeMap<(FileId, u64), PageSet>,
        tables: &mut Tables,
    ) {
        for (key, seen) in &files {
            let known = self.known.entry(*key).or_default();
            *known |= seen.bits.present;
            if let Some(dropped) = self.dropped.get_mut(key) {
                self.back_pages += (*dropped & seen.bits.present).len();
                *dropped = dropped.without(&seen.bits.present);
            }
        }
        for ((file, index), known) in &self.known {
            let mut table = files
                .remove(&(*file, *index))
                .unwrap_or_else(|| TableSeen::of_file(*file, *index));
            let bits = &mut table.bits;
            bits.swapped = known.without(&bits.present);
            if let Some(touched) = touched.get(&(*file, *index)) {
                bits.young |= *touched & bits.present;
            }
            tables.entry(Space::File(*file)).or_default().push(table);
        }
    }

    /// Looks at some pages (ascending runs) without changing anything.
    pub fn look_at_pages(
        &self,
        machine: &mut Machine,
        space: Space,
        runs: &[Range<u64>],
    ) -> Vec<TableSeen> {
        match space {
            Space::Process(process) => machine.look_at_pages(process, runs),
            Space::File(file) => machine.look_at_file_pages(file, runs),
        }
    }

    /// Moves the idle pages of these runs out, with `even_young` also the accessed ones. Returns
    /// how many were tried and how many left, by type.
    pub fn move_out(
        &mut self,
        machine: &mut Machine,
        space: Space,
        runs: &[Range<u64>],
        even_young: bool,
    ) -> (ByType<u64>, ByType<u64>) {
        let file = match space {
            Space::Process(process) => return machine.page_out(process, runs, even_young),
            Space::File(file) => file,
        };
        let (tried, left) = machine.drop_file_pages(file, runs, even_young);
        for page in &left {
            let (at, slot) = place(*page);
            self.dropped.entry((file, at)).or_default().insert(slot);
        }
        ([0, tried], [0, left.len() as u64])
    }

    /// Dropped pages that returned since the last call.
    pub fn take_back_pages(&mut self) -> u64 {
        std::mem::take(&mut self.back_pages)
    }
}

/// The table of a page, and the page's position in it.
fn place(page: u64) -> (u64, usize) {
    let pages = PAGES_PER_TABLE as u64;
    (page / pages, (page % pages) as usize)
}
