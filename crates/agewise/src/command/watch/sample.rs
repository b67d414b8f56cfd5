// SPDX-License-Identifier: Apache-2.0
//! The data shown at one moment, taken from the agent: rows of names, sizes and ages.

use std::collections::HashSet;
use std::path::Path;

use agewise_host::access::PAGE_BYTES;
use agewise_host::agent::{Agent, Space, SubjectReport};
use agewise_host::container::{Container, Containers};
use agewise_host::pagecache::LargeFile;
use agewise_host::untrusted::Untrusted;
use agewise_policy::workingset::{Histogram, OldestPages};

use super::files::{Files, NoFiles};
use super::followed::Of;

/// The most mappings shown for a process; the largest are kept.
pub const MAPPINGS_MAX: usize = 1000;

/// The list being shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// All subjects: cgroups, or targets given on the command line.
    Subjects,
    Processes,
    /// The processes of a subject.
    ProcessesOf(Untrusted),
    /// The mappings of a process.
    Mappings {
        pid: u32,
        /// Its name, for display.
        name: Untrusted,
    },
    /// The files of a target.
    Files {
        of: Of,
        /// Its name, for display.
        name: Untrusted,
    },
}

/// A row of the list.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Name of the cgroup, process, mapping or file.
    pub name: Untrusted,
    /// Tells apart rows of one name: the address of a mapping, the cgroup of a file.
    pub id: u64,
    /// The container or pod of the cgroup.
    pub container: Option<Container>,
    /// The process, if its mappings can be opened.
    pub pid: Option<u32>,
    /// Bytes by age, youngest first; empty if not known.
    pub ages: Vec<u64>,
    /// Resident anon memory.
    pub anon_bytes: u64,
    /// Resident file memory.
    pub file_bytes: u64,
    /// Memory in swap.
    pub swapped_bytes: u64,
    /// Memory of a file that is dirty or under writeback; files have this in place of swap.
    pub dirty_bytes: u64,
    /// Whether KVM guests run in it, whose accesses are not seen.
    pub runs_guests: bool,
    /// Why it is gone or could not be observed.
    pub trouble: Option<String>,
}

impl Row {
    /// The displayed name, and that ages are not what they seem.
    pub fn label(&self) -> Untrusted {
        match self.runs_guests {
            true => Untrusted::from(&*[self.title().as_bytes(), b" (guests)"].concat()),
            false => self.title(),
        }
    }

    /// The name of the container or pod if known, otherwise `name`.
    fn title(&self) -> Untrusted {
        let of = self.container.as_ref();
        let Some((of, title)) = of.and_then(|of| Some((of, of.title()?))) else {
            return self.name.clone();
        };
        match (&of.container_id, &of.container) {
            // The sandbox has the name of its pod, but is not the pod.
            (Some(_), None) => Untrusted::from(&*[title.as_bytes(), b" (sandbox)"].concat()),
            _ => title,
        }
    }

    /// Resident memory.
    pub fn resident_bytes(&self) -> u64 {
        self.anon_bytes + self.file_bytes
    }

    /// Memory in swap, or of a file dirty.
    pub fn swapped_or_dirty_bytes(&self) -> u64 {
        self.swapped_bytes + self.dirty_bytes
    }

    /// Bytes older than bound number `bin`.
    pub fn older_bytes(&self, bin: usize) -> u64 {
        self.ages.iter().skip(bin + 1).sum()
    }
}

/// Everything shown at one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The rows, unordered.
    pub rows: Vec<Row>,
    /// Upper bounds of all age bins but the last, in ms.
    pub bounds_ms: Vec<u64>,
    /// Length of the observation, in ms.
    pub observed_ms: u64,
    /// Time between looks, in ms.
    pub interval_ms: u64,
    /// Cost of looking, in percent of a core.
    pub core_percent: f64,
    /// The process or cgroup that is shown is gone.
    pub place_gone: bool,
    /// Whether all that was to be watched has ended.
    pub is_over: bool,
    /// About the files shown.
    pub files: Option<FilesShown>,
    /// Why nothing can be shown.
    pub trouble: Option<String>,
    /// Resident memory of all targets, shown or not.
    pub total_bytes: u64,
}

/// About the files shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesShown {
    /// How many files there are.
    pub count: u64,
    /// Whether accesses through mappings are seen.
    pub sees_mappings: bool,
}

impl Sample {
    /// Takes a sample of a place.
    pub fn take(
        agent: &mut Agent,
        place: &Place,
        containers: &mut Containers,
        files: &mut Files,
    ) -> Sample {
        match place {
            Place::Files { of, .. } => Sample::of_files(agent, of, files),
            _ => Sample::of_memory(agent, place, containers, files.core_percent()),
        }
    }

    fn of_files(agent: &mut Agent, of: &Of, files: &mut Files) -> Sample {
        let listed = files.list(agent, of);
        let cost = agent.cost();
        let mut sample = Sample {
            bounds_ms: agent.config().intervals.bounds_ms().to_vec(),
            interval_ms: cost.scan_interval_ms,
            core_percent: cost.core_percent + files.core_percent(),
            ..Sample::default()
        };
        match listed {
            Ok(listed) => {
                let largest = listed.largest;
                sample.files = Some(FilesShown {
                    count: largest.count,
                    sees_mappings: listed.sees_mappings,
                });
                sample.observed_ms = largest.observed_ms;
                sample.total_bytes = largest.resident_bytes;
                sample.rows = largest.files.into_iter().map(row_of_file).collect();
            }
            Err(NoFiles::Gone) => sample.place_gone = true,
            Err(NoFiles::Trouble(trouble)) => sample.trouble = Some(trouble),
        }
        sample
    }

    fn of_memory(
        agent: &Agent,
        place: &Place,
        containers: &mut Containers,
        files_percent: f64,
    ) -> Sample {
        let subjects = agent.report();
        let cost = agent.cost();
        let observed_ms = subjects
            .iter()
            .map(|report| report.observed_ms)
            .max()
            .unwrap_or(0);
        let members = members(&subjects, agent);
        // The first process of each, in the same order.
        let pids = agent.subjects().map(|(_, pids)| pids.first().copied());
        let pids: Vec<Option<u32>> = pids.collect();
        let total_bytes = outermost_bytes(&subjects, |at| {
            pids[at].is_some_and(|pid| members.contains(&pid))
        });
        let rows = match place {
            Place::Subjects => {
                let names = subjects
                    .iter()
                    .map(|report| Path::new(report.name.as_os_str()));
                let found = containers.look(names);
                let rows = subjects.iter().zip(found).zip(&pids);
                let rows = rows.map(|((report, container), pid)| row_of(report, container, *pid));
                Some(rows.collect())
            }
            Place::Processes => Some(processes(agent, None)),
            Place::ProcessesOf(name) => {
                let pids = agent.subjects().find(|(subject, _)| subject.name == *name);
                pids.map(|(_, pids)| processes(agent, Some(&pids)))
            }
            Place::Mappings { pid, .. } => agent.space(*pid).map(|space| mappings(agent, space)),
            Place::Files { .. } => None,
        };
        Sample {
            place_gone: rows.is_none(),
            is_over: agent.is_finished(),
            rows: rows.unwrap_or_default(),
            bounds_ms: agent.config().intervals.bounds_ms().to_vec(),
            observed_ms,
            interval_ms: cost.scan_interval_ms,
            core_percent: cost.core_percent + files_percent,
            total_bytes,
            ..Sample::default()
        }
    }
}

/// The processes of cgroups among the subjects, if there are others beside them: listing them takes
/// long.
fn members(subjects: &[SubjectReport], agent: &Agent) -> HashSet<u32> {
    if subjects.iter().all(|report| report.is_cgroup) {
        return HashSet::new();
    }
    let cgroups = agent.subjects().filter(|(of, _)| of.cgroup.is_some());
    cgroups.flat_map(|(_, pids)| pids).collect()
}

/// The resident memory of the subjects that no other contains. `is_member` says whether a process,
/// given by its index, is in one of the cgroups.
fn outermost_bytes(subjects: &[SubjectReport], is_member: impl Fn(usize) -> bool) -> u64 {
    fn path(report: &SubjectReport) -> &Path {
        Path::new(report.name.as_os_str())
    }
    let cgroups = subjects.iter().filter(|report| report.is_cgroup);
    let cgroups: HashSet<&Path> = cgroups.map(path).collect();
    let is_inner = |at: usize, report: &SubjectReport| match report.is_cgroup {
        true => {
            let mut above = path(report).ancestors().skip(1);
            above.any(|above| cgroups.contains(above))
        }
        false => is_member(at),
    };
    let all = subjects.iter().enumerate();
    let outermost = all.filter(|(at, report)| !is_inner(*at, report));
    outermost
        .flat_map(|(_, report)| report.resident_bytes)
        .sum()
}

/// A row of a subject, with the first of its processes.
fn row_of(report: &SubjectReport, container: Option<Container>, pid: Option<u32>) -> Row {
    let [anon_bytes, file_bytes] = report.resident_bytes;
    Row {
        name: report.name.clone(),
        id: 0,
        container,
        // A subject that is a single process opens its mappings directly.
        pid: pid.filter(|_| !report.is_cgroup),
        ages: ages(&report.histogram()),
        anon_bytes,
        file_bytes,
        swapped_bytes: report.swapped_bytes,
        dirty_bytes: 0,
        runs_guests: !report.guest_hosts.is_empty(),
        trouble: report
            .gone
            .clone()
            .or_else(|| report.troubles.first().cloned()),
    }
}

fn row_of_file(file: LargeFile) -> Row {
    let [anon_bytes, file_bytes] = file.ages.total();
    Row {
        name: match file.is_sampled {
            true => Untrusted::from(&*[file.name.as_bytes(), b" (sampled)"].concat()),
            false => file.name,
        },
        id: file.cgroup,
        ages: match file.kind.has_ages() {
            true => ages(&file.ages),
            false => Vec::new(),
        },
        anon_bytes,
        file_bytes,
        dirty_bytes: file.dirty_bytes,
        ..Row::default()
    }
}

fn ages(histogram: &Histogram) -> Vec<u64> {
    histogram
        .bins()
        .iter()
        .map(|bin| bin.amounts.iter().sum())
        .collect()
}

fn processes(agent: &Agent, pids: Option<&[u32]>) -> Vec<Row> {
    let wanted = |pid: u32| pids.is_none_or(|pids| pids.contains(&pid));
    agent
        .spaces()
        .filter(|space| wanted(space.process().pid()))
        .map(|space| {
            let window = space.map().generations();
            let mut histogram = Histogram::new(&agent.config().intervals);
            let now_ms = agent.last_tick_ms();
            histogram.add_window(window, &space.sizes(), now_ms, OldestPages::AtLeast);
            let [anon, file] = histogram.total();
            Row {
                name: Untrusted::process(space.process().pid(), space.comm()),
                id: 0,
                container: None,
                pid: Some(space.process().pid()),
                ages: ages(&histogram.scaled(PAGE_BYTES)),
                anon_bytes: anon * PAGE_BYTES,
                file_bytes: file * PAGE_BYTES,
                swapped_bytes: space.swapped_pages() * PAGE_BYTES,
                dirty_bytes: 0,
                runs_guests: space.runs_guests(),
                trouble: space.trouble().map(str::to_owned),
            }
        })
        .collect()
}

fn mappings(agent: &Agent, space: &Space) -> Vec<Row> {
    let window = space.map().generations();
    let mut rows: Vec<Row> = space
        .vmas()
        .vmas()
        .iter()
        .filter_map(|vma| {
            let pages = vma.range.start / PAGE_BYTES..vma.range.end / PAGE_BYTES;
            let found = space.sizes_within(pages);
            let mut histogram = Histogram::new(&agent.config().intervals);
            let now_ms = agent.last_tick_ms();
            histogram.add_window(window, &found.sizes, now_ms, OldestPages::AtLeast);
            let [anon, file] = histogram.total();
            let swapped: u64 = found.swapped.iter().sum();
            let name = match space.vmas().name(vma) {
                "" => format!("{:x}", vma.range.start).into(),
                name => name.into(),
            };
            (anon + file + swapped > 0).then(|| Row {
                name,
                id: vma.range.start,
                container: None,
                pid: None,
                ages: ages(&histogram.scaled(PAGE_BYTES)),
                anon_bytes: anon * PAGE_BYTES,
                file_bytes: file * PAGE_BYTES,
                swapped_bytes: swapped * PAGE_BYTES,
                dirty_bytes: 0,
                runs_guests: space.runs_guests(),
                trouble: None,
            })
        })
        .collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.resident_bytes() + row.swapped_bytes));
    rows.truncate(MAPPINGS_MAX);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_host::pagecache::CacheKind;
    use agewise_policy::generations::PageType;

    fn report(name: &str, is_cgroup: bool, bytes: u64) -> SubjectReport {
        SubjectReport {
            resident_bytes: [bytes, 1],
            ..SubjectReport::new(name.into(), is_cgroup, &[], &[])
        }
    }

    #[test]
    fn what_guests_run_in_is_marked() {
        let bounds = ["1s".parse().unwrap()];
        let mut report = SubjectReport::new("/machines".into(), true, &[0], &bounds);
        assert_eq!(row_of(&report, None, None).label(), "/machines");
        report.guest_hosts = vec![7];
        let label = row_of(&report, None, None).label();
        assert_eq!(label, "/machines (guests)");
    }

    #[test]
    fn shared_memory_has_a_size_and_no_ages() {
        let mut by_age = Histogram::new(&"1s,1m".parse().unwrap());
        let bytes = 9 * PAGE_BYTES;
        by_age.add_at_least(PageType::Anon, bytes, 3000, OldestPages::AtLeast);
        let of = |kind| {
            row_of_file(LargeFile {
                name: "a".into(),
                kind,
                cgroup: 0,
                resident_bytes: bytes,
                dirty_bytes: 0,
                ages: by_age.clone(),
                oldest_ms: 3000,
                is_sampled: false,
            })
        };
        let (file, shared) = (of(CacheKind::File), of(CacheKind::Shmem));
        assert_eq!(
            (file.resident_bytes(), shared.resident_bytes()),
            (bytes, bytes)
        );
        assert_eq!((file.ages.len(), shared.ages.len()), (3, 0));
    }

    #[test]
    fn the_total_is_of_those_that_no_other_contains() {
        let mut subjects = vec![
            report("/a", true, 100),
            report("/a/b", true, 60),
            report("/a-2", true, 30),
            report("17 sh", false, 7),
            report("18 sh", false, 9),
        ];
        let total = |subjects: &[_]| outermost_bytes(subjects, |at| at == 4);
        assert_eq!(total(&subjects), 100 + 30 + 7 + 3);
        subjects.push(report("/", true, 500));
        assert_eq!(total(&subjects), 500 + 7 + 2);
    }
}
