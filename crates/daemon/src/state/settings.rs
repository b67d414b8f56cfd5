// SPDX-License-Identifier: Apache-2.0
//! What readers may set of reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_policy::workingset::Intervals;

/// Whose report a setting is for: a node of a cgroup, or (no cgroup) of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The cgroup's path; `None` is the machine.
    pub cgroup: Option<Arc<str>>,
    /// The node.
    pub node: u32,
}

/// Settings of a report, in milliseconds; 0, the default, switches it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportSetting {
    /// A report older than this is regenerated when read.
    pub refresh_interval_ms: u32,
    /// Under pressure, readers that wait are woken when the last notification is older than this.
    pub report_threshold_ms: u32,
}

/// What readers have set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bounds of reports, by node. None: a single bin.
    pub intervals: BTreeMap<u32, Intervals>,
    /// What was set of reports; those of cgroups that are gone are forgotten.
    pub reports: BTreeMap<Scope, ReportSetting>,
}

impl Settings {
    /// Bounds of one node.
    pub fn intervals_of(&self, node: u32) -> Intervals {
        self.intervals.get(&node).cloned().unwrap_or_default()
    }
}
