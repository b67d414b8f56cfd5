// SPDX-License-Identifier: Apache-2.0
//! The metrics of a snapshot: names, help and values, before they become text.
//!
//! Names are those of the JSON fields, prefixed with `agewise_` and in base units as Prometheus
//! requires: `_ms` becomes `_seconds` and `_percent` becomes `_ratio`. Counters end in `_total`.

use super::ages;
use super::family::{Family, Labels, Unit, Value, counter, gauge};
use super::rows::{Row, containers, rows};
use super::shown::Shown;
use crate::state::{Budget, OwnUse, Psi, Reason, Snapshot, SubjectView};

fn seconds(ms: f64) -> f64 {
    ms / 1e3
}

/// All metrics.
#[must_use]
pub fn families(snapshot: &Snapshot, shown: &Shown) -> Vec<Family> {
    let rows = rows(snapshot, shown);
    let mut all = memory(snapshot, &rows);
    all.extend(flows(&rows));
    all.extend(state(&rows));
    all.extend(machine(snapshot));
    all.extend(described(snapshot));
    all.extend(coverage(snapshot, shown));
    all.extend(own(&snapshot.own));
    all.extend(pace(&snapshot.budget));
    all.push(containers(snapshot, shown));
    all.extend(super::held::families(snapshot, shown));
    all.extend(super::whatif::families(snapshot, shown));
    all.retain(|family| !family.samples.is_empty());
    all
}

/// Where memory is, and how old it is.
fn memory(snapshot: &Snapshot, rows: &[Row]) -> Vec<Family> {
    let mut all = ages::families(snapshot, rows);
    let mut swapped = gauge(
        "swapped",
        Unit::Bytes,
        "Memory charged to it that is in swap; page-table entries where the kernel has no account",
    );
    let mut cache = gauge(
        "unmapped_cache",
        Unit::Bytes,
        "Page cache charged to it that no process maps; its age is not known",
    );
    let mut sampled = gauge(
        "sampled",
        Unit::Bytes,
        "Resident memory that is not followed itself: its ages are those of a sample",
    );
    for row in rows {
        let sum = |of: &dyn Fn(&SubjectView) -> Option<u64>| {
            let known: Vec<u64> = row.subjects.iter().filter_map(|s| of(s)).collect();
            let is_known = !known.is_empty() || row.subjects.is_empty();
            is_known.then(|| known.iter().fold(0u64, |sum, b| sum.saturating_add(*b)))
        };
        let labels = row.labels.clone();
        if let Some(bytes) = sum(&|subject| Some(subject.swapped_bytes)) {
            swapped.add(labels.clone(), bytes);
        }
        if let Some(bytes) = sum(&|subject| subject.unmapped_cache_bytes) {
            cache.add(labels.clone(), bytes);
        }
        if let Some(bytes) = sum(&|subject| Some(subject.sampled_bytes)) {
            sampled.add(labels, bytes);
        }
    }
    all.extend([swapped, cache, sampled]);
    all
}

/// Memory that moved.
fn flows(rows: &[Row]) -> Vec<Family> {
    let mut refaulted = counter(
        "refaulted",
        Unit::Bytes,
        "Memory that came back from swap since the daemon started",
    );
    let mut reclaimed = counter(
        "reclaimed",
        Unit::Bytes,
        "Memory moved out by the daemon, by the policy that moved it",
    );
    let mut of_files = counter(
        "reclaimed_file",
        Unit::Bytes,
        "The part of it that was file memory",
    );
    let mut rehearsed = counter(
        "rehearsed",
        Unit::Bytes,
        "Memory that would have been moved out, had it not been a rehearsal (dry_run)",
    );
    for row in rows {
        let labels = row.labels.clone();
        refaulted.add(labels.clone(), row.counts.refaulted_bytes);
        rehearsed.add(labels.clone(), row.counts.rehearsed_bytes);
        of_files.add(labels.clone(), row.counts.reclaimed.file_bytes);
        for reason in Reason::all() {
            let mut labels = labels.clone();
            labels.push(("reason", reason.name().to_owned()));
            reclaimed.add(labels, row.counts.reclaimed.bytes(reason));
        }
    }
    vec![refaulted, reclaimed, of_files, rehearsed]
}

/// Other facts about subjects shown by name.
fn state(rows: &[Row]) -> Vec<Family> {
    let mut processes = gauge("processes", Unit::None, "Processes in it");
    let mut observed = gauge(
        "observed",
        Unit::Seconds,
        "How long it has been observed: an upper bound for its ages",
    );
    let mut reclaim = gauge(
        "under_reclaim",
        Unit::None,
        "1: the kernel itself reclaimed from it since the previous look",
    );
    let mut policy = gauge(
        "policy_info",
        Unit::None,
        "Always 1; labels: the policy that acts on it, and whether it only rehearses",
    );
    let mut guests = gauge(
        "guest_hosts",
        Unit::None,
        "Processes in it that run KVM guests, whose accesses are not seen: what looks idle may be \
         in use; only where there are some",
    );
    for row in rows {
        let labels = row.labels.clone();
        let total = row.subjects.iter().map(|s| s.processes as u64).sum::<u64>();
        processes.add(labels.clone(), total);
        let hosts = row.subjects.iter().map(|s| s.guest_hosts.len() as u64);
        let hosts = hosts.sum::<u64>();
        if hosts > 0 {
            guests.add(labels.clone(), hosts);
        }
        if row.is_rest() {
            continue;
        }
        for subject in &row.subjects {
            observed.add(labels.clone(), seconds(subject.observed_ms as f64));
            reclaim.add(labels.clone(), subject.is_under_reclaim);
            if let Some(reason) = subject.policy {
                let mut labels = labels.clone();
                labels.push(("policy", reason.name().to_owned()));
                labels.push(("dry_run", subject.is_rehearsal.to_string()));
                policy.add(labels, 1u64);
            }
        }
    }
    let named = rows
        .iter()
        .filter(|row| !row.is_rest())
        .flat_map(|row| row.subjects.iter().map(|s| (row.labels.clone(), s.psi)));
    let mut all = vec![processes, guests, observed, reclaim, policy];
    all.extend(pressure(["psi_avg10", "psi_avg60", "psi_stalled"], named));
    all
}

fn pressure(
    names: [&'static str; 3],
    of: impl Iterator<Item = (Labels, Option<Psi>)>,
) -> [Family; 3] {
    let mut avg10 = gauge(
        names[0],
        Unit::Ratio,
        "Share of the last 10 seconds in which tasks waited for memory: some of them, or all at \
         once (full)",
    );
    let mut avg60 = gauge(
        names[1],
        Unit::Ratio,
        "Share of the last minute in which tasks waited for memory",
    );
    let mut stalled = counter(
        names[2],
        Unit::Seconds,
        "Time in which tasks waited for memory, as counted by the kernel",
    );
    for (labels, psi) in of {
        let Some(psi) = psi else { continue };
        for (name, stall) in [("some", psi.some), ("full", psi.full)] {
            let mut labels = labels.clone();
            labels.push(("stall", name.to_owned()));
            avg10.add(labels.clone(), stall.avg10_percent / 100.0);
            avg60.add(labels.clone(), stall.avg60_percent / 100.0);
            stalled.add(labels, stall.total_us as f64 / 1e6);
        }
    }
    [avg10, avg60, stalled]
}

fn machine(snapshot: &Snapshot) -> Vec<Family> {
    let machine = &snapshot.machine;
    let mut all = vec![
        bytes(
            "machine_total",
            "Memory of the machine",
            machine.total_bytes,
        ),
        bytes(
            "machine_available",
            "Memory available without swapping",
            machine.available_bytes,
        ),
        bytes("machine_swap_total", "Swap space", machine.swap_total_bytes),
        bytes(
            "machine_swap_free",
            "Free swap space",
            machine.swap_free_bytes,
        ),
        number(
            "machine_under_reclaim",
            "1: the kernel itself reclaimed since the previous look",
            machine.is_under_reclaim,
        ),
    ];
    let names = [
        "machine_psi_avg10",
        "machine_psi_avg60",
        "machine_psi_stalled",
    ];
    all.extend(pressure(names, std::iter::once((Vec::new(), machine.psi))));
    all
}

fn spent(name: &'static str, help: &'static str, ms: f64) -> Family {
    counter(name, Unit::Seconds, help).single(seconds(ms))
}

fn time(name: &'static str, help: &'static str, ms: f64) -> Family {
    gauge(name, Unit::Seconds, help).single(seconds(ms))
}

fn bytes(name: &'static str, help: &'static str, value: u64) -> Family {
    gauge(name, Unit::Bytes, help).single(value)
}

fn number(name: &'static str, help: &'static str, value: impl Into<Value>) -> Family {
    gauge(name, Unit::None, help).single(value)
}

/// Which agewise took these figures, and when.
fn described(snapshot: &Snapshot) -> [Family; 2] {
    let mut build = gauge("build_info", Unit::None, "Always 1; the version as a label");
    let version = env!("CARGO_PKG_VERSION").to_owned();
    build.add(vec![("version", version)], 1u64);
    let taken = time(
        "snapshot_timestamp",
        "When these figures were taken, since 1970",
        snapshot.unix_ms as f64,
    );
    [build, taken]
}

/// What is not shown, or could not be seen.
fn coverage(snapshot: &Snapshot, shown: &Shown) -> [Family; 4] {
    [
        number(
            "targets_cut",
            "Cgroups and processes that are not shown by name (cgroups_max, containers_max and \
             depth_max of metrics)",
            shown.cut as u64,
        ),
        number(
            "targets_truncated",
            "1: the machine has more cgroups or processes than are observed (observe.cgroups_max)",
            snapshot.is_truncated,
        ),
        number(
            "unseen_processes",
            "Running processes that could not be looked at",
            snapshot.unseen_processes as u64,
        ),
        number(
            "unseen_cgroups",
            "Cgroups with an unreadable list of processes",
            snapshot.unseen_cgroups as u64,
        ),
    ]
}

/// What the daemon itself costs.
fn own(own: &OwnUse) -> Vec<Family> {
    vec![
        spent("own_cpu", "CPU time of the daemon", own.cpu_ms),
        bytes(
            "own_resident",
            "Resident memory of the daemon",
            own.resident_bytes,
        ),
        bytes(
            "own_ages",
            "Memory in which the daemon keeps ages",
            own.ages_bytes,
        ),
        counter("own_ticks", Unit::None, "Looks").single(own.ticks),
        time(
            "own_late",
            "How much later than planned the last look started",
            own.late_ms as f64,
        ),
        time(
            "own_late_max",
            "Largest delay of a look so far",
            own.late_max_ms as f64,
        ),
        time("own_scan", "How long the last look took", own.scan_ms),
        spent("own_scan_cpu", "CPU time of looks", own.scan_cpu_total_ms),
        spent(
            "own_move_cpu",
            "CPU time of moving memory out",
            own.move_cpu_total_ms,
        ),
        counter(
            "cache_lost_looks",
            Unit::None,
            "Looks at the page cache that failed or found accesses lost; no file memory goes until \
             what is cold is known again",
        )
        .single(own.cache_lost_looks),
        counter(
            "journal_lost_lines",
            Unit::None,
            "Lines of the journal that could not be written; nothing is done without them",
        )
        .single(own.journal_lost_lines),
    ]
}

/// Whether the daemon keeps its pace.
fn pace(budget: &Budget) -> [Family; 4] {
    [
        gauge(
            "budget",
            Unit::Ratio,
            "Share of one core that looking may take",
        )
        .single(budget.percent / 100.0),
        time(
            "budget_tick",
            "Time from look to look that was asked for",
            budget.tick_ms as f64,
        ),
        time(
            "budget_actual",
            "Time from look to look that the CPU limit allows",
            budget.actual_ms as f64,
        ),
        number(
            "budget_short",
            "1: the CPU limit is too small for the pace that was asked for",
            budget.is_short(),
        ),
    ]
}
