// SPDX-License-Identifier: Apache-2.0
//! Reports of an agent: ages by subject and NUMA node, and the cost.

use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Histogram, Intervals};

use super::cache::{Cache, FilesOf};
use super::report::Elsewhere;
use super::share::Keepers;
use super::target::ResolvedSubject;
use super::{Agent, CostReport, Space, SubjectAges, SubjectReport, TickReport};
use crate::access::PAGE_BYTES;
use crate::cgroup::{Cgroup, MemoryStat};
use crate::frame_set::FrameSet;
use crate::memory::MemInfo;
use crate::vma::Vma;

/// CPU time in ns of the first tick, and totals over all later ticks (over the first as long as
/// there is no other).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub first_ns: u64,
    pub scans: u64,
    pub began_ms: u64,
    pub total_ns: u64,
    pub walk_ns: u64,
    pub classify_ns: u64,
    pub clear_ns: u64,
    pub present_pages: u64,
}

impl Cost {
    pub fn add(&mut self, tick: &TickReport) {
        self.scans += 1;
        self.total_ns += tick.cpu_ns;
        self.walk_ns += tick.walk_ns;
        self.classify_ns += tick.classify_ns;
        self.clear_ns += tick.clear_ns;
        self.present_pages += tick.present_pages;
    }
}

/// Memory of a cgroup that page tables do not show. `None`: unknown.
#[derive(Default)]
struct Charged {
    /// Page cache that no process maps.
    unmapped_cache_bytes: Option<u64>,
    /// Memory that is only in swap. Page tables have no entries of shared memory there, and have
    /// two of a page that two processes share since a fork.
    swapped_bytes: Option<u64>,
    /// What has come back from there.
    refaulted_bytes: Option<u64>,
    /// Anonymous memory.
    anon_bytes: Option<u64>,
    /// Shared memory that processes map.
    mapped_shmem_bytes: u64,
}

impl Charged {
    fn to_group(cgroup: &Cgroup, stat: &MemoryStat) -> Self {
        let mapped_bytes = stat.file_mapped_bytes.max(stat.shmem_bytes);
        let refaulted_bytes = stat.refaults_anon_pages.checked_mul(4096);
        Charged {
            unmapped_cache_bytes: Some(stat.file_bytes.saturating_sub(mapped_bytes)),
            swapped_bytes: cgroup.out_bytes(stat),
            refaulted_bytes: refaulted_bytes.filter(|_| stat.counts_anon_refaults),
            anon_bytes: Some(stat.anon_bytes),
            mapped_shmem_bytes: stat.mapped_shmem_bytes(),
        }
    }

    fn to_machine(info: &MemInfo) -> Self {
        let mapped_bytes = info.mapped_bytes.max(info.shmem_bytes);
        let used_bytes = info.swap_total_bytes.saturating_sub(info.swap_free_bytes);
        Charged {
            unmapped_cache_bytes: Some(info.file_bytes.saturating_sub(mapped_bytes)),
            swapped_bytes: Some(used_bytes.saturating_sub(info.swap_cached_bytes)),
            refaulted_bytes: None,
            anon_bytes: Some(info.anon_bytes),
            mapped_shmem_bytes: info.shmem_bytes.min(info.mapped_bytes),
        }
    }
}

fn sum(of: &Histogram) -> u64 {
    of.total().iter().sum()
}

impl Agent {
    /// Returns the state after the last tick.
    pub fn report(&self) -> Vec<SubjectReport> {
        self.report_by(|_| self.config.intervals.clone())
    }

    /// The ages of one subject (by its index in [`subjects`](Self::subjects)), in bytes, with the
    /// bounds of [`AgentConfig::returned`]: the resident memory, and what the last tick found
    /// accessed or back from swap, by its idle time until then. With `files`, file memory is what
    /// is charged to a cgroup and can be dropped, mapped or not, rather than what its processes
    /// map. `None` if this is not recorded.
    ///
    /// Page tables show shared pages once for each process. Where that is more than the
    /// `charged_bytes` of the cgroup, in which each page counts once, all ages have their part of
    /// that; but no less than the largest process has, as memory of processes that were moved into
    /// the cgroup is charged elsewhere.
    pub fn ages(
        &self,
        subject: usize,
        files: Option<FilesOf<'_>>,
        charged_bytes: Option<u64>,
    ) -> Option<SubjectAges> {
        let bounds = self.config.returned.as_ref()?;
        let mut ages = SubjectAges {
            looked_ms: self.last_tick_ms,
            watched_ms: 0,
            resident: Histogram::new(bounds),
            returned: Histogram::new(bounds),
            out_bytes: 0,
            refaulted_bytes: [0; 2],
        };
        let cache = self.cache.as_ref();
        let oldest = self.config.oldest;
        let cached = files
            .zip(cache)
            .and_then(|(of, cache)| cache.pages_of(of, bounds, oldest));
        let mut largest_pages = 0;
        let of = |space: &&Space| space.subjects.contains(&subject);
        for space in self.spaces().filter(of) {
            let window = space.map.generations();
            let mut sizes = space.sizes();
            let mut returned = space.returned.clone();
            if files.is_some() {
                sizes
                    .iter_mut()
                    .for_each(|by_type| by_type[PageType::File as usize] = 0);
                returned = returned.map(|returned| returned.without(PageType::File));
            }
            largest_pages = largest_pages.max(sizes.iter().flatten().sum());
            ages.resident
                .add_window(window, &sizes, self.last_tick_ms, oldest);
            if let Some(returned) = &returned {
                ages.returned.add(returned);
            }
            let since_ms = window.unseen_since_ms().unwrap_or(self.last_tick_ms);
            let watched_ms = self.last_tick_ms.saturating_sub(since_ms);
            ages.watched_ms = ages.watched_ms.max(watched_ms);
            ages.out_bytes += space.swapped_pages() * PAGE_BYTES;
            ages.refaulted_bytes[0] += space.refaulted_pages * PAGE_BYTES;
        }
        if let Some(charged_bytes) = charged_bytes {
            let cached_pages = cached.as_ref().map_or(0, |of| sum(&of.resident));
            let charged_pages = (charged_bytes / PAGE_BYTES).saturating_sub(cached_pages);
            let (whole, part) = (sum(&ages.resident), charged_pages.max(largest_pages));
            if part < whole {
                ages.resident = ages.resident.part_of(part, whole);
                ages.returned = ages.returned.part_of(part, whole);
            }
        }
        if let Some(cached) = cached {
            ages.resident.add(&cached.resident);
            ages.returned.add(&cached.returned);
            ages.refaulted_bytes[1] = cached.refaulted * PAGE_BYTES;
        }
        ages.resident = ages.resident.scaled(PAGE_BYTES);
        ages.returned = ages.returned.scaled(PAGE_BYTES);
        Some(ages)
    }

    /// What the last tick found back from swap in these processes.
    pub fn last_refaulted_bytes(&self, pids: &[u32]) -> u64 {
        let spaces = pids.iter().filter_map(|pid| self.spaces.get(pid));
        let looked_at = spaces.filter(|space| space.is_current);
        let pages = looked_at.map(|space| space.last_refaulted_pages);
        pages.sum::<u64>() * PAGE_BYTES
    }

    /// Like [`report`](Self::report), with separate bounds for each NUMA node. Histograms of nodes
    /// with different bounds cannot be added.
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
        let domains = self.domains.iter();
        let keepers: Vec<Keepers> = domains.map(|domain| self.keepers(*domain)).collect();
        for space in self.spaces.values() {
            for subject in &space.subjects {
                let elsewhere = self.elsewhere(space, *subject, &keepers);
                let apart = self.is_cached_apart(*subject);
                reports[*subject].add(space, elsewhere, apart, now_ms, oldest, same_bounds);
            }
        }
        for (subjects, why) in &self.refused {
            for subject in subjects {
                reports[*subject].refuse(why.clone());
            }
        }
        let machine = MemInfo::of_machine(&self.roots.proc).ok();
        // A page that any process maps is mapped on this machine.
        let mapped_bytes = machine.map(|machine| machine.mapped_bytes);
        let mapped_bytes = mapped_bytes.filter(|bytes| *bytes > 0).unwrap_or(u64::MAX);
        for (number, subject) in self.resolved.subjects.iter().enumerate() {
            let report = &mut reports[number];
            let charged = Self::charged(subject, machine.as_ref());
            if report.may_need_fit() {
                let shmem_bytes = match self.is_cached_apart(number) {
                    true => 0,
                    false => charged.mapped_shmem_bytes,
                };
                let anon_bytes = charged.anon_bytes;
                let anon_bytes = anon_bytes.map(|bytes| bytes.saturating_add(shmem_bytes));
                report.fit(PageType::Anon, anon_bytes, u64::MAX);
                report.fit(PageType::File, None, mapped_bytes);
            }
            if let Some(bytes) = charged.swapped_bytes {
                report.swapped_bytes = bytes;
            }
            report.counted_refaulted_bytes = charged.refaulted_bytes;
            match (&self.cache, &subject.cgroup) {
                (Some(cache), Some(cgroup)) => {
                    cache.add_to(report, cgroup, oldest);
                    cache.add_margins_to(report, cgroup, same_bounds);
                }
                _ => report.unmapped_cache_bytes = charged.unmapped_cache_bytes,
            }
            report.finish();
        }
        reports
    }

    /// The pages of a process that a subject of its counts elsewhere. Parts are numbered as in the
    /// look: processes may have gone since. `keepers` are those of each set of subjects.
    fn elsewhere<'k>(
        &self,
        space: &Space,
        subject: usize,
        keepers: &'k [Keepers],
    ) -> Elsewhere<'k> {
        let mut domains = self.domains.iter();
        let is_it = |domain: &usize| self.targets.share_pages() || *domain == subject;
        let Some(number) = domains.position(is_it) else {
            return Elsewhere::Nothing;
        };
        if !space.is_current {
            return Elsewhere::Files(&keepers[number]);
        }
        let before = self.domains[..number].iter();
        let at = before.filter(|domain| space.subjects.contains(domain));
        Elsewhere::Part(usize::from(self.nodes.first_part(at.count())))
    }

    /// Which of the pages of a process others have is not known any more once it cannot be looked
    /// at: each file that it maps is left to a process that maps it and was looked at, or else to
    /// the first. Memory without a file stays with each: since a fork it may have become its own.
    fn keepers(&self, domain: usize) -> Keepers {
        let is_of = |space: &&Space| {
            let is_among = self.targets.share_pages() || space.subjects.contains(&domain);
            is_among && space.followed_pages() > 0
        };
        let of = || self.spaces().filter(is_of);
        let mut keepers = Keepers::new();
        if of().all(|space| space.is_current) {
            return keepers;
        }
        let current = of().filter(|space| space.is_current);
        for space in current.chain(of().filter(|space| !space.is_current)) {
            for file in space.looked_at().filter_map(Vma::file) {
                keepers.entry(file).or_insert(space.process.pid());
            }
        }
        keepers
    }

    /// What the kernel says about a subject that is a cgroup.
    fn charged(subject: &ResolvedSubject, machine: Option<&MemInfo>) -> Charged {
        let Some(cgroup) = &subject.cgroup else {
            return Charged::default();
        };
        let stat = cgroup.stat().ok();
        let by_group = stat.map(|stat| Charged::to_group(cgroup, &stat));
        if !cgroup.is_root() {
            return by_group.unwrap_or_default();
        }
        let whole = machine.map(Charged::to_machine).unwrap_or_default();
        // In a container, / is less than the machine.
        match by_group {
            Some(group) => Charged {
                refaulted_bytes: group.refaulted_bytes,
                anon_bytes: group.anon_bytes,
                mapped_shmem_bytes: group.mapped_shmem_bytes,
                ..whole
            },
            None => whole,
        }
    }

    /// The cost so far.
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
        // The last scan is taken to cover the interval after it.
        let elapsed_ms =
            self.began_ms.saturating_sub(self.cost.began_ms) + self.config.scan_interval_ms();
        let mut report = CostReport {
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
            agemap_bytes_per_page: match slots {
                0 => 0.0,
                slots => agemap_bytes as f64 / slots as f64,
            },
            unseen_processes: self.unseen_processes,
            unseen_cgroups: self.unseen_cgroups,
            ..CostReport::default()
        };
        if let Some(cache) = &self.cache {
            cache.add_cost(&mut report);
        }
        report
    }

    /// Bytes of memory used for observation, without the source.
    pub fn memory_bytes(&self) -> usize {
        self.spaces().map(Space::memory_bytes).sum::<usize>()
            + self.cache.as_ref().map_or(0, Cache::memory_bytes)
            + self.young_frames.memory_bytes()
            + self
                .counted_frames
                .iter()
                .map(FrameSet::memory_bytes)
                .sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::super::tests::{Changing, Sleeper, agent, present};
    use super::PageType;
    use crate::access::{AccessError, PAGE_BYTES};
    use agewise_policy::table::PageSet;

    #[test]
    fn what_came_back_counts_once_even_if_the_process_cannot_be_looked_at_any_more() {
        let sleeper = Sleeper::new();
        let mut young = present();
        young.bits.young = PageSet::ALL;
        let source = Changing(Rc::default());
        source
            .0
            .borrow_mut()
            .set(sleeper.pid(), sleeper.table(), young);
        let mut agent = agent(source.clone(), &[sleeper.pid()]);
        agent.config.returned = Some("1s".parse().unwrap());
        let mut returned = || {
            let tick = agent.tick().unwrap();
            let ages = agent.ages(0, None, None).unwrap();
            (tick.failed, ages.returned.total()[0] > 0)
        };
        returned();
        assert_eq!(returned(), (0, true));
        source
            .0
            .borrow_mut()
            .fail(sleeper.pid(), |_| AccessError::NoPrivilege {
                what: "reading its memory".to_owned(),
                hint: "ask somebody else",
            });
        assert_eq!(returned(), (1, false));
    }

    /// Their page tables show it twice, and their cgroup is charged for it once.
    #[test]
    fn memory_that_processes_share_counts_once_by_what_is_charged() {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let source = Changing(Rc::default());
        for sleeper in &sleepers {
            let mut source = source.0.borrow_mut();
            source.set(sleeper.pid(), sleeper.table(), present());
        }
        let mut agent = agent(source, &sleepers.each_ref().map(Sleeper::pid));
        agent.config.returned = Some("1s".parse().unwrap());
        agent.tick().unwrap();
        // A stack has no file memory, and may end in the next table.
        let of_each = [0, 1].map(|subject| {
            let ages = agent.ages(subject, None, None).unwrap();
            ages.resident.total()[PageType::Anon as usize]
        });
        // One target of both.
        for space in agent.spaces.values_mut() {
            space.subjects = [0].into();
        }
        let resident = |charged_bytes| agent.ages(0, None, charged_bytes).unwrap().resident.total();
        let (both, largest) = (of_each[0] + of_each[1], of_each[0].max(of_each[1]));
        assert!(both > largest);
        assert_eq!(resident(None), [both, 0]);
        assert_eq!(resident(Some(1 << 40)), [both, 0]);
        let between = (largest + both) / 2 / PAGE_BYTES * PAGE_BYTES;
        assert_eq!(resident(Some(between)), [between, 0]);
        // They were moved into the cgroup.
        assert_eq!(resident(Some(0)), [largest, 0]);
    }
}
