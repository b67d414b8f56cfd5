// SPDX-License-Identifier: Apache-2.0
//! Which fields of a report are known, by access source.

use agewise_host::agent::SubjectReport;
use agewise_policy::generations::ByType;

/// Which fields of a report are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// All of them: the agent observes single pages.
    Agent,
    /// Those of a kernel source that observes processes.
    Processes,
    /// Those of a kernel source that only observes cgroups.
    Cgroups,
}

impl Knows {
    pub(super) fn processes(self, report: &SubjectReport) -> Option<usize> {
        (self != Knows::Cgroups).then_some(report.processes)
    }

    pub(super) fn swapped_bytes(self, report: &SubjectReport) -> Option<u64> {
        // What is charged to a cgroup is known without a look at its processes.
        let is_known = report.is_cgroup || report.is_known()[0];
        (self != Knows::Cgroups && is_known).then_some(report.swapped_bytes)
    }

    pub(super) fn refaulted_bytes(self, report: &SubjectReport) -> Option<u64> {
        (self == Knows::Agent && report.is_known()[0]).then_some(report.refaulted_bytes)
    }
}

/// Bytes by type; `None` where none of the target's processes could be looked at.
pub(super) fn known(report: &SubjectReport, bytes: ByType<u64>) -> ByType<Option<u64>> {
    let is_known = report.is_known();
    std::array::from_fn(|of| is_known[of].then_some(bytes[of]))
}

/// Resident memory, if that of both types is known.
pub(super) fn resident_bytes(report: &SubjectReport) -> Option<u64> {
    let [anon, file] = known(report, report.resident_bytes);
    Some(anon? + file?)
}

/// The kind of the target, as named in the output.
pub(super) fn kind(report: &SubjectReport) -> &'static str {
    if report.is_cgroup {
        "cgroup"
    } else {
        "process"
    }
}
