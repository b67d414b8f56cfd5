// SPDX-License-Identifier: Apache-2.0
//! Ages from DAMON: agewise runs a monitor on the virtual memory of the target processes, and
//! combines its regions with what is resident to build a histogram.
//!
//! The age of a region is the number of aggregations during which it was not seen accessed
//! (`damon_region.age`, mm/damon/core.c). That is an estimate: DAMON samples one page of a region
//! at a time, and a few accesses (a tenth of the maximum that can be seen) do not reset the age.

use agewise_damon::attrs::Attrs;
use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Intervals, OldestPages};

use super::monitor::{Monitor, REGIONS_MIN};
use super::regions::{Counted, Scale};
use super::{KernelSource, KernelSourceError, Unit};
use crate::access::pagemap::Pagemap;
use crate::access::{AccessSource, AddressRange, PAGE_BYTES, TableSight, Target};
use crate::agent::{Subject, SubjectReport, Targets};
use crate::clock::thread_cpu_ns;
use crate::damon::{DamonError, TriedRegion, Watched};
use crate::process::Process;
use crate::root::Roots;
use crate::untrusted::Untrusted;
use crate::vma::{VmaKind, VmaTable};

/// Most processes per monitor, since each needs its own scheme.
pub const PROCESSES_MAX: usize = 64;

/// New mappings are noticed after this time, in us (the kernel's default is a minute).
const UPDATE_US: u64 = 1_000_000;

/// A watched process.
#[derive(Debug)]
struct Member {
    process: Process,
    comm: Untrusted,
    /// Indexes of the subjects it counts for.
    subjects: Vec<usize>,
}

/// One line of the later report.
#[derive(Debug)]
struct Named {
    name: Untrusted,
    is_cgroup: bool,
}

/// DAMON as a kernel source. Dropping it ends the monitor.
#[derive(Debug)]
pub struct DamonSource {
    monitor: Monitor,
    subjects: Vec<Named>,
    members: Vec<Member>,
    uncovered_bytes: u64,
}

impl DamonSource {
    /// Starts a monitor of the processes that the targets have now.
    ///
    /// # Errors
    /// DAMON cannot be used or is in use by another program; there is no process, or there are too
    /// many.
    pub fn start(
        roots: Roots,
        targets: &Targets,
        intervals: Intervals,
        oldest: OldestPages,
    ) -> Result<Self, KernelSourceError> {
        let (subjects, members) = members_of(&roots, targets)?;
        let attrs = Attrs {
            min_nr_regions: REGIONS_MIN,
            ops_update_us: UPDATE_US,
            ..Attrs::default()
        };
        let watched = Watched::Processes(members.iter().map(|m| m.process.pid()).collect());
        Ok(DamonSource {
            monitor: Monitor::start(roots, watched, attrs, intervals, oldest)?,
            subjects,
            members,
            uncovered_bytes: 0,
        })
    }

    fn count(&self, regions: &[Vec<TriedRegion>]) -> (Vec<SubjectReport>, u64) {
        let scale = self.monitor.scale();
        let intervals = &self.monitor.intervals;
        let bounds = std::slice::from_ref(intervals);
        let mut reports: Vec<SubjectReport> = self
            .subjects
            .iter()
            .map(|subject| {
                let name = subject.name.clone();
                let mut report = SubjectReport::new(name, subject.is_cgroup, &[0], bounds);
                report.observed_ms = scale.observed_ms;
                report
            })
            .collect();
        let mut alive = vec![0usize; reports.len()];
        let mut uncovered_bytes = 0;
        for (member, regions) in self.members.iter().zip(regions) {
            if !member.process.is_alive() {
                continue;
            }
            let found = resident(&member.process, regions, intervals, scale);
            for &subject in &member.subjects {
                alive[subject] += 1;
                match &found {
                    Ok(found) => {
                        reports[subject].seen_processes += 1;
                        found.add_to(&mut reports[subject]);
                    }
                    Err(error) => {
                        let (pid, comm) = (member.process.pid(), member.comm.terminal());
                        reports[subject].refuse(format!("{pid} ({comm}): {error}"));
                    }
                }
            }
            uncovered_bytes += found.map_or(0, |found| found.uncovered_pages * PAGE_BYTES);
        }
        for (report, alive) in reports.iter_mut().zip(alive) {
            report.processes = alive;
            if alive == 0 {
                report.gone = Some("all of its processes have exited".to_owned());
            }
        }
        (reports, uncovered_bytes)
    }
}

impl KernelSource for DamonSource {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn unit(&self) -> Unit {
        Unit::Processes
    }

    fn look(&mut self) -> Result<Vec<SubjectReport>, KernelSourceError> {
        let began = thread_cpu_ns();
        let regions = match self.monitor.look() {
            Ok(regions) => regions,
            // The monitor ends when its last target exits.
            Err(DamonError::Stopped) if self.members.iter().all(|m| !m.process.is_alive()) => {
                vec![Vec::new(); self.members.len()]
            }
            Err(error) => return Err(error.into()),
        };
        let (reports, uncovered_bytes) = self.count(&regions);
        self.uncovered_bytes = uncovered_bytes;
        self.monitor.spent_since(began);
        Ok(reports)
    }

    fn caveats(&self) -> Vec<String> {
        let mut caveats = vec![format!(
            "ages by the kernel's DAMON, an estimate by region: {} regions, one page of each \
             looked at every {} ms, ages in steps of {} ms; a page of several processes counts in \
             each, NUMA nodes are not distinguished, processes that came later are not seen",
            self.monitor.regions,
            self.monitor.attrs.sample_us / 1000,
            self.monitor.attrs.aggr_us / 1000,
        )];
        if self.uncovered_bytes > 0 {
            caveats.push(format!(
                "{} resident bytes lie in no region yet: counted as never seen accessed",
                self.uncovered_bytes
            ));
        }
        caveats
    }

    fn cpu_ns(&self) -> u64 {
        self.monitor.cpu_ns()
    }
}

/// The processes of the targets, without duplicates.
fn members_of(
    roots: &Roots,
    targets: &Targets,
) -> Result<(Vec<Named>, Vec<Member>), KernelSourceError> {
    let Targets::Listed(listed) = targets else {
        let what = "DAMON watches the processes of targets that are named: give --pid or --cgroup";
        return Err(KernelSourceError::Targets { what });
    };
    let mut subjects = Vec::new();
    let mut members: Vec<Member> = Vec::new();
    for (index, subject) in listed.iter().enumerate() {
        let (is_cgroup, pids) = match subject {
            Subject::Process { pid, .. } => (false, vec![*pid]),
            Subject::Cgroup(cgroup) => (true, cgroup.procs(true)?),
        };
        subjects.push(Named {
            name: subject.name(),
            is_cgroup,
        });
        for pid in pids {
            if let Some(member) = members.iter_mut().find(|m| m.process.pid() == pid) {
                member.subjects.push(index);
                continue;
            }
            // In a cgroup, kernel threads and processes that have just exited are skipped.
            let process = match Process::open_user(&roots.proc, pid) {
                Err(_) if is_cgroup => continue,
                process => process?,
            };
            if process.is_self() {
                continue;
            }
            members.push(Member {
                comm: process.comm().unwrap_or_default(),
                process,
                subjects: vec![index],
            });
        }
    }
    match members.len() {
        0 => Err(KernelSourceError::Targets {
            what: "the targets have no process that DAMON could watch",
        }),
        found if found > PROCESSES_MAX => Err(KernelSourceError::TooManyProcesses { found }),
        _ => Ok((subjects, members)),
    }
}

/// Counts what is currently resident of a process.
fn resident(
    process: &Process,
    regions: &[TriedRegion],
    intervals: &Intervals,
    scale: Scale,
) -> Result<Counted, String> {
    let mut vmas = VmaTable::new();
    vmas.read(process.pid())
        .map_err(|error| error.to_string())?;
    count_resident(
        &mut Pagemap::new(),
        &process.into(),
        &vmas,
        regions,
        intervals,
        scale,
    )
    .map_err(|error| error.to_string())
}

fn count_resident(
    source: &mut dyn AccessSource,
    target: &Target,
    vmas: &VmaTable,
    regions: &[TriedRegion],
    intervals: &Intervals,
    scale: Scale,
) -> Result<Counted, crate::access::AccessError> {
    let is_counted = |kind| !matches!(kind, VmaKind::Special | VmaKind::Hugetlb);
    let (ranges, types): (Vec<AddressRange>, Vec<PageType>) = vmas
        .vmas()
        .iter()
        .filter(|vma| is_counted(vma.kind))
        .map(|vma| {
            let page_type = if vma.kind.is_swap_backed() {
                PageType::Anon
            } else {
                PageType::File
            };
            (vma.range, page_type)
        })
        .unzip();
    let mut counted = Counted::new(intervals);
    let mut at = 0;
    let mut sink = |sight: &TableSight<'_>| {
        counted.swapped_pages += sight.bits.swapped.len();
        for page in 0..agewise_policy::table::PAGES_PER_TABLE {
            if !sight.bits.present.contains(page) {
                continue;
            }
            // Addresses ascend, and so do regions.
            let va = sight.va + page as u64 * PAGE_BYTES;
            while regions.get(at).is_some_and(|region| region.end <= va) {
                at += 1;
            }
            let region = regions.get(at).filter(|region| region.start <= va);
            counted.add(types[sight.range], 1, region, scale);
        }
    };
    source.scan(target, &ranges, &mut sink)?;
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use agewise_policy::table::{PageSet, TableBits};

    use super::*;
    use crate::access::Leaf;
    use crate::access::fake::{FakeSource, FakeTable};

    const SCALE: Scale = Scale {
        aggr_us: 100_000,
        observed_ms: 30_000,
        oldest: OldestPages::AtLeast,
    };

    fn region(pages: std::ops::Range<u64>, nr_accesses: u32, age: u32) -> TriedRegion {
        TriedRegion {
            start: 0x20_0000 + pages.start * PAGE_BYTES,
            end: 0x20_0000 + pages.end * PAGE_BYTES,
            nr_accesses,
            age,
        }
    }

    #[test]
    fn resident_pages_are_as_old_as_their_regions() {
        let vmas = VmaTable::from_text(
            "00200000-00280000 rw-p 00000000 00:00 0 \n\
             00280000-002c0000 r--s 00000000 08:01 77 /data\n\
             002c0000-00400000 rw-p 00000000 00:00 0 \n",
        );
        let mut source = FakeSource::new();
        // 128 pages of the first mapping, half of the 64 of the file, two of the third, one of it
        // swapped.
        let bits = TableBits {
            present: PageSet::range(0..160) | [192, 448].into_iter().collect(),
            swapped: [193].into_iter().collect(),
            ..TableBits::default()
        };
        source.set(
            9,
            0x20_0000,
            FakeTable {
                bits,
                leaf: Leaf::Page,
            },
        );
        let regions = [
            region(0..32, 3, 400),
            region(32..64, 0, 20),
            region(64..160, 0, 299),
            region(160..200, 0, 60),
        ];
        let intervals: Intervals = "1s,5s,60s".parse().unwrap();
        let target = Target::by_pid(9);
        let counted =
            count_resident(&mut source, &target, &vmas, &regions, &intervals, SCALE).unwrap();
        let bins: Vec<[u64; 2]> = counted.histogram.bins().iter().map(|b| b.amounts).collect();
        // Accessed now: 32 pages, and the one outside all regions. Two seconds old: 32. The 64 that
        // were idle throughout are at least as old as the observation, and so are half of the
        // file's.
        assert_eq!(bins, [[33, 0], [32, 0], [65, 32], [0, 0]]);
        assert_eq!(counted.pages, [130, 32]);
        assert_eq!(counted.unseen_pages, [65, 32]);
        assert_eq!((counted.uncovered_pages, counted.swapped_pages), (1, 1));
        let scale = Scale {
            oldest: OldestPages::Unbounded,
            ..SCALE
        };
        let counted =
            count_resident(&mut source, &target, &vmas, &regions, &intervals, scale).unwrap();
        assert_eq!(counted.histogram.bins()[3].amounts, [65, 32]);
    }

    #[test]
    fn somebody_elses_monitor_is_named_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let roots = Roots {
            sys: Roots::below(dir.path()).sys,
            ..Roots::default()
        };
        let kdamonds = roots.sys.join("kernel/mm/damon/admin/kdamonds");
        std::fs::create_dir_all(kdamonds.join("0")).unwrap();
        for (name, text) in [
            ("nr_kdamonds", "1\n"),
            ("0/state", "on\n"),
            ("0/pid", "77\n"),
        ] {
            std::fs::write(kdamonds.join(name), text).unwrap();
        }
        // SAFETY: getppid has no preconditions.
        let parent = unsafe { libc::getppid() } as u32;
        let targets = Targets::Listed(vec![Subject::process(&roots.proc, parent).unwrap()]);
        let intervals: Intervals = "1s".parse().unwrap();
        let started = DamonSource::start(roots.clone(), &targets, intervals, OldestPages::AtLeast);
        let message = started.unwrap_err().to_string();
        assert!(message.contains("kernel threads [77]"), "{message}");
        assert!(
            message.contains("--source pagewalk"),
            "says what to do: {message}"
        );
        for (name, text) in [("nr_kdamonds", "1\n"), ("0/state", "on\n")] {
            assert_eq!(std::fs::read_to_string(kdamonds.join(name)).unwrap(), text);
        }
    }
}
