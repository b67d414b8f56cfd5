// SPDX-License-Identifier: Apache-2.0
//! Where allocations and charges enter reclaim: frames, limits, requests, pressure.

use agewise_kernel::classic::List;
use agewise_kernel::folio::{FolioType, Pfn};
use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::reclaim::Reclaimer;
use agewise_kernel::reclaim::direct::{DirectRequest, try_to_free_pages};
use agewise_kernel::reclaim::memcg_limit::{
    CgroupRequest, ShortOfTarget, reclaim_proactively, try_to_free_mem_cgroup_pages,
};
use agewise_kernel::reclaim::oom::AllocRetry;
use agewise_kernel::world::World;

use super::charge::ChargeError;
use super::zone::Reserve;
use super::{Machine, ProcessId};

impl Machine {
    /// Reclaims from a cgroup whose limit prevents charging `pages` more; returns the pages
    /// reclaimed.
    pub(super) fn reclaim_at_limit(
        &mut self,
        process: ProcessId,
        memcg: MemcgId,
        pages: u64,
    ) -> u64 {
        let start_ns = self.sys.now_ns;
        let begun = self.begin_work();
        self.trace_process(process);
        // Tens of faults (milliseconds) have passed since its last call: it was scheduled
        // meanwhile.
        self.schedule(process);
        let request = CgroupRequest {
            nr_pages: pages,
            ..CgroupRequest::limit(memcg, self.sys.cpu, self.home(process))
        };
        let reclaimed = try_to_free_mem_cgroup_pages(&mut self.lru, &mut self.sys, request);
        self.pay_for_work(&begun);
        self.note_stall(process, start_ns);
        reclaimed
    }

    /// `memory.reclaim`: reclaims `pages` from a cgroup on request, with `swappiness` if given.
    ///
    /// # Errors
    /// Fails if less could be reclaimed (`EAGAIN`).
    pub fn reclaim_memcg(
        &mut self,
        memcg: MemcgId,
        pages: u64,
        swappiness: Option<u32>,
    ) -> Result<u64, ShortOfTarget> {
        let begun = self.begin_work();
        let request = CgroupRequest {
            nr_pages: pages,
            reclaimer: Reclaimer::Proactive,
            swappiness,
            ..CgroupRequest::limit(memcg, self.sys.cpu, NodeId(0))
        };
        self.trace_outside();
        let result = reclaim_proactively(&mut self.lru, &mut self.sys, request);
        self.pay_for_work(&begun);
        self.end_victims();
        result
    }

    fn home(&self, process: ProcessId) -> NodeId {
        NodeId(self.processes[process.index()].node)
    }

    /// Allocates a frame, from the local node first, waking kswapd below the low watermark and
    /// reclaiming at the min watermark (`__alloc_pages`).
    #[inline]
    pub(super) fn allocate_frame(
        &mut self,
        process: ProcessId,
        node: NodeId,
    ) -> Result<(Pfn, usize), ChargeError> {
        let highest = self.processes[process.index()].highest_zone;
        let before = self.sys.frames.work;
        let result = match self.sys.frames.allocate(node, highest, Reserve::Fair) {
            Some(found) => Ok(found),
            None => self.allocate_frame_slow(process, node, highest),
        };
        // The cost of a fault already includes an allocation from the first zone checked.
        let further = self.sys.frames.work.since(&before);
        let further_ns = self.config.cost.price_zone_choice(&further);
        self.allocator_ns += further_ns;
        self.sys.now_ns += further_ns;
        result
    }

    #[cold]
    fn allocate_frame_slow(
        &mut self,
        process: ProcessId,
        node: NodeId,
        highest: usize,
    ) -> Result<(Pfn, usize), ChargeError> {
        if let Some(found) = self.allocate_anywhere(node, highest, Reserve::Low) {
            return Ok(found);
        }
        self.trace_process(process);
        for index in 0..self.config.all_nodes() {
            self.wake_kswapd(NodeId(index), highest);
        }
        if let Some(found) = self.allocate_anywhere(node, highest, Reserve::Min) {
            return Ok(found);
        }
        let mut retry = AllocRetry::default();
        loop {
            let lock_wait_ns = self.lock_wait_ns;
            let reclaimed = self.reclaim_directly(process, node, highest);
            self.catch_up(self.lock_wait_ns - lock_wait_ns);
            if let Some(found) = self.allocate_anywhere(node, highest, Reserve::Min) {
                return Ok(found);
            }
            let nodes: Vec<_> = (0..self.config.all_nodes())
                .map(|number| {
                    let node = NodeId(number);
                    let zones = self.sys.frames.zones(node);
                    (zones, self.reclaimable(node, highest))
                })
                .collect();
            if retry.after_reclaim(reclaimed, (0, highest), &nodes) {
                continue;
            }
            let killed = self.sys.oom_kill(MemcgId::ROOT);
            self.end_victims();
            if !self.is_alive(process) || !killed {
                return Err(ChargeError::Killed);
            }
            retry = AllocRetry::default();
        }
    }

    /// Runs what was due while the process reclaimed: writes that reclaim started or waited for may
    /// have made room. The end of its wait for the LRU lock lies ahead of all other CPUs: kswapd,
    /// if it were run until then, would take the lock at a time that they have not reached, and
    /// they would wait for it.
    fn catch_up(&mut self, lock_wait_ns: u64) {
        self.sys.now_ns -= lock_wait_ns;
        if self.sys.now_ns >= self.sys.events.next_ns() {
            self.run_events();
        }
        self.sys.now_ns += lock_wait_ns;
    }

    fn allocate_anywhere(
        &mut self,
        node: NodeId,
        highest: usize,
        reserve: Reserve,
    ) -> Option<(Pfn, usize)> {
        let fast = self.config.nodes;
        let others = (1..=fast).map(|step| NodeId((node.0 + step) % fast));
        // The slow node is the farthest from all others.
        std::iter::once(node)
            .chain(
                others
                    .chain(self.config.slow_node())
                    .filter(|&at| at != node),
            )
            .find_map(|node| self.sys.frames.allocate(node, highest, reserve))
    }

    fn reclaim_directly(&mut self, process: ProcessId, node: NodeId, highest: usize) -> u64 {
        let start_ns = self.sys.now_ns;
        let begun = self.begin_work();
        self.sys.counters.allocstall += 1;
        self.trace_process(process);
        self.schedule(process);
        let request = DirectRequest {
            order: 0,
            reclaim_idx: highest,
            io_allowed: true,
            cpu: self.sys.cpu,
            node,
        };
        let reclaimed = try_to_free_pages(&mut self.lru, &mut self.sys, request);
        self.pay_for_work(&begun);
        self.note_stall(process, start_ns);
        reclaimed
    }

    /// Pages on the lists of a node that reclaim for a request with this highest zone could free,
    /// by zone. Pages of generations, which are not told apart by zone, count in the highest zone.
    fn reclaimable(&self, node: NodeId, highest: usize) -> [u64; 4] {
        let leaves =
            self.sys.swap_free_pages(MemcgId::ROOT) > 0 || self.sys.demotion_target(node).is_some();
        let zones = self.sys.frames.zones(node);
        let top = (0..=highest)
            .rev()
            .find(|&zone| zones[zone].managed_pages > 0)
            .unwrap_or(highest);
        let mut pages = [0; 4];
        for lruvec in &self.lru.lruvecs {
            if self.sys.list_scope.place(lruvec.node).0 != node {
                continue;
            }
            for list in List::ALL {
                if list.folio_type() == FolioType::Anon && !leaves {
                    continue;
                }
                let mut below = 0;
                for (zone, pages) in pages.iter_mut().enumerate().take(highest + 1) {
                    let up_to = lruvec.classic.size_pages(list, zone);
                    *pages += up_to - below;
                    below = up_to;
                }
                pages[top] += lruvec.mglru.pages(list.folio_type(), list.is_active());
            }
        }
        pages
    }

    /// Records that the process stalled for memory from `start_ns` until now.
    pub(super) fn note_stall(&mut self, process: ProcessId, start_ns: u64) {
        let end_ns = self.sys.now_ns;
        let mut at = self.memcg_of_mm(process.mm());
        while at != MemcgId::NONE {
            let tasks = self.tasks_below(at);
            self.sys.stalls.groups[at.index()].add(process.mm().0, tasks, start_ns, end_ns);
            at = self.sys.memcgs.parent(at);
        }
    }

    fn tasks_below(&self, memcg: MemcgId) -> usize {
        let own = self.sys.memcgs[memcg].tasks as usize;
        let children = self.sys.memcgs.children(memcg);
        own + children
            .iter()
            .map(|&child| self.tasks_below(child))
            .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::address_space::Advice;
    use super::super::{Access, Limits, MachineConfig};
    use super::*;

    #[test]
    fn kswapd_waits_for_the_lock_from_when_it_is_woken() {
        const HELD_NS: u64 = 10_000_000_000;
        let mut machine = Machine::new(MachineConfig {
            cpus: 2,
            ..MachineConfig::new(1 << 12)
        });
        let memcg = machine.add_memcg(MemcgId::ROOT, "t", Limits::default());
        let process = machine.add_process(memcg);
        let file = machine.add_file(1 << 12, memcg, Advice::Random);
        machine.lock_free_ns = HELD_NS;
        // One read fills the memory: kswapd is woken at the low watermark, and at the min
        // watermark the process reclaims and waits. Both wait for the rest of the 10 s.
        assert_eq!(machine.read(process, file, 0, 1 << 12), Access::Major);
        assert!(machine.sys.counters.allocstall > 0);
        let waited_ns = machine.lock_wait_ns;
        assert!(waited_ns > HELD_NS * 3 / 2, "{waited_ns}");
    }
}
