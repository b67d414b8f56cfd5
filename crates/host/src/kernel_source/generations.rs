// SPDX-License-Identifier: Apache-2.0
//! Ages from the kernel's own generations (`/sys/kernel/debug/lru_gen`). The aging that ended a
//! generation was the last to find its pages accessed, so they were accessed between its birth and
//! that of the next generation.
//!
//! The kernel ages when it reclaims; until then everything is in one or two generations. So, on
//! request, the source ages the targets itself, which is what the interface is meant for (working
//! set estimation in Documentation/admin-guide/mm/multigen_lru.rst): once for each age to
//! distinguish, and at the look. A kernel keeps four generations; the youngest is then empty and
//! the oldest contains everything older, which leaves two ages to distinguish.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Intervals, OldestPages, Slice};

use super::{KernelSource, KernelSourceError, Unit};
use crate::access::kernel_page_bytes;
use crate::agent::{Subject, SubjectReport, Targets};
use crate::cgroup::{Cgroup, Hierarchy};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::lru_gen::{CommandError, LruGen, Lruvec, Memcg, Table};
use crate::process::Process;
use crate::root::Roots;

/// Ages both types. Beyond that, the number only affects eviction.
const SWAPPINESS: u32 = 200;
/// An aging this soon after another is skipped: it would only use up a generation.
const SAME_AGING_NS: u64 = 50_000_000;
/// A time far enough from zero for every age.
const NOW_MS: u64 = u64::MAX / 2;

/// The cgroups to report on.
#[derive(Debug)]
enum Scope {
    /// These cgroups, each with everything below it.
    Listed(Vec<String>),
    /// All cgroups down to a depth.
    All { depth_max: usize },
}

/// The multi-gen LRU as a kernel source.
#[derive(Debug)]
pub struct GenerationSource {
    lru_gen: LruGen,
    scope: Scope,
    /// The bounds that can be distinguished.
    intervals: Intervals,
    oldest: OldestPages,
    /// Times before a look at which to age, in ms, longest first. Empty: uses the existing
    /// generations.
    lead_times_ms: Vec<u64>,
    aged_ns: Option<u64>,
    agings: u64,
    lost_races: u64,
    cpu_ns: u64,
    generations_max: usize,
}

impl GenerationSource {
    /// Opens the generations of cgroups. `window_ms` is how long before a look it may age: of the
    /// bounds that fit, the longest and a middle one are distinguished. If none fits, nothing is
    /// aged.
    ///
    /// # Errors
    /// A process was named, or the multi-gen LRU is missing or off, or does not list a cgroup.
    pub fn open(
        roots: &Roots,
        targets: &Targets,
        intervals: &Intervals,
        oldest: OldestPages,
        window_ms: u64,
    ) -> Result<Self, KernelSourceError> {
        let scope = scope_of(roots, targets)?;
        let lru_gen = LruGen::new(roots.sys.clone());
        match lru_gen.is_on()? {
            None => return Err(KernelSourceError::NoGenerations),
            Some(false) => return Err(KernelSourceError::SwitchedOff),
            Some(true) => {}
        }
        let table = lru_gen.read().map_err(KernelSourceError::NoDebugfs)?;
        if let Scope::Listed(paths) = &scope {
            for path in paths {
                if table.at(path).is_none() {
                    return Err(KernelSourceError::NotListed { path: path.clone() });
                }
            }
        }
        let lead_times_ms = lead_times(intervals, window_ms);
        let told_apart: Vec<u64> = lead_times_ms.iter().rev().copied().collect();
        Ok(GenerationSource {
            lru_gen,
            scope,
            intervals: Intervals::new(told_apart)
                .ok()
                .filter(|_| !lead_times_ms.is_empty())
                .unwrap_or_else(|| intervals.clone()),
            oldest,
            lead_times_ms,
            aged_ns: None,
            agings: 0,
            lost_races: 0,
            cpu_ns: 0,
            generations_max: 0,
        })
    }

    /// Starts a new generation in every lruvec of the targets.
    fn age(&mut self) -> Result<(), KernelSourceError> {
        let now = monotonic_ns();
        if self
            .aged_ns
            .is_some_and(|aged| now.saturating_sub(aged) < SAME_AGING_NS)
        {
            return Ok(());
        }
        let began = thread_cpu_ns();
        let table = self.lru_gen.read().map_err(KernelSourceError::NoDebugfs)?;
        for memcg in table
            .memcgs
            .iter()
            .filter(|memcg| self.scope.takes(&memcg.path))
        {
            for lruvec in &memcg.lruvecs {
                let Some(max_seq) = lruvec.max_seq() else {
                    continue;
                };
                match self
                    .lru_gen
                    .age(memcg.id, lruvec.node, max_seq, SWAPPINESS, true)
                {
                    Ok(()) => {}
                    // The kernel or another program has just aged it, which is just as good, or the
                    // cgroup is gone, which the look will report.
                    Err(CommandError::Raced { .. } | CommandError::Invalid { .. }) => {
                        self.lost_races += 1;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        self.agings += 1;
        self.aged_ns = Some(monotonic_ns());
        self.cpu_ns += thread_cpu_ns().saturating_sub(began);
        Ok(())
    }

    /// Reports on these cgroups, each with everything below it.
    fn reports_of(&self, table: &Table, paths: &[String], nodes: &[u32]) -> Vec<SubjectReport> {
        let bounds = vec![self.intervals.clone(); nodes.len()];
        let new = |path: &String| SubjectReport::new(path.as_str().into(), true, nodes, &bounds);
        let mut reports: Vec<SubjectReport> = paths.iter().map(new).collect();
        let mut places: HashMap<&Path, Vec<usize>> = HashMap::new();
        for (place, path) in paths.iter().enumerate() {
            places.entry(Path::new(path)).or_default().push(place);
        }
        let mut listed = HashSet::new();
        for memcg in &table.memcgs {
            listed.insert(&memcg.path);
            let above = Path::new(&memcg.path).ancestors();
            for place in above.filter_map(|path| places.get(path)).flatten() {
                for lruvec in &memcg.lruvecs {
                    self.add(&mut reports[*place], lruvec);
                }
            }
        }
        for (report, path) in reports.iter_mut().zip(paths) {
            if !listed.contains(path) {
                report.gone = Some("the cgroup is not listed any more".to_owned());
            }
            for (_, histogram) in &mut report.nodes {
                *histogram = histogram.scaled(kernel_page_bytes());
                let total = histogram.total();
                report.resident_bytes[0] += total[0];
                report.resident_bytes[1] += total[1];
            }
        }
        reports
    }

    fn add(&self, report: &mut SubjectReport, lruvec: &Lruvec) {
        let Some((_, histogram)) = report.nodes.iter_mut().find(|(id, _)| *id == lruvec.node)
        else {
            return;
        };
        let Some((oldest, younger)) = lruvec.generations.split_first() else {
            return;
        };
        // The oldest generation may contain older pages, merged from generations that were retired.
        // It is only certain that no later aging found them accessed.
        let certain_ms = younger.first().map_or(0, |next| self.snapped(next.age_ms));
        report.observed_ms = report.observed_ms.max(certain_ms);
        for page_type in PageType::ALL {
            let pages = |generation: &crate::lru_gen::Generation| match page_type {
                PageType::Anon => generation.anon_pages,
                PageType::File => generation.file_pages,
            };
            let slices = younger.iter().rev().map(|generation| Slice {
                birth_ms: NOW_MS.saturating_sub(self.snapped(generation.age_ms)),
                pages: pages(generation),
                drained_pages: 0,
            });
            histogram.add_generations(page_type, slices, NOW_MS, OldestPages::AtLeast);
            let at_least_ms = certain_ms.saturating_add(1);
            histogram.add_at_least(page_type, pages(oldest), at_least_ms, self.oldest);
        }
    }

    /// Rounds an age to the bound its aging was meant for: a small difference is noise.
    fn snapped(&self, age_ms: u64) -> u64 {
        let near = |bound_ms: u64| age_ms.abs_diff(bound_ms) <= (bound_ms / 20).max(100);
        let meant = self.lead_times_ms.iter().chain([&0]).copied();
        meant
            .filter(|&bound_ms| !self.lead_times_ms.is_empty() && near(bound_ms))
            .min_by_key(|&bound_ms| age_ms.abs_diff(bound_ms))
            .unwrap_or(age_ms)
    }
}

impl KernelSource for GenerationSource {
    fn name(&self) -> &'static str {
        "lru_gen"
    }

    fn unit(&self) -> Unit {
        Unit::Cgroups
    }

    fn lead_times_ms(&self) -> &[u64] {
        &self.lead_times_ms
    }

    fn prepare(&mut self) -> Result<(), KernelSourceError> {
        self.age()
    }

    fn look(&mut self) -> Result<Vec<SubjectReport>, KernelSourceError> {
        if !self.lead_times_ms.is_empty() {
            self.age()?;
        }
        let began = thread_cpu_ns();
        let table = self.lru_gen.read().map_err(KernelSourceError::NoDebugfs)?;
        let lruvecs = || table.memcgs.iter().flat_map(|memcg| &memcg.lruvecs);
        self.generations_max = lruvecs().map(|l| l.generations.len()).max().unwrap_or(0);
        let mut nodes: Vec<u32> = lruvecs().map(|lruvec| lruvec.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let paths: Vec<String> = match &self.scope {
            Scope::Listed(paths) => paths.clone(),
            Scope::All { depth_max } => shallow(&table.memcgs, *depth_max),
        };
        let reports = self.reports_of(&table, &paths, &nodes);
        self.cpu_ns += thread_cpu_ns().saturating_sub(began);
        Ok(reports)
    }

    fn caveats(&self) -> Vec<String> {
        let how = if self.lead_times_ms.is_empty() {
            "as the kernel has them: nothing was aged, since no bound of --intervals fits into the \
             observation; accesses since the kernel's last aging are not known"
                .to_owned()
        } else {
            let raced = match self.lost_races {
                0 => String::new(),
                races => format!(", {races} times somebody else was faster or the cgroup had gone"),
            };
            format!("aged {} times for it{raced}", self.agings)
        };
        vec![
            format!(
                "ages by the kernel's multi-gen LRU, by whole generations (at most {} a node), \
                 {how}",
                self.generations_max
            ),
            "page cache is in these lines; what is read or written through file descriptors is as \
             old as its place in the LRU, which such accesses hardly move"
                .to_owned(),
        ]
    }

    fn cpu_ns(&self) -> u64 {
        self.cpu_ns
    }
}

impl Scope {
    fn takes(&self, path: &str) -> bool {
        match self {
            Scope::All { .. } => true,
            Scope::Listed(paths) => paths.iter().any(|top| Path::new(path).starts_with(top)),
        }
    }
}

fn scope_of(roots: &Roots, targets: &Targets) -> Result<Scope, KernelSourceError> {
    match targets {
        Targets::Listed(subjects) => subjects
            .iter()
            .map(|subject| match subject {
                Subject::Cgroup(cgroup) => Ok(cgroup.path().to_string_lossy().into_owned()),
                Subject::Process { pid, .. } => Err(KernelSourceError::NoProcesses {
                    pid: *pid,
                    hint: cgroup_hint(roots, *pid),
                }),
            })
            .collect::<Result<_, _>>()
            .map(Scope::Listed),
        Targets::AllCgroups { limits, .. } => Ok(Scope::All {
            depth_max: limits.depth_max,
        }),
        Targets::Matched { .. } => Err(KernelSourceError::Targets {
            what: "generations belong to memory cgroups: give --cgroup or --all",
        }),
    }
}

/// Suggests the option for the cgroup of a process.
fn cgroup_hint(roots: &Roots, pid: u32) -> String {
    let cgroup = || {
        let hierarchy = Hierarchy::discover(&roots.proc).ok()?;
        let process = Process::open_in(&roots.proc, pid).ok()?;
        Cgroup::of_process(&hierarchy, &process).ok()?
    };
    match cgroup() {
        Some(cgroup) => format!("--cgroup {}", cgroup.name()),
        None => format!("see /proc/{pid}/cgroup"),
    }
}

/// The paths of cgroups down to a depth.
fn shallow(memcgs: &[Memcg], depth_max: usize) -> Vec<String> {
    let depth = |path: &str| path.split('/').filter(|part| !part.is_empty()).count();
    memcgs
        .iter()
        .filter(|memcg| depth(&memcg.path) <= depth_max)
        .map(|memcg| memcg.path.clone())
        .collect()
}

/// The two bounds to distinguish within a window, longest first: the longest that fits, and the
/// shorter one closest to the middle (on a logarithmic scale).
fn lead_times(intervals: &Intervals, window_ms: u64) -> Vec<u64> {
    let fitting: Vec<u64> = intervals
        .bounds_ms()
        .iter()
        .copied()
        .filter(|&bound_ms| bound_ms <= window_ms && bound_ms > 2 * SAME_AGING_NS / 1_000_000)
        .collect();
    let Some((&longest, shorter)) = fitting.split_last() else {
        return Vec::new();
    };
    let middle = (fitting[0] as f64 * longest as f64).sqrt();
    let distance = |bound_ms: u64| (bound_ms as f64 / middle).ln().abs();
    let second = shorter
        .iter()
        .copied()
        .min_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    [longest].into_iter().chain(second).collect()
}

#[cfg(test)]
#[path = "generations_tests.rs"]
mod tests;
