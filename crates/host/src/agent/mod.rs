// SPDX-License-Identifier: Apache-2.0
//! The agent: looks at its targets at a steady pace and knows the age of their pages.
//!
//! A tick: find the processes, read their mappings, walk their page tables, classify, clear the
//! accessed bits, report. It decides nothing: what an observation means is up to `agewise-policy`,
//! what to do about it up to the caller.
//!
//! Ages are differences of a real clock, never counts of ticks: a late tick makes intervals wider,
//! not wrong. Processes may come, go and exec between ticks and during them; one that cannot be
//! looked at keeps the ages it had, and is reported.

mod config;
mod followed;
mod report;
mod share;
mod space;
mod target;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use agewise_policy::sample;
use agewise_policy::workingset::{Histogram, Intervals};

use crate::access::{AccessSource, PAGE_BYTES, Resolution, Target};
use crate::cgroup::CgroupError;
use crate::clear::shared::MapCounts;
use crate::clock::thread_cpu_ns;
use crate::glance;
use crate::memory::{self, MemInfo, NodeMap, Zone};
use crate::root::Roots;
use crate::vma::MapsReader;

pub use config::{AgentConfig, AlsoYoung, SCAN_INTERVAL_MIN_MS, Tap, TickReport};
pub use report::{CostReport, SubjectAges, SubjectReport};
pub use space::Space;
pub use target::{PROCESSES_MAX, PathFilter, Resolved, ResolvedSubject, Subject, Targets};

use share::{FrameSet, Sharing};
use space::{Extra, LookCost, Nodes, Shared, WHOLE_PARTS, clock_ms};
use target::Known;

/// Ticks for which a pid is believed to be that of a kernel thread: they are many, they stay, and
/// a pid is reused late.
const KERNEL_THREADS_KNOWN_TICKS: u64 = 64;

/// Ticks for which it is believed that somebody else clears accessed bits, or that nobody does.
const RIVALS_KNOWN_TICKS: u64 = 32;

/// Observes targets through a source.
pub struct Agent {
    source: Box<dyn AccessSource>,
    also_young: Option<Box<dyn AlsoYoung>>,
    roots: Roots,
    targets: Targets,
    config: AgentConfig,
    nodes: Nodes,
    resolved: Resolved,
    spaces: BTreeMap<u32, Space>,
    maps: MapsReader,
    map_counts: Arc<MapCounts>,
    kernel_threads: HashSet<u32>,
    /// Processes that may not be looked at: their subjects, and why.
    refused: Vec<(Vec<usize>, String)>,
    /// Mappings of up to so many pages are followed whole where there is a sample; it never grows.
    whole_limit: u64,
    ticks: u64,
    /// The first tick whose cost counts.
    pace_from_tick: u64,
    /// When the last tick began, and when it had looked at everything.
    began_ms: u64,
    last_tick_ms: u64,
    /// Processes and cgroups that the last tick could not look at.
    unseen: (usize, usize),
    /// How often to glance, while somebody else clears.
    glance_every: Option<Duration>,
    sharing: Sharing,
    young_frames: FrameSet,
    counted_frames: Vec<FrameSet>,
    cost: Cost,
}

/// CPU ns of the first tick, and of all ticks but the first (of the first while there is no other).
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    first_ns: u64,
    scans: u64,
    began_ms: u64,
    total_ns: u64,
    walk_ns: u64,
    classify_ns: u64,
    clear_ns: u64,
    present_pages: u64,
}

impl Agent {
    /// An agent for these targets on this machine.
    ///
    /// # Errors
    /// The process table or the cgroup hierarchy cannot be read.
    pub fn new(
        source: Box<dyn AccessSource>,
        roots: Roots,
        targets: Targets,
        mut config: AgentConfig,
    ) -> Result<Self, CgroupError> {
        // A scan that comes a little early must still clear.
        config.clear.min_interval_ns = config.scan_interval_ms() * 500_000;
        let nodes = find_nodes(&roots)?;
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
            ticks: 0,
            pace_from_tick: 2,
            began_ms: now_ms,
            unseen: (0, 0),
            last_tick_ms: now_ms,
            glance_every: None,
            sharing: Sharing::default(),
            young_frames: FrameSet::default(),
            counted_frames: Vec::new(),
            cost: Cost::default(),
        })
    }

    /// How it observes.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// The source it looks through.
    pub fn source(&mut self) -> &mut dyn AccessSource {
        &mut *self.source
    }

    /// Asks somebody else for accesses seen and cleared between two ticks.
    pub fn set_also_young(&mut self, also_young: Option<Box<dyn AlsoYoung>>) {
        self.also_young = also_young;
    }

    /// What it observes.
    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// Observes other targets from the next tick on; processes that are in both keep their ages.
    pub fn set_targets(&mut self, targets: Targets) {
        self.targets = targets;
    }

    /// The processes observed, ascending by pid.
    pub fn spaces(&self) -> impl Iterator<Item = &Space> {
        self.spaces.values()
    }

    /// One process.
    pub fn space(&self, pid: u32) -> Option<&Space> {
        self.spaces.get(&pid)
    }

    /// The subjects as the last tick found them, and the pids of each.
    pub fn subjects(&self) -> impl Iterator<Item = (&ResolvedSubject, Vec<u32>)> {
        self.resolved
            .subjects
            .iter()
            .enumerate()
            .map(|(index, subject)| {
                let of = self
                    .spaces
                    .values()
                    .filter(|space| space.subjects.contains(&index));
                (subject, of.map(|space| space.process.pid()).collect())
            })
    }

    /// The clock ages are told by (`CLOCK_MONOTONIC`), ms.
    pub fn now_ms() -> u64 {
        clock_ms()
    }

    /// When the last tick had looked at everything.
    pub fn last_tick_ms(&self) -> u64 {
        self.last_tick_ms
    }

    /// Looks at everything once.
    ///
    /// # Errors
    /// The process table or the cgroup hierarchy cannot be read. Whatever happens to one process
    /// is in the report.
    pub fn tick(&mut self) -> Result<TickReport, CgroupError> {
        self.tick_tapped(None)
    }

    /// The same with somebody who listens.
    ///
    /// # Errors
    /// As [`tick`](Self::tick).
    pub fn tick_tapped(&mut self, tap: Option<&mut dyn Tap>) -> Result<TickReport, CgroupError> {
        let began_ns = thread_cpu_ns();
        let previous_ms = self.began_ms;
        let first = self.ticks == 0;
        self.ticks += 1;
        self.began_ms = clock_ms();
        if self.ticks % RIVALS_KNOWN_TICKS == 1 {
            let look = Duration::from_millis(self.config.scan_interval_ms());
            self.glance_every = glance::period(&self.roots, look);
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
        self.read_mappings(&mut report);
        let domains = self.find_shared();
        self.follow();
        let mut walk_ns = 0;
        if self.source.abilities().pfn {
            for space in self.spaces.values() {
                // What fails here fails again below, and is told there.
                walk_ns += space
                    .peek(&mut *self.source, &mut self.young_frames)
                    .unwrap_or(0);
            }
        }
        let mut cost = LookCost {
            walk_ns,
            ..LookCost::default()
        };
        self.share_out_budget();
        self.look(&domains, tap, &mut report, &mut cost);
        self.unseen = (report.failed, report.unseen_cgroups);
        self.last_tick_ms = clock_ms();
        self.mark_gone();
        report.cpu_ns = thread_cpu_ns() - began_ns;
        (report.walk_ns, report.clear_ns) = (cost.walk_ns, cost.clear_ns);
        report.classify_ns = cost.classify_ns;
        if first {
            self.cost.first_ns = report.cpu_ns;
        }
        if self.ticks <= self.pace_from_tick {
            // What is paid once is no part of the pace: the steady state begins now.
            self.cost = Cost {
                first_ns: self.cost.first_ns,
                ..Cost::default()
            };
            self.cost.began_ms = self.began_ms;
        }
        self.cost.scans += 1;
        self.cost.total_ns += report.cpu_ns;
        self.cost.walk_ns += cost.walk_ns;
        self.cost.classify_ns += cost.classify_ns;
        self.cost.clear_ns += cost.clear_ns;
        self.cost.present_pages += report.present_pages;
        Ok(report)
    }

    /// How often to [`glance`](Self::glance) between two ticks: only while somebody else clears
    /// accessed bits (DAMON), as the last tick but some found it.
    pub fn glance_every(&self) -> Option<Duration> {
        self.glance_every
            .filter(|_| self.source.abilities().resolution == Resolution::Page)
            .filter(|_| !self.source.abilities().clears)
    }

    /// Reads, between two ticks, the accessed bits that somebody else may clear before the next: of
    /// files and of huge pages, which DAMON clears by large folios. Clears nothing, and counts as a
    /// part of walking.
    pub fn glance(&mut self) {
        let began_ns = thread_cpu_ns();
        let mut walk_ns = 0;
        for space in self.spaces.values_mut() {
            // What fails here fails again in the next tick, and is told there.
            walk_ns += space.glance(&mut *self.source).unwrap_or(0);
        }
        self.cost.walk_ns += walk_ns;
        self.cost.total_ns += thread_cpu_ns() - began_ns;
    }

    /// Costs count from the next tick on: what was paid to get this far is no part of the pace.
    pub fn count_costs_anew(&mut self) {
        self.pace_from_tick = self.ticks + 1;
    }

    /// Opens processes that are new, and forgets those that are gone or are of no target any more.
    fn find_spaces(&mut self, watched_since_ms: Option<u64>, report: &mut TickReport) {
        let tick = self.ticks;
        self.refused.clear();
        for (pid, subjects) in &self.resolved.processes {
            let same = self.spaces.get_mut(pid).is_some_and(Space::is_alive);
            if !same {
                self.spaces.remove(pid);
                let process = match target::open(&self.roots.proc, *pid) {
                    // Its number was given to another one since the subjects were found.
                    Ok(Some(process)) if self.resolved.means_another(&process, subjects) => {
                        report.vanished += 1;
                        continue;
                    }
                    Ok(Some(process)) => process,
                    Ok(None) => continue,
                    Err(error) if error.is_gone() => {
                        report.vanished += 1;
                        continue;
                    }
                    Err(error) => {
                        report.failed += 1;
                        self.refused.push((subjects.clone(), error.to_string()));
                        continue;
                    }
                };
                let born_ms = watched_since_ms.and_then(|since_ms| {
                    started_ms(process.start_ticks()).filter(|ms| *ms >= since_ms)
                });
                let horizon_ms = self.config.intervals.horizon_ms();
                let counts = Arc::clone(&self.map_counts);
                let mut space = Space::new(process, self.config.clear, counts, horizon_ms, born_ms);
                space.is_alive();
                self.spaces.insert(*pid, space);
            }
            if let Some(space) = self.spaces.get_mut(pid) {
                let start_ticks = space.process.start_ticks();
                let is_of = |subject: &&usize| {
                    let wanted = self.resolved.subjects[**subject].start_ticks;
                    wanted.is_none_or(|wanted| wanted == start_ticks)
                };
                space.subjects.clear();
                space.subjects.extend(subjects.iter().filter(is_of));
                space.tick = tick;
            }
        }
        self.spaces
            .retain(|_, space| space.tick == tick && !space.subjects.is_empty());
    }

    fn read_mappings(&mut self, report: &mut TickReport) {
        let (maps, within) = (&mut self.maps, self.config.within.as_deref());
        self.spaces
            .retain(|_, space| match space.read_mappings(maps, within) {
                Ok(()) => {
                    space.trouble = None;
                    true
                }
                Err(error) if error.is_gone() => {
                    report.vanished += 1;
                    false
                }
                Err(error) => {
                    report.failed += 1;
                    space.trouble = Some(error.to_string());
                    true
                }
            });
    }

    /// Finds the mappings whose pages may be shared, and the sets of subjects in which pages count
    /// once: each subject of several processes, or all together.
    fn find_shared(&mut self) -> Vec<usize> {
        self.sharing.clear();
        // One alone shares with nobody.
        let several = if self.spaces.len() > 1 { usize::MAX } else { 0 };
        for (number, space) in (0..).zip(self.spaces.values().take(several)) {
            self.sharing.add(number, space.looked_at());
        }
        self.sharing.finish();
        for space in self.spaces.values_mut().take(several) {
            let shareable: Vec<bool> = space
                .looked_at()
                .map(|vma| self.sharing.may_be_shared(vma))
                .collect();
            space.shareable = shareable;
        }
        self.young_frames.clear();
        let domains: Vec<usize> = if self.targets.share_pages() {
            vec![0]
        } else {
            let mut several = BTreeSet::new();
            let mut once = BTreeSet::new();
            for subject in self.spaces.values().flat_map(|space| &space.subjects) {
                if !once.insert(*subject) {
                    several.insert(*subject);
                }
            }
            several.into_iter().collect()
        };
        self.counted_frames
            .resize_with(domains.len(), FrameSet::default);
        self.counted_frames.iter_mut().for_each(FrameSet::clear);
        domains
    }

    /// Says what is followed of each process: everything where that is little or single pages are
    /// wanted, otherwise as much of each as of the others.
    fn follow(&mut self) {
        let tells_pages = self.source.abilities().resolution == Resolution::Page;
        let sample = self.config.sample.filter(|_| tells_pages);
        let bounds = sample.unwrap_or_default();
        let resident = self.spaces.values().map(Space::resident_pages).sum();
        let level = sample.map_or(0, |bounds| sample::level_for(resident, 0, &bounds));
        self.spaces.values_mut().for_each(Space::take_mappings);
        let is_sample = level > 0 || self.spaces.values().any(|space| space.level() > 0);
        if is_sample {
            let areas = self.spaces.values().map(Space::areas);
            let limit = sample::whole_limit(areas, bounds.whole_pages);
            self.whole_limit = self.whole_limit.min(limit);
        }
        for space in self.spaces.values_mut() {
            space.follow(level, self.whole_limit, &bounds);
        }
    }

    /// Shares the CPU time for clearing out by resident memory.
    fn share_out_budget(&mut self) {
        let Some(percent) = self.config.clear_percent else {
            return;
        };
        let interval_ns = self.config.scan_interval_ms().saturating_mul(1_000_000);
        let budget_ns = interval_ns as f64 * percent / 100.0;
        let pages = |space: &Space| space.map.generations().pages().iter().sum::<u64>() as f64;
        let total: f64 = self.spaces.values().map(pages).sum();
        for space in self.spaces.values_mut() {
            // Nothing is known of one that was never looked at; its first look clears it whole.
            let share = pages(space) / total.max(1.0);
            let is_known = space.looks > 0;
            space.set_clear_budget_ns(is_known.then_some((budget_ns * share) as u64));
        }
    }

    fn look(
        &mut self,
        domains: &[usize],
        mut tap: Option<&mut dyn Tap>,
        report: &mut TickReport,
        cost: &mut LookCost,
    ) {
        let all_in_one = self.targets.share_pages();
        let mut gone = Vec::new();
        for (pid, space) in &mut self.spaces {
            if space.trouble.is_some() {
                continue;
            }
            let wanted = self
                .counted_frames
                .iter_mut()
                .zip(domains)
                .filter_map(|(set, domain)| {
                    (all_in_one || space.subjects.contains(domain)).then_some((*domain, set))
                });
            let counted = wanted
                .enumerate()
                .map(|(at, (_, set))| (part_of(&self.nodes, at), set))
                .take((WHOLE_PARTS - 1) / self.nodes.ids.len() - 1)
                .collect();
            let shared = Shared {
                young: &self.young_frames,
                counted,
                nodes: &self.nodes,
            };
            let target = Target::from(&space.process);
            let also_young = self.also_young.as_mut().and_then(|also| also.take(&target));
            let extra = Extra {
                returned_bounds: self.config.returned.as_ref(),
                also_young,
                tap: tap.as_mut().map(|tap| &mut **tap as &mut dyn Tap),
            };
            match space.look(&mut *self.source, shared, extra) {
                Ok(look) => {
                    report.processes += 1;
                    report.present_pages += look.counts.present;
                    report.young_pages += look.counts.young;
                    report.refaulted_pages += look.counts.refaulted;
                    report.uncleared_pages += look.clear.uncleared_pages;
                    report.young_tables += look.clear.tables_young;
                    report.put_off_tables += look.clear.tables_put_off;
                    cost.walk_ns += look.walk_ns;
                    cost.classify_ns += look.classify_ns;
                    cost.clear_ns += look.clear_ns;
                }
                Err(error) if error.is_gone() => {
                    report.vanished += 1;
                    gone.push(*pid);
                }
                Err(error) => {
                    report.failed += 1;
                    space.trouble = Some(error.to_string());
                }
            }
        }
        // A process that called exec is found again by the next tick, with nothing known of it.
        for pid in gone {
            self.spaces.remove(&pid);
        }
    }

    /// Says of the processes among the subjects which have exited.
    fn mark_gone(&mut self) {
        for (index, subject) in self.resolved.subjects.iter_mut().enumerate() {
            let of = |subjects: &[usize]| subjects.contains(&index);
            let is_known = self.spaces.values().any(|space| of(&space.subjects))
                || self.refused.iter().any(|(subjects, _)| of(subjects));
            if subject.start_ticks.is_some() && !is_known {
                subject.gone = Some("the process has exited".to_owned());
            }
        }
    }

    /// What is known after the last tick.
    pub fn report(&self) -> Vec<SubjectReport> {
        self.report_by(|_| self.config.intervals.clone())
    }

    /// Changes the pace, from the next tick on.
    pub fn set_scan_interval_ms(&mut self, interval_ms: u64) {
        self.config.scan_interval_ms = Some(interval_ms);
    }

    /// The ages of one subject (by its place in [`subjects`](Self::subjects)), in bytes, by the
    /// bounds of [`AgentConfig::returned`]: what is resident, and what the last tick found accessed
    /// or back from swap by how long it had been idle until then. Pages that several processes share
    /// count in each. `None` where those are not kept.
    pub fn ages(&self, subject: usize) -> Option<SubjectAges> {
        let bounds = self.config.returned.as_ref()?;
        let mut ages = SubjectAges {
            looked_ms: self.last_tick_ms,
            watched_ms: 0,
            resident: Histogram::new(bounds),
            returned: Histogram::new(bounds),
            out_bytes: 0,
            refaulted_bytes: 0,
        };
        let of = |space: &&Space| space.subjects.contains(&subject);
        for space in self.spaces.values().filter(of) {
            let window = space.map.generations();
            let oldest = self.config.oldest;
            ages.resident
                .add_window(window, &space.sizes(), self.last_tick_ms, oldest);
            if let Some(returned) = &space.returned {
                ages.returned.add(returned);
            }
            let since_ms = window.unseen_since_ms().unwrap_or(self.last_tick_ms);
            let watched_ms = self.last_tick_ms.saturating_sub(since_ms);
            ages.watched_ms = ages.watched_ms.max(watched_ms);
            ages.out_bytes += space.swapped_pages() * PAGE_BYTES;
            ages.refaulted_bytes += space.refaulted_pages * PAGE_BYTES;
        }
        ages.resident = ages.resident.scaled(PAGE_BYTES);
        ages.returned = ages.returned.scaled(PAGE_BYTES);
        Some(ages)
    }

    /// The NUMA nodes whose memory is told apart.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes.ids
    }

    /// The same as [`report`](Self::report), with bounds of its own for each NUMA node. Histograms
    /// of nodes with different bounds cannot be added.
    pub fn report_by(&self, bounds: impl Fn(u32) -> Intervals) -> Vec<SubjectReport> {
        let now_ms = self.last_tick_ms;
        let bounds: Vec<Intervals> = self.nodes.ids.iter().map(|node| bounds(*node)).collect();
        let oldest = self.config.oldest;
        let mut reports: Vec<SubjectReport> = self
            .resolved
            .subjects
            .iter()
            .map(|subject| {
                let mut report = SubjectReport::new(
                    subject.name.clone(),
                    subject.cgroup.is_some(),
                    &self.nodes.ids,
                    &bounds,
                );
                report.gone = subject.gone.clone();
                report
            })
            .collect();
        let is_same = bounds.iter().all(|other| other == &bounds[0]);
        let same_bounds = is_same.then_some(&bounds[0]);
        let mut processes = vec![0usize; reports.len()];
        for subject in self.spaces.values().flat_map(|space| &space.subjects) {
            processes[*subject] += 1;
        }
        for space in self.spaces.values() {
            let mut place = 0;
            for subject in &space.subjects {
                let part = if self.targets.share_pages() {
                    Some(part_of(&self.nodes, 0))
                } else if processes[*subject] > 1 {
                    place += 1;
                    Some(part_of(&self.nodes, place - 1))
                } else {
                    None
                };
                reports[*subject].add(space, part.map(usize::from), now_ms, oldest, same_bounds);
            }
        }
        for (subjects, why) in &self.refused {
            for subject in subjects {
                reports[*subject].troubles.push(why.clone());
            }
        }
        for (report, subject) in reports.iter_mut().zip(&self.resolved.subjects) {
            report.finish();
            report.unmapped_cache_bytes = self.unmapped_cache_bytes(subject);
        }
        reports
    }

    /// Page cache that no process maps.
    fn unmapped_cache_bytes(&self, subject: &ResolvedSubject) -> Option<u64> {
        let cgroup = subject.cgroup.as_ref()?;
        if cgroup.is_root() {
            let info = MemInfo::of_machine(&self.roots.proc).ok()?;
            return Some(
                info.file_bytes
                    .saturating_sub(info.mapped_bytes.max(info.shmem_bytes)),
            );
        }
        let stat = cgroup.stat().ok()?;
        Some(
            stat.file_bytes
                .saturating_sub(stat.file_mapped_bytes.max(stat.shmem_bytes)),
        )
    }

    /// All subjects are gone: there is nothing to observe any more, and nothing will come.
    pub fn is_finished(&self) -> bool {
        matches!(self.targets, Targets::Listed(_))
            && self
                .resolved
                .subjects
                .iter()
                .all(|subject| subject.gone.is_some())
    }

    /// What it cost so far.
    pub fn cost(&self) -> CostReport {
        let scans = self.cost.scans.max(1) as f64;
        let gib = (self.cost.present_pages * PAGE_BYTES) as f64 / f64::from(1 << 30);
        let per_scan = |ns: u64| ns as f64 / 1e6 / scans;
        let per_gib = |ns: u64| {
            if gib > 0.0 {
                ns as f64 / 1e6 / gib
            } else {
                0.0
            }
        };
        let agemap_bytes: usize = self.spaces.values().map(|s| s.map.memory_bytes()).sum();
        let slots: u64 = self
            .spaces
            .values()
            .map(|space| space.map.page_slots())
            .sum();
        // The last scan stands for the interval that follows it.
        let elapsed_ms =
            self.began_ms.saturating_sub(self.cost.began_ms) + self.config.scan_interval_ms();
        CostReport {
            scans: self.ticks,
            first_scan_cpu_ms: self.cost.first_ns as f64 / 1e6,
            cpu_ms_per_scan: per_scan(self.cost.total_ns),
            walk_ms_per_scan: per_scan(self.cost.walk_ns),
            classify_ms_per_scan: per_scan(self.cost.classify_ns),
            clear_ms_per_scan: per_scan(self.cost.clear_ns),
            cpu_ms_per_gib: per_gib(self.cost.total_ns),
            walk_ms_per_gib: per_gib(self.cost.walk_ns),
            classify_ms_per_gib: per_gib(self.cost.classify_ns),
            clear_ms_per_gib: per_gib(self.cost.clear_ns),
            core_percent: self.cost.total_ns as f64 / 1e6 / elapsed_ms as f64 * 100.0,
            scan_interval_ms: self.config.scan_interval_ms(),
            agemap_bytes: agemap_bytes as u64,
            agemap_bytes_per_page: agemap_bytes as f64 / slots.max(1) as f64,
            unseen_processes: self.unseen.0,
            unseen_cgroups: self.unseen.1,
        }
    }

    /// Bytes of memory that observation takes, besides what the source holds.
    pub fn memory_bytes(&self) -> usize {
        self.spaces.values().map(Space::memory_bytes).sum::<usize>()
            + self.young_frames.memory_bytes()
            + self
                .counted_frames
                .iter()
                .map(FrameSet::memory_bytes)
                .sum::<usize>()
    }
}

/// The first part of the pages that others count, for set number `at` of a process.
fn part_of(nodes: &Nodes, at: usize) -> u8 {
    ((1 + at) * nodes.ids.len()).min(WHOLE_PARTS - 1) as u8
}

fn find_nodes(roots: &Roots) -> Result<Nodes, CgroupError> {
    let mut ids = memory::online_nodes(&roots.sys)?;
    ids.sort_unstable();
    if ids.is_empty() {
        ids.push(0);
    }
    let map = match ids.len() {
        1 => None,
        _ => Some(NodeMap::new(&Zone::all(&roots.proc)?)),
    };
    Ok(Nodes { ids, map })
}

/// When a process started, by the clock of ages. Ticks count from boot and go on while the machine
/// sleeps; the clock does not: after a sleep a process seems to have started too late, never too
/// early, and only by what was slept.
fn started_ms(start_ticks: u64) -> Option<u64> {
    let per_second = rustix::param::clock_ticks_per_second();
    let since_boot_ms = start_ticks.checked_mul(1000)?.checked_div(per_second)?;
    let slept_ms =
        crate::clock::boottime_ns().saturating_sub(crate::clock::monotonic_ns()) / 1_000_000;
    Some(since_boot_ms.saturating_sub(slept_ms))
}

#[cfg(test)]
mod tests;
