// SPDX-License-Identifier: Apache-2.0
//! Requests to the thread that holds budgets, and its reports.

use std::path::PathBuf;

use agewise_host::cgroup::Cgroup;
use agewise_policy::budget::Gain;
use agewise_policy::proactive::{Backend, Spec};
use serde::Serialize;

use crate::observer::Key;

/// A target to hold.
#[derive(Clone, Debug)]
pub struct Held {
    /// Names it.
    pub key: Key,
    /// The cgroup; none for a process by pid.
    pub cgroup: Option<Cgroup>,
    /// Its processes: pid and start time, so that one that is given a pid later is not meant.
    pub processes: Vec<(u32, u64)>,
    /// The policy.
    pub spec: Spec,
    /// Nothing is moved.
    pub dry_run: bool,
    /// Where anonymous memory goes.
    pub backend: Backend,
    /// Clean pages of files that are charged to the cgroup go as well,
    pub files: bool,
    /// but not of these cgroups below it.
    pub without: Vec<PathBuf>,
}

/// Called before the first step for a target since its reports were taken; `false`: it could not be
/// written down, so nothing must be moved.
pub type Announce = Box<dyn Fn(&Held, &Begun) -> bool + Send>;

/// What is about to be done for a target.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    /// Charged to it.
    pub charged_bytes: u64,
    /// In swap.
    pub swapped_bytes: u64,
    /// Asked for by the first step.
    pub asked_bytes: u64,
    /// Memory grew faster than it was moved.
    pub behind: bool,
}

/// What was done for a target since it was last asked about.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Slices moved: each is looked at once more, and goes in 0.1 ms or so.
    pub steps: u64,
    /// Scans of all its memory.
    pub scans: u64,
    /// Asked for by the policy.
    pub asked_bytes: u64,
    /// Still there and untouched when its turn came.
    pub tried_bytes: u64,
    /// Touched since it was queued.
    pub young_again_bytes: u64,
    /// Left.
    pub left_bytes: u64,
    /// Of these, pages of files, which were dropped.
    pub dropped_bytes: u64,
    /// Would have left at once, at most: pages that a rehearsal leaves are tried again by each of
    /// its steps.
    pub rehearsed_bytes: u64,
    /// CPU time of scans, ns.
    pub scan_cpu_ns: u64,
    /// CPU time of moving, ns.
    pub move_cpu_ns: u64,
    /// Memory grew faster than it was moved: the kernel's own reclaim had to help.
    pub behind: bool,
    /// What it is worth, as far as that was found out.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Gain>,
    /// What stood in the way, the last of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl Report {
    /// Adds what was done after it.
    pub fn add(&mut self, later: Report) {
        self.steps += later.steps;
        self.scans += later.scans;
        self.asked_bytes += later.asked_bytes;
        self.tried_bytes += later.tried_bytes;
        self.young_again_bytes += later.young_again_bytes;
        self.left_bytes += later.left_bytes;
        self.dropped_bytes += later.dropped_bytes;
        self.rehearsed_bytes = self.rehearsed_bytes.max(later.rehearsed_bytes);
        self.scan_cpu_ns += later.scan_cpu_ns;
        self.move_cpu_ns += later.move_cpu_ns;
        self.behind |= later.behind;
        self.measured = later.measured.or(self.measured.take());
        if later.trouble.is_some() {
            self.trouble = later.trouble;
        }
    }
}
