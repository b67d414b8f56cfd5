// SPDX-License-Identifier: Apache-2.0
//! A machine and what happens to it, as text: JSON, the machine on the first line, then a step a
//! line.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::experiment::settings;
use crate::machine::device::DeviceKind;
use crate::machine::{Limits, MachineConfig, Policy, SwapConfig, UNLIMITED};

/// The largest machine a case may have, pages: everything is looked at after each step.
const PAGES_MAX: u32 = 1 << 20;

/// The most steps of a case.
const STEPS_MAX: usize = 1_000_000;

/// A machine, and what happens to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The machine.
    pub shape: Shape,
    /// What happens, in order.
    pub steps: Vec<Step>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The policy, as `lab run` takes it.
    pub policy: String,
    /// Its frames.
    pub pages: u32,
    /// Its swap area.
    pub swap: Option<Swap>,
    /// Settings, as `--set` takes them.
    #[serde(default)]
    pub set: Vec<String>,
    /// Seed of the policy's own draws.
    pub seed: u64,
}

/// A swap area.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    /// The name of a device.
    pub device: String,
    /// Its size.
    pub pages: u32,
}

/// Limits of a cgroup, in pages; what is not named has none.
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

/// Something that happens. Groups, processes, files and ranges are numbered in the order of their
/// making, and counted round: number 7 of three is the second. So a case stays one when steps are
/// taken out of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(
    missing_docs,
    reason = "fields are numbers of what they are called, or are of the call"
)]
pub enum Step {
    /// A cgroup is made.
    Group { under: u32, bounds: Bounds },
    /// A cgroup's limits change.
    Limit { group: u32, bounds: Bounds },
    /// A cgroup's processes end, and it is removed.
    RemoveGroup { group: u32 },
    /// `memory.swappiness` of a cgroup.
    Swappiness { group: u32, value: u32 },
    /// `memory.reclaim` of a cgroup.
    Reclaim {
        group: u32,
        pages: u64,
        swappiness: Option<u32>,
    },
    /// A file is made; its cache is charged to a cgroup.
    File { group: u32, pages: u32 },
    /// A process starts in a cgroup.
    Process { group: u32 },
    /// A process forks.
    Fork { process: u32 },
    /// A process ends.
    Exit { process: u32 },
    /// A process is scheduled, on a CPU.
    Run { process: u32, cpu: u32 },
    /// A process maps anonymous memory.
    Map {
        process: u32,
        pages: u64,
        huge: bool,
        locked: bool,
    },
    /// A process maps a file.
    MapFile {
        process: u32,
        file: u32,
        exec: bool,
        shared: bool,
    },
    /// A range is unmapped.
    Unmap { process: u32, range: u32 },
    /// The memory of a range is given back.
    Discard { process: u32, range: u32 },
    /// Pages of a range are accessed.
    Touch {
        process: u32,
        range: u32,
        from: u64,
        pages: u64,
        write: bool,
    },
    /// Pages of a file are read or written through a descriptor.
    Io {
        process: u32,
        file: u32,
        from: u32,
        pages: u32,
        write: bool,
    },
    /// A file of the kernel is written; it may well refuse.
    Set { path: String, text: String },
    /// Time passes.
    Wait { us: u64 },
}

/// A text that is no case.
#[derive(Debug, Error)]
pub enum CaseError {
    /// Not even its first line.
    #[error("an empty text: the first line of a case is its machine")]
    Empty,
    /// A line that is wrong.
    #[error("line {line}: {source}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        source: serde_json::Error,
    },
    /// A machine that there cannot be.
    #[error("line 1: {0}")]
    Shape(String),
    /// More steps than anybody reads.
    #[error("more than {STEPS_MAX} steps")]
    TooLong,
}

impl Case {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with the text, and where.
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
    /// The machine to build.
    ///
    /// # Errors
    /// What it cannot have, in words.
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
        let mut config = MachineConfig {
            policy: Policy::parse(&self.policy).map_err(|error| error.to_string())?,
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
