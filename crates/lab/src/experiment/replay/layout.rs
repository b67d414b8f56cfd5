// SPDX-License-Identifier: Apache-2.0
//! Reads a trace and gives each of its pages a place on the machine.

use std::collections::HashMap;

use agewise_trace::{Access, AccessKind, Evidence, PageClass, PageIndex};

use super::{Home, Item, Moment, Replay, Through};

/// Limit on the pages of a layout: those of one file or one address space here (1 TiB).
const LAYOUT_PAGES_MAX: u64 = 1 << 28;

/// Chunk sizes of a layout (log2 of pages): page table, page-cache node, single page. The largest
/// is used whose places are at most [`SPARSE_MAX`] times the pages.
const CHUNK_SHIFTS: [u32; 3] = [9, 6, 0];
/// Limit on the places per page.
pub(super) const SPARSE_MAX: u64 = 8;

/// Number of processes of a trace that are distinguished; further ones share the last.
const PROCESSES_MAX: usize = 4096;

/// A trace being read.
pub(super) struct Reading {
    through: Through,
    index: PageIndex,
    /// The process that owns each page; None for a page of the file.
    owners: Vec<Option<u32>>,
    processes: HashMap<u32, u32>,
    items: Vec<Item>,
    moments: Vec<Moment>,
    shared_anon: u64,
    inferred: u64,
    processes_merged: bool,
}

impl Reading {
    pub(super) fn new(through: Through) -> Reading {
        Reading {
            through,
            index: PageIndex::new(),
            owners: Vec::new(),
            processes: HashMap::new(),
            items: Vec::new(),
            moments: Vec::new(),
            shared_anon: 0,
            inferred: 0,
            processes_merged: false,
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.index.memory_bytes()
            + size_of_val(&*self.owners)
            + size_of_val(&*self.items)
            + size_of_val(&*self.moments)
    }

    pub(super) fn add(&mut self, access: &Access) -> Result<(), String> {
        let too_long = || {
            "more accesses or pages than a run can hold (2^32 - 2); sample it first (agewise trace \
             sample)"
                .to_owned()
        };
        let page = self.index.number(access.page).ok_or_else(too_long)?;
        if self.items.len() >= agewise_trace::ACCESSES_MAX {
            return Err(too_long());
        }
        let next = self.processes.len();
        let process = match self.processes.get(&access.process) {
            Some(&known) => known,
            None => {
                self.processes_merged |= next >= PROCESSES_MAX;
                let process = next.min(PROCESSES_MAX - 1) as u32;
                self.processes.insert(access.process, process);
                process
            }
        };
        let anon = match access.class {
            PageClass::Anon => true,
            PageClass::File => false,
            PageClass::Unknown => self.through == Through::Anonymous,
        };
        let first = page as usize == self.owners.len();
        if first {
            self.owners.push(anon.then_some(process));
        }
        let owner = self.owners[page as usize];
        self.shared_anon += u64::from(owner.is_some_and(|owner| owner != process));
        self.inferred += u64::from(access.evidence == Evidence::Inferred);
        let write = access.kind == AccessKind::Write || (first && owner.is_some());
        self.items.push(Item {
            page,
            who: owner.unwrap_or(process) << 1 | u32::from(write),
        });
        let end = self.items.len();
        let exact = access.evidence.is_fault();
        match self.moments.last_mut() {
            // A time before the last one counts as the last one.
            Some(last) if access.time_ns <= last.time_ns => {
                (last.end, last.exact) = (end, last.exact && exact);
            }
            _ => self.moments.push(Moment {
                end,
                time_ns: access.time_ns,
                exact,
            }),
        }
        Ok(())
    }

    pub(super) fn lay_out(self) -> Result<Replay, String> {
        let processes = self.processes.len().clamp(1, PROCESSES_MAX);
        let mut of_space: Vec<Vec<u32>> = vec![Vec::new(); processes + 1];
        for (page, owner) in self.owners.iter().enumerate() {
            of_space[owner.map_or(processes, |owner| owner as usize)].push(page as u32);
        }
        let pages = self.index.pages();
        let mut homes = vec![Home::File { page: 0 }; pages.len()];
        let mut places = Vec::new();
        for (space, mut members) in of_space.into_iter().enumerate() {
            members.sort_unstable_by_key(|&page| pages[page as usize]);
            let count = place(&members, pages, |page, at| {
                homes[page as usize] = if space < processes {
                    Home::Anon {
                        process: space as u32,
                        page: at,
                    }
                } else {
                    Home::File { page: at }
                };
            });
            if count > LAYOUT_PAGES_MAX {
                return Err(format!(
                    "{count} pages in one place, over {LAYOUT_PAGES_MAX}; sample it first (agewise \
                     trace sample)"
                ));
            }
            places.push(count as u32);
        }
        let file_places = places.pop().unwrap_or(0);
        let mut notes = Vec::new();
        if self.shared_anon > 0 {
            notes.push(format!(
                "{} accesses of anonymous memory shared by processes are made by the first of them",
                self.shared_anon
            ));
        }
        if self.inferred > 0 {
            notes.push(format!(
                "{} of the accesses were not seen but inferred by the recorder, to spare the \
                 program",
                self.inferred
            ));
        }
        if self.processes_merged {
            notes.push(format!(
                "processes beyond the first {PROCESSES_MAX} are taken for one"
            ));
        }
        Ok(Replay {
            name: String::new(),
            order_unknown: false,
            interval_ns: 0,
            through: self.through,
            notes,
            anon_pages: self.owners.iter().flatten().count() as u64,
            homes,
            first_time_ns: self.moments.first().map_or(0, |first| first.time_ns),
            items: self.items,
            moments: self.moments,
            anon_places: places,
            file_places,
        })
    }
}

/// Assigns places to pages in rising order; returns how many places there are.
pub(super) fn place(members: &[u32], pages: &[u64], mut put: impl FnMut(u32, u32)) -> u64 {
    let number = |page: u32| pages[page as usize];
    let chunks = |shift: u32| {
        let mut chunks = u64::from(!members.is_empty());
        for two in members.windows(2) {
            chunks += u64::from(number(two[0]) >> shift != number(two[1]) >> shift);
        }
        chunks
    };
    let room = members.len() as u64 * SPARSE_MAX;
    let shift = CHUNK_SHIFTS
        .into_iter()
        .find(|&shift| chunks(shift) << shift <= room.max(1 << CHUNK_SHIFTS[0]))
        .unwrap_or(0);
    let (mut chunk, mut last) = (0u64, None);
    for &page in members {
        let number = number(page);
        if last.is_some_and(|last| last != number >> shift) {
            chunk += 1;
        }
        last = Some(number >> shift);
        put(
            page,
            ((chunk << shift) + (number & ((1 << shift) - 1))) as u32,
        );
    }
    last.map_or(0, |_| (chunk + 1) << shift)
}
