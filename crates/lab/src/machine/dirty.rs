// SPDX-License-Identifier: Apache-2.0
//! Dirty file pages, and what a file system keeps for each page that it writes.

use agewise_kernel::folio::{Flag, FolioTable, FolioType, Pfn};
use agewise_kernel::ids::MemcgId;

use super::device::Direction;
use super::events::Event;
use super::frames::Owner;
use super::swap::swap_place;
use super::system::System;
use super::{Machine, ProcessId};

/// Size of a `buffer_head` and of the pointer to the cgroup it is charged to.
const BUFFER_HEAD_BYTES: u64 = 104 + 8;

impl Machine {
    /// Attaches a buffer head to a page that ext4 is about to write. It stays until the page is
    /// freed and is charged to the page's cgroup (`create_empty_buffers`). False if the process was
    /// killed meanwhile.
    pub(super) fn add_buffer_head(&mut self, process: ProcessId, pfn: Pfn) -> bool {
        if self.sys.has_buffer_head(pfn) {
            return true;
        }
        // The page is locked while its buffer head is made.
        self.lru.folios[pfn].set(Flag::Locked);
        let memcg = self.sys.memcg_of(&self.lru.folios, pfn);
        let made = self.charge_objects(process, memcg, BUFFER_HEAD_BYTES);
        self.lru.folios[pfn].clear(Flag::Locked);
        if made.is_ok() {
            self.sys.set_buffer_head(pfn);
        }
        made.is_ok()
    }
}

impl System {
    /// Whether a page of a file has a buffer head.
    fn has_buffer_head(&self, pfn: Pfn) -> bool {
        self.buffer_heads.get(pfn.0 as usize) == Some(&true)
    }

    /// Records that a page has a buffer head, which must have been charged.
    fn set_buffer_head(&mut self, pfn: Pfn) {
        self.buffer_heads.resize(self.frames.len() as usize, false);
        self.buffer_heads[pfn.0 as usize] = true;
    }

    /// Frees the buffer head of a page that is freed.
    pub(super) fn free_buffer_head(&mut self, memcg: MemcgId, pfn: Pfn) {
        if self.has_buffer_head(pfn) {
            self.buffer_heads[pfn.0 as usize] = false;
            self.memcgs.free_objects(memcg, BUFFER_HEAD_BYTES);
        }
    }

    /// Marks a file page dirty and queues it for the flusher.
    pub fn set_dirty(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        if folios[pfn].has(Flag::Dirty) {
            return;
        }
        folios[pfn].set(Flag::Dirty);
        if folios[pfn].folio_type() == FolioType::File {
            let pages = folios[pfn].nr_pages();
            let memcg = self.memcg_of(folios, pfn);
            self.dirty_file_pages += pages;
            *self.write_pending_mut(pfn) += pages;
            self.memcgs[memcg].dirty_pages += pages;
            self.dirty_queue.push_back(pfn);
        }
    }

    /// Starts to write everything dirty, unless that is under way (`wb_start_writeback`).
    pub(super) fn start_flusher(&mut self) {
        if !std::mem::replace(&mut self.flush_everything, true) {
            self.events.push(self.now_ns, Event::Flusher);
        }
    }

    pub(super) fn clear_dirty(&mut self, folios: &mut FolioTable, pfn: Pfn) {
        let folio = &mut folios[pfn];
        if folio.test_clear(Flag::Dirty) && folio.folio_type() == FolioType::File {
            let pages = folio.nr_pages();
            let memcg = self.memcg_of(folios, pfn);
            let group = &mut self.memcgs[memcg];
            group.dirty_pages = group.dirty_pages.saturating_sub(pages);
            self.dirty_file_pages = self.dirty_file_pages.saturating_sub(pages);
            *self.write_pending_mut(pfn) -= pages;
        }
    }

    /// Starts writing a dirty page, for whose first request the queue has room. A huge page is as
    /// many requests, and waits while the queue is full. Returns when it will be done; None without
    /// a place to write to.
    pub fn start_write(&mut self, folios: &mut FolioTable, pfn: Pfn) -> Option<u64> {
        let pages = folios[pfn].nr_pages();
        let now_ns = self.now_ns;
        let (swap, place) = match self.frames.owner(pfn) {
            Owner::Swap { slot } => {
                self.counters.pswpout += pages;
                (true, swap_place(slot))
            }
            Owner::File { file, index } => {
                self.counters.pgpgout += pages;
                let place = self.files[file as usize].first_block + u64::from(index);
                self.clear_dirty(folios, pfn);
                (false, place)
            }
            Owner::None => return None,
        };
        let device = self.disk(swap)?;
        let (mut room_ns, mut done_ns) = (now_ns, now_ns);
        for page in 0..pages {
            if page > 0 {
                room_ns = device.has_room_at(room_ns);
            }
            let from_ns = match device.model.synchronous {
                true => done_ns,
                false => room_ns,
            };
            done_ns = done_ns.max(device.submit(from_ns, Direction::Write, place + page));
        }
        folios[pfn].clear(Flag::Dirty);
        self.wait_until(room_ns);
        Some(done_ns)
    }

    /// Marks a page as under writeback until `done_ns`.
    pub(super) fn begin_writeback(&mut self, folios: &mut FolioTable, pfn: Pfn, done_ns: u64) {
        folios[pfn].set(Flag::Writeback);
        self.clock.under_writeback += 1;
        *self.write_pending_mut(pfn) += folios[pfn].nr_pages();
        self.events.push(done_ns, Event::WritebackDone(pfn));
    }

    pub(super) fn write_pending_mut(&mut self, pfn: Pfn) -> &mut u64 {
        &mut self.write_pending_pages[self.frames.node_of(pfn).index()]
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::{Advice, MapOptions};
    use super::super::device::DeviceKind;
    use super::super::{Access, Limits, Machine, MachineConfig};
    use agewise_kernel::folio::{Flag, Pfn};
    use agewise_kernel::ids::{MemcgId, NodeId};
    use agewise_kernel::world::World;

    fn under_writeback(machine: &Machine) -> usize {
        let frames = (0..machine.config.pages).map(|number| &machine.lru.folios[Pfn(number)]);
        frames.filter(|folio| folio.has(Flag::Writeback)).count()
    }

    #[test]
    fn writes_to_a_shared_mapping_are_held_to_the_share_of_dirty_memory() {
        let mut machine = Machine::new(MachineConfig::new(1 << 14));
        let limits = Limits {
            max_pages: 1000,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", limits);
        let process = machine.add_process(memcg);
        let file = machine.add_file(900, memcg, Advice::Normal);
        let first = machine
            .map(process, &MapOptions::file(file.0, 900))
            .unwrap();
        for reads_first in [false, true] {
            let mut most_pages = 0;
            for vpn in first..first + 900 {
                if reads_first {
                    machine.access(process, vpn, false);
                }
                machine.access(process, vpn, true);
                most_pages = most_pages.max(machine.sys.memcgs[memcg].dirty_pages);
            }
            // A fifth of the memory, and what is dirtied before a writer waits.
            assert!((100..300).contains(&most_pages), "{most_pages}");
            while !machine.sync() {
                machine.wait_ns(1_000_000);
            }
        }
    }

    #[test]
    fn the_flusher_writes_batch_by_batch_however_often_it_is_woken() {
        let mut machine = Machine::new(MachineConfig {
            file_device: DeviceKind::Hdd.model(),
            ..MachineConfig::new(1 << 16)
        });
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(memcg);
        let file = machine.add_file(5000, memcg, Advice::Normal);
        machine.write(process, file, 0, 5000);
        for _ in 0..100 {
            machine.sys.wake_flusher(NodeId(0));
        }
        machine.run_events();
        assert_eq!(under_writeback(&machine), 1024);
    }

    #[test]
    fn a_written_page_pays_for_a_buffer_head_and_is_not_marked_as_accessed() {
        let mut machine = Machine::new(MachineConfig::new(1 << 14));
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(memcg);
        let file = machine.add_file(1000, memcg, Advice::Random);
        let slab = |machine: &Machine| machine.sys.memcgs[memcg].slab_bytes;
        machine.read(process, file, 0, 1000);
        let read = slab(&machine);
        assert_eq!(machine.write_part(process, file, 0), Access::Hit);
        machine.write_part(process, file, 0);
        machine.write(process, file, 1, 9);
        assert_eq!(slab(&machine) - read, 10 * super::BUFFER_HEAD_BYTES);
        machine.reclaim_memcg(memcg, 1000, None).ok();
        assert!(slab(&machine) < read);

        let process_stats = machine.process_stats(process).read_pages;
        assert_eq!(machine.write_part(process, file, 500), Access::Major);
        assert_eq!(machine.write(process, file, 501, 1), Access::Hit);
        assert_eq!(machine.process_stats(process).read_pages, process_stats + 1);
        let frames = (0..1 << 14).map(|number| &machine.lru.folios[Pfn(number)]);
        let mut dirty = frames.filter(|folio| folio.has(Flag::Dirty)).peekable();
        assert!(dirty.peek().is_some());
        assert!(dirty.all(|folio| !folio.has(Flag::Referenced) && !folio.has(Flag::Active)));
    }
}
