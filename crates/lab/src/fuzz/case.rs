// SPDX-License-Identifier: Apache-2.0
//! A machine and a list of steps as text: JSON, with the machine on the first line, then one step
//! per line.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::experiment::settings;
use crate::machine::device::DeviceKind;
use crate::machine::profile_file;
use crate::machine::{Limits, MachineConfig, Policy, SwapConfig, UNLIMITED};

/// Limit on the size of a case's machine, in pages: everything is checked after each step.
const PAGES_MAX: u32 = 1 << 20;

/// Limit on the steps of a case.
const STEPS_MAX: usize = 1_000_000;

/// A machine, and the steps it goes through.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The machine.
    pub shape: Shape,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

/// Configuration of a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The policy, as in `lab run`.
    pub policy: String,
    /// Lines of a profile that change its kernel.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub profile: Vec<String>,
    /// Page frames.
    pub pages: u32,
    /// Swap area, if any.
    pub swap: Option<Swap>,
    /// Settings, as in `--set`.
    #[serde(default)]
    pub set: Vec<String>,
    /// Seed of the policy's own random draws.
    pub seed: u64,
}

/// A swap area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// The name of a device.
    pub device: String,
    /// Size in pages.
    pub pages: u32,
}

/// Limits of a cgroup, in pages; a limit left out is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bounds {
    /// `memory.min`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<u64>,
    /// `memory.low`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<u64>,
    /// `memory.high`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<u64>,
    /// `memory.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
    /// `memory.swap.max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_max: Option<u64>,
}

/// One step. Groups, processes, files and ranges are numbered in the order they are created.
/// Numbers wrap around: number 7 of three is the second. A case therefore stays valid when steps
/// are removed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "fields are numbers of what they are called, or are of the call"
)]
pub enum Step {
    /// Creates a cgroup.
    Group { under: u32, bounds: Bounds },
    /// Changes the limits of a cgroup.
    Limit { group: u32, bounds: Bounds },
    /// Ends the processes of a cgroup and removes it.
    RemoveGroup { group: u32 },
    /// Writes `memory.swappiness` of a cgroup.
    Swappiness { group: u32, value: u32 },
    /// Writes `memory.reclaim` of a cgroup.
    Reclaim {
        group: u32,
        pages: u64,
        swappiness: Option<u32>,
    },
    /// Creates a file; its cache is charged to a cgroup.
    File { group: u32, pages: u32 },
    /// Starts a process in a cgroup.
    Process { group: u32 },
    /// Forks a process.
    Fork { process: u32 },
    /// Ends a process.
    Exit { process: u32 },
    /// Schedules a process on a CPU.
    Run { process: u32, cpu: u32 },
    /// Maps anonymous memory into a process.
    Map {
        process: u32,
        pages: u64,
        huge: bool,
        locked: bool,
    },
    /// Maps a file into a process.
    MapFile {
        process: u32,
        file: u32,
        exec: bool,
        shared: bool,
    },
    /// Unmaps a range.
    Unmap { process: u32, range: u32 },
    /// Frees the memory of a range.
    Discard { process: u32, range: u32 },
    /// Accesses pages of a range.
    Touch {
        process: u32,
        range: u32,
        from: u64,
        pages: u64,
        write: bool,
    },
    /// Reads or writes pages of a file through a descriptor.
    Io {
        process: u32,
        file: u32,
        from: u32,
        pages: u32,
        write: bool,
    },
    /// Writes a kernel file; the kernel may refuse.
    Set { path: String, text: String },
    /// Lets time pass.
    Wait { us: u64 },
}

/// A text that is not a valid case.
#[derive(Debug, Error)]
pub enum CaseError {
    /// The text is empty.
    #[error("an empty text: the first line of a case is its machine")]
    Empty,
    /// A line is invalid.
    #[error("line {line}: {source}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The error, in words.
        source: serde_json::Error,
    },
    /// The machine is not possible.
    #[error("line 1: {0}")]
    Shape(String),
    /// There are more steps than the limit.
    #[error("more than {STEPS_MAX} steps")]
    TooLong,
}

impl Case {
    /// Parses a case.
    ///
    /// # Errors
    /// Says what is wrong with the text, and where.
    pub fn parse(text: &str) -> Result<Case, CaseError> {
        let mut lines = text
            .lines()
            .zip(1..)
            .filter(|(line, _)| !line.trim().is_empty());
        let wrong = |line| move |source| CaseError::Line { line, source };
        let (first, line) = lines.next().ok_or(CaseError::Empty)?;
        let shape: Shape = serde_json::from_str(first).map_err(wrong(line))?;
        shape.config().map_err(CaseError::Shape)?;
        let mut steps = Vec::new();
        for (text, line) in lines {
            if steps.len() == STEPS_MAX {
                return Err(CaseError::TooLong);
            }
            steps.push(serde_json::from_str(text).map_err(wrong(line))?);
        }
        Ok(Case { shape, steps })
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let failed = |_| std::fmt::Error;
        let shape = serde_json::to_string(&self.shape).map_err(failed)?;
        writeln!(out, "{shape}")?;
        for step in &self.steps {
            writeln!(out, "{}", serde_json::to_string(step).map_err(failed)?)?;
        }
        Ok(())
    }
}

impl Shape {
    /// The configuration of the machine.
    ///
    /// # Errors
    /// Describes what the machine cannot have.
    pub(super) fn config(&self) -> Result<MachineConfig, String> {
        if !(256..=PAGES_MAX).contains(&self.pages) {
            return Err(format!("{} pages are not 256 to {PAGES_MAX}", self.pages));
        }
        let swap = match &self.swap {
            None => None,
            Some(swap) => {
                let kind = swap.device.parse::<DeviceKind>();
                let kind = kind.map_err(|error| error.to_string())?;
                if !(1..=PAGES_MAX).contains(&swap.pages) {
                    return Err(format!("{} pages of swap", swap.pages));
                }
                Some(SwapConfig::new(kind, swap.pages))
            }
        };
        let mut policy = Policy::parse(&self.policy).map_err(|error| error.to_string())?;
        if !self.profile.is_empty() {
            let lines = self.profile.join("\n");
            let changed = profile_file::changed(policy.kernel.name(), &lines)?;
            policy.kernel = changed.unwrap_or(policy.kernel);
        }
        let mut config = MachineConfig {
            policy,
            swap,
            seed: self.seed,
            ..MachineConfig::new(self.pages)
        };
        for setting in &self.set {
            settings::apply(&mut config, setting).map_err(|error| error.to_string())?;
        }
        config.check_zones().map_err(|error| error.to_string())?;
        Ok(config)
    }
}

impl Bounds {
    pub(super) fn limits(&self) -> Limits {
        Limits {
            min_pages: self.min.unwrap_or(0),
            low_pages: self.low.unwrap_or(0),
            high_pages: self.high.unwrap_or(UNLIMITED),
            max_pages: self.max.unwrap_or(UNLIMITED),
            swap_max_pages: self.swap_max.unwrap_or(UNLIMITED),
        }
    }
}
