// SPDX-License-Identifier: Apache-2.0
//! How soon to act, and how far to go.

use super::Suffering;

/// A step of the ladder, gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Report the culprit.
    Report,
    /// Limit its memory.
    Squeeze,
    /// Stop its tasks for a while.
    Freeze,
    /// Kill it.
    Kill,
}

/// How to judge and to act.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// A page accessed more recently than this belongs to the working set. 1000 removes most
    /// noticeable lag.
    pub min_ttl_ms: u64,
    /// The hardest step allowed.
    pub up_to: Step,
    /// Refaults of young pages per second that make a window bad; below half of it, the window is
    /// calm. Whoever demands fewer pages than these is not to blame.
    pub refaults_per_s: f64,
    /// Share of time in which all tasks waited that makes a window bad; below half of it, the
    /// window is calm.
    pub full_share: f64,
    /// Bad windows in a row before anything is reported.
    pub bad_windows: u32,
    /// Calm windows in a row before everything is undone.
    pub calm_windows: u32,
    /// How long a step may take to show its effect before the next one, ms.
    pub step_ms: u64,
    /// How long the culprit stays frozen, ms.
    pub freeze_ms: u64,
    /// The share of its memory that a squeeze leaves to a cgroup.
    pub squeeze_to: f64,
    /// A squeeze never leaves less than this.
    pub squeeze_floor_bytes: u64,
    /// Share of all new demand for memory from which on a cgroup is to blame.
    pub blame_share: f64,
    /// Shortest time between two samples that can be compared, ms.
    pub min_window_ms: u64,
}

impl Default for Config {
    /// Only reports the culprit.
    fn default() -> Self {
        Config {
            min_ttl_ms: 1000,
            up_to: Step::Report,
            refaults_per_s: 100.0,
            full_share: 0.1,
            bad_windows: 3,
            calm_windows: 10,
            step_ms: 5000,
            freeze_ms: 10_000,
            squeeze_to: 0.8,
            squeeze_floor_bytes: 64 << 20,
            blame_share: 0.25,
            min_window_ms: 100,
        }
    }
}

impl Config {
    /// The steps in their order. Every step includes a report; reporting is a step of its own only
    /// if nothing else is allowed.
    pub fn ladder(&self) -> &'static [Step] {
        match self.up_to {
            Step::Report => &[Step::Report],
            Step::Squeeze => &[Step::Squeeze],
            Step::Freeze => &[Step::Squeeze, Step::Freeze],
            Step::Kill => &[Step::Squeeze, Step::Freeze, Step::Kill],
        }
    }

    /// Whether young pages come back and all tasks wait for them. Without PSI, twice as many
    /// refaults are required.
    pub(super) fn is_bad(&self, suffering: &Suffering) -> bool {
        let refaults = suffering.young_refaults_per_s;
        match suffering.full_share {
            Some(share) => refaults >= self.refaults_per_s && share >= self.full_share,
            None => refaults >= self.refaults_per_s * 2.0,
        }
    }

    /// Whether the window is well below bad, so that the guard does not oscillate.
    pub(super) fn is_calm(&self, suffering: &Suffering) -> bool {
        let few = suffering.young_refaults_per_s < self.refaults_per_s / 2.0;
        few || suffering
            .full_share
            .is_some_and(|share| share < self.full_share / 2.0)
    }

    /// How much a squeeze leaves of `bytes`.
    pub(super) fn squeezed(&self, bytes: u64) -> u64 {
        ((bytes as f64 * self.squeeze_to) as u64).max(self.squeeze_floor_bytes)
    }
}
