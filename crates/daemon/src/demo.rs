// SPDX-License-Identifier: Apache-2.0
//! A made-up machine, to build and test what displays snapshots without root: two nodes, nested
//! cgroups, a process, memory that grows old and is touched again.

use agewise_policy::table::PAGE_BYTES;
use std::sync::Arc;

use agewise_host::container::Container;
use agewise_host::untrusted::Untrusted;
use agewise_policy::generations::PageType;
use agewise_policy::workingset::{Histogram, Intervals, OldestPages};

use super::state::{
    AgeBin, Budget, LargeFile, LargestFiles, LessMemory, Machine, NodeView, OwnUse, Psi, Reason,
    Reclaimed, ReportSetting, Scope, Settings, Snapshot, Stall, SubjectView,
};

const MIB: u64 = 1 << 20;
const NODES: [u32; 2] = [0, 1];

/// The made-up properties of a subject.
struct Part {
    name: &'static str,
    is_cgroup: bool,
    depth: usize,
    size_mib: u64,
    policy: Option<&'static str>,
    is_rehearsal: bool,
    /// The period with which its memory is touched again, ms.
    period_ms: u64,
}

const fn cgroup(name: &'static str, depth: usize, size_mib: u64, period_ms: u64) -> Part {
    Part {
        name,
        is_cgroup: true,
        depth,
        size_mib,
        policy: None,
        is_rehearsal: false,
        period_ms,
    }
}

const PARTS: [Part; 6] = [
    cgroup("/", 0, 3000, 400_000),
    Part {
        policy: Some("cost"),
        is_rehearsal: true,
        ..cgroup("/batch", 1, 900, 700_000)
    },
    cgroup("/batch/job-1", 2, 500, 900_000),
    cgroup("/batch/job-2", 2, 400, 120_000),
    Part {
        policy: Some("age"),
        ..cgroup("/web", 1, 1500, 40_000)
    },
    Part {
        is_cgroup: false,
        ..cgroup("4711 (redis-server)", 0, 300, 90_000)
    },
];

/// The age bounds of the reports.
pub fn intervals() -> Intervals {
    "1s,5s,30s,2m,10m".parse().expect("a list of ages")
}

/// Settings with reports on both nodes and for one cgroup.
pub fn settings() -> Settings {
    let node = |node| Scope { cgroup: None, node };
    let web = Scope {
        cgroup: Some(Arc::from("/web")),
        node: 0,
    };
    let setting = ReportSetting {
        refresh_interval_ms: 2000,
        report_threshold_ms: 10_000,
    };
    Settings {
        intervals: NODES.map(|node| (node, intervals())).into(),
        reports: [node(0), node(1), web].map(|scope| (scope, setting)).into(),
    }
}

/// Number of containers on each machine of a fleet.
pub const CONTAINERS: u16 = 50;
const NAMESPACES: [&str; 5] = ["cart", "mail", "pay", "search", "shop"];

/// One machine of a fleet, which also has containers of Kubernetes.
pub fn snapshot_of_host(host: u16, sequence: u64, time_ms: u64) -> Snapshot {
    let mut snapshot = snapshot(sequence, time_ms);
    let containers = (0..CONTAINERS).map(|number| {
        let id = u64::from(host) * u64::from(CONTAINERS) + u64::from(number);
        let size_mib = 64 + id * 37 % 500;
        let part = cgroup("", 4, size_mib, 20_000 + id * 7919 % 1_000_000);
        let container = Container {
            namespace: Some(NAMESPACES[id as usize % NAMESPACES.len()].into()),
            pod: Some(format!("web-{id}").into()),
            container: Some("web".into()),
            container_id: Some(format!("{id:064x}").into()),
            image: Some("localhost/web:1".into()),
        };
        SubjectView {
            name: format!("/kubepods/burstable/pod{id:032x}/{id:064x}").into(),
            container: Some(container),
            ..subject(&part, 1000 + id, time_ms, &snapshot.intervals)
        }
    });
    let containers: Vec<SubjectView> = containers.collect();
    let after = |view: &SubjectView| !view.is_cgroup || &*view.name > "/kubepods";
    let at = snapshot.subjects.iter().position(after);
    let at = at.unwrap_or(snapshot.subjects.len());
    snapshot.subjects.splice(at..at, containers);
    snapshot
}

/// The state of the machine `time_ms` after its start. The same arguments give the same snapshot.
pub fn snapshot(sequence: u64, time_ms: u64) -> Snapshot {
    let intervals = intervals();
    let subjects = PARTS
        .iter()
        .enumerate()
        .map(|(id, part)| subject(part, id as u64 + 100, time_ms, &intervals))
        .collect();
    Snapshot {
        sequence,
        time_ms,
        unix_ms: 1_700_000_000_000 + time_ms,
        nodes: NODES.to_vec(),
        subjects,
        machine: Machine {
            total_bytes: 8192 * MIB,
            available_bytes: 4000 * MIB,
            swap_total_bytes: 2048 * MIB,
            swap_free_bytes: 1900 * MIB,
            psi: Some(psi(time_ms)),
            is_under_reclaim: time_ms % 60_000 < 5000,
        },
        files: Some(files(time_ms, &intervals)),
        own: OwnUse {
            cpu_ms: time_ms as f64 * 0.004,
            cpu_percent: 0.4,
            resident_bytes: 20 * MIB,
            ages_bytes: 3 * MIB,
            ticks: sequence,
            late_ms: time_ms % 7,
            late_max_ms: 6,
            scan_cpu_ms: 12.5,
            scan_ms: 15.0,
            scan_cpu_total_ms: 12.5 * sequence as f64,
            move_cpu_total_ms: 3.0 * sequence as f64,
            cache_lost_looks: 0,
            journal_lost_lines: 0,
        },
        budget: Budget {
            percent: 1.0,
            tick_ms: 5000,
            actual_ms: if time_ms % 90_000 < 10_000 {
                8000
            } else {
                5000
            },
        },
        is_truncated: false,
        intervals,
        unseen_processes: 0,
        unseen_cgroups: 0,
    }
}

fn subject(part: &Part, id: u64, time_ms: u64, intervals: &Intervals) -> SubjectView {
    let nodes: Vec<NodeView> = NODES
        .iter()
        .map(|node| {
            let size_bytes = part.size_mib * MIB / (u64::from(*node) + 2);
            let ages = ages(size_bytes, part.period_ms, time_ms, intervals);
            NodeView {
                node: *node,
                resident_bytes: ages.total(),
                report: ages.clone(),
                ages,
            }
        })
        .collect();
    let mut reclaimed = Reclaimed::default();
    let mut rehearsed_bytes = 0;
    let policy = part.policy.and_then(Reason::by_name);
    if let Some(reason) = policy {
        let gone_bytes = time_ms / 30_000 * 4 * MIB;
        match part.is_rehearsal {
            true => rehearsed_bytes = gone_bytes,
            false => reclaimed.add(reason, gone_bytes),
        }
    }
    SubjectView {
        name: Arc::from(part.name),
        is_cgroup: part.is_cgroup,
        container: part.name.strip_prefix("/batch/").map(|pod| Container {
            namespace: Some("batch".into()),
            pod: Some(pod.into()),
            container: Some("job".into()),
            ..Container::default()
        }),
        depth: part.depth,
        id,
        policy,
        is_rehearsal: part.is_rehearsal,
        processes: 1 + part.depth,
        nodes,
        observed_ms: time_ms,
        swapped_bytes: reclaimed.total_bytes() / 2,
        unmapped_cache_bytes: part.is_cgroup.then_some(part.size_mib * MIB / 10),
        sampled_bytes: 0,
        refaulted_bytes: time_ms / 45_000 * MIB,
        found_refaulted_bytes: time_ms / 45_000 * MIB,
        reclaimed,
        rehearsed_bytes,
        budget_gain: None,
        kernel_first: None,
        guest_hosts: Vec::new(),
        psi: part.is_cgroup.then(|| psi(time_ms)),
        less: less(part.size_mib * MIB, part.period_ms),
        shrink_limit_bytes: None,
        is_under_reclaim: false,
        troubles: Vec::new(),
    }
}

/// Files with much memory, one of them with a name that must be escaped.
fn files(time_ms: u64, intervals: &Intervals) -> LargestFiles {
    let of = [
        ("/var/lib/db/data", Some("/web"), 400, 12, 300_000),
        ("/usr/lib/libc.so.6", Some("/"), 3, 0, 10_000),
        (
            "/srv/<b>\u{1b}[31m & co",
            Some("/batch/job-1"),
            2,
            0,
            500_000,
        ),
        ("ext4:inode 7 on 8:1 (deleted)", None, 1, 1, 900_000),
    ];
    let largest = of.map(|(name, cgroup, size_mib, dirty_mib, period_ms)| {
        let ages = ages(size_mib * MIB, period_ms, time_ms, intervals);
        LargeFile {
            name: name.into(),
            cgroup: cgroup.map(Untrusted::from),
            resident_bytes: ages.total().iter().sum(),
            dirty_bytes: dirty_mib * MIB,
            oldest_ms: Some(time_ms),
            is_sampled: false,
            ages: Some(AgeBin::all(&ages)),
        }
    });
    LargestFiles {
        unix_ms: 1_700_000_000_000 + time_ms,
        observed_ms: time_ms,
        count: 5321,
        resident_bytes: 900 * MIB,
        largest: largest.into(),
    }
}

/// A fifth less memory costs nothing, nor does almost half of rarely touched memory; less than that
/// costs more and more.
fn less(full_bytes: u64, period_ms: u64) -> Vec<LessMemory> {
    let enough_percent: u16 = if period_ms < 500_000 { 80 } else { 55 };
    let at = |percent: u16| {
        let short = f64::from(enough_percent.saturating_sub(percent));
        LessMemory {
            percent,
            memory_bytes: full_bytes * u64::from(percent) / 100,
            beyond_bytes: 0,
            faults_per_second: short * 64.0,
            faults_high: Some(short * 80.0 + 8.0),
            wait_ratio: short / 2048.0,
            wait_high: Some(short / 1024.0 + 1.0 / 2048.0),
        }
    };
    [50, 60, 75, 90, 100].map(at).to_vec()
}

/// Memory touched piece by piece, over and over: all ages up to the period are equally frequent. A
/// fifth of it is never touched again.
fn ages(size_bytes: u64, period_ms: u64, time_ms: u64, intervals: &Intervals) -> Histogram {
    const PIECES: u64 = 50;
    let mut ages = Histogram::new(intervals);
    let piece_bytes = size_bytes / PIECES / PAGE_BYTES * PAGE_BYTES;
    for piece in 0..PIECES {
        let page_type = PageType::ALL[usize::from(piece % 3 == 0)];
        let age_ms = if piece % 5 == 4 {
            time_ms
        } else {
            (time_ms + piece * period_ms / PIECES) % period_ms
        };
        ages.add_at_least(
            page_type,
            piece_bytes,
            age_ms.min(time_ms),
            OldestPages::AtLeast,
        );
    }
    ages
}

fn psi(time_ms: u64) -> Psi {
    let percent = (time_ms % 60_000) as f64 / 60_000.0;
    let stall = |percent| Stall {
        avg10_percent: percent,
        avg60_percent: percent / 2.0,
        total_us: time_ms,
    };
    Psi {
        some: stall(percent),
        full: stall(percent / 4.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_a_fleet_have_containers_of_their_own() {
        let hosts = [0, 1].map(|host| snapshot_of_host(host, 1, 10_000));
        let names = hosts.each_ref().map(|host| {
            let containers = host
                .subjects
                .iter()
                .filter(|subject| subject.is_container());
            containers
                .map(|one| one.name.to_string())
                .collect::<Vec<_>>()
        });
        assert_eq!(names.each_ref().map(Vec::len), [usize::from(CONTAINERS); 2]);
        assert!(names[0].iter().all(|name| !names[1].contains(name)));
        let cgroups = hosts[0].subjects.iter().filter(|subject| subject.is_cgroup);
        assert!(cgroups.map(|subject| &subject.name).is_sorted());
    }

    #[test]
    fn the_machine_is_of_one_piece() {
        for time_ms in [0, 1, 10_000, 3_600_000] {
            let snapshot = snapshot(1, time_ms);
            assert_eq!(snapshot, super::snapshot(1, time_ms));
            for subject in &snapshot.subjects {
                let sum = subject.ages(&snapshot.intervals).total();
                assert_eq!(subject.resident_bytes(), sum);
                assert!(sum[0] > 0 && sum[1] > 0);
                assert_eq!(subject.node(1).unwrap().node, 1);
                assert!(subject.node(7).is_none());
            }
        }
    }
}
