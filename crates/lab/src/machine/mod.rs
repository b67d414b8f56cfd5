// SPDX-License-Identifier: Apache-2.0
//! The simulated machine: frames, page tables, page cache, swap, cgroups, devices and a clock,
//! under the policies of the engine.
//!
//! An operation (an access, a read) runs as a whole at its start time: its changes are visible at
//! once, and its duration is added to the clock. Background work (kswapd, the flusher, the end of
//! writeback, the flush of statistics) runs from an event queue between operations.

mod accessed_bit;
pub mod address_space;
pub mod alloc_work;
mod background;
mod cgroup;
mod charge;
mod check;
pub mod config;
pub mod cost;
mod counters;
pub mod damon;
pub mod device;
mod dirty;
mod disk;
mod events;
mod fault;
mod file_io;
mod followed;
pub(crate) mod frames;
mod huge_pages;
pub mod kernel;
mod kernel_files;
mod memcg;
pub mod page_alloc;
mod page_cache;
mod page_tables;
mod proactive;
mod process;
pub mod profile_file;
mod reclaim;
pub mod residency;
mod stall;
pub mod stat;
mod swap;
mod swap_cache;
mod system;
mod tiers;
pub mod tracing;
mod work_clock;
mod workingset;
mod written;
pub mod zone;
mod zone_info;
mod zram;

use agewise_kernel::classic;
use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::{MemcgId, MmId, NodeId};
use agewise_kernel::mglru;
use agewise_kernel::reclaim::kswapd::Kswapd;
use agewise_kernel::work::Work;
use agewise_kernel::{Lru, LruConfig, Mode};

pub use cgroup::{CgroupError, Resize};
pub use config::{Arrangement, MachineConfig, Policy, SwapConfig};
pub use counters::Counters;
pub use file_io::FileId;
pub use kernel_files::FileError;
pub use memcg::{Limits, MemcgEvents, UNLIMITED};
pub use proactive::{Clearing, TableSeen};
pub use process::{ProcessId, ProcessStats};
pub use stall::Pressure;
pub use zone_info::ZoneInfo;

use events::Event;
use page_tables::MmuOutcome;
use process::Process;
use system::{ShadowLimit, System};

/// Outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The page was present.
    Hit,
    /// A fault that read nothing.
    Minor,
    /// A fault that read from a device.
    Major,
    /// Nothing is mapped there, or the page lies beyond the end of the file.
    Invalid,
    /// The process was killed for lack of memory.
    Killed,
}

/// Work counters and clock at the start of policy work.
struct Begun {
    work: Work,
    at_ns: u64,
    early_ns: u64,
}

/// A simulated machine.
pub struct Machine {
    /// State of the policies.
    pub lru: Lru,
    pub(crate) sys: System,
    config: MachineConfig,
    processes: Vec<Process>,
    /// Accesses by processes so far: to mapped pages, and through file descriptors.
    accesses: [u64; 2],
    /// When the next flush of statistics at a refault may begin.
    flushed_ns: u64,
    /// When the LRU lock is free again, for more than one CPU.
    lock_free_ns: u64,
    /// Time spent waiting for the LRU lock, in ns.
    lock_wait_ns: u64,
    /// CPU time of policy work, in ns.
    policy_ns: u64,
    /// CPU time of kswapd and the flusher, in ns.
    background_ns: u64,
    /// CPU time of choosing zones for allocations, in ns.
    allocator_ns: u64,
    kswapd: Vec<Kswapd>,
    /// Time of each kswapd's next step. An event with another time is stale: a wake-up replaced it.
    kswapd_due_ns: Vec<u64>,
    kdamond: Option<Box<damon::Kdamond>>,
    /// When kdamond wakes. An event with another time belongs to an earlier kdamond.
    kdamond_due_ns: u64,
    working_sets: workingset::WorkingSets,
    /// Whether accesses to files are recorded.
    follows_files: bool,
    /// Time of reads that do not count as memory stalls: nothing indicates that the page had been
    /// in memory before.
    first_read_ns: u64,
}

impl Machine {
    /// Builds a machine.
    pub fn new(config: MachineConfig) -> Machine {
        let kernel = config.policy.kernel;
        let mut lru = Lru::new(LruConfig {
            frames: config.all_pages(),
            nodes: config.all_nodes(),
            cpus: config.cpus,
            mode: config.policy.mode(),
            now_ns: 0,
            seed: config.seed,
            mglru: mglru::Settings {
                profile: *kernel.mglru,
                ablation: kernel.ablation | config.ablation,
                min_ttl_ms: config.min_ttl_ms,
                reschedule_chance: config.reschedule_chance,
                refault_distance: config.policy.refault_distance,
                walks_leaves: config.lru_gen_bits & 2 != 0,
                uses_table_bits: config.lru_gen_bits & 4 != 0,
                hw_accessed_bit: config.hw_accessed_bit,
                ..mglru::Settings::default()
            },
            classic: classic::Settings {
                refault_distance: config.policy.refault_distance,
                list_scope: config.policy.arrangement.list_scope(),
                size_scale: config.size_scale,
                dirty_stays_inactive: config.dirty_stays_inactive,
                progress_waits: config.progress_waits,
                ..kernel.classic.clone().for_memory(config.all_pages().into())
            },
        });
        lru.migration = kernel.migration;
        let sys = System::new(&config);
        let mut machine = Machine {
            lru,
            sys,
            processes: Vec::new(),
            flushed_ns: 0,
            lock_free_ns: 0,
            lock_wait_ns: 0,
            policy_ns: 0,
            background_ns: 0,
            accesses: [0; 2],
            allocator_ns: 0,
            kswapd: (0..config.all_nodes())
                .map(|node| Kswapd::new(NodeId(node), 0))
                .collect(),
            kswapd_due_ns: vec![u64::MAX; config.all_nodes() as usize],
            kdamond: None,
            kdamond_due_ns: u64::MAX,
            working_sets: workingset::WorkingSets::new(config.all_nodes()),
            follows_files: false,
            first_read_ns: 0,
            config,
        };
        machine.lru.memcgs[MemcgId::ROOT.index()].swappiness = machine.config.swappiness;
        machine.note_lruvecs();
        machine.note_mode();
        if machine.config.stat_flush_ns == 0 {
            machine.lru.classic.exact_stats = true;
        } else {
            let first_ns = machine.config.stat_flush_phase_ns;
            machine.sys.events.push(first_ns, Event::StatFlush);
        }
        machine
    }

    /// The clock, in ns.
    pub fn now_ns(&self) -> u64 {
        self.sys.now_ns
    }

    /// Sets the clock forward (a task that starts later than the last one ended) or back (another
    /// CPU's task): operations need only start in order.
    pub fn set_now_ns(&mut self, now_ns: u64) {
        self.sys.now_ns = now_ns;
    }

    /// Sets the CPU on which the following operations run.
    pub fn set_cpu(&mut self, cpu: usize) {
        self.sys.cpu = cpu;
    }

    /// Time that operations have waited so far, for devices, throttled or thinking, in ns.
    pub fn waited_ns(&self) -> u64 {
        self.sys.waited_ns
    }

    /// Makes the running process wait on its own account (think time).
    pub fn wait_ns(&mut self, ns: u64) {
        self.sys.wait_until(self.sys.now_ns.saturating_add(ns));
    }

    /// The machine's configuration.
    pub fn config(&self) -> &MachineConfig {
        &self.config
    }

    /// Changes the cost of a fault and of a hit, for replays at a measured speed.
    pub fn set_speed(&mut self, fault_ns: u64, hit_ns: u64) {
        self.config.cost.fault_ns = fault_ns;
        self.config.cost.hit_ns = hit_ns;
        self.sys.clock.cost = self.config.cost;
    }

    /// Records the cgroup of each lruvec made since the last call.
    fn note_lruvecs(&mut self) {
        for lruvec in &self.lru.lruvecs[self.sys.lruvec_memcg.len()..] {
            self.sys.lruvec_memcg.push(lruvec.memcg);
        }
    }

    /// Sets what depends on the LRU in use: the limit of shadow nodes.
    fn note_mode(&mut self) {
        let counts_lists =
            !self.lru.mode.is_multi_gen() || self.lru.mglru.profile.shadow_limit_counts_lists;
        self.sys.shadow_limit = if counts_lists {
            ShadowLimit::Lists
        } else {
            ShadowLimit::SlabOnly
        };
    }

    /// Sets which parts of the multi-gen LRU are on, as shown by `lru_gen/enabled`: 1 the LRU
    /// itself, which is chosen when the machine is built, 2 clearing accessed bits in walks, 4
    /// using the accessed bits of non-leaf entries.
    pub fn set_lru_gen_bits(&mut self, bits: u32) {
        self.lru.mglru.walks_leaves = bits & 2 != 0;
        self.lru.mglru.uses_table_bits = bits & 4 != 0;
    }

    /// An access by a process to a page of its address space.
    #[inline]
    pub fn access(&mut self, process: ProcessId, vpn: u64, write: bool) -> Access {
        self.sys.now_ns += self.config.cost.hit_ns;
        self.accesses[0] += 1;
        if self.sys.now_ns >= self.sys.events.next_ns() {
            self.run_events();
        }
        let mm = process.mm();
        let is_old = !self.config.hw_accessed_bit && self.needs_accessed_fault(mm, vpn);
        let access = match self.sys.tables.access(mm, vpn, write) {
            MmuOutcome::Hit if is_old => self.accessed_fault(process),
            MmuOutcome::Hit => Access::Hit,
            outcome => self.fault(process, vpn, write, outcome == MmuOutcome::WriteProtected),
        };
        if self.sys.frames.has_slow() {
            self.pay_for_distance(self.frame_of(process, vpn).map(Pfn));
        }
        access
    }

    /// Handles the refault of an evicted page. Under the classic LRU of Linux 5.15, the refaulting
    /// task flushes the statistics of all cgroups unless a flush is under way
    /// (`workingset_refault`).
    fn refault(&mut self, pfn: Pfn, shadow: u64, fault_with_recency: bool) {
        if self.lru.mode == Mode::Classic && self.sys.now_ns >= self.flushed_ns {
            self.sys.now_ns += self.config.cost.refault_flush_ns;
            self.flushed_ns = self.sys.now_ns + self.config.cost.refault_flush_pause_ns;
        }
        self.lru.refault(&self.sys, pfn, shadow, fault_with_recency);
    }

    /// Starts a piece of policy work, which is charged when it ends.
    fn begin_work(&mut self) -> Begun {
        self.sys.clock.paid = self.lru.work;
        Begun {
            work: self.lru.work,
            at_ns: self.sys.now_ns,
            early_ns: self.sys.clock.early_ns,
        }
    }

    /// Accounts for the CPU time of policy work done since `begun`.
    fn pay_for_work(&mut self, begun: &Begun) {
        self.policy_ns += self.charge_work(begun);
    }

    /// Advances the clock by the CPU time of work done since `begun`, and by the wait for the LRU
    /// lock if there are several CPUs. Returns the CPU time.
    fn charge_work(&mut self, begun: &Begun) -> u64 {
        let work = cost::difference(&self.lru.work, &begun.work);
        let cpus = self.config.cpus;
        let total_ns = self.config.cost.price(&work, cpus);
        if total_ns == 0 {
            return 0;
        }
        let locked_ns = self.config.cost.price_locked(&work);
        if cpus > 1 && locked_ns > 0 {
            // The lock is busy from the start of the work, not from its end: a task that
            // compresses, waits for a device or sleeps has released it, and others must not wait
            // for its later work.
            let wait_ns = self.lock_free_ns.saturating_sub(begun.at_ns);
            self.lock_wait_ns += wait_ns;
            self.sys.now_ns += wait_ns;
            self.lock_free_ns = begun.at_ns + wait_ns + locked_ns;
        }
        self.sys.now_ns += total_ns - (self.sys.clock.early_ns - begun.early_ns);
        total_ns
    }

    /// Records a context switch to the process: walks look at its page tables again.
    pub fn schedule(&mut self, process: ProcessId) {
        self.lru.mm_scheduled(process.mm());
    }

    /// Bytes the simulator needs for what grows with memory: frames, folios, page tables, swap
    /// slots and page cache.
    pub fn footprint_bytes(&self) -> usize {
        let files: usize = self
            .sys
            .files
            .iter()
            .map(|file| file.cache.footprint_bytes())
            .sum();
        self.lru.folios.len() * size_of::<agewise_kernel::folio::Folio>()
            + self.sys.frames.footprint_bytes()
            + self.sys.tables.footprint_bytes()
            + self.sys.swap.footprint_bytes()
            + files
    }

    fn memcg_of_mm(&self, mm: MmId) -> MemcgId {
        self.sys.spaces[mm].memcg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refault_under_classic_pays_for_a_flush_that_nobody_is_about() {
        use address_space::Advice;
        let run = |policy: &str, flush_ns: u64, pause_ns: u64| {
            let mut config = MachineConfig::new(4096);
            config.policy = Policy::parse(policy).unwrap();
            config.cost.refault_flush_ns = flush_ns;
            config.cost.refault_flush_pause_ns = pause_ns;
            let mut machine = Machine::new(config);
            let limits = Limits {
                max_pages: 200,
                ..Limits::default()
            };
            let group = machine.add_memcg(MemcgId::ROOT, "t", limits);
            let process = machine.add_process(group);
            let file = machine.add_file(400, MemcgId::ROOT, Advice::Random);
            for page in 0..800 {
                machine.read(process, file, page % 400, 1);
            }
            let refaults = machine.memcg_events(group).workingset_refault[1];
            (machine.now_ns(), refaults)
        };
        let (free_ns, refaults) = run("classic:6.12", 0, 0);
        assert!(refaults > 100, "{refaults}");
        let (priced_ns, _) = run("classic:6.12", 1_000_000, 0);
        assert_eq!(priced_ns - free_ns, refaults * 1_000_000);
        let (paused_ns, _) = run("classic:6.12", 1_000_000, u64::MAX / 2);
        assert_eq!(paused_ns - free_ns, 1_000_000);
        assert_eq!(run("mglru:v6", 1_000_000, 0), run("mglru:v6", 0, 0));
    }

    #[test]
    fn who_sleeps_in_reclaim_does_not_hold_the_lock() {
        let mut machine = Machine::new(MachineConfig {
            cpus: 2,
            ..MachineConfig::new(4096)
        });
        let begun = machine.begin_work();
        machine.lru.work.lru_locks += 1;
        machine.sys.wait_until(1_000_000_000);
        machine.pay_for_work(&begun);
        assert!(machine.now_ns() >= 1_000_000_000);
        // Another CPU starts in the middle of that.
        machine.set_now_ns(500_000_000);
        let begun = machine.begin_work();
        machine.lru.work.lru_locks += 1;
        machine.pay_for_work(&begun);
        assert_eq!(machine.lock_wait_ns, 0);
        // A third CPU at the same time has to wait.
        machine.set_now_ns(500_000_000);
        let begun = machine.begin_work();
        machine.lru.work.lru_locks += 1;
        machine.pay_for_work(&begun);
        assert_eq!(machine.lock_wait_ns, machine.config.cost.lru_lock_ns);
    }
}
