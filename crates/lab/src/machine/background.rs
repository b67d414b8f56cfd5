// SPDX-License-Identifier: Apache-2.0
//! Background work: kswapd, the flusher, the end of writeback, the flush of memcg statistics, and
//! the throttling of writers.

use agewise_kernel::classic::flush_stats;
use agewise_kernel::folio::{Flag, Pfn};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::reclaim::TOP_ZONE;
use agewise_kernel::reclaim::kswapd::{NAP_NS, Next};
use agewise_kernel::tracepoint::Tracepoint;
use agewise_kernel::world::World;

use super::events::Event;
use super::frames::Owner;
use super::memcg::UNLIMITED;
use super::page_tables::COPY_ON_WRITE;
use super::{Machine, ProcessId};

/// Pages the flusher writes at a time (`MAX_WRITEBACK_PAGES` is 4 MiB).
const FLUSH_BATCH: usize = 1024;

/// `MAX_PAUSE` of `balance_dirty_pages`: 200 ms.
const MAX_PAUSE_NS: u64 = 200_000_000;

impl Machine {
    /// Runs all events that are due. They run on CPU time of their own unless the machine has one
    /// CPU, where they delay the running process.
    #[cold]
    #[inline(never)]
    pub(super) fn run_events(&mut self) {
        let now_ns = self.sys.now_ns;
        while let Some((at_ns, event)) = self.sys.events.pop_due(now_ns) {
            match event {
                Event::StatFlush => {
                    flush_stats(&mut self.lru);
                    let next_ns = at_ns + self.config.stat_flush_ns;
                    self.sys.events.push(next_ns, Event::StatFlush);
                }
                Event::WritebackDone(pfn) => self.writeback_done(pfn),
                Event::LowMemory(node) => self.wake_kswapd(node, TOP_ZONE),
                Event::Kswapd(node) if self.kswapd_due_ns[node.index()] == at_ns => {
                    self.kswapd_step(node, at_ns.max(now_ns));
                }
                Event::Kswapd(_) => {}
                Event::Flusher => self.flush(at_ns.max(now_ns)),
                Event::Kdamond => self.damon_step(at_ns),
                Event::Aging => {
                    self.in_background(at_ns.max(now_ns), |machine| machine.age_reports(at_ns));
                }
            }
        }
        self.end_victims();
    }

    /// Reads the statistics of a cgroup as user space does, which flushes them.
    pub fn flush_stats(&mut self) {
        flush_stats(&mut self.lru);
    }

    fn writeback_done(&mut self, pfn: Pfn) {
        let unused = self.sys.is_unused(&self.lru.folios, pfn);
        self.sys.end_writeback(&mut self.lru.folios, pfn);
        if unused {
            self.free_anon(pfn);
        } else {
            self.lru.writeback_end(pfn, self.sys.cpu);
        }
    }

    /// Runs `work` in the background at `at_ns` and accounts for its CPU time. Returns when it
    /// ends.
    fn in_background<T>(&mut self, at_ns: u64, work: impl FnOnce(&mut Machine) -> T) -> (T, u64) {
        let (result, end_ns, busy_ns) = self.apart(at_ns, work);
        self.background_ns += busy_ns;
        (result, end_ns)
    }

    /// Runs `work` at `at_ns` beside the running process, which it delays if there is one CPU.
    /// Returns when it ends and the CPU time it took.
    pub(super) fn apart<T>(
        &mut self,
        at_ns: u64,
        work: impl FnOnce(&mut Machine) -> T,
    ) -> (T, u64, u64) {
        let now_ns = std::mem::replace(&mut self.sys.now_ns, at_ns);
        let waited_ns = self.sys.waited_ns;
        let result = work(self);
        let end_ns = self.sys.now_ns;
        let busy_ns = (end_ns - at_ns).saturating_sub(self.sys.waited_ns - waited_ns);
        self.sys.waited_ns = waited_ns;
        self.sys.now_ns = now_ns;
        if self.config.cpus == 1 {
            self.sys.now_ns += busy_ns;
        }
        (result, end_ns, busy_ns)
    }

    /// Wakes kswapd after an allocation fell below the low watermark.
    pub(super) fn wake_kswapd(&mut self, node: NodeId, highest_zone: usize) {
        let kswapd = &mut self.kswapd[node.index()];
        if kswapd.wake(&self.lru, &self.sys, 0, highest_zone) {
            let order = 0;
            self.sys.trace(&Tracepoint::WakeupKswapd { node, order });
            self.schedule_kswapd(node, self.sys.now_ns);
        }
    }

    /// Schedules the next step of a kswapd at `at_ns`, replacing any step planned before.
    fn schedule_kswapd(&mut self, node: NodeId, at_ns: u64) {
        self.kswapd_due_ns[node.index()] = at_ns;
        self.sys.events.push(at_ns, Event::Kswapd(node));
    }

    fn kswapd_step(&mut self, node: NodeId, at_ns: u64) {
        let runs = self.trace_kswapd(node);
        let (next, end_ns) = self.in_background(at_ns, |machine| {
            let begun = machine.begin_work();
            let kswapd = &mut machine.kswapd[node.index()];
            let next = kswapd.step(&mut machine.lru, &mut machine.sys);
            machine.pay_for_work(&begun);
            next
        });
        self.trace_task(runs);
        if let Some(priority) = self.kswapd[node.index()].priority() {
            self.note_pressure(node, priority);
        }
        match next {
            // A step that took no time must not be due again at the same instant for ever.
            Next::Run => self.schedule_kswapd(node, end_ns.max(at_ns + 1)),
            Next::Nap => self.schedule_kswapd(node, end_ns + NAP_NS),
            Next::Sleep => self.kswapd_due_ns[node.index()] = u64::MAX,
        }
    }

    /// Writes a batch of dirty file pages, oldest first.
    fn flush(&mut self, at_ns: u64) {
        let (last_done_ns, end_ns) = self.in_background(at_ns, |machine| {
            let mut last_done_ns = 0;
            for _ in 0..FLUSH_BATCH {
                let Some(pfn) = machine.sys.dirty_queue.pop_front() else {
                    break;
                };
                last_done_ns = last_done_ns.max(machine.write_back(pfn));
            }
            last_done_ns
        });
        if self.sys.dirty_queue.is_empty() {
            self.sys.flush_everything = false;
            return;
        }
        // The device accepts no more than it can write: the next batch starts when this one is
        // done.
        let next_ns = last_done_ns.max(end_ns + 1);
        self.sys.events.push(next_ns, Event::Flusher);
    }

    /// Starts writing everything dirty. Returns true when nothing is left to write.
    pub fn sync(&mut self) -> bool {
        if self.sys.now_ns >= self.sys.events.next_ns() {
            self.run_events();
        }
        if self.sys.dirty_file_pages == 0 {
            return true;
        }
        self.sys.start_flusher();
        false
    }

    /// Starts writing a page if it is still a dirty file page; returns when it will be done, or 0.
    fn write_back(&mut self, pfn: Pfn) -> u64 {
        let folio = &self.lru.folios[pfn];
        let file_page = matches!(self.sys.frames.owner(pfn), Owner::File { .. });
        if !file_page || !folio.has(Flag::Dirty) || folio.has(Flag::Writeback) {
            return 0;
        }
        // Write-protects the mappings again, so that the next write is noticed (`page_mkclean`).
        let mut index = 0;
        while let Some(mapping) = self.sys.frames.mapping(pfn, index) {
            if let Some(leaf) = self.sys.tables.leaf_mut(mapping.mm, mapping.vpn) {
                leaf.test_clear_dirty();
                leaf.0 |= COPY_ON_WRITE;
            }
            index += 1;
        }
        let Some(done_ns) = self.sys.start_write(&mut self.lru.folios, pfn) else {
            return 0;
        };
        self.sys.begin_writeback(&mut self.lru.folios, pfn, done_ns);
        done_ns
    }

    /// Free and file pages of the machine (`global_dirtyable_memory`).
    fn dirtyable_pages(&self) -> u64 {
        let file: u64 = (0..self.sys.memcgs.len() as u32)
            .map(|memcg| self.sys.memcgs[MemcgId(memcg)].resident_pages[1])
            .sum();
        self.sys.frames.total_free() + file
    }

    /// Dirty pages above a percentage of dirtyable memory, in the machine or in the cgroup or any
    /// ancestor with a limit, whichever has the largest excess. In a cgroup with `memory.max`, its
    /// file pages and the room below the limit are dirtyable.
    fn dirty_excess(&self, process: ProcessId, machine_percent: u64, percent: u64) -> u64 {
        let limit = self.dirtyable_pages() * machine_percent / 100;
        let of_machine = self.sys.dirty_file_pages.saturating_sub(limit);
        let memcgs = &self.sys.memcgs;
        let of_cgroups = memcgs
            .ancestry(self.memcg_of_process(process))
            .filter(|&at| memcgs[at].limits.max_pages != UNLIMITED)
            .map(|at| {
                let (mut file, mut dirty) = (0, 0);
                for index in 0..memcgs.len() as u32 {
                    if memcgs.is_descendant(MemcgId(index), at) {
                        file += memcgs[MemcgId(index)].resident_pages[1];
                        dirty += memcgs[MemcgId(index)].dirty_pages;
                    }
                }
                dirty.saturating_sub((file + memcgs.margin(at)) * percent / 100)
            });
        of_cgroups.max().unwrap_or(0).max(of_machine)
    }

    /// Throttles writers (`balance_dirty_pages`, cgroup writeback included). A writer above the
    /// background ratio wakes the flusher; in a cgroup it runs freely up to the mean of both
    /// ratios. Above the dirty ratio it waits until half of the excess is written.
    pub(super) fn balance_dirty_pages(&mut self, process: ProcessId) {
        let (background, ratio) = (self.config.dirty_background_ratio, self.config.dirty_ratio);
        let freerun = (background + ratio) / 2;
        if self.dirty_excess(process, background, freerun) == 0 {
            return;
        }
        self.sys.start_flusher();
        let excess = self.dirty_excess(process, ratio, ratio);
        if excess == 0 {
            return;
        }
        let model = &self.sys.file_device.model;
        let drain_ns = excess.div_ceil(2) * model.write_ns / model.channels.max(1) as u64;
        let start_ns = self.sys.now_ns;
        self.sys
            .wait_until(start_ns + drain_ns.clamp(1_000_000, MAX_PAUSE_NS));
        self.note_stall(process, start_ns);
        self.run_events();
    }
}
