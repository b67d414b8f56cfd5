// SPDX-License-Identifier: Apache-2.0
//! Ages of memory cgroups from DAMON on physical memory (`paddr`): a monitor watches all of it, and
//! each page counts, with the age of its region, for the cgroup it is charged to.
//!
//! Coarser than a monitor of virtual memory: neighbours in physical memory often belong to
//! different programs, so a region mixes used and idle pages. But it sees page cache that no
//! process maps, and works if DAMON was built without `vaddr`.

use std::collections::HashMap;
use std::path::Path;

use agewise_damon::attrs::Attrs;
use agewise_policy::generations::{ByType, PageType};
use agewise_policy::workingset::{Intervals, OldestPages};

use super::frames::Frames;
use super::monitor::{Monitor, REGIONS_MIN};
use super::regions::{Counted, Scale};
use super::{KernelSource, KernelSourceError, Unit};
use crate::access::PAGE_BYTES;
use crate::agent::{Subject, SubjectReport, Targets};
use crate::cgroup::{Cgroup, CgroupError, Hierarchy, TreeLimits};
use crate::clock::thread_cpu_ns;
use crate::damon::{TriedRegion, Watched};
use crate::error::{self, FileError};
use crate::root::{ProcRoot, Roots};
use crate::untrusted::Untrusted;

/// Most memory ranges watched, the largest ones. Machines have a handful; with memory hotplugged
/// piece by piece there may be hundreds, and each takes at least one region.
const RANGES_MAX: usize = 200;

/// Physical addresses `start..end`.
type PhysicalRange = (u64, u64);

/// DAMON on physical memory as a kernel source for cgroups. Dropping it ends the monitor.
#[derive(Debug)]
pub struct PhysicalSource {
    monitor: Monitor,
    frames: Frames,
    ranges: Vec<PhysicalRange>,
    wanted: Wanted,
    uncovered_bytes: u64,
    truncated: bool,
}

impl PhysicalSource {
    /// Starts a monitor of all memory.
    ///
    /// # Errors
    /// A target is not a cgroup; DAMON cannot be used, is in use by another program or has no
    /// `paddr`; or the kernel does not report the cgroup of a page.
    pub fn start(
        roots: Roots,
        targets: &Targets,
        intervals: Intervals,
        oldest: OldestPages,
    ) -> Result<Self, KernelSourceError> {
        // Do not start anything for targets that cannot be looked at.
        let wanted = Wanted::of(targets)?;
        Owners::find(&wanted)?;
        let frames = Frames::open(&roots.proc)?;
        let ranges = system_ram(&roots.proc)?;
        let attrs = Attrs {
            min_nr_regions: REGIONS_MIN,
            ..Attrs::default()
        };
        let watched = Watched::Physical(ranges.clone());
        Ok(PhysicalSource {
            monitor: Monitor::start(roots, watched, attrs, intervals, oldest)?,
            frames,
            ranges,
            wanted,
            uncovered_bytes: 0,
            truncated: false,
        })
    }
}

impl KernelSource for PhysicalSource {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn unit(&self) -> Unit {
        Unit::Cgroups
    }

    fn look(&mut self) -> Result<Vec<SubjectReport>, KernelSourceError> {
        let began = thread_cpu_ns();
        let regions: Vec<_> = self.monitor.look()?.into_iter().flatten().collect();
        let owners = Owners::find(&self.wanted)?;
        let scale = self.monitor.scale();
        let mut count = Count::new(&owners, &self.monitor.intervals, scale);
        for (start, end) in &self.ranges {
            let frames = start / PAGE_BYTES..end / PAGE_BYTES;
            count.range(&self.frames, frames, &regions)?;
        }
        self.uncovered_bytes = count.uncovered_pages.saturating_mul(PAGE_BYTES);
        self.truncated = owners.truncated;
        let reports = count.reports();
        self.monitor.spent_since(began);
        Ok(reports)
    }

    fn caveats(&self) -> Vec<String> {
        let mut caveats = vec![format!(
            "ages by the kernel's DAMON on physical memory, an estimate by region: {} regions, in \
             which memory of several programs may lie, one page of each looked at every {} ms, \
             ages in steps of {} ms; page cache is in these lines; NUMA nodes are not \
             distinguished",
            self.monitor.regions,
            self.monitor.attrs.sample_us / 1000,
            self.monitor.attrs.aggr_us / 1000,
        )];
        if self.uncovered_bytes > 0 {
            caveats.push(format!(
                "{} bytes lie in no region: counted as never seen accessed",
                self.uncovered_bytes
            ));
        }
        if self.truncated {
            caveats.push(
                "there are more cgroups than can be distinguished: memory of the others counts for \
                 the whole machine only"
                    .to_owned(),
            );
        }
        caveats
    }

    fn cpu_ns(&self) -> u64 {
        self.monitor.cpu_ns()
    }
}

/// The target cgroups.
#[derive(Debug)]
enum Wanted {
    /// These cgroups, each with everything below it.
    Listed(Vec<Cgroup>),
    /// All cgroups down to a depth.
    All {
        hierarchy: Hierarchy,
        limits: TreeLimits,
    },
}

impl Wanted {
    fn of(targets: &Targets) -> Result<Self, KernelSourceError> {
        const WHAT: &str = "DAMON on physical memory tells memory cgroups apart, not processes: \
             give --cgroup or --all";
        let refused = KernelSourceError::Targets { what: WHAT };
        match targets {
            Targets::Listed(subjects) => {
                let cgroup = |subject: &Subject| match subject {
                    Subject::Cgroup(cgroup) => Some(cgroup.clone()),
                    Subject::Process { .. } => None,
                };
                let cgroups: Option<Vec<Cgroup>> = subjects.iter().map(cgroup).collect();
                cgroups.map(Wanted::Listed).ok_or(refused)
            }
            Targets::AllCgroups { hierarchy, limits } => Ok(Wanted::All {
                hierarchy: hierarchy.clone(),
                limits: *limits,
            }),
            Targets::Matched { .. } => Err(refused),
        }
    }
}

/// Which subjects the pages of a cgroup count for.
#[derive(Debug, Default)]
struct Owners {
    /// Names of the subjects, and why a subject is gone.
    subjects: Vec<(Untrusted, Option<String>)>,
    /// The subjects each cgroup counts for, by the cgroup's inode.
    of: HashMap<u64, Vec<usize>>,
    /// The subject that is the root cgroup, if any: uncharged memory counts for it as well.
    root: Option<usize>,
    /// Whether there are more cgroups than were listed.
    truncated: bool,
}

impl Owners {
    /// Finds the current cgroups.
    fn find(wanted: &Wanted) -> Result<Self, CgroupError> {
        let mut owners = Owners::default();
        match wanted {
            Wanted::Listed(cgroups) => {
                for cgroup in cgroups {
                    owners.add_tree(cgroup)?;
                }
            }
            Wanted::All { hierarchy, limits } => {
                owners.add_all(&Cgroup::open(hierarchy, "/")?, *limits)?;
            }
        }
        Ok(owners)
    }

    /// Adds every cgroup within the limits as a subject; the others count for their nearest listed
    /// ancestor.
    fn add_all(&mut self, top: &Cgroup, limits: TreeLimits) -> Result<(), CgroupError> {
        let shown = top.descendants(limits)?;
        let mut by_path = HashMap::new();
        let charged = shown.cgroups.iter().filter(|cgroup| cgroup.has_memory());
        for cgroup in std::iter::once(top).chain(charged) {
            by_path.insert(cgroup.path().to_owned(), self.subjects.len());
            self.subjects.push((cgroup.path().into(), None));
        }
        self.root = by_path.get(Path::new("/")).copied();
        let all = top.descendants(TreeLimits::default())?;
        self.truncated = all.truncated;
        for cgroup in std::iter::once(top).chain(&all.cgroups) {
            let subjects = cgroup
                .path()
                .ancestors()
                .filter_map(|path| by_path.get(path));
            self.of.insert(cgroup.id(), subjects.copied().collect());
        }
        Ok(())
    }

    /// Adds a subject: a cgroup with everything below it.
    fn add_tree(&mut self, cgroup: &Cgroup) -> Result<(), CgroupError> {
        let index = self.subjects.len();
        let listing = match cgroup
            .check()
            .and_then(|()| cgroup.descendants(TreeLimits::default()))
        {
            Ok(listing) => listing,
            Err(error) if error.is_gone() => {
                let gone = Some(error.to_string());
                self.subjects.push((cgroup.path().into(), gone));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.subjects.push((cgroup.path().into(), None));
        if cgroup.is_root() {
            self.root = Some(index);
        }
        self.truncated |= listing.truncated;
        for cgroup in std::iter::once(cgroup).chain(&listing.cgroups) {
            let subjects = self.of.entry(cgroup.id()).or_default();
            if !subjects.contains(&index) {
                subjects.push(index);
            }
        }
        Ok(())
    }
}

/// Counts the pages of every subject by age.
struct Count<'a> {
    owners: &'a Owners,
    intervals: &'a Intervals,
    scale: Scale,
    counted: Vec<Counted>,
    uncovered_pages: u64,
    /// Pages of the current region, by cgroup.
    pages: HashMap<u64, ByType<u64>>,
}

impl<'a> Count<'a> {
    fn new(owners: &'a Owners, intervals: &'a Intervals, scale: Scale) -> Self {
        Count {
            owners,
            intervals,
            scale,
            counted: vec![Counted::new(intervals); owners.subjects.len()],
            uncovered_pages: 0,
            pages: HashMap::new(),
        }
    }

    /// Counts the frames of one range. `regions` must ascend.
    fn range(
        &mut self,
        frames: &Frames,
        range: std::ops::Range<u64>,
        regions: &[TriedRegion],
    ) -> Result<(), FileError> {
        let start = range.start.saturating_mul(PAGE_BYTES);
        let mut at = regions.partition_point(|region| region.end <= start);
        let mut region = None;
        frames.each(range, |pfn, frame| {
            let address = pfn.saturating_mul(PAGE_BYTES);
            while regions.get(at).is_some_and(|next| next.end <= address) {
                at += 1;
            }
            let here = regions.get(at).filter(|next| next.start <= address);
            if here != region {
                self.flush(region);
                region = here;
            }
            self.pages.entry(frame.cgroup).or_default()[frame.page_type as usize] += 1;
        })?;
        self.flush(region);
        Ok(())
    }

    /// Adds the pages of a region, or of none, to the subjects.
    fn flush(&mut self, region: Option<&TriedRegion>) {
        for (cgroup, pages) in self.pages.drain() {
            let subjects = self.owners.of.get(&cgroup).map_or(&[][..], Vec::as_slice);
            let root = self.owners.root.filter(|root| !subjects.contains(root));
            for subject in subjects.iter().copied().chain(root) {
                for page_type in PageType::ALL {
                    let pages = pages[page_type as usize];
                    self.counted[subject].add(page_type, pages, region, self.scale);
                }
            }
            if region.is_none() && !(subjects.is_empty() && root.is_none()) {
                self.uncovered_pages += pages[0] + pages[1];
            }
        }
    }

    fn reports(self) -> Vec<SubjectReport> {
        let subjects = self.owners.subjects.iter().zip(&self.counted);
        subjects
            .map(|((name, gone), counted)| {
                let bounds = std::slice::from_ref(self.intervals);
                let mut report = SubjectReport::new(name.clone(), true, &[0], bounds);
                report.observed_ms = self.scale.observed_ms;
                report.gone = gone.clone();
                counted.add_to(&mut report);
                report
            })
            .collect()
    }
}

/// The memory of the machine, ascending: "System RAM" of `/proc/iomem`, in whole pages.
fn system_ram(proc: &ProcRoot) -> Result<Vec<PhysicalRange>, KernelSourceError> {
    let path = proc.join("iomem");
    let text = error::read(&path)?;
    let mut ranges: Vec<PhysicalRange> = text.lines().filter_map(ram_line).collect();
    if ranges.is_empty() {
        const WHAT: &str = "lines of System RAM with addresses (which only root is given)";
        let first = text.lines().next().unwrap_or_default();
        return Err(FileError::format(&path, WHAT, first).into());
    }
    ranges.sort_unstable_by_key(|(start, end)| std::cmp::Reverse(end - start));
    ranges.truncate(RANGES_MAX);
    ranges.sort_unstable();
    Ok(ranges)
}

/// Parses `100000000-63fffffff : System RAM`, with an inclusive end. An indented line is part of
/// another range.
fn ram_line(line: &str) -> Option<PhysicalRange> {
    let (range, name) = line.split_once(" : ")?;
    let (start, end) = range.split_once('-')?;
    if name != "System RAM" || line.starts_with(' ') {
        return None;
    }
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let start = number(start)?.checked_next_multiple_of(PAGE_BYTES)?;
    let end = number(end)?.checked_add(1)? / PAGE_BYTES * PAGE_BYTES;
    (start < end).then_some((start, end))
}

#[cfg(test)]
#[path = "physical_tests.rs"]
mod tests;
