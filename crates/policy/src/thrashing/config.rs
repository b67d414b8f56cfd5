// SPDX-License-Identifier: Apache-2.0
//! How soon to act, and how far to go.

use super::Suffering;

/// A step of the ladder, the gentlest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Name the guilty.
    Report,
    /// Lower the memory it may hold.
    Squeeze,
    /// Stop its tasks for a while.
    Freeze,
    /// Kill it.
    Kill,
}

impl Step {
    /// All, the gentlest first.
    pub const ALL: [Step; 4] = [Step::Report, Step::Squeeze, Step::Freeze, Step::Kill];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Step::Report => "report",
            Step::Squeeze => "squeeze",
            Step::Freeze => "freeze",
            Step::Kill => "kill",
        }
    }

    /// The step of a name.
    pub fn by_name(name: &str) -> Option<Step> {
        Step::ALL.into_iter().find(|step| step.name() == name)
    }
}

/// How to judge and to act.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Age below which a page belongs to the working set. 1000 removes most of what is felt as lag.
    pub min_ttl_ms: u64,
    /// The hardest step allowed.
    pub up_to: Step,
    /// Refaults of young pages per second from which a window is bad; half of it is calm.
    pub refaults_per_s: f64,
    /// Share of time all tasks waited, from which a window is bad; half of it is calm.
    pub full_share: f64,
    /// Bad windows in a row before anything is reported.
    pub bad_windows: u32,
    /// Calm windows in a row before everything is undone.
    pub calm_windows: u32,
    /// How long a step has to show its effect before the next, ms.
    pub step_ms: u64,
    /// How long the culprit stays frozen, ms.
    pub freeze_ms: u64,
    /// The share of memory that a squeeze leaves.
    pub squeeze_to: f64,
    /// And never less than this.
    pub squeeze_floor_bytes: u64,
    /// Share of all new demand for memory above which a cgroup is to blame.
    pub blame_share: f64,
    /// Shortest time between two samples that can be compared.
    pub min_window_ms: u64,
}

impl Default for Config {
    /// Names the culprit and does nothing else.
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

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("thrashing.{key} must be {expected}")]
pub struct ConfigError {
    /// Its name.
    pub key: &'static str,
    /// What would be.
    pub expected: &'static str,
}

impl Config {
    /// Checks all values.
    ///
    /// # Errors
    /// The first invalid value.
    pub fn check(&self) -> Result<(), ConfigError> {
        let share = |value: f64| value > 0.0 && value <= 1.0;
        let checks = [
            ("min_ttl_ms", self.min_ttl_ms > 0, "above 0"),
            (
                "refaults_per_s",
                self.refaults_per_s.is_finite() && self.refaults_per_s > 0.0,
                "a number above 0",
            ),
            (
                "full_share",
                share(self.full_share),
                "above 0 and at most 1",
            ),
            ("bad_windows", self.bad_windows > 0, "above 0"),
            ("calm_windows", self.calm_windows > 0, "above 0"),
            (
                "freeze_ms",
                (1..=60_000).contains(&self.freeze_ms),
                "1 to 60000",
            ),
            (
                "squeeze_to",
                self.squeeze_to >= 0.1 && self.squeeze_to < 1.0,
                "from 0.1 to below 1",
            ),
            (
                "blame_share",
                share(self.blame_share),
                "above 0 and at most 1",
            ),
            ("min_window_ms", self.min_window_ms > 0, "above 0"),
        ];
        match checks.into_iter().find(|(_, holds, _)| !holds) {
            Some((key, _, expected)) => Err(ConfigError { key, expected }),
            None => Ok(()),
        }
    }

    /// The steps in their order. Reporting comes with every step and is one of its own only if it is
    /// the last.
    pub fn ladder(&self) -> &'static [Step] {
        match self.up_to {
            Step::Report => &[Step::Report],
            Step::Squeeze => &[Step::Squeeze],
            Step::Freeze => &[Step::Squeeze, Step::Freeze],
            Step::Kill => &[Step::Squeeze, Step::Freeze, Step::Kill],
        }
    }

    /// Young pages come back, and all tasks wait for them. Without PSI, twice the refaults are
    /// required.
    pub(super) fn is_bad(&self, suffering: &Suffering) -> bool {
        let refaults = suffering.young_refaults_per_s;
        match suffering.full_share {
            Some(share) => refaults >= self.refaults_per_s && share >= self.full_share,
            None => refaults >= self.refaults_per_s * 2.0,
        }
    }

    /// Well below what is bad, so that a guard does not oscillate.
    pub(super) fn is_calm(&self, suffering: &Suffering) -> bool {
        let few = suffering.young_refaults_per_s < self.refaults_per_s / 2.0;
        few || suffering
            .full_share
            .is_some_and(|share| share < self.full_share / 2.0)
    }

    /// What a squeeze leaves of `bytes`.
    pub(super) fn squeezed(&self, bytes: u64) -> u64 {
        ((bytes as f64 * self.squeeze_to) as u64).max(self.squeeze_floor_bytes)
    }
}
