// SPDX-License-Identifier: Apache-2.0
//! The page cache as an agent follows it: file memory by the cgroup it is charged to, mapped or
//! not.
//!
//! Page tables show which cached pages were accessed through mappings, tracepoints which were
//! accessed through file descriptors. Both set one age, and each page counts once: here, not in any
//! process.

mod drop;
mod largest;
mod margins;
mod show;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};

use agewise_policy::generations::Sizes;
use agewise_policy::workingset::OldestPages;

use super::classify::Nodes;
use super::space::clock_ms;
use super::target::ResolvedSubject;
use super::{Agent, CostReport, SubjectReport};
use crate::access::AccessError;
use crate::cgroup::{Cgroup, CgroupError, TreeLimits};
use crate::clock::thread_cpu_ns;
use crate::frame_set::FrameSet;
use crate::pagecache::{FileAges, FilesLook, Mapped, Owner};

pub use drop::{CacheError, FilesOf};
pub use largest::FilesIn;
pub use show::Cached;

/// Looks at the cache take at most 1/20 of one core.
const CORE_SHARE: u64 = 20;

/// Why a look at the cache failed.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Source(#[from] AccessError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
}

/// The state kept to follow the page cache.
pub(super) struct Cache {
    ages: FileAges,
    /// Frames found accessed through mappings since the last look.
    pub touched: FrameSet,
    /// Paths of cgroups by kernfs id.
    paths: HashMap<u64, PathBuf>,
    sizes: HashMap<Owner, Box<Sizes>>,
    /// Times of the last looks, on the clock of ages.
    looked_ms: VecDeque<u64>,
    /// The earliest time of the next look.
    due_ms: u64,
    looks: u64,
    /// Those that failed, or found that many accesses were lost.
    lost_looks: u64,
    cpu_ns: u64,
    last: FilesLook,
    trouble: Option<String>,
}

impl Cache {
    pub fn new(ages: FileAges) -> Self {
        Cache {
            ages,
            touched: FrameSet::default(),
            paths: HashMap::new(),
            sizes: HashMap::new(),
            looked_ms: VecDeque::new(),
            due_ms: 0,
            looks: 0,
            lost_looks: 0,
            cpu_ns: 0,
            last: FilesLook::default(),
            trouble: None,
        }
    }

    /// Looks at the pages of all subjects that are cgroups, unless a look would exceed the CPU
    /// share.
    pub fn look_if_due(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) {
        // What a look found accessed counts in its own tick.
        self.ages.forget_returned();
        if clock_ms() >= self.due_ms {
            self.look(subjects, nodes);
        }
    }

    fn look(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) {
        let began_ns = thread_cpu_ns();
        self.trouble = self
            .try_look(subjects, nodes)
            .err()
            .map(|error| error.to_string());
        if self.trouble.is_some() || self.ages.has_lost_within(1) {
            self.lost_looks += 1;
        }
        // With the list of cgroups, and also if it failed: it costs as much then.
        let cpu_ns = thread_cpu_ns().saturating_sub(began_ns);
        self.cpu_ns += cpu_ns;
        self.due_ms = clock_ms() + cpu_ns * CORE_SHARE / 1_000_000;
    }

    fn try_look(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) -> Result<(), LookError> {
        let subjects: Vec<&Cgroup> = subjects.iter().filter_map(|s| s.cgroup.as_ref()).collect();
        let Some(first) = subjects.first() else {
            return Ok(());
        };
        let top = Cgroup::open(first.hierarchy(), "/")?;
        let below = top.descendants(TreeLimits::WIDE)?.cgroups;
        let all = below.into_iter().chain([top]);
        self.paths = all
            .map(|cgroup| (cgroup.id(), cgroup.path().to_owned()))
            .collect();
        let wanted: HashSet<&Path> = subjects.iter().map(|cgroup| cgroup.path()).collect();
        let has_top = subjects.iter().any(|cgroup| cgroup.is_root());
        let paths = self.paths.iter();
        let owned: HashSet<u64> = paths
            .filter(|(_, path)| path.ancestors().any(|above| wanted.contains(above)))
            .map(|(id, _)| *id)
            .collect();
        let owns = |id| owned.contains(&id) || has_top && !self.paths.contains_key(&id);
        let node_of = |frame| u8::try_from(nodes.ordinal(frame)).unwrap_or(0);
        let mapped = Mapped {
            touched: &self.touched,
            node_of: nodes.map.is_some().then_some(&node_of),
        };
        self.last = self.ages.look_with(&owns, Some(&mapped))?;
        self.touched.clear();
        self.sizes = self.ages.sizes_by_owner();
        self.looked_ms.push_back(self.ages.last_look_ms());
        if self.looked_ms.len() > drop::LOOKS + 1 {
            self.looked_ms.pop_front();
        }
        self.looks += 1;
        Ok(())
    }

    /// Whether memory charged to cgroup `id` (kernfs id) counts for `of`.
    fn is_of(&self, of: &Cgroup, id: u64) -> bool {
        match self.paths.get(&id) {
            Some(path) => path.starts_with(of.path()),
            // Charged to no cgroup, or to one that was removed.
            None => of.is_root(),
        }
    }

    /// Adds the pages charged to a cgroup and to those below it.
    pub fn add_to(&self, report: &mut SubjectReport, of: &Cgroup, oldest: OldestPages) {
        let now_ms = self.ages.last_look_ms();
        let window = self.ages.generations();
        let sizes = self.sizes.iter();
        for (owner, sizes) in sizes.filter(|(owner, _)| self.is_of(of, owner.cgroup)) {
            report.add_cached(owner.node.into(), sizes, (window, now_ms), oldest);
        }
        report.shmem_bytes.get_or_insert(0);
        report.observed_ms = report.observed_ms.max(self.ages.observed_ms());
        if let Some(trouble) = &self.trouble {
            report.troubles.push(format!("page cache: {trouble}"));
        }
    }

    /// Adds the cost of looks.
    pub fn add_cost(&self, cost: &mut CostReport) {
        cost.cache_looks = self.looks;
        cost.cache_ms_per_look = self.cpu_ns as f64 / 1e6 / self.looks.max(1) as f64;
        cost.cache_lost_looks = self.lost_looks;
        cost.cache_dropped = self.last.dropped;
        cost.cache_missed = self.last.missed;
        cost.cache_unfollowed = self.last.unfollowed;
        cost.cache_sampled = self.last.sampled;
    }

    /// Bytes of memory used, in addition to maps in the kernel.
    pub fn memory_bytes(&self) -> usize {
        let sizes = self.sizes.len() * (size_of::<Owner>() + size_of::<Sizes>());
        self.ages.memory_bytes() + self.touched.memory_bytes() + sizes
    }
}

impl Agent {
    /// From now on counts file memory for the cgroup it is charged to, mapped or not, and no longer
    /// for the processes that map it. `ages` comes from [`FileAges::with_frames`], with the horizon
    /// of the intervals.
    ///
    /// # Errors
    /// The source does not report frame numbers, which are needed to recognise mapped pages as file
    /// pages.
    pub fn follow_files(&mut self, mut ages: FileAges) -> Result<(), AccessError> {
        if !self.source.abilities().pfn {
            return Err(AccessError::Unsupported {
                what: "file memory by cgroup",
                why: format!("{} does not report page frames", self.source.name()),
            });
        }
        if let Some(bounds) = &self.config.returned {
            ages.keep_returned(bounds.clone());
        }
        if self.config.sample.is_some() {
            ages.allow_sample();
        }
        self.cache = Some(Cache::new(ages));
        Ok(())
    }

    /// Looks at file memory now, whatever it costs, so that the last report is not as old as the
    /// last look that could be afforded.
    pub fn look_at_files(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.look(&self.resolved.subjects, &self.nodes);
        }
    }

    /// Why the last look at file memory failed, if it did.
    pub fn files_trouble(&self) -> Option<&str> {
        self.cache.as_ref()?.trouble.as_deref()
    }

    /// Whether the file memory of a subject is counted by the page cache rather than by its
    /// processes.
    pub(super) fn is_cached_apart(&self, subject: usize) -> bool {
        self.cache.is_some() && self.resolved.subjects[subject].cgroup.is_some()
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::workingset::Intervals;

    use super::*;
    use crate::cgroup::{Hierarchy, Version};
    use crate::pagecache::CacheKind;
    use crate::pagecache::fake::{Shared, file};

    const PAGE: u64 = 4096;

    pub fn subject(cgroup: &Cgroup) -> ResolvedSubject {
        ResolvedSubject {
            name: cgroup.path().into(),
            start_ticks: None,
            cgroup: Some(cgroup.clone()),
            gone: None,
        }
    }

    /// The root, `/a`, `/a/b` and `/c`.
    pub fn cgroups() -> (tempfile::TempDir, [Cgroup; 4]) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let cgroups = ["/", "/a", "/a/b", "/c"].map(|path| {
            let cgroup = Cgroup::open(&hierarchy, path);
            cgroup.unwrap()
        });
        (dir, cgroups)
    }

    pub fn nodes() -> Nodes {
        Nodes {
            ids: vec![0],
            map: None,
        }
    }

    fn report(cache: &Cache, of: &Cgroup) -> SubjectReport {
        let intervals: Intervals = "1h".parse().unwrap();
        let mut report = SubjectReport::new("x".into(), true, &[0], &[intervals]);
        cache.add_to(&mut report, of, OldestPages::AtLeast);
        report.finish();
        report
    }

    /// Resident and unseen file pages, and pages of shared memory.
    fn pages(report: &SubjectReport) -> [u64; 3] {
        let shmem = report.shmem_bytes.unwrap();
        assert_eq!(report.resident_bytes[0], shmem);
        let histogram = report.histogram();
        assert_eq!(histogram.total(), report.resident_bytes);
        [report.resident_bytes[1], report.unseen_bytes[1], shmem].map(|bytes| bytes / PAGE)
    }

    #[test]
    fn each_page_counts_for_its_cgroup_and_those_above_as_young_as_its_last_access() {
        let (_dir, [top, a, b, c]) = cgroups();
        let nodes = nodes();
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![
            file(1, CacheKind::File, a.id(), 10),
            file(2, CacheKind::File, b.id(), 20),
            file(3, CacheKind::Shmem, b.id(), 5),
            file(4, CacheKind::Device, c.id(), 7),
            file(5, CacheKind::File, 0, 3),
        ];
        let mut cache = Cache::new(shared.ages(3_600_000));
        let all = [subject(&top), subject(&a), subject(&c)];
        cache.look(&all, &nodes);
        assert_eq!(pages(&report(&cache, &top)), [40, 40, 5]);
        assert_eq!(pages(&report(&cache, &a)), [30, 30, 5]);
        assert_eq!(pages(&report(&cache, &c)), [7, 7, 0]);

        // Two pages through a descriptor, one of them and two more through a mapping.
        shared.0.lock().unwrap().files[1].read = 0b11;
        for frame in [201, 202, 203, 999] {
            cache.touched.insert(frame);
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
        cache.look(&all, &nodes);
        assert!(
            !cache.touched.contains(201),
            "from now on for the next look"
        );
        assert_eq!(pages(&report(&cache, &a)), [30, 26, 5]);
        assert_eq!(pages(&report(&cache, &b)), [20, 16, 5]);

        // Cgroups that are not asked for are no longer followed.
        cache.look(&[subject(&c)], &nodes);
        assert_eq!(pages(&report(&cache, &top)), [7, 7, 0]);

        // What was known is kept, and so is the reason why there is nothing newer.
        let failure = || AccessError::Unsupported {
            what: "walking",
            why: "it was taken away".into(),
        };
        shared.0.lock().unwrap().failure = Some(failure);
        cache.look(&all, &nodes);
        let failed = report(&cache, &c);
        assert_eq!(pages(&failed), [7, 7, 0]);
        assert!(failed.troubles[0].contains("page cache: "), "{failed:?}");

        // It counts, and so does a look before which accesses were lost.
        let mut lost_looks = |failure, dropped| {
            shared.0.lock().unwrap().failure = failure;
            shared.0.lock().unwrap().dropped = dropped;
            cache.look(&all, &nodes);
            cache.lost_looks
        };
        assert_eq!(lost_looks(None, 0), 1);
        assert_eq!(lost_looks(None, 1), 2);
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert_eq!(lost_looks(None, 0), 2);
    }

    #[test]
    fn what_a_look_found_accessed_counts_in_one_tick() {
        let (_dir, [top, ..]) = cgroups();
        let shared = Shared::default();
        shared.0.lock().unwrap().files = vec![file(1, CacheKind::File, top.id(), 10)];
        let bounds: Intervals = "1h".parse().unwrap();
        let mut ages = shared.ages(3_600_000);
        ages.keep_returned(bounds.clone());
        let mut cache = Cache::new(ages);
        let (subjects, nodes) = ([subject(&top)], nodes());
        let mut returned = |due_ms| {
            shared.0.lock().unwrap().files[0].read = 0b111;
            cache.due_ms = due_ms;
            cache.look_if_due(&subjects, &nodes);
            let of = FilesOf {
                cgroup: &top,
                without: &[],
            };
            let pages = cache.pages_of(of, &bounds, OldestPages::AtLeast).unwrap();
            pages.returned.total()[1]
        };
        returned(0);
        assert_eq!(returned(0), 3);
        assert_eq!(returned(u64::MAX), 0, "no look was due");
    }

    #[test]
    fn dear_looks_come_rarely() {
        let dir = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::at(Version::V2, dir.path());
        let subjects = [subject(&Cgroup::open(&hierarchy, "/").unwrap())];
        let nodes = nodes();
        let mut cache = Cache::new(Shared::default().ages(1000));
        cache.look_if_due(&subjects, &nodes);
        cache.due_ms = clock_ms() + 60_000;
        cache.look_if_due(&subjects, &nodes);
        assert_eq!(cache.looks, 1);
    }

    #[test]
    fn the_list_of_cgroups_and_failures_cost_too() {
        let (_dir, [top, ..]) = cgroups();
        let shared = Shared::default();
        let (subjects, nodes) = ([subject(&top)], nodes());
        let mut cache = Cache::new(shared.ages(1000));
        cache.look_if_due(&subjects, &nodes);
        assert!(cache.cpu_ns > cache.last.cpu_ns);
        let failure = || AccessError::Unsupported {
            what: "walking",
            why: "it was taken away".into(),
        };
        shared.0.lock().unwrap().failure = Some(failure);
        let (before_ns, began_ms) = (cache.cpu_ns, clock_ms());
        cache.due_ms = 0;
        cache.look_if_due(&subjects, &nodes);
        assert!(cache.trouble.is_some() && cache.cpu_ns > before_ns);
        assert!(cache.due_ms >= began_ms);
    }
}
