// SPDX-License-Identifier: Apache-2.0
//! Requests to the thread that holds budgets, and its reports.

use std::path::PathBuf;

use agewise_host::cgroup::Cgroup;
use agewise_host::guest::Guests;
use agewise_policy::budget::{Gain, KernelFirst};
use agewise_policy::proactive::{Backend, Spec};
use serde::Serialize;

use crate::observer::Key;

/// A target to hold.
#[derive(Clone, Debug)]
pub struct Held {
    /// Identifies it.
    pub key: Key,
    /// The cgroup; `None` for a process by pid.
    pub cgroup: Option<Cgroup>,
    /// Its processes: pid and start time, so that a later process with the same pid is not meant.
    pub processes: Vec<(u32, u64)>,
    /// The policy.
    pub spec: Spec,
    /// Whether nothing is moved.
    pub dry_run: bool,
    /// Where anonymous memory goes.
    pub backend: Backend,
    /// Whether clean pages of files charged to the cgroup go as well.
    pub files: bool,
    /// Whether memory of processes that run KVM guests goes as well.
    pub guests: Guests,
    /// Cgroups below it whose pages of files stay.
    pub without: Vec<PathBuf>,
}

/// Called before the first step for a target since a report of steps was taken. Returns `false` if
/// it could not be written to the journal; then nothing may be moved.
pub type Announce = Box<dyn Fn(&Held, &Begun) -> bool + Send>;

/// The same as the thread hands it on.
pub(super) type AnnounceAs<'a> = dyn Fn(&Held, &Begun) -> bool + 'a;

/// The state of a target right before it is acted on.
#[derive(Clone, Debug, Serialize)]
pub struct Begun {
    /// Memory charged to it.
    pub charged_bytes: u64,
    /// Its memory in swap.
    pub swapped_bytes: u64,
    /// Memory that the first step asks for.
    pub asked_bytes: u64,
    /// Whether memory grew faster than it was moved.
    pub behind: bool,
}

/// What was done for a target since its last report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The policy, and whether nothing was moved.
    #[serde(skip)]
    pub policy: &'static str,
    #[serde(skip)]
    pub dry_run: bool,
    /// Slices moved. Each is checked once more, and takes about 0.1 ms.
    pub steps: u64,
    /// Scans of all its memory.
    pub scans: u64,
    /// The most memory that the policy asked for at any one time: each step asks again for what has
    /// not left yet.
    pub asked_bytes: u64,
    /// Memory that was still there and untouched when its turn came.
    pub tried_bytes: u64,
    /// Memory touched since it was queued.
    pub young_again_bytes: u64,
    /// Memory that left.
    pub left_bytes: u64,
    /// The part of it that was pages of files, which were dropped.
    pub dropped_bytes: u64,
    /// An upper bound of the memory that would have left: the most that one decision found, and no
    /// more than it asked for. Each finds again what a rehearsal leaves in place.
    pub rehearsed_bytes: u64,
    /// CPU time of scans, ns.
    pub scan_cpu_ns: u64,
    /// CPU time of moving, ns.
    pub move_cpu_ns: u64,
    /// Whether memory grew faster than it was moved, so that the kernel's own reclaim had to help.
    /// Not in a rehearsal: it lets nothing go, so it would always be.
    pub behind: bool,
    /// The measured worth of the budget, if known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Gain>,
    /// How far it is, if the kernel has the limit first.
    #[serde(skip)]
    pub kernel_first: Option<KernelFirst>,
    /// The last problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

impl Report {
    /// A report about a target for which nothing was done yet.
    pub(super) fn of(held: &Held) -> Self {
        Report {
            policy: held.spec.name(),
            dry_run: held.dry_run,
            ..Report::default()
        }
    }

    /// Adds what was done later.
    pub fn add(&mut self, later: Report) {
        (self.policy, self.dry_run) = (later.policy, later.dry_run);
        self.steps += later.steps;
        self.scans += later.scans;
        self.asked_bytes = self.asked_bytes.max(later.asked_bytes);
        self.tried_bytes += later.tried_bytes;
        self.young_again_bytes += later.young_again_bytes;
        self.left_bytes += later.left_bytes;
        self.dropped_bytes += later.dropped_bytes;
        self.rehearsed_bytes = self.rehearsed_bytes.max(later.rehearsed_bytes);
        self.scan_cpu_ns += later.scan_cpu_ns;
        self.move_cpu_ns += later.move_cpu_ns;
        self.behind |= later.behind;
        self.measured = later.measured.or(self.measured.take());
        self.kernel_first = later.kernel_first;
        if later.trouble.is_some() {
            self.trouble = later.trouble;
        }
    }
}
