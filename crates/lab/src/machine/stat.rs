// SPDX-License-Identifier: Apache-2.0
//! Counters of the machine, named as in `/proc/vmstat` and `memory.stat`.

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::{LruvecId, MemcgId};
use agewise_kernel::reclaim::counters_profile::Counter;
use agewise_kernel::work::{Events, Work};
use agewise_policy::table::PAGE_BYTES;

use super::memcg::{Limits, MemcgEvents};
use super::stall::Pressure;
use super::{Counters, Machine};

/// Name and value of a counter.
pub type Line = (&'static str, u64);

fn add(into: &mut Events, events: &Events) {
    for t in 0..2 {
        into.pgscan[t] += events.pgscan[t];
        into.pgsteal[t] += events.pgsteal[t];
        into.workingset_refault[t] += events.workingset_refault[t];
        into.workingset_activate[t] += events.workingset_activate[t];
        into.workingset_restore[t] += events.workingset_restore[t];
    }
    for zone in 0..4 {
        into.pgscan_skip[zone] += events.pgscan_skip[zone];
    }
    into.pgscan_kswapd += events.pgscan_kswapd;
    into.pgscan_direct += events.pgscan_direct;
    into.pgscan_limit += events.pgscan_limit;
    into.pgscan_proactive += events.pgscan_proactive;
    into.pgsteal_kswapd += events.pgsteal_kswapd;
    into.pgsteal_direct += events.pgsteal_direct;
    into.pgsteal_limit += events.pgsteal_limit;
    into.pgsteal_proactive += events.pgsteal_proactive;
    into.pgdemote_kswapd += events.pgdemote_kswapd;
    into.pgdemote_direct += events.pgdemote_direct;
    into.pgdemote_proactive += events.pgdemote_proactive;
    into.pgrefill += events.pgrefill;
    into.pgrefill_cgroup += events.pgrefill_cgroup;
    into.pgactivate += events.pgactivate;
    into.pgdeactivate += events.pgdeactivate;
    into.pgrotated += events.pgrotated;
    into.workingset_nodereclaim += events.workingset_nodereclaim;
    into.thp_swpout += events.thp_swpout;
    into.thp_swpout_fallback += events.thp_swpout_fallback;
    into.thp_migration_split += events.thp_migration_split;
}

impl Machine {
    /// Events of a cgroup and its descendants.
    pub fn memcg_events(&self, memcg: MemcgId) -> Events {
        let mut sum = Events::default();
        for lruvec in &self.lru.lruvecs {
            if self.sys.memcgs.is_descendant(lruvec.memcg, memcg) {
                add(&mut sum, &lruvec.events);
            }
        }
        let dropped = |at| self.sys.memcgs[at].shadow_nodes_dropped;
        sum.workingset_nodereclaim += self.below(memcg).map(dropped).sum::<u64>();
        sum
    }

    /// Pages on the lists of a cgroup and its descendants.
    fn list_pages(&self, memcg: MemcgId, folio_type: FolioType, active: bool) -> u64 {
        (0..self.lru.lruvecs.len() as u32)
            .map(LruvecId)
            .filter(|&id| {
                let owner = self.sys.memcg_of_lruvec(id);
                self.sys.memcgs.is_descendant(owner, memcg)
            })
            .map(|id| self.lru.lru_pages(id, folio_type, active))
            .sum()
    }

    fn below(&self, memcg: MemcgId) -> impl Iterator<Item = MemcgId> + '_ {
        (0..self.sys.memcgs.len() as u32)
            .map(MemcgId)
            .filter(move |&at| self.sys.memcgs.is_descendant(at, memcg))
    }

    /// Pages in memory of a cgroup and its descendants, anon and file.
    pub fn resident_pages(&self, memcg: MemcgId) -> [u64; 2] {
        let mut sum = [0; 2];
        for at in self.below(memcg) {
            for (total, pages) in sum.iter_mut().zip(self.sys.memcgs[at].resident_pages) {
                *total += pages;
            }
        }
        sum
    }

    /// `memory.current` of a cgroup, in pages.
    pub fn usage_pages(&self, memcg: MemcgId) -> u64 {
        self.sys.memcgs[memcg].usage_pages
    }

    /// Kernel memory charged to a cgroup and its descendants, in pages.
    pub fn kernel_pages(&self, memcg: MemcgId) -> u64 {
        self.below(memcg)
            .map(|at| self.sys.memcgs.kernel_pages(at))
            .sum()
    }

    /// `memory.events` of a cgroup: its own and those of its descendants, removed ones too.
    pub fn memcg_limit_events(&self, memcg: MemcgId) -> MemcgEvents {
        let mut sum = MemcgEvents::default();
        for at in self.below(memcg) {
            let own = self.sys.memcgs[at].events;
            sum.low += self.lru.memcgs[at.index()].low_events;
            sum.high += own.high;
            sum.max += own.max;
            sum.oom += own.oom;
            sum.oom_kill += own.oom_kill;
        }
        sum
    }

    /// Limits of a cgroup.
    pub fn limits(&self, memcg: MemcgId) -> Limits {
        self.sys.memcgs[memcg].limits
    }

    /// `memory.pressure` of a cgroup.
    pub fn pressure(&self, memcg: MemcgId) -> &Pressure {
        &self.sys.stalls.groups[memcg.index()]
    }

    /// Counters of the machine.
    pub fn counters(&self) -> Counters {
        self.sys.counters
    }

    /// Accesses by processes so far: to mapped pages, and through file descriptors.
    pub fn accesses(&self) -> [u64; 2] {
        self.accesses
    }

    /// Work of the policies so far.
    pub fn work(&self) -> Work {
        self.lru.work
    }

    /// Times in ns: CPU time of the policies in total, CPU time of kswapd and the flusher, and
    /// waiting for the LRU lock.
    pub fn cpu_ns(&self) -> [u64; 3] {
        [self.policy_ns, self.background_ns, self.lock_wait_ns]
    }

    /// `memory.stat` of a cgroup: levels in bytes, then events; those of reclaim are the ones that
    /// the kernel version has. In the kernel, reading it flushes the statistics; here
    /// [`Machine::flush_stats`] does.
    pub fn memory_stat(&self, memcg: MemcgId) -> Vec<Line> {
        let bytes = |pages: u64| pages * PAGE_BYTES;
        let [anon, file] = self.resident_pages(memcg);
        let list = |folio_type, active| bytes(self.list_pages(memcg, folio_type, active));
        let sum = |of: fn(&super::memcg::MemcgCounters) -> u64| -> u64 {
            self.below(memcg).map(|at| of(&self.sys.memcgs[at])).sum()
        };
        let mut lines = vec![
            ("anon", bytes(anon)),
            ("file", bytes(file)),
            ("kernel", bytes(self.kernel_pages(memcg))),
            ("pagetables", bytes(sum(|group| group.table_pages))),
            ("slab", sum(|group| group.slab_bytes)),
            ("inactive_anon", list(FolioType::Anon, false)),
            ("active_anon", list(FolioType::Anon, true)),
            ("inactive_file", list(FolioType::File, false)),
            ("active_file", list(FolioType::File, true)),
        ];
        let events = self.memcg_events(memcg);
        lines.extend(workingset_lines(&events));
        let counters = self.config.policy.kernel.counters;
        lines.extend(reclaim_lines(counters.memory_stat, &events));
        if self.config.slow_pages > 0 && counters.cgroups_count_demotion {
            lines.extend(reclaim_lines(counters.demotion, &events));
        }
        if counters.cgroups_count_huge_swap {
            lines.extend(huge_swap_lines(&events));
        }
        lines
    }

    /// The lines of `/proc/vmstat` that the machine supports.
    pub fn vmstat(&self) -> Vec<Line> {
        let counters = &self.sys.counters;
        let list = |folio_type, active| self.list_pages(MemcgId::ROOT, folio_type, active);
        let mut lines = vec![
            ("nr_free_pages", self.sys.frames.total_free()),
            ("nr_inactive_anon", list(FolioType::Anon, false)),
            ("nr_active_anon", list(FolioType::Anon, true)),
            ("nr_inactive_file", list(FolioType::File, false)),
            ("nr_active_file", list(FolioType::File, true)),
            ("nr_dirty", self.sys.dirty_file_pages),
            ("pgpgin", counters.pgpgin),
            ("pgpgout", counters.pgpgout),
            ("pswpin", counters.pswpin),
            ("pswpout", counters.pswpout),
            ("pgfault", counters.pgfault),
            ("pgmajfault", counters.pgmajfault),
            ("allocstall", counters.allocstall),
            ("oom_kill", counters.oom_kill),
            ("nr_vmscan_write", counters.vmscan_write.iter().sum()),
            ("slabs_scanned", counters.slabs_scanned),
        ];
        let events = self.memcg_events(MemcgId::ROOT);
        lines.extend(workingset_lines(&events));
        let counters = self.config.policy.kernel.counters;
        lines.extend(reclaim_lines(counters.vmstat, &events));
        if self.config.slow_pages > 0 {
            lines.extend(reclaim_lines(counters.demotion, &events));
            lines.push(("thp_migration_split", events.thp_migration_split));
        }
        lines.push(("thp_split_page", self.lru.work.splits));
        lines.extend(huge_swap_lines(&events));
        lines
    }
}

fn workingset_lines(events: &Events) -> [Line; 7] {
    [
        ("workingset_refault_anon", events.workingset_refault[0]),
        ("workingset_refault_file", events.workingset_refault[1]),
        ("workingset_activate_anon", events.workingset_activate[0]),
        ("workingset_activate_file", events.workingset_activate[1]),
        ("workingset_restore_anon", events.workingset_restore[0]),
        ("workingset_restore_file", events.workingset_restore[1]),
        ("workingset_nodereclaim", events.workingset_nodereclaim),
    ]
}

fn huge_swap_lines(events: &Events) -> [Line; 2] {
    [
        ("thp_swpout", events.thp_swpout),
        ("thp_swpout_fallback", events.thp_swpout_fallback),
    ]
}

fn reclaim_lines<'e>(
    counters: &'static [Counter],
    events: &'e Events,
) -> impl Iterator<Item = Line> + 'e {
    counters.iter().map(|(name, of)| (*name, of(events)))
}

#[cfg(test)]
mod tests {
    use super::super::address_space::MapOptions;
    use super::super::device::DeviceKind;
    use super::super::{Limits, MachineConfig, SwapConfig};
    use super::*;

    #[test]
    fn events_below_a_cgroup_are_its_own_too() {
        let mut machine = Machine::new(MachineConfig {
            swap: Some(SwapConfig::new(DeviceKind::Zram, 1 << 14)),
            ..MachineConfig::new(1 << 14)
        });
        let limits = |max_pages, low_pages| Limits {
            max_pages,
            low_pages,
            ..Limits::default()
        };
        let top = machine.add_memcg(MemcgId::ROOT, "top", limits(600, 0));
        let below = machine.add_memcg(top, "below", limits(u64::MAX, 1000));
        let process = machine.add_process(below);
        let first = machine.map(process, &MapOptions::anon(1000)).unwrap();
        for vpn in first..first + 1000 {
            machine.access(process, vpn, true);
        }
        let [of_top, of_below] = [top, below].map(|memcg| machine.memcg_limit_events(memcg));
        assert!(of_below.low > 0 && of_top.low == of_below.low);
        assert!(of_top.max > 0 && of_below.max == 0);
    }
}
