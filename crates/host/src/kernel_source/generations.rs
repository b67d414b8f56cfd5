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
                "ages by the kernel's multi-gen LRU, by whole generations (at most {} a node), {how}",
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
        Targets::Matched { .. } | Targets::AllProcesses => Err(KernelSourceError::Targets {
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
mod tests {
    use super::*;
    use crate::cgroup::{TreeLimits, Version};

    /// Output of a 6.12 guest, after agings 30 s and 5 s before the last one.
    const AGED: &str = "\
memcg     1 /
 node     0
          4      30000          7          9 
          5      30000          0          0 
          6       5000          0          0 
          7          1          0          0 
memcg     5 /web
 node     0
         10      90000        100         50 
         11      30011        300          0 
         12       5003        200          8 
         13          2          0          0 
memcg     6 /web/worker
 node     0
          3      30012         10          0 
          4       5004          0          0 
          5          2          0          0 
memcg     7 /website
 node     0
          0       1000       1000          0 
          1       1000       1000          0 
";

    fn fake(enabled: &str, table: Option<&str>) -> (tempfile::TempDir, Roots, Hierarchy) {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots::below(dir.path());
        let put = |path: std::path::PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put(roots.sys.join("kernel/mm/lru_gen/enabled"), enabled);
        if let Some(table) = table {
            put(roots.sys.join("kernel/debug/lru_gen"), table);
        }
        let mount = dir.path().join("cgroup");
        for group in ["web/worker", "website", "other"] {
            std::fs::create_dir_all(mount.join(group)).unwrap();
        }
        let hierarchy = Hierarchy::at(Version::V2, mount);
        (dir, roots, hierarchy)
    }

    fn listed(hierarchy: &Hierarchy, path: &str) -> Targets {
        Targets::Listed(vec![Subject::Cgroup(
            Cgroup::open(hierarchy, path).unwrap(),
        )])
    }

    fn intervals(text: &str) -> Intervals {
        text.parse().unwrap()
    }

    #[test]
    fn what_can_be_told_apart_within_a_window() {
        let default = intervals("1s,5s,30s,2m,10m");
        assert_eq!(lead_times(&default, 30_000), [30_000, 5_000]);
        assert_eq!(lead_times(&default, 5_000), [5_000, 1_000]);
        assert_eq!(lead_times(&default, 1_000), [1_000]);
        assert_eq!(lead_times(&default, 900), [0u64; 0]);
        assert_eq!(lead_times(&default, 600_000), [600_000, 30_000]);
    }

    #[test]
    fn a_cgroup_is_the_sum_of_those_below_it_by_birth_of_generations() {
        let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
        let targets = listed(&hierarchy, "/web");
        let all = intervals("1s,5s,30s,2m");
        let mut source =
            GenerationSource::open(&roots, &targets, &all, OldestPages::AtLeast, 30_000).unwrap();
        assert_eq!(source.lead_times_ms(), [30_000, 5_000]);
        // As if it had just aged: a command would overwrite this plain file.
        source.aged_ns = Some(monotonic_ns());
        let reports = source.look().unwrap();
        let histogram = reports[0].histogram().to_string();
        let page = kernel_page_bytes();
        // Generation 12: found by the last aging, so accessed less than 5 s ago. 11: less than 30 s
        // ago. 10: at least 30 s old; for the worker's oldest only at least 5 s is certain.
        assert_eq!(
            histogram,
            format!(
                "5000 anon={} file={}\n30000 anon={} file=0\n{} anon={} file={}\n",
                200 * page,
                8 * page,
                310 * page,
                u64::MAX,
                100 * page,
                50 * page
            )
        );
        assert_eq!(reports[0].resident_bytes, [610 * page, 58 * page]);
        assert!(source.caveats()[0].contains("at most 4 a node"));
    }

    #[test]
    fn without_room_for_aging_the_generations_are_taken_as_they_are() {
        let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
        let all = Targets::AllCgroups {
            hierarchy,
            limits: TreeLimits {
                depth_max: 1,
                ..TreeLimits::default()
            },
        };
        let bounds = intervals("10s,60s");
        let mut source =
            GenerationSource::open(&roots, &all, &bounds, OldestPages::Unbounded, 100).unwrap();
        let reports = source.look().unwrap();
        let names: Vec<_> = reports.iter().map(|report| &report.name).collect();
        assert_eq!(names, ["/", "/web", "/website"]);
        // /web: 12 is below 10 s; of 11, the part from 5.003 to 10 s in 5.003 to 30.011. The oldest
        // are at least 30 s and 5 s old, and so go into the last bin when that is requested.
        let bins = reports[1].nodes[0].1.bins();
        let young = 200 + 300 * (10_000 - 5_003) / (30_011 - 5_003);
        assert_eq!(bins[0].amounts[0], young * kernel_page_bytes());
        assert_eq!(bins[2].amounts[0], 110 * kernel_page_bytes());
        assert_eq!(
            std::fs::read_to_string(roots.sys.join("kernel/debug/lru_gen")).unwrap(),
            AGED,
            "nothing was written"
        );
        assert!(source.caveats()[0].contains("nothing was aged"));
    }

    #[test]
    fn aging_names_every_lruvec_of_the_targets() {
        let (_dir, roots, hierarchy) = fake("0x0007\n", Some(AGED));
        let targets = listed(&hierarchy, "/web/worker");
        let bounds = intervals("1s");
        let mut source =
            GenerationSource::open(&roots, &targets, &bounds, OldestPages::AtLeast, 1_000).unwrap();
        source.prepare().unwrap();
        let file = std::fs::read_to_string(roots.sys.join("kernel/debug/lru_gen")).unwrap();
        assert!(file.starts_with("+ 6 0 5 200 1"), "{file}");
        // Another aging so soon would only use up a generation.
        source.prepare().unwrap();
        assert_eq!(source.agings, 1);
    }

    #[test]
    fn what_is_missing_is_said() {
        let open = |enabled, table, path: &str| {
            let (_dir, roots, hierarchy) = fake(enabled, table);
            let targets = listed(&hierarchy, path);
            let bounds = intervals("1s");
            GenerationSource::open(&roots, &targets, &bounds, OldestPages::AtLeast, 1_000)
                .unwrap_err()
                .to_string()
        };
        assert!(open("0x0000\n", Some(AGED), "/web").contains("switched off"));
        assert!(open("0x0007\n", None, "/web").contains("mount -t debugfs"));
        assert!(open("0x0007\n", Some(AGED), "/other").contains("no generations of cgroup /other"));
        let roots = Roots {
            sys: Roots::below(std::path::Path::new("/nowhere")).sys,
            ..Roots::default()
        };
        let own = Targets::Listed(vec![Subject::Process {
            pid: std::process::id(),
            start_ticks: 0,
            comm: "own".into(),
        }]);
        let bounds = intervals("1s");
        let open = |targets: &Targets| {
            GenerationSource::open(&roots, targets, &bounds, OldestPages::AtLeast, 1_000)
                .unwrap_err()
                .to_string()
        };
        assert!(open(&own).contains("name the cgroup of process"));
        let none = Targets::Listed(Vec::new());
        assert!(open(&none).contains("no multi-gen LRU"));
    }
}
