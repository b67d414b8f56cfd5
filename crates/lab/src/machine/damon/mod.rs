// SPDX-License-Identifier: Apache-2.0
//! kdamond: DAMON on the simulated machine. The engine decides what to sample and what to do; this
//! module reads accessed bits and page flags, and moves pages, at the prices of the cost model.
//!
//! kdamond wakes, samples, acts, chooses the next pages and sleeps for a sampling interval. As in
//! the kernel, its own work makes its period longer.

mod space;

use agewise_damon::action::Action;
use agewise_damon::monitor::{Monitor, Wait};
use agewise_damon::profile::Profile;
use agewise_damon::region::Region;
use agewise_kernel::folio::Pfn;
use agewise_kernel::ids::MmId;
use agewise_kernel::page_table::Pmd;

use super::events::Event;
use super::page_cache::Entry;
use super::{FileId, Machine, ProcessId};
use space::MachineSpace;

/// What a monitor watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watched {
    /// Physical memory between two byte addresses, or all of it if None. One target.
    Physical(Option<(u64, u64)>),
    /// The virtual memory of processes; the number of a target is the position of its process. As
    /// in the kernel, processes that exit are no longer sampled, and processes forked later are not
    /// added.
    Virtual(Vec<ProcessId>),
}

/// Snapshots kept until they are taken: the rest of a longer pause, in which nothing is accessed,
/// is like its beginning.
pub const SNAPSHOTS_MAX: usize = 256;

/// What a monitor knew at the end of an aggregation.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// End of the aggregation, on the machine's clock.
    pub at_ns: u64,
    /// Samples in one aggregation.
    pub looks: u32,
    /// Regions of all targets with the target's id; `last_nr_accesses` is the aggregation's count.
    pub regions: Vec<(u32, Region)>,
}

/// The kernel thread and its monitor.
#[derive(Clone, Debug)]
pub struct Kdamond {
    monitor: Monitor,
    profile: Profile,
    watched: Watched,
    /// Whether pages were chosen that are to be checked at the next wake-up.
    looks_next: bool,
    started: bool,
    /// CPU time so far, in ns.
    cpu_ns: u64,
    /// Samples taken.
    samples: u64,
    /// Aggregations finished, and the sum of their regions.
    aggregations: u64,
    regions_sum: u64,
    /// Last folio each action met: a folio that spans two regions is handled once (7.2).
    last_folio: Vec<(Action, Pfn)>,
    /// The aggregations since snapshots were last taken, if they are kept.
    snapshots: Vec<Snapshot>,
    keeps_snapshots: bool,
}

impl Kdamond {
    /// The monitor: regions, schemes and their statistics.
    pub fn monitor(&self) -> &Monitor {
        &self.monitor
    }

    /// The memory it watches.
    pub fn watched(&self) -> &Watched {
        &self.watched
    }

    /// CPU time so far, in ns.
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }

    /// Samples taken; 0 if the watermarks never let it run.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Mean number of regions at the end of an aggregation.
    pub fn mean_regions(&self) -> f64 {
        self.regions_sum as f64 / self.aggregations.max(1) as f64
    }

    /// Wakes up: checks the chosen pages, acts, and chooses again. Returns how long to sleep, in
    /// ns.
    fn step(&mut self, machine: &mut Machine) -> u64 {
        machine.sys.now_ns += machine.config.cost.damon_wakeup_ns;
        let mut space =
            MachineSpace::new(machine, self.profile, &self.watched, &mut self.last_folio);
        if !self.started {
            self.started = true;
            self.monitor.start(&mut space);
        }
        let mut aggregated = false;
        if self.looks_next {
            self.samples += 1;
            aggregated = self.monitor.check(&mut space);
        }
        let wait = self.monitor.wait(&space);
        self.looks_next = wait == Wait::Sample;
        let sleep_us = match wait {
            Wait::Sample => {
                self.monitor.prepare(&mut space);
                self.monitor.attrs().sample_us.max(1)
            }
            Wait::Inactive { interval_us } => interval_us,
        };
        space.pay();
        if aggregated {
            self.aggregations += 1;
            self.regions_sum += self.monitor.nr_regions() as u64;
            if self.keeps_snapshots && self.snapshots.len() < SNAPSHOTS_MAX {
                let snapshot = self.take_snapshot(machine.sys.now_ns);
                self.snapshots.push(snapshot);
            }
        }
        sleep_us.saturating_mul(1000)
    }

    fn take_snapshot(&self, at_ns: u64) -> Snapshot {
        let attrs = self.monitor.attrs();
        let regions = self.monitor.targets().iter().flat_map(|target| {
            let id = target.id.0;
            target
                .regions
                .iter()
                .map(move |region| (id, region.clone()))
        });
        Snapshot {
            at_ns,
            looks: attrs.max_nr_accesses(),
            regions: regions.collect(),
        }
    }
}

impl Machine {
    /// Starts kdamond now. It replaces a kdamond that already runs.
    pub fn start_damon(&mut self, monitor: Monitor, watched: Watched) {
        let profile = self.config.policy.kernel.damon;
        self.kdamond = Some(Box::new(Kdamond {
            monitor,
            profile,
            watched,
            looks_next: false,
            started: false,
            cpu_ns: 0,
            samples: 0,
            aggregations: 0,
            regions_sum: 0,
            last_folio: Vec::new(),
            snapshots: Vec::new(),
            keeps_snapshots: false,
        }));
        self.kdamond_due_ns = self.sys.now_ns;
        self.sys.events.push(self.sys.now_ns, Event::Kdamond);
    }

    /// Makes kdamond keep a snapshot at the end of each aggregation, for
    /// [`take_damon_snapshots`](Self::take_damon_snapshots).
    pub fn keep_damon_snapshots(&mut self) {
        if let Some(kdamond) = &mut self.kdamond {
            kdamond.keeps_snapshots = true;
        }
    }

    /// The aggregations that ended since the last call, at most [`SNAPSHOTS_MAX`].
    pub fn take_damon_snapshots(&mut self) -> Vec<Snapshot> {
        let kdamond = self.kdamond.as_mut();
        kdamond.map_or_else(Vec::new, |kdamond| std::mem::take(&mut kdamond.snapshots))
    }

    /// kdamond, if it was started.
    pub fn damon(&self) -> Option<&Kdamond> {
        self.kdamond.as_deref()
    }

    /// The frame that holds a page of a process.
    pub fn frame_of(&self, process: ProcessId, vpn: u64) -> Option<u32> {
        let mm: MmId = process.mm();
        if let Some(leaf) = self.sys.tables.huge_leaf(mm, vpn) {
            return Some(leaf.pfn().0 + (vpn % agewise_kernel::page_table::PAGES_PER_PMD) as u32);
        }
        let leaf = self.sys.tables.leaf(mm, vpn)?;
        (leaf.present() && !leaf.is_special()).then(|| leaf.pfn().0)
    }

    /// The frame that holds a page of a file.
    pub fn frame_of_file(&self, file: FileId, index: u32) -> Option<u32> {
        match self.sys.files[file.number() as usize].cache.get(index) {
            Entry::Present(pfn) => Some(pfn.0),
            Entry::Empty | Entry::Shadow(_) => None,
        }
    }

    /// Clears the accessed bits of a process, as a write of 1 to `/proc/PID/clear_refs` does.
    pub fn clear_accessed_bits(&mut self, process: ProcessId) {
        let mm: MmId = process.mm();
        for start_vpn in self.sys.tables.ranges(mm) {
            match self.sys.tables.pmd(mm, start_vpn) {
                Pmd::None => {}
                Pmd::Leaf(leaf) => {
                    leaf.test_clear_young();
                }
                Pmd::Table(table) => table.iter_mut().for_each(|leaf| {
                    leaf.test_clear_young();
                }),
            }
        }
    }

    /// Runs a step of kdamond. It runs at the time it is due, not when the running operation ends:
    /// nothing was accessed in between.
    pub(super) fn damon_step(&mut self, at_ns: u64) {
        if at_ns != self.kdamond_due_ns {
            return;
        }
        let Some(mut kdamond) = self.kdamond.take() else {
            return;
        };
        let cpu = std::mem::replace(&mut self.sys.cpu, self.config.cpus - 1);
        let (sleep_ns, end_ns, busy_ns) = self.apart(at_ns, |machine| kdamond.step(machine));
        self.sys.cpu = cpu;
        kdamond.cpu_ns += busy_ns;
        self.kdamond = Some(kdamond);
        self.kdamond_due_ns = end_ns.saturating_add(sleep_ns);
        self.sys.events.push(self.kdamond_due_ns, Event::Kdamond);
    }
}

#[cfg(test)]
mod tests {
    use agewise_damon::filter::PageFilters;
    use agewise_damon::space::Space;
    use agewise_damon::target::TargetId;
    use agewise_kernel::ids::MemcgId;
    use agewise_policy::table::PAGE_BYTES;

    use super::super::address_space::MapOptions;
    use super::super::cost::CostModel;
    use super::super::device::DeviceKind;
    use super::super::{Limits, MachineConfig, SwapConfig};
    use super::*;

    /// Brings back half of a process's memory, for which the other half has to leave. Returns the
    /// time that takes, and the CPU time of reclaim.
    fn fetch_at_limit(unmap_ns: u64) -> (u64, u64) {
        const PAGES: u64 = 1024;
        let mut machine = Machine::new(MachineConfig {
            swap: Some(SwapConfig::new(DeviceKind::Zram, 4096)),
            cost: CostModel {
                unmap_ns,
                ..CostModel::FREE
            },
            ..MachineConfig::new(4096)
        });
        let limits = Limits {
            max_pages: PAGES / 2,
            ..Limits::default()
        };
        let memcg = machine.add_memcg(MemcgId::ROOT, "test", limits);
        let process = machine.add_process(memcg);
        let start = machine.map(process, &MapOptions::anon(PAGES)).unwrap();
        for vpn in start..start + PAGES {
            machine.access(process, vpn, true);
        }
        let before_ns = machine.policy_ns;
        let watched = Watched::Virtual(vec![process]);
        let mut last_folio = Vec::new();
        let mut space = MachineSpace::new(&mut machine, Profile::V7_2, &watched, &mut last_folio);
        let (action, filters) = (Action::Willneed, PageFilters::default());
        let [start, end] = [start, start + PAGES].map(|vpn| vpn * PAGE_BYTES);
        let applied = space.apply(TargetId(0), start, end, action, &filters);
        (applied.cost_ns, machine.policy_ns - before_ns)
    }

    #[test]
    fn what_leaves_for_pages_that_willneed_brings_back_is_paid_for_once() {
        let (devices_ns, free_ns) = fetch_at_limit(0);
        let (all_ns, reclaim_ns) = fetch_at_limit(1_000);
        assert!(free_ns == 0 && reclaim_ns > 0, "{reclaim_ns}");
        assert_eq!(all_ns - devices_ns, reclaim_ns);
    }
}
