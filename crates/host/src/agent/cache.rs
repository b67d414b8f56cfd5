// SPDX-License-Identifier: Apache-2.0
//! File memory by the cgroup it is charged to, mapped or not: the page cache as an agent follows
//! it.
//!
//! Page tables say which cached pages were accessed through mappings, tracepoints which were by
//! descriptors. Both are one age, and each page counts once: here, and in no process.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use agewise_policy::generations::Sizes;
use agewise_policy::workingset::OldestPages;

use super::classify::Nodes;
use super::space::clock_ms;
use super::target::ResolvedSubject;
use super::{Agent, CostReport, SubjectReport};
use crate::access::AccessError;
use crate::cgroup::{Cgroup, CgroupError, TreeLimits};
use crate::frame_set::FrameSet;
use crate::pagecache::{FileAges, FilesLook, Mapped, Owner};

/// Looks at the cache take at most one part in so many of a core.
const CORE_SHARE: u64 = 20;

/// Cgroups whose names are known, at most. Pages of others count for the whole machine only.
const CGROUPS: TreeLimits = TreeLimits {
    depth_max: 64,
    count_max: 1 << 16,
};

/// Why a look at the cache failed.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Source(#[from] AccessError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
}

/// The page cache, followed.
pub(super) struct Cache {
    ages: FileAges,
    /// Frames seen accessed through mappings since the last look.
    pub touched: FrameSet,
    /// Paths of cgroups by kernfs id.
    paths: HashMap<u64, PathBuf>,
    sizes: HashMap<Owner, Box<Sizes>>,
    /// Not before then is the cache looked at again.
    due_ms: u64,
    looks: u64,
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
            due_ms: 0,
            looks: 0,
            cpu_ns: 0,
            last: FilesLook::default(),
            trouble: None,
        }
    }

    /// Looks at the pages of all subjects that are cgroups, unless looks are too dear for that now.
    pub fn look_if_due(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) {
        if clock_ms() >= self.due_ms {
            self.look(subjects, nodes);
        }
    }

    fn look(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) {
        self.trouble = self
            .try_look(subjects, nodes)
            .err()
            .map(|error| error.to_string());
    }

    fn try_look(&mut self, subjects: &[ResolvedSubject], nodes: &Nodes) -> Result<(), LookError> {
        let subjects: Vec<&Cgroup> = subjects.iter().filter_map(|s| s.cgroup.as_ref()).collect();
        let Some(first) = subjects.first() else {
            return Ok(());
        };
        let top = Cgroup::open(first.hierarchy(), "/")?;
        let below = top.descendants(CGROUPS)?.cgroups;
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
        self.looks += 1;
        self.cpu_ns += self.last.cpu_ns;
        self.due_ms = clock_ms() + self.last.cpu_ns * CORE_SHARE / 1_000_000;
        Ok(())
    }

    /// Adds the pages charged to a cgroup and to those below it.
    pub fn add_to(&self, report: &mut SubjectReport, of: &Cgroup, oldest: OldestPages) {
        let now_ms = self.ages.last_look_ms();
        let window = self.ages.generations();
        let is_of = |id| match self.paths.get(&id) {
            Some(path) => path.starts_with(of.path()),
            // Charged to nobody, or to a cgroup that was removed.
            None => of.is_root(),
        };
        let sizes = self.sizes.iter();
        for (owner, sizes) in sizes.filter(|(owner, _)| is_of(owner.cgroup)) {
            report.add_cached(owner.node.into(), sizes, (window, now_ms), oldest);
        }
        report.shmem_bytes.get_or_insert(0);
        report.observed_ms = report.observed_ms.max(self.ages.observed_ms());
        if let Some(trouble) = &self.trouble {
            report.troubles.push(format!("page cache: {trouble}"));
        }
    }

    /// Adds what looks cost.
    pub fn add_cost(&self, cost: &mut CostReport) {
        cost.cache_looks = self.looks;
        cost.cache_ms_per_look = self.cpu_ns as f64 / 1e6 / self.looks.max(1) as f64;
        cost.cache_dropped = self.last.dropped;
        cost.cache_unfollowed = self.last.unfollowed;
    }

    /// Bytes of memory that following takes, besides maps in the kernel.
    pub fn memory_bytes(&self) -> usize {
        let sizes = self.sizes.len() * (size_of::<Owner>() + size_of::<Sizes>());
        self.ages.memory_bytes() + self.touched.memory_bytes() + sizes
    }
}

impl Agent {
    /// From now on file memory counts by the cgroup it is charged to, mapped or not, and no more by
    /// who maps it. `ages`: by [`FileAges::with_frames`], with the horizon of the intervals.
    ///
    /// # Errors
    /// The source does not tell frames, by which mapped pages are known to be those of files.
    pub fn follow_files(&mut self, ages: FileAges) -> Result<(), AccessError> {
        if !self.source.abilities().pfn {
            return Err(AccessError::Unsupported {
                what: "file memory by cgroup",
                why: format!("{} does not tell page frames", self.source.name()),
            });
        }
        self.cache = Some(Cache::new(ages));
        Ok(())
    }

    /// Looks at file memory now, however dear: for a last report, which would else show it as it
    /// was at the last look that could be afforded.
    pub fn look_at_files(&mut self) {
        if let Some(cache) = &mut self.cache {
            cache.look(&self.resolved.subjects, &self.nodes);
        }
    }

    /// Whether file memory counts by the cgroup it is charged to.
    pub fn follows_files(&self) -> bool {
        self.cache.is_some()
    }

    /// Whether the page cache counts the file memory of a subject, and not its processes.
    pub(super) fn is_cached_apart(&self, subject: usize) -> bool {
        self.cache.is_some() && self.resolved.subjects[subject].cgroup.is_some()
    }
}
