// SPDX-License-Identifier: Apache-2.0
//! Files: opening, reading and writing through descriptors, and read-ahead.

use agewise_kernel::AddContext;
use agewise_kernel::folio::{Flag, Pfn};
use agewise_kernel::ids::MemcgId;

use super::address_space::Advice;
use super::charge::{ChargeError, Effort};
use super::frames::Owner;
use super::page_cache::{Entry, NODE_BYTES, PageCache};
use super::process::Purpose;
use super::system::File;
use super::{Access, Machine, ProcessId};

/// An open file of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub(super) u32);

impl FileId {
    /// The number, as used by [`super::address_space::Backing::File`].
    pub fn number(self) -> u32 {
        self.0
    }
}

impl Machine {
    /// Adds a file of `pages` pages whose cache is charged to `memcg`.
    pub fn add_file(&mut self, pages: u32, memcg: MemcgId, advice: Advice) -> FileId {
        let first_block = self
            .sys
            .files
            .last()
            // A gap keeps the end of one file and the start of the next from being sequential.
            .map_or(0, |file| {
                file.first_block + u64::from(file.cache.len()) + 1024
            });
        self.sys.files.push(File {
            cache: PageCache::new(pages),
            first_block,
            readahead: advice != Advice::Random && self.config.readahead_pages > 0,
            last_read: None,
            memcg,
        });
        FileId(self.sys.files.len() as u32 - 1)
    }

    /// Charges the kernel objects that the first opening of a file creates: inode, dentry, open
    /// file. The reference kernels charge 4736 bytes more to a group that opens one on ext4.
    pub fn charge_file_objects(&mut self, process: ProcessId) {
        const OBJECT_BYTES: u64 = 4736;
        let memcg = self.memcg_of_mm(process.mm());
        let charged = self.charge_objects(process, memcg, OBJECT_BYTES);
        debug_assert!(charged.is_ok(), "opening a file finds the limit used up");
    }

    /// Reads whole pages through a descriptor.
    pub fn read(&mut self, process: ProcessId, file: FileId, index: u32, pages: u32) -> Access {
        self.begin_io();
        let FileId(number) = file;
        let len = self.sys.files[number as usize].cache.len();
        if index.checked_add(pages).is_none_or(|end| end > len) {
            return Access::Invalid;
        }
        self.note_file_access(number, index..index + pages);
        let mut result = Access::Hit;
        for at in index..index + pages {
            self.sys.now_ns += self.config.cost.file_io_ns;
            self.accesses[1] += 1;
            let pfn = match self.sys.files[number as usize].cache.get(at) {
                Entry::Present(pfn) => pfn,
                Entry::Empty | Entry::Shadow(_) => {
                    self.sys.now_ns += self.config.cost.fault_ns;
                    result = Access::Major;
                    match self.read_into_cache(process, number, at, false, true) {
                        Ok(pfn) => pfn,
                        Err(_) => return Access::Killed,
                    }
                }
            };
            self.pay_for_distance(Some(pfn));
            // If a page held the last byte of the previous read, this read does not mark it again
            // as its first page (`filemap_read`).
            let file = &mut self.sys.files[number as usize];
            let repeated = at == index && file.last_read == Some(at);
            if !repeated {
                self.lru.mark_accessed(pfn, self.sys.cpu);
            }
        }
        if let Some(last) = (index + pages).checked_sub(1).filter(|_| pages > 0) {
            self.sys.files[number as usize].last_read = Some(last);
        }
        result
    }

    /// Writes whole pages through a descriptor.
    pub fn write(&mut self, process: ProcessId, file: FileId, index: u32, pages: u32) -> Access {
        self.write_pages(process, file, index, pages, false)
    }

    /// Writes part of a page through a descriptor: a page that is not in memory is read first.
    pub fn write_part(&mut self, process: ProcessId, file: FileId, index: u32) -> Access {
        self.write_pages(process, file, index, 1, true)
    }

    fn write_pages(
        &mut self,
        process: ProcessId,
        file: FileId,
        index: u32,
        pages: u32,
        reads: bool,
    ) -> Access {
        self.begin_io();
        let FileId(number) = file;
        let len = self.sys.files[number as usize].cache.len();
        if index.checked_add(pages).is_none_or(|end| end > len) {
            return Access::Invalid;
        }
        let mut result = Access::Hit;
        for at in index..index + pages {
            self.sys.now_ns += self.config.cost.file_io_ns;
            self.accesses[1] += 1;
            // Only reads mark a page as accessed, and a page that is created for a write is not a
            // refault (`FGP_WRITEBEGIN` has no `FGP_ACCESSED`; `__GFP_WRITE`).
            let pfn = match self.sys.files[number as usize].cache.get(at) {
                Entry::Present(pfn) => pfn,
                Entry::Empty | Entry::Shadow(_) => {
                    let Ok((pfn, _)) = self.add_to_cache(process, number, at, Effort::Normal)
                    else {
                        return Access::Killed;
                    };
                    self.queue_page(pfn, false);
                    if reads {
                        self.sys.now_ns += self.config.cost.fault_ns;
                        result = Access::Major;
                        self.fill(process, number, at, pfn);
                    }
                    pfn
                }
            };
            if !self.add_buffer_head(process, pfn) {
                return Access::Killed;
            }
            self.pay_for_distance(Some(pfn));
            if !self.lru.folios[pfn].has(Flag::Dirty) {
                self.note_file_access(number, at..at + 1);
            }
            self.sys.set_dirty(&mut self.lru.folios, pfn);
        }
        self.balance_dirty_pages(process);
        result
    }

    fn begin_io(&mut self) {
        if self.sys.now_ns >= self.sys.events.next_ns() {
            self.run_events();
        }
    }

    fn queue_page(&mut self, pfn: Pfn, fault_with_recency: bool) {
        let context = AddContext {
            cpu: self.sys.cpu,
            fault_with_recency,
            reclaiming: false,
        };
        self.lru.folio_add(pfn, context);
    }

    /// Adds a new page to a file's cache; returns it and the shadow it replaces. The page is on no
    /// list yet.
    fn add_to_cache(
        &mut self,
        process: ProcessId,
        file: u32,
        index: u32,
        effort: Effort,
    ) -> Result<(Pfn, Option<u64>), ChargeError> {
        let memcg = self.memcg_of_mm(process.mm());
        let pfn = self.new_page(process, memcg, Purpose::Cache, effort)?;
        let owner = self.sys.files[file as usize].memcg;
        let mut nodes = 0;
        // Making room for a node may free the node above it, which is then needed too.
        while self.sys.files[file as usize].cache.nodes_missing(index) > nodes {
            self.charge_objects(process, owner, NODE_BYTES)
                .inspect_err(|_| self.sys.free_frame(&mut self.lru.folios, pfn))?;
            nodes += 1;
        }
        // Making room may have freed the node that held the shadow.
        let shadow = match self.sys.files[file as usize].cache.get(index) {
            Entry::Shadow(shadow) => Some(shadow),
            Entry::Empty | Entry::Present(_) => None,
        };
        self.sys.frames.set_owner(pfn, Owner::File { file, index });
        self.sys.set_cache_entry(file, index, Entry::Present(pfn));
        Ok((pfn, shadow))
    }

    /// Reads a page into the cache, with read-ahead if the file uses it. `in_fault`: for a page
    /// fault in a mapping with recency.
    pub(super) fn read_into_cache(
        &mut self,
        process: ProcessId,
        file: u32,
        index: u32,
        in_fault: bool,
        readahead: bool,
    ) -> Result<Pfn, ChargeError> {
        let pfn = self.read_one(process, file, index, in_fault, Effort::Normal)?;
        if readahead && self.sys.files[file as usize].readahead {
            // The reader keeps the page it came for locked while it makes room for more.
            self.lru.folios[pfn].set(Flag::Locked);
            self.read_ahead(process, file, index, in_fault);
            self.lru.folios[pfn].clear(Flag::Locked);
        }
        Ok(pfn)
    }

    fn read_one(
        &mut self,
        process: ProcessId,
        file: u32,
        index: u32,
        in_fault: bool,
        effort: Effort,
    ) -> Result<Pfn, ChargeError> {
        let (pfn, shadow) = self.add_to_cache(process, file, index, effort)?;
        if let Some(shadow) = shadow {
            self.refault(pfn, shadow, in_fault);
        }
        self.queue_page(pfn, in_fault);
        self.fill(process, file, index, pfn);
        Ok(pfn)
    }

    /// Reads the contents of a cached page from the device.
    fn fill(&mut self, process: ProcessId, file: u32, index: u32, pfn: Pfn) {
        self.sys.counters.pgpgin += 1;
        let place = self.sys.files[file as usize].first_block + u64::from(index);
        self.read_page(process, pfn, place, false);
    }

    /// Reads the pages that follow a miss: a window of at most 4 pages after a random read, of
    /// `readahead_pages` after a sequential one. It ends at the first page that is already present
    /// or that the cgroup has no room for.
    fn read_ahead(&mut self, process: ProcessId, file: u32, index: u32, in_fault: bool) {
        let state = &self.sys.files[file as usize];
        let sequential = index == 0 || state.last_read == index.checked_sub(1);
        let window = if sequential {
            self.config.readahead_pages
        } else {
            self.config.readahead_pages.min(4)
        };
        let end = index.saturating_add(window).min(state.cache.len());
        for at in index + 1..end {
            let present = self.sys.files[file as usize].cache.get(at);
            if matches!(present, Entry::Present(_)) {
                break;
            }
            if self
                .read_one(process, file, at, in_fault, Effort::NoRetry)
                .is_err()
            {
                // It could not be charged: the window is cut short.
                break;
            }
        }
    }
}
