// SPDX-License-Identifier: Apache-2.0
//! Which fields of a report are known, by access source.

use agewise_host::agent::SubjectReport;

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
        (self != Knows::Cgroups).then_some(report.swapped_bytes)
    }

    pub(super) fn refaulted_bytes(self, report: &SubjectReport) -> Option<u64> {
        (self == Knows::Agent).then_some(report.refaulted_bytes)
    }
}

/// The kind of the target, as named in the output.
pub(super) fn kind(report: &SubjectReport) -> &'static str {
    if report.is_cgroup {
        "cgroup"
    } else {
        "process"
    }
}
