// SPDX-License-Identifier: Apache-2.0
//! Requests to the thread that holds budgets, and its reports.

use agewise_host::cgroup::Cgroup;
use agewise_policy::budget::{Gain, Verdict};
use agewise_policy::proactive::{Backend, Spec};
use serde::Serialize;

use crate::observer::Key;
use crate::state::{BudgetChange, BudgetGain};

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
    /// Would have left.
    pub rehearsed_bytes: u64,
    /// CPU time of scans, ns.
    pub scan_cpu_ns: u64,
    /// CPU time of moving, ns.
    pub move_cpu_ns: u64,
    /// Memory grew faster than it was moved: the kernel's own reclaim had to help.
    pub behind: bool,
    /// What it is worth, as far as that was found out.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    /// What stood in the way, the last of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// What holding the budget changes against the kernel alone, for the same work of the program: each
/// with half of its 95 % interval; -0.2 is a fifth less.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// `pays`, `open`, or `back`: the kernel alone holds the limit for now.
    pub verdict: &'static str,
    /// Pairs of epochs that were compared.
    pub pairs: usize,
    /// Major faults.
    pub faults_change: f64,
    /// Half of its interval.
    pub faults_change_half: f64,
    /// CPU time, ours included.
    pub cpu_change: f64,
    /// Half of its interval.
    pub cpu_change_half: f64,
    /// CPU time and waiting for memory together.
    pub time_change: f64,
    /// Half of its interval.
    pub time_change_half: f64,
}

impl Measured {
    /// Of what the epochs say.
    pub(super) fn of(verdict: Verdict, gain: &Gain) -> Self {
        Measured {
            verdict: match verdict {
                Verdict::Open => "open",
                Verdict::Pays => "pays",
                Verdict::Back { .. } => "back",
            },
            pairs: gain.pairs,
            faults_change: gain.faults.mean,
            faults_change_half: gain.faults.half,
            cpu_change: gain.cpu.mean,
            cpu_change_half: gain.cpu.half,
            time_change: gain.time.mean,
            time_change_half: gain.time.half,
        }
    }

    /// The same for snapshots, which hold finite numbers only.
    pub fn gain(&self) -> BudgetGain {
        BudgetGain {
            is_stepped_back: self.verdict == "back",
            pairs: self.pairs,
            faults: change(self.faults_change, self.faults_change_half),
            cpu: change(self.cpu_change, self.cpu_change_half),
        }
    }
}

/// Beyond this the kernel alone took next to nothing: a ratio to that says nothing.
const CHANGE_MAX: f64 = 1e6;

fn change(mean: f64, half: f64) -> Option<BudgetChange> {
    let is_told = mean.abs() < CHANGE_MAX && half.abs() < CHANGE_MAX;
    is_told.then_some(BudgetChange { mean, half })
}

impl Report {
    /// Adds what was done after it.
    pub(super) fn add(&mut self, later: Report) {
        self.steps += later.steps;
        self.scans += later.scans;
        self.asked_bytes += later.asked_bytes;
        self.tried_bytes += later.tried_bytes;
        self.young_again_bytes += later.young_again_bytes;
        self.left_bytes += later.left_bytes;
        self.rehearsed_bytes += later.rehearsed_bytes;
        self.scan_cpu_ns += later.scan_cpu_ns;
        self.move_cpu_ns += later.move_cpu_ns;
        self.behind |= later.behind;
        self.measured = later.measured.or(self.measured.take());
        if later.trouble.is_some() {
            self.trouble = later.trouble;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Infinite and undefined ratios would not survive JSON on their way to the serving process.
    #[test]
    fn snapshots_hold_finite_changes_only() {
        let measured = |mean, half| Measured {
            verdict: "back",
            pairs: 4,
            faults_change: mean,
            faults_change_half: half,
            cpu_change: -0.1,
            cpu_change_half: 0.02,
            time_change: 0.0,
            time_change_half: 0.0,
        };
        let told = measured(-0.2, 0.05).gain();
        let faults = BudgetChange {
            mean: -0.2,
            half: 0.05,
        };
        assert_eq!((told.is_stepped_back, told.faults), (true, Some(faults)));
        for (mean, half) in [
            (f64::INFINITY, 1.0),
            (1.0, f64::INFINITY),
            (f64::NAN, f64::NAN),
            (3e9, 1e9),
        ] {
            let gain = measured(mean, half).gain();
            assert_eq!(gain.faults, None);
            let mut text = Vec::new();
            agewise_cli::output::json(&mut text, &gain).unwrap();
            assert_eq!(serde_json::from_slice::<BudgetGain>(&text).unwrap(), gain);
        }
    }
}
