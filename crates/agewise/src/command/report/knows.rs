// SPDX-License-Identifier: Apache-2.0
//! What is known of a target, by the source that it was observed with.

use agewise_host::agent::SubjectReport;

/// Which fields of a report are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knows {
    /// All of them: an agent's.
    Agent,
    /// Those of a source of the kernel's that knows processes.
    Processes,
    /// Those of a source of the kernel's that knows cgroups only.
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

/// What the target is, as output names it.
pub(super) fn kind(report: &SubjectReport) -> &'static str {
    if report.is_cgroup {
        "cgroup"
    } else {
        "process"
    }
}
