// SPDX-License-Identifier: Apache-2.0
//! The agent: looks at its targets at a steady pace and keeps the ages of their pages.
//!
//! A tick finds the processes, reads their mappings, walks their page tables, classifies pages,
//! clears accessed bits and reports. It decides nothing: what an observation means is up to
//! `agewise-policy`, and what to do about it is up to the caller.
//!
//! Ages are differences of a real clock, never counts of ticks: a late tick makes intervals wider,
//! not wrong. Processes may start, exit and exec between and during ticks. A process that cannot be
//! looked at keeps its ages, and is reported.

mod cache;
mod classify;
mod config;
mod followed;
mod processes;
mod report;
mod reporting;
mod share;
mod space;
mod target;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::access::{AccessSource, Resolution, Target};
use crate::cgroup::CgroupError;
use crate::clear::ClearPolicy;
use crate::clear::hand::MapCounts;
use crate::clock::thread_cpu_ns;
use crate::frame_set::FrameSet;
use crate::interim;
use crate::root::Roots;
use crate::vma::MapsReader;

pub use cache::{CacheError, Cached, FilesIn, FilesOf};
pub use config::{AgentConfig, AlsoYoung, Judged, SCAN_INTERVAL_MIN_MS, Tap, TickReport};
pub use report::{CostReport, SubjectAges, SubjectReport};
pub use space::Space;
pub use target::{PROCESSES_MAX, PathFilter, Resolved, ResolvedSubject, Subject, Targets};

use cache::Cache;
use classify::{Extra, Nodes, Shared, WHOLE_PARTS};
use reporting::Cost;
use share::Sharing;
use space::clock_ms;
use target::Known;

/// Ticks for which a pid is assumed to remain a kernel thread: there are many, they live long, and
/// it takes a while until a pid is reused.
const KERNEL_THREADS_KNOWN_TICKS: u64 = 64;

/// Ticks for which the agent assumes that another program clears accessed bits, or that none does,
/// and that devices are those of the same file systems.
const MACHINE_KNOWN_TICKS: u64 = 32;

/// Observes targets through an access source.
pub struct Agent {
    source: Box<dyn AccessSource>,
    also_young: Option<Box<dyn AlsoYoung>>,
    roots: Roots,
    targets: Targets,
    config: AgentConfig,
    nodes: Nodes,
    resolved: Resolved,
    /// Boxed, since nodes of the tree are half empty.
    spaces: BTreeMap<u32, Box<Space>>,
    maps: MapsReader,
    map_counts: Arc<MapCounts>,
    kernel_threads: HashSet<u32>,
    /// Processes that may not be looked at: their subjects, and the reason.
    refused: Vec<(Vec<usize>, String)>,
    /// With a sample, mappings of up to this many pages are followed whole. It never grows.
    whole_limit: u64,
    /// File memory by cgroup, if it is followed.
    cache: Option<Cache>,
    ticks: u64,
    /// The first tick whose cost counts towards the pace.
    pace_from_tick: u64,
    /// The start of the last tick, and the time when it had looked at everything.
    began_ms: u64,
    last_tick_ms: u64,
    /// Processes that the last tick could not look at.
    unseen_processes: usize,
    /// Cgroups that the last tick could not look at.
    unseen_cgroups: usize,
    /// Period of intermediate scans, while another program clears accessed bits.
    interim_period: Option<Duration>,
    sharing: Sharing,
    young_frames: FrameSet,
    /// The sets of subjects within which a page counts once, as of the last tick, and the frames
    /// counted in each: of each subject of several processes, or of all together.
    domains: Vec<usize>,
    counted_frames: Vec<FrameSet>,
    cost: Cost,
}

impl Agent {
    /// Creates an agent for these targets on this machine.
    ///
    /// # Errors
    /// The process table or the cgroup hierarchy cannot be read.
    pub fn new(
        source: Box<dyn AccessSource>,
        roots: Roots,
        targets: Targets,
        config: AgentConfig,
    ) -> Result<Self, CgroupError> {
        let nodes = Nodes::find(&roots)?;
        let now_ms = clock_ms();
        Ok(Agent {
            maps: MapsReader::below(roots.proc.clone()),
            source,
            also_young: None,
            roots,
            targets,
            config,
            nodes,
            resolved: Resolved::default(),
            spaces: BTreeMap::new(),
            map_counts: Arc::new(MapCounts::open()),
            kernel_threads: HashSet::new(),
            refused: Vec::new(),
            whole_limit: u64::MAX,
            cache: None,
            ticks: 0,
            pace_from_tick: 2,
            began_ms: now_ms,
            unseen_processes: 0,
            unseen_cgroups: 0,
            last_tick_ms: now_ms,
            interim_period: None,
            sharing: Sharing::default(),
            young_frames: FrameSet::default(),
            domains: Vec::new(),
            counted_frames: Vec::new(),
            cost: Cost::default(),
        })
    }

    /// The configuration.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    pub fn source(&mut self) -> &mut dyn AccessSource {
        &mut *self.source
    }

    /// Sets a second observer, which passes on the accesses it saw and cleared between two ticks.
    pub fn set_also_young(&mut self, also_young: Option<Box<dyn AlsoYoung>>) {
        self.also_young = also_young;
    }

    /// Changes the targets from the next tick on. Processes that are in both keep their ages.
    pub fn set_targets(&mut self, targets: Targets) {
        self.targets = targets;
    }

    /// The observed processes, ascending by pid.
    pub fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.spaces.values().map(|space| &**space)
    }

    /// The observed process with this pid.
    pub fn space(&self, pid: u32) -> Option<&Space> {
        self.spaces.get(&pid).map(|space| &**space)
    }

    /// The subjects as of the last tick, with the pids of each.
    pub fn subjects(&self) -> impl Iterator<Item = (&ResolvedSubject, Vec<u32>)> {
        let mut pids = vec![Vec::new(); self.resolved.subjects.len()];
        for (pid, space) in &self.spaces {
            for subject in &space.subjects {
                pids[*subject].push(*pid);
            }
        }
        self.resolved.subjects.iter().zip(pids)
    }

    /// The current time on the clock of ages (`CLOCK_MONOTONIC`), in ms.
    pub fn now_ms() -> u64 {
        clock_ms()
    }

    /// The time when the last tick had looked at everything.
    pub fn last_tick_ms(&self) -> u64 {
        self.last_tick_ms
    }

    /// Looks at everything once.
    ///
    /// # Errors
    /// The process table or the cgroup hierarchy cannot be read. Errors of single processes are in
    /// the report.
    pub fn tick(&mut self) -> Result<TickReport, CgroupError> {
        self.tick_tapped(None)
    }

    /// Like [`tick`](Self::tick), with a listener.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn tick_tapped(
        &mut self,
        mut tap: Option<&mut dyn Tap>,
    ) -> Result<TickReport, CgroupError> {
        let began_ns = thread_cpu_ns();
        let previous_ms = self.began_ms;
        let first = self.ticks == 0;
        self.ticks += 1;
        self.began_ms = clock_ms();
        if self.ticks % MACHINE_KNOWN_TICKS == 1 {
            self.maps.forget_filesystems();
            let look = Duration::from_millis(self.config.scan_interval_ms());
            self.interim_period = interim::period(&self.roots, look);
        }
        if self.ticks.is_multiple_of(KERNEL_THREADS_KNOWN_TICKS) {
            self.kernel_threads.clear();
        }
        let mut known = Known {
            spaces: &self.spaces,
            kernel_threads: &mut self.kernel_threads,
        };
        self.resolved = self.targets.resolve(&self.roots.proc, &mut known)?;
        let mut report = TickReport {
            subjects: self
                .resolved
                .subjects
                .iter()
                .filter(|s| s.gone.is_none())
                .count(),
            truncated: self.resolved.truncated,
            failed: self.resolved.unseen_processes,
            unseen_cgroups: self.resolved.unseen_cgroups,
            ..TickReport::default()
        };
        self.find_spaces((!first).then_some(previous_ms), &mut report);
        let mut next_process = || next_process(&mut tap);
        self.read_mappings(&mut report, &mut next_process);
        self.find_shared();
        self.follow();
        report.walk_ns = self.peek(&mut next_process);
        self.set_clear_policies();
        self.look(tap, &mut report);
        self.unseen_processes = report.failed;
        self.unseen_cgroups = report.unseen_cgroups;
        if let Some(cache) = &mut self.cache {
            cache.look_if_due(&self.resolved.subjects, &self.nodes);
        }
        self.last_tick_ms = clock_ms();
        self.mark_gone();
        report.cpu_ns = thread_cpu_ns() - began_ns;
        self.note_cost(&report);
        Ok(report)
    }

    /// If pages are shared, finds the frames that are young through any mapping. Returns the time
    /// it took in ns.
    fn peek(&mut self, next_process: &mut dyn FnMut()) -> u64 {
        if !self.source.abilities().pfn {
            return 0;
        }
        let (source, frames) = (&mut *self.source, &mut self.young_frames);
        // An error here recurs in the look, which reports it.
        let spaces = self.spaces.values();
        spaces
            .map(|space| {
                next_process();
                space.peek(source, frames).unwrap_or(0)
            })
            .sum()
    }

    /// Adds the cost of a tick.
    fn note_cost(&mut self, report: &TickReport) {
        if self.ticks == 1 {
            self.cost.first_ns = report.cpu_ns;
        }
        if self.ticks <= self.pace_from_tick {
            // One-off costs are excluded: the steady state begins now.
            self.cost = Cost {
                first_ns: self.cost.first_ns,
                ..Cost::default()
            };
            self.cost.began_ms = self.began_ms;
        }
        self.cost.add(report);
    }

    /// Period of [`interim_scan`](Self::interim_scan) between two ticks. `None` unless one of the
    /// last ticks detected another program that clears accessed bits (DAMON).
    pub fn interim_period(&self) -> Option<Duration> {
        self.interim_period
            .filter(|_| self.source.abilities().resolution == Resolution::Page)
    }

    /// Between two ticks, reads the accessed bits that another program may clear before the next:
    /// those of files and of huge pages, which DAMON clears by large folios. Clears nothing. Its
    /// cost counts as walking.
    pub fn interim_scan(&mut self) {
        let began_ns = thread_cpu_ns();
        let mut walk_ns = 0;
        for space in self.spaces.values_mut() {
            // An error here recurs in the next tick, which reports it.
            walk_ns += space.interim_scan(&mut *self.source).unwrap_or(0);
        }
        self.cost.walk_ns += walk_ns;
        self.cost.total_ns += thread_cpu_ns() - began_ns;
    }

    /// Restarts the cost counters at the next tick, so that they exclude startup costs.
    pub fn count_costs_anew(&mut self) {
        self.pace_from_tick = self.ticks + 1;
    }

    /// Finds the mappings whose pages may be shared, and the sets of subjects within which a page
    /// counts once.
    fn find_shared(&mut self) {
        self.sharing.clear();
        // A single process shares nothing.
        if self.spaces.len() > 1 {
            self.find_shareable();
        }
        self.young_frames.clear();
        self.domains = if self.targets.share_pages() {
            vec![0]
        } else {
            let mut several = BTreeSet::new();
            let mut once = BTreeSet::new();
            for subject in self.spaces.values().flat_map(|space| &space.subjects) {
                if !once.insert(*subject) || self.is_cached_apart(*subject) {
                    several.insert(*subject);
                }
            }
            several.into_iter().collect()
        };
        self.counted_frames
            .resize_with(self.domains.len(), FrameSet::default);
        self.counted_frames.iter_mut().for_each(FrameSet::clear);
    }

    fn find_shareable(&mut self) {
        for (number, space) in (0..).zip(self.spaces.values()) {
            self.sharing.add(number, space.looked_at());
        }
        self.sharing.finish();
        for space in self.spaces.values_mut() {
            let shareable: Vec<bool> = space
                .looked_at()
                .map(|vma| self.sharing.may_be_shared(vma))
                .collect();
            space.shareable = shareable;
        }
    }

    /// Sets how each process is cleared in this tick. The CPU budget is divided by resident memory.
    fn set_clear_policies(&mut self) {
        let interval_ns = self.config.scan_interval_ms().saturating_mul(1_000_000);
        let mut policy = self.config.clear;
        // A scan that comes slightly early must still clear.
        policy.min_interval_ns = interval_ns / 2;
        let pages = |space: &Space| space.map.generations().pages().iter().sum::<u64>() as f64;
        let page_ns = self.config.clear_percent.map(|percent| {
            let total: f64 = self.spaces().map(pages).sum();
            interval_ns as f64 * percent / 100.0 / total.max(1.0)
        });
        for space in self.spaces.values_mut() {
            if let Some(page_ns) = page_ns {
                // A process that was never looked at has no history; its first look clears it
                // whole.
                let is_known = space.looks > 0;
                policy.budget_ns = is_known.then_some((page_ns * pages(space)) as u64);
            }
            space.clearer.set_policy(policy);
        }
    }

    fn look(&mut self, mut tap: Option<&mut dyn Tap>, report: &mut TickReport) {
        let all_in_one = self.targets.share_pages();
        let mut gone = Vec::new();
        let mut fresh = FrameSet::default();
        for (pid, space) in &mut self.spaces {
            next_process(&mut tap);
            space.returned = None;
            space.is_current = false;
            if space.trouble.is_some() {
                continue;
            }
            let wanted = self
                .counted_frames
                .iter_mut()
                .zip(&self.domains)
                .filter(|(_, domain)| all_in_one || space.subjects.contains(domain));
            let counted = wanted
                .enumerate()
                .map(|(at, (set, _))| (self.nodes.first_part(at), set))
                .take(((WHOLE_PARTS - 1) / self.nodes.ids.len()).saturating_sub(1))
                .collect();
            fresh.clear();
            let mut shared = Shared {
                young: &self.young_frames,
                counted,
                fresh: &mut fresh,
                touched: self.cache.as_mut().map(|cache| &mut cache.touched),
                nodes: &self.nodes,
            };
            let target = Target::from(&space.process);
            let extra = Extra {
                returned_bounds: self.config.returned.as_ref(),
                also_young: self.also_young.as_mut().and_then(|of| of.take(&target)),
                tap: tap.as_mut().map(|tap| &mut **tap as &mut dyn Tap),
            };
            match space.look(&mut *self.source, &mut shared, extra) {
                Ok(look) => {
                    report.processes += 1;
                    report.present_pages += look.counts.present;
                    report.young_pages += look.counts.young;
                    report.refaulted_pages += look.counts.refaulted;
                    report.uncleared_pages += look.clear.uncleared_pages;
                    report.walk_ns += look.walk_ns;
                    report.classify_ns += look.classify_ns;
                    report.clear_ns += look.clear_ns;
                }
                Err(error) if error.is_gone() => {
                    report.vanished += 1;
                    gone.push(*pid);
                    continue;
                }
                Err(error) => {
                    report.failed += 1;
                    space.fail(&error);
                }
            }
            if space.is_current {
                shared.count_fresh();
            }
        }
        // A process that called exec is found again by the next tick, without any history.
        for pid in gone {
            self.spaces.remove(&pid);
        }
    }

    /// Changes the scan interval from the next tick on.
    pub fn set_scan_interval_ms(&mut self, interval_ms: u64) {
        self.config.scan_interval_ms = Some(interval_ms);
    }

    /// Changes how accessed bits are cleared, from the next tick on
    /// ([`clear`](AgentConfig::clear), [`clear_percent`](AgentConfig::clear_percent)).
    pub fn set_clear(&mut self, clear: ClearPolicy, percent: Option<f64>) {
        self.config.clear = clear;
        self.config.clear_percent = percent;
    }

    /// The NUMA nodes that are reported separately.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes.ids
    }

    /// Whether all subjects are gone, so that nothing is left to observe.
    pub fn is_finished(&self) -> bool {
        matches!(self.targets, Targets::Listed(_))
            && self
                .resolved
                .subjects
                .iter()
                .all(|subject| subject.gone.is_some())
    }
}

fn next_process(tap: &mut Option<&mut dyn Tap>) {
    if let Some(tap) = tap {
        tap.next_process();
    }
}

#[cfg(test)]
mod shared_tests;
#[cfg(test)]
mod sleeper;
#[cfg(test)]
pub(crate) mod tests;
