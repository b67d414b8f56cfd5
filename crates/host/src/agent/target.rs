// SPDX-License-Identifier: Apache-2.0
//! Targets of an agent, and which processes currently belong to them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::space::Space;
use crate::cgroup::{Cgroup, CgroupError, Hierarchy, TreeLimits};
use crate::process::{self, Bound, Process, ProcessError};
use crate::root::ProcRoot;
use crate::untrusted::Untrusted;

/// Maximum number of processes observed at a time. Any excess is reported, not cut silently.
pub const PROCESSES_MAX: usize = 16_384;

/// Something whose memory is reported as a unit.
#[derive(Debug)]
pub enum Subject {
    Process {
        pid: u32,
        /// Its start time, so that a reused pid is not mistaken for it.
        start_ticks: u64,
        /// Its name when it was specified.
        comm: Untrusted,
    },
    /// The processes of a memory cgroup and of the cgroups below it.
    Cgroup(Cgroup),
}

impl Subject {
    /// Creates a subject for a running process.
    ///
    /// # Errors
    /// No such process, a kernel thread, or a zombie.
    pub fn process(root: &ProcRoot, pid: u32) -> Result<Self, ProcessError> {
        let process = Process::open_user(root, pid)?;
        Ok(Subject::Process {
            pid,
            start_ticks: process.start_ticks(),
            comm: process.comm()?,
        })
    }

    /// The name used in reports.
    pub fn name(&self) -> Untrusted {
        match self {
            Subject::Process { pid, comm, .. } => Untrusted::process(*pid, comm),
            Subject::Cgroup(cgroup) => cgroup.path().into(),
        }
    }
}

/// What to observe.
#[derive(Debug)]
pub enum Targets {
    /// These subjects, each on its own: a page that two of them share counts in both.
    Listed(Vec<Subject>),
    /// Every cgroup of the machine. A page shared by processes of several cgroups counts once, in
    /// the cgroup of the first of them, since the kernel too charges it to only one.
    AllCgroups {
        /// The hierarchy that accounts memory.
        hierarchy: Hierarchy,
        /// Maximum number of separate cgroups; the memory of any others counts for their nearest
        /// listed ancestor.
        limits: TreeLimits,
    },
    /// The cgroups whose path a filter accepts, each with everything below it, and some processes.
    /// New cgroups are picked up, removed ones are dropped. A page counts once overall, as above; a
    /// process in several of the cgroups (one above the other) counts in each of them.
    Matched {
        /// The hierarchy that accounts memory; `None` if there are only processes.
        hierarchy: Option<Hierarchy>,
        /// How much of the hierarchy is searched.
        limits: TreeLimits,
        /// Accepts or rejects a cgroup by its path.
        filter: PathFilter,
        /// The processes, each bound to the one that had the pid at the time.
        pids: Vec<Arc<Bound>>,
    },
}

/// A predicate on paths.
#[derive(Clone)]
pub struct PathFilter(Arc<dyn Fn(&Path) -> bool + Send + Sync>);

impl PathFilter {
    /// Creates a filter from a function.
    pub fn new(is_meant: impl Fn(&Path) -> bool + Send + Sync + 'static) -> Self {
        PathFilter(Arc::new(is_meant))
    }

    /// Whether the filter accepts a path.
    pub fn takes(&self, path: &Path) -> bool {
        (self.0)(path)
    }
}

impl std::fmt::Debug for PathFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PathFilter")
    }
}

/// The processes of the subjects at one point in time.
#[derive(Debug, Default)]
pub struct Resolved {
    /// Subjects, in report order.
    pub subjects: Vec<ResolvedSubject>,
    /// Processes, ascending by pid, with the indexes of the subjects each belongs to.
    pub processes: Vec<(u32, Vec<usize>)>,
    /// Whether there were more cgroups or processes than the limits allow.
    pub truncated: bool,
    /// Running processes that may not be looked at, or whose cgroups cannot be determined.
    pub unseen_processes: usize,
    /// Cgroups whose processes cannot be listed.
    pub unseen_cgroups: usize,
}

/// One subject at one point in time.
#[derive(Debug)]
pub struct ResolvedSubject {
    /// The name used in reports.
    pub name: Untrusted,
    /// Start time, if the subject is a process.
    pub start_ticks: Option<u64>,
    pub cgroup: Option<Cgroup>,
    /// Why it no longer has processes.
    pub gone: Option<String>,
}

impl ResolvedSubject {
    fn of_cgroup(cgroup: Cgroup) -> Self {
        ResolvedSubject {
            name: cgroup.path().into(),
            start_ticks: None,
            cgroup: Some(cgroup),
            gone: None,
        }
    }

    fn of_process(name: Untrusted, start_ticks: Option<u64>) -> Self {
        ResolvedSubject {
            name,
            start_ticks,
            cgroup: None,
            gone: None,
        }
    }
}

impl Targets {
    /// Whether each page counts once over all subjects together, rather than once in each.
    pub fn share_pages(&self) -> bool {
        matches!(self, Targets::AllCgroups { .. } | Targets::Matched { .. })
    }

    /// Finds the processes.
    ///
    /// # Errors
    /// The process table or the cgroup hierarchy as a whole cannot be read. A missing subject is
    /// reported in the subject itself.
    pub(super) fn resolve(
        &self,
        root: &ProcRoot,
        known: &mut Known<'_>,
    ) -> Result<Resolved, CgroupError> {
        match self {
            Targets::Listed(subjects) => listed(subjects),
            Targets::AllCgroups { hierarchy, limits } => {
                all_cgroups(root, known, hierarchy, *limits)
            }
            Targets::Matched {
                hierarchy,
                limits,
                filter,
                pids,
            } => matched(hierarchy.as_ref(), *limits, filter, pids),
        }
    }
}

/// What is already known about processes from earlier ticks.
pub(super) struct Known<'a> {
    /// Processes under observation. They may be gone; looking at them will show it.
    pub spaces: &'a BTreeMap<u32, Box<Space>>,
    /// Pids that were kernel threads when last checked.
    pub kernel_threads: &'a mut HashSet<u32>,
}

impl Known<'_> {
    /// Calls `visit` with every process that has memory, except agewise itself. Returns how many
    /// could not be opened.
    fn each(
        &mut self,
        root: &ProcRoot,
        mut visit: impl FnMut(&Process),
    ) -> Result<usize, CgroupError> {
        let mut unseen = 0;
        let own = std::process::id();
        for pid in root.pids()? {
            if pid == own || self.kernel_threads.contains(&pid) {
                continue;
            }
            if let Some(space) = self.spaces.get(&pid) {
                visit(&space.process);
                continue;
            }
            match Process::open_user(root, pid) {
                Ok(process) => visit(&process),
                Err(ProcessError::KernelThread { .. }) => {
                    self.kernel_threads.insert(pid);
                }
                Err(error) if error.is_gone() => {}
                Err(_) => unseen += 1,
            }
        }
        Ok(unseen)
    }
}

fn listed(subjects: &[Subject]) -> Result<Resolved, CgroupError> {
    let mut resolved = Resolved::default();
    let mut of: Vec<(u32, usize)> = Vec::new();
    for (index, subject) in subjects.iter().enumerate() {
        let found = match subject {
            Subject::Process {
                pid, start_ticks, ..
            } => {
                of.push((*pid, index));
                ResolvedSubject::of_process(subject.name(), Some(*start_ticks))
            }
            Subject::Cgroup(cgroup) => {
                let mut found = ResolvedSubject::of_cgroup(cgroup.clone());
                match cgroup.check().and_then(|()| cgroup.procs(true)) {
                    Ok(pids) => of.extend(pids.into_iter().map(|pid| (pid, index))),
                    Err(error) => found.gone = Some(error.to_string()),
                }
                found
            }
        };
        resolved.subjects.push(found);
    }
    resolved.take(of);
    Ok(resolved)
}

fn all_cgroups(
    root: &ProcRoot,
    known: &mut Known<'_>,
    hierarchy: &Hierarchy,
    limits: TreeLimits,
) -> Result<Resolved, CgroupError> {
    let top = Cgroup::open(hierarchy, "/")?;
    let listing = top.descendants(limits)?;
    let mut resolved = Resolved {
        truncated: listing.truncated,
        ..Resolved::default()
    };
    let mut by_path = HashMap::new();
    let charged = listing.cgroups.into_iter().filter(Cgroup::has_memory);
    for cgroup in std::iter::once(top).chain(charged) {
        by_path.insert(cgroup.path().to_owned(), resolved.subjects.len());
        resolved.subjects.push(ResolvedSubject::of_cgroup(cgroup));
    }
    let mut of = Vec::new();
    let mut lost = 0;
    let unopened = known.each(root, |process| {
        let memberships = match process.cgroups() {
            Ok(memberships) => memberships,
            Err(error) => {
                lost += usize::from(!error.is_gone());
                return;
            }
        };
        let path = hierarchy
            .path_of(&memberships)
            .unwrap_or_else(|| PathBuf::from("/"));
        let pid = process.pid();
        of.extend(
            path.ancestors()
                .filter_map(|path| Some((pid, *by_path.get(path)?))),
        );
    })?;
    resolved.unseen_processes = unopened + lost;
    resolved.take(of);
    Ok(resolved)
}

fn matched(
    hierarchy: Option<&Hierarchy>,
    limits: TreeLimits,
    filter: &PathFilter,
    pids: &[Arc<Bound>],
) -> Result<Resolved, CgroupError> {
    let mut resolved = Resolved::default();
    let mut of = match hierarchy {
        Some(hierarchy) => resolved.add_matched(hierarchy, limits, filter)?,
        None => Vec::new(),
    };
    for bound in pids {
        let pid = bound.pid();
        let found = match bound.process() {
            Ok(process) => {
                let name = Untrusted::process(pid, &process.comm().unwrap_or_default());
                of.push((pid, resolved.subjects.len()));
                ResolvedSubject::of_process(name, Some(process.start_ticks()))
            }
            Err(error) => ResolvedSubject {
                gone: Some(error.to_string()),
                ..ResolvedSubject::of_process(Untrusted::process(pid, &Untrusted::default()), None)
            },
        };
        resolved.subjects.push(found);
    }
    resolved.take(of);
    Ok(resolved)
}

impl Resolved {
    /// Whether one of the subjects is a different process with the same pid.
    pub(super) fn means_another(&self, process: &Process, subjects: &[usize]) -> bool {
        subjects
            .iter()
            .filter_map(|subject| self.subjects[*subject].start_ticks)
            .any(|start_ticks| start_ticks != process.start_ticks())
    }

    /// Adds the cgroups that a filter accepts. Returns pairs of process and subject.
    fn add_matched(
        &mut self,
        hierarchy: &Hierarchy,
        limits: TreeLimits,
        filter: &PathFilter,
    ) -> Result<Vec<(u32, usize)>, CgroupError> {
        let top = Cgroup::open(hierarchy, "/")?;
        let listing = top.descendants(limits)?;
        self.truncated = listing.truncated;
        let mut of = Vec::new();
        let mut by_path = HashMap::new();
        for cgroup in std::iter::once(top).chain(listing.cgroups) {
            // Ancestors come first, so where they count is already known.
            let mut above = cgroup.path().ancestors().skip(1);
            let mut counted_in: Vec<usize> = above
                .find_map(|path| by_path.get(path))
                .cloned()
                .unwrap_or_default();
            if filter.takes(cgroup.path()) && cgroup.has_memory() {
                counted_in.push(self.subjects.len());
                self.subjects
                    .push(ResolvedSubject::of_cgroup(cgroup.clone()));
            }
            if counted_in.is_empty() {
                continue;
            }
            match cgroup.procs(false) {
                Ok(pids) => {
                    let pairs = |pid| counted_in.iter().map(move |subject| (pid, *subject));
                    of.extend(pids.into_iter().flat_map(pairs));
                }
                // A cgroup that was just removed or contains only threads has no processes to
                // count.
                Err(CgroupError::Threaded { .. }) => {}
                Err(error) => self.unseen_cgroups += usize::from(!error.is_gone()),
            }
            by_path.insert(cgroup.path().to_owned(), counted_in);
        }
        Ok(of)
    }

    /// Adds pairs of process and subject.
    fn take(&mut self, mut of: Vec<(u32, usize)>) {
        of.sort_unstable();
        of.dedup();
        for (pid, subject) in of {
            let full = self.processes.len() == PROCESSES_MAX;
            match self.processes.last_mut() {
                Some((last, subjects)) if *last == pid => subjects.push(subject),
                _ if full => self.truncated = true,
                _ => self.processes.push((pid, vec![subject])),
            }
        }
    }
}

/// Opens a process of a resolved list; `None` if it is not to be observed.
///
/// # Errors
/// The process is gone, or may not be looked at.
pub(super) fn open(root: &ProcRoot, pid: u32) -> Result<Option<Process>, ProcessError> {
    match process::Process::open_user(root, pid) {
        Ok(process) if process.is_self() => Ok(None),
        Ok(process) => Ok(Some(process)),
        Err(ProcessError::KernelThread { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_several_subjects_is_one_process() {
        let mut resolved = Resolved::default();
        resolved.take(vec![(7, 1), (5, 0), (7, 0), (7, 1)]);
        assert_eq!(resolved.processes, [(5, vec![0]), (7, vec![0, 1])]);
    }

    #[test]
    fn processes_of_a_cgroup_without_memory_count_for_the_one_above() {
        let dir = tempfile::tempdir().unwrap();
        let make = |path: &str, pids: &str, controllers: &str| {
            let at = dir.path().join(path);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("cgroup.procs"), pids).unwrap();
            std::fs::write(at.join("cgroup.controllers"), controllers).unwrap();
            if controllers.contains("memory") {
                std::fs::write(at.join("memory.current"), "1\n").unwrap();
            }
        };
        make("", "", "cpu memory\n");
        make("udev", "", "cpu memory\n");
        make("udev/workers", "7\n", "cpu\n");
        let hierarchy = Hierarchy::at(crate::cgroup::Version::V2, dir.path());
        let filter = PathFilter::new(|path| path.starts_with("/udev"));
        let found = matched(Some(&hierarchy), TreeLimits::default(), &filter, &[]).unwrap();
        assert_eq!(found.subjects.len(), 1);
        assert_eq!(found.subjects[0].name.terminal().to_string(), "/udev");
        assert_eq!(found.processes, [(7, vec![0])]);
    }
}
