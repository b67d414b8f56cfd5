// SPDX-License-Identifier: Apache-2.0
//! Snapshot and timeline as JSON; what `agewise report --format json` also has is named as there.

use std::borrow::Cow;
use std::sync::Arc;

use agewise_host::container::Container;
use agewise_policy::budget::{Gain, KernelFirst};
use serde::Serialize;

use crate::metrics::shown::{OTHER, Shown};
use crate::state::{
    Budget, LargestFiles, LessMemory, Machine, OwnUse, Psi, Reason, Snapshot, SubjectView,
};
use crate::timeline::Moment;
use agewise_cli::output;

#[derive(Serialize)]
struct SnapshotRecord<'a> {
    record: &'static str,
    version: &'static str,
    sequence: u64,
    unix_ms: u64,
    machine: &'a Machine,
    own: &'a OwnUse,
    budget: &'a Budget,
    files: Option<&'a LargestFiles>,
    targets: Vec<Target<'a>>,
    targets_cut: usize,
    targets_truncated: bool,
}

#[derive(Serialize)]
struct Target<'a> {
    target: &'a str,
    kind: &'static str,
    #[serde(flatten)]
    container: Option<&'a Container>,
    depth: usize,
    policy: Option<&'static str>,
    dry_run: bool,
    processes: usize,
    nodes: Vec<Node>,
    resident_bytes: u64,
    anon_bytes: u64,
    file_bytes: u64,
    swapped_bytes: u64,
    unmapped_cache_bytes: Option<u64>,
    refaulted_bytes: u64,
    reclaimed_bytes: u64,
    rehearsed_bytes: u64,
    observed_ms: u64,
    psi: Option<Psi>,
    is_under_reclaim: bool,
    what_if: Vec<WhatIfPoint>,
    shrink_limit_bytes: Option<u64>,
    budget_gain: Option<Gain>,
    kernel_first: Option<KernelFirst>,
    guest_hosts: Cow<'a, [u32]>,
    troubles: &'a [String],
}

#[derive(Serialize)]
struct Node {
    node: u32,
    bins: Vec<Bin>,
}

#[derive(Serialize)]
struct Bin {
    /// `None` in the last bin.
    upper_ms: Option<u64>,
    anon_bytes: u64,
    file_bytes: u64,
}

/// A size of memory, with the names of `agewise whatif`.
#[derive(Serialize)]
struct WhatIfPoint {
    memory_ratio: f64,
    memory_bytes: u64,
    faults_per_second: f64,
    faults_high: Option<f64>,
    wait_ratio: f64,
    wait_high: Option<f64>,
}

impl From<&LessMemory> for WhatIfPoint {
    fn from(less: &LessMemory) -> Self {
        WhatIfPoint {
            memory_ratio: f64::from(less.percent) / 100.0,
            memory_bytes: less.memory_bytes,
            faults_per_second: less.faults_per_second,
            faults_high: less.faults_high,
            wait_ratio: less.wait_ratio,
            wait_high: less.wait_high,
        }
    }
}

#[derive(Serialize)]
struct TimelineRecord<'a> {
    record: &'static str,
    target: Option<&'a str>,
    moments: Vec<MomentRecord<'a>>,
}

#[derive(Serialize)]
struct MomentRecord<'a> {
    sequence: u64,
    unix_ms: u64,
    bounds_ms: &'a [u64],
    ages_bytes: &'a [u64],
    refaulted_bytes: u64,
    reclaimed_bytes: u64,
}

fn target<'a>(subject: &'a SubjectView) -> Target<'a> {
    let [anon_bytes, file_bytes] = subject.resident_bytes();
    let nodes = subject.nodes.iter().map(|view| Node {
        node: view.node,
        bins: view
            .ages
            .bins()
            .iter()
            .map(|bin| Bin {
                upper_ms: bin.bound_ms(),
                anon_bytes: bin.amounts[0],
                file_bytes: bin.amounts[1],
            })
            .collect(),
    });
    Target {
        target: &subject.name,
        kind: if subject.is_cgroup {
            "cgroup"
        } else {
            "process"
        },
        container: subject.container.as_ref(),
        depth: subject.depth,
        policy: subject.policy.map(Reason::name),
        dry_run: subject.is_rehearsal,
        processes: subject.processes,
        nodes: nodes.collect(),
        resident_bytes: anon_bytes.saturating_add(file_bytes),
        anon_bytes,
        file_bytes,
        swapped_bytes: subject.swapped_bytes,
        unmapped_cache_bytes: subject.unmapped_cache_bytes,
        refaulted_bytes: subject.refaulted_bytes,
        reclaimed_bytes: subject.reclaimed.total_bytes(),
        rehearsed_bytes: subject.rehearsed_bytes,
        observed_ms: subject.observed_ms,
        psi: subject.psi,
        is_under_reclaim: subject.is_under_reclaim,
        what_if: subject.less.iter().map(WhatIfPoint::from).collect(),
        shrink_limit_bytes: subject.shrink_limit_bytes,
        budget_gain: subject.budget_gain,
        kernel_first: subject.kernel_first,
        guest_hosts: Cow::from(&subject.guest_hosts),
        troubles: &subject.troubles,
    }
}

/// All subjects not shown by name, as one.
fn other<'a>(snapshot: &'a Snapshot, shown: &Shown) -> Option<Target<'a>> {
    let mut rest = shown
        .others
        .iter()
        .map(|at| target(&snapshot.subjects[*at]));
    let mut sum = rest.next()?;
    for more in rest {
        for (node, more) in sum.nodes.iter_mut().zip(&more.nodes) {
            for (bin, more) in node.bins.iter_mut().zip(&more.bins) {
                bin.anon_bytes = bin.anon_bytes.saturating_add(more.anon_bytes);
                bin.file_bytes = bin.file_bytes.saturating_add(more.file_bytes);
            }
        }
        for (sum, more) in [
            (&mut sum.resident_bytes, more.resident_bytes),
            (&mut sum.anon_bytes, more.anon_bytes),
            (&mut sum.file_bytes, more.file_bytes),
            (&mut sum.swapped_bytes, more.swapped_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        sum.processes += more.processes;
        sum.observed_ms = sum.observed_ms.min(more.observed_ms);
        sum.is_under_reclaim |= more.is_under_reclaim;
        sum.guest_hosts.to_mut().extend(&*more.guest_hosts);
        if let Some(more) = more.unmapped_cache_bytes {
            let known = sum.unmapped_cache_bytes.unwrap_or(0);
            sum.unmapped_cache_bytes = Some(known.saturating_add(more));
        }
    }
    Some(Target {
        target: OTHER,
        kind: OTHER,
        container: None,
        depth: 0,
        policy: None,
        dry_run: false,
        refaulted_bytes: shown.other_counts.refaulted_bytes,
        reclaimed_bytes: shown.other_counts.reclaimed.total_bytes(),
        rehearsed_bytes: shown.other_counts.rehearsed_bytes,
        psi: None,
        what_if: Vec::new(),
        shrink_limit_bytes: None,
        budget_gain: None,
        kernel_first: None,
        troubles: &[],
        ..sum
    })
}

/// A snapshot; subjects not shown by name come last, as one.
pub(super) fn snapshot(snapshot: &Snapshot, shown: &Shown) -> Vec<u8> {
    let named = shown
        .subjects
        .iter()
        .map(|at| target(&snapshot.subjects[*at]));
    let targets: Vec<Target> = named.chain(other(snapshot, shown)).collect();
    bytes(&SnapshotRecord {
        record: "snapshot",
        version: env!("CARGO_PKG_VERSION"),
        sequence: snapshot.sequence,
        unix_ms: snapshot.unix_ms,
        machine: &snapshot.machine,
        own: &snapshot.own,
        budget: &snapshot.budget,
        files: snapshot.files.as_ref(),
        targets,
        targets_cut: shown.cut,
        targets_truncated: snapshot.is_truncated,
    })
}

/// The moments after `since` of one target, or of the largest in the last moment if none is named.
pub(super) fn timeline(moments: &[Arc<Moment>], target: Option<&str>, since: u64) -> Vec<u8> {
    let largest = || moments.last()?.rows.first().map(|row| &*row.name);
    let target = target.or_else(largest);
    let records = moments.iter().filter(|moment| moment.sequence > since);
    let records = records.filter_map(|moment| {
        let row = moment.rows.iter().find(|row| Some(&*row.name) == target)?;
        Some(MomentRecord {
            sequence: moment.sequence,
            unix_ms: moment.unix_ms,
            bounds_ms: &moment.bounds_ms,
            ages_bytes: &row.ages_bytes,
            refaulted_bytes: row.refaulted_bytes,
            reclaimed_bytes: row.reclaimed_bytes,
        })
    });
    bytes(&TimelineRecord {
        record: "timeline",
        target,
        moments: records.collect(),
    })
}

/// Structures of numbers and text can always be converted to JSON.
fn bytes(record: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    match output::json(&mut out, record) {
        Ok(()) => out,
        Err(_) => Vec::new(),
    }
}
