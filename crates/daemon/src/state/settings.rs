// SPDX-License-Identifier: Apache-2.0
//! The settings of reports that readers can change.

use std::collections::BTreeMap;
use std::sync::Arc;

use agewise_policy::workingset::Intervals;

/// The report that a setting is for: that of a cgroup on a node, or of the machine on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scope {
    /// The cgroup's path; `None` for the machine.
    pub cgroup: Option<Arc<str>>,
    pub node: u32,
}

/// Settings of a report, in milliseconds; 0, the default, switches it off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportSetting {
    /// A report older than this is regenerated when read.
    pub refresh_interval_ms: u32,
    /// Under pressure, waiting readers are woken if the last notification is older than this.
    pub report_threshold_ms: u32,
}

/// The settings made by readers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Bounds of reports, by node; a node without an entry has a single bin.
    pub intervals: BTreeMap<u32, Intervals>,
    /// Settings of reports; those of cgroups that are gone are forgotten.
    pub reports: BTreeMap<Scope, ReportSetting>,
}

impl Settings {
    /// The bounds of one node.
    pub fn intervals_of(&self, node: u32) -> Intervals {
        self.intervals.get(&node).cloned().unwrap_or_default()
    }
}
