// SPDX-License-Identifier: Apache-2.0
//! What the daemon knows, for the parts that show it: files, metrics, the page.
//!
//! After every tick the daemon publishes a [`Snapshot`], which never changes: a reader holds an
//! `Arc` of it as long as it likes and never waits for a tick, nor does a tick wait for a reader.
//! Readers may change [`Settings`] of reports; nothing here can cause memory to be moved.
//!
//! ```
//! use agewise_daemon::{demo, state::Hub};
//! let hub = Hub::new(demo::settings());
//! hub.publish(demo::snapshot(1, 10_000));
//! let seen = hub.snapshot();
//! assert!(seen.subject("/web").is_some());
//! ```

use std::sync::Arc;

use agewise_host::container::Container;
use agewise_policy::budget::{Gain, KernelFirst};
use agewise_policy::generations::ByType;
use agewise_policy::proactive::{POLICIES, Spec};
use agewise_policy::workingset::{Histogram, Intervals};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

mod hub;
mod largest;
mod settings;
mod wire;

pub use agewise_host::pressure::{Psi, Stall};
pub use hub::{Event, Hub};
pub use largest::{AgeBin, LargeFile, LargestFiles};
use wire::{as_text, bounds, shared};

pub use settings::{ReportSetting, Scope, Settings};

/// Why bytes were moved out: because of a policy of the registry ([`POLICIES`]), or to keep a
/// working set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reason(usize);

/// The number of reasons.
const REASONS: usize = POLICIES.len() + 1;

impl Reason {
    /// The target made a protected cgroup thrash.
    pub const PROTECT: Self = Self(POLICIES.len());

    /// All reasons: the policies in the order of the registry, then [`PROTECT`](Self::PROTECT).
    pub fn all() -> impl Iterator<Item = Self> {
        (0..REASONS).map(Self)
    }

    /// The policy of this spec.
    pub fn of(spec: &Spec) -> Self {
        Self(spec.index())
    }

    /// The reason with this name, if there is one.
    pub fn by_name(name: &str) -> Option<Self> {
        Self::all().find(|reason| reason.name() == name)
    }

    /// The name in JSON, metrics, the journal and the configuration.
    pub fn name(self) -> &'static str {
        POLICIES.get(self.0).map_or("protect", |entry| entry.name)
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::by_name(&name).ok_or_else(|| D::Error::custom("not the name of a policy"))
    }
}

impl Serialize for Reason {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// Bytes that left memory since the daemon started, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reclaimed {
    by_reason: [u64; REASONS],
    /// The part of their sum that was file memory.
    pub file_bytes: u64,
}

impl Reclaimed {
    /// Bytes that left for one reason.
    pub fn bytes(&self, reason: Reason) -> u64 {
        self.by_reason[reason.0]
    }

    /// Adds bytes that left for this reason.
    pub fn add(&mut self, reason: Reason, bytes: u64) {
        let sum = &mut self.by_reason[reason.0];
        *sum = sum.saturating_add(bytes);
    }

    /// Records that this many of the counted bytes were file memory.
    pub fn add_files(&mut self, bytes: u64) {
        self.file_bytes = self.file_bytes.saturating_add(bytes);
    }

    /// Bytes that left for all reasons.
    pub fn total_bytes(&self) -> u64 {
        self.by_reason
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// The memory of one subject on one NUMA node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    pub node: u32,
    /// Ages in bytes, with the bounds of the snapshot ([`Snapshot::intervals`]).
    #[serde(with = "as_text")]
    pub ages: Histogram,
    /// Ages in bytes, with the bounds set for this node ([`Settings::intervals`]).
    #[serde(with = "as_text")]
    pub report: Histogram,
    /// Resident memory: the sum of either histogram.
    pub resident_bytes: ByType<u64>,
}

/// The cost of having only a share of the peak resident memory.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LessMemory {
    /// The share.
    pub percent: u16,
    /// The share in bytes.
    pub memory_bytes: u64,
    /// Memory charged in addition: kernel memory.
    pub beyond_bytes: u64,
    /// Pages that would be brought back per second.
    pub faults_per_second: f64,
    /// Upper bound, with 95 % probability; `None` if the observations set none.
    pub faults_high: Option<f64>,
    /// Share of the time that tasks would wait for them.
    pub wait_ratio: f64,
    /// Upper bound, with 95 % probability; `None` if the observations set none.
    pub wait_high: Option<f64>,
}

/// A cgroup with everything below it, or a process given by its pid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubjectView {
    /// The path below the hierarchy, `/` for its root; `PID (name)` for a process.
    #[serde(with = "shared")]
    pub name: Arc<str>,
    pub is_cgroup: bool,
    /// The container or pod that the cgroup is.
    pub container: Option<Container>,
    /// Levels below the root: 0 for the root and for processes.
    pub depth: usize,
    /// The inode of the cgroup's directory, which distinguishes it from a later one with the same
    /// name; for a process, its start time.
    pub id: u64,
    /// The policy that acts on it; `None` if it is only observed.
    pub policy: Option<Reason>,
    /// Whether actions are only recorded (dry run).
    pub is_rehearsal: bool,
    pub processes: usize,
    /// Its memory by node, in the order of [`Snapshot::nodes`].
    pub nodes: Vec<NodeView>,
    /// How long it has been observed, ms.
    pub observed_ms: u64,
    /// Pages of its processes in swap.
    pub swapped_bytes: u64,
    /// Page cache charged to it that no process maps; `None` for processes.
    pub unmapped_cache_bytes: Option<u64>,
    /// The resident memory whose ages are those of a sample of its pages or files; 0 if all of it
    /// is followed.
    pub sampled_bytes: u64,
    /// Memory that came back from swap since the daemon started, of a cgroup as the kernel counts
    /// it.
    pub refaulted_bytes: u64,
    /// What looks found of it: without what leaves and comes back between two, and with a page that
    /// processes share since a fork for each.
    pub found_refaulted_bytes: u64,
    /// Memory that the daemon moved out since it started.
    pub reclaimed: Reclaimed,
    /// Memory that would have left without the rehearsal.
    pub rehearsed_bytes: u64,
    /// The worth of the budget it is held under; `None` until that is known.
    pub budget_gain: Option<Gain>,
    /// How far the kernel has its limit first; `None` once the budget is held.
    pub kernel_first: Option<KernelFirst>,
    /// Pressure, if the kernel reports it for a cgroup (v2).
    pub psi: Option<Psi>,
    /// The cost of less memory, by size; empty until that is known.
    pub less: Vec<LessMemory>,
    /// The limit that the policy `shrink` has set on it.
    pub shrink_limit_bytes: Option<u64>,
    /// Whether the kernel itself reclaimed from it since the previous snapshot.
    pub is_under_reclaim: bool,
    /// Its processes that run KVM guests: what guests access is not seen.
    pub guest_hosts: Vec<u32>,
    /// A few of the problems with looking at it.
    pub troubles: Vec<String>,
}

impl SubjectView {
    /// Resident memory on all nodes.
    pub fn resident_bytes(&self) -> ByType<u64> {
        self.nodes.iter().fold([0; 2], |sum, node| {
            [
                sum[0].saturating_add(node.resident_bytes[0]),
                sum[1].saturating_add(node.resident_bytes[1]),
            ]
        })
    }

    /// Whether it is a container, rather than a pod or any other cgroup.
    pub fn is_container(&self) -> bool {
        let container = self.container.as_ref();
        container.is_some_and(|container| container.container_id.is_some())
    }

    /// Its memory on one node.
    pub fn node(&self, node: u32) -> Option<&NodeView> {
        self.nodes.iter().find(|view| view.node == node)
    }

    /// Ages on all nodes, with the bounds of the snapshot.
    pub fn ages(&self, intervals: &Intervals) -> Histogram {
        let mut sum = Histogram::new(intervals);
        for node in &self.nodes {
            sum.add(&node.ages);
        }
        sum
    }
}

/// The resources that the daemon itself uses, and whether it keeps its pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnUse {
    /// CPU time of all threads since the daemon started, ms.
    pub cpu_ms: f64,
    /// Share of one core over about the last minute, percent.
    pub cpu_percent: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Memory used for ages; the rest is the program.
    pub ages_bytes: u64,
    /// Ticks so far.
    pub ticks: u64,
    /// How much later than planned the last tick started, ms.
    pub late_ms: u64,
    /// The maximum so far, ms.
    pub late_max_ms: u64,
    /// CPU time of the last tick's look, ms.
    pub scan_cpu_ms: f64,
    /// Duration of that look, ms.
    pub scan_ms: f64,
    /// CPU time of all looks so far, ms.
    pub scan_cpu_total_ms: f64,
    /// CPU time of moving memory out so far, ms.
    pub move_cpu_total_ms: f64,
    /// Looks at the page cache so far that failed, or found accesses lost.
    pub cache_lost_looks: u64,
    /// Journal lines that could not be written so far.
    pub journal_lost_lines: u64,
}

/// The CPU budget and its effect on the pace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Share of one core that was granted, percent.
    pub percent: f64,
    /// The configured time between ticks, ms.
    pub tick_ms: u64,
    /// The time between ticks that the budget currently allows, ms: less than configured if
    /// policies want more.
    pub actual_ms: u64,
}

impl Budget {
    /// Whether it scans less often than configured.
    pub fn is_short(&self) -> bool {
        self.actual_ms > self.tick_ms
    }
}

/// The machine as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Total memory.
    pub total_bytes: u64,
    /// Memory available without swapping.
    pub available_bytes: u64,
    /// Swap space.
    pub swap_total_bytes: u64,
    /// Free swap space.
    pub swap_free_bytes: u64,
    /// Memory pressure, if the kernel reports it.
    pub psi: Option<Psi>,
    /// Whether the kernel itself reclaimed since the previous snapshot.
    pub is_under_reclaim: bool,
}

/// Everything known after one tick.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// 0 before the first tick; grows by one with each.
    pub sequence: u64,
    /// `CLOCK_MONOTONIC`, ms: the clock of ages.
    pub time_ms: u64,
    /// Time since 1970, ms.
    pub unix_ms: u64,
    /// NUMA nodes with memory, ascending.
    pub nodes: Vec<u32>,
    /// Bounds of [`NodeView::ages`].
    #[serde(with = "bounds")]
    pub intervals: Intervals,
    /// Sorted by path, component by component: a cgroup comes directly before those below it.
    /// Processes come last.
    pub subjects: Vec<SubjectView>,
    pub machine: Machine,
    /// The largest files, if the page cache is followed and the page is served.
    pub files: Option<LargestFiles>,
    /// The daemon.
    pub own: OwnUse,
    pub budget: Budget,
    /// Whether there are more cgroups or processes than the limits allow.
    pub is_truncated: bool,
    /// Running processes that could not be looked at.
    pub unseen_processes: usize,
    /// Cgroups with an unreadable list of processes.
    pub unseen_cgroups: usize,
}

impl Snapshot {
    /// The state before the first tick.
    pub fn empty() -> Self {
        Snapshot {
            sequence: 0,
            time_ms: 0,
            unix_ms: 0,
            nodes: Vec::new(),
            intervals: Intervals::default(),
            subjects: Vec::new(),
            machine: Machine::default(),
            files: None,
            own: OwnUse::default(),
            budget: Budget::default(),
            is_truncated: false,
            unseen_processes: 0,
            unseen_cgroups: 0,
        }
    }

    pub fn subject(&self, name: &str) -> Option<&SubjectView> {
        self.subjects.iter().find(|subject| &*subject.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_a_place_each() {
        let mut reclaimed = Reclaimed::default();
        for (at, reason) in Reason::all().enumerate() {
            assert_eq!(Reason::by_name(reason.name()), Some(reason));
            reclaimed.add(reason, 1 << at);
            assert_eq!(reclaimed.bytes(reason), 1 << at);
        }
        assert_eq!(reclaimed.total_bytes(), (1 << REASONS) - 1);
    }

    /// Every policy must be documented: in the table of the guide, and in that of the daemon.
    #[test]
    fn every_policy_is_documented() {
        for page in ["docs/use/proactive.md", "docs/use/daemon.md"] {
            let path = format!("{}/../../{page}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            for entry in POLICIES {
                let is_row = |line: &str| {
                    line.strip_prefix("| `")
                        .and_then(|row| row.strip_prefix(entry.name))
                        .is_some_and(|rest| rest.starts_with([':', '[', '`']))
                };
                assert!(
                    text.lines().any(is_row),
                    "{page}: no row for {}",
                    entry.usage
                );
            }
        }
    }
}
