// SPDX-License-Identifier: Apache-2.0
//! What to run, and the machine that takes.

use std::sync::Arc;

use thiserror::Error;

use super::super::damon::{Damon, DamonError};
use super::super::replay::{Arrangement, Replay};
use super::super::settings::{self, SettingError};
use crate::machine::config::ZoneError;
use crate::machine::device::DeviceKind;
use crate::machine::{MachineConfig, Policy, SwapConfig};
use crate::proactive::ProactivePlan;
use crate::workload::kernel_trace::TraceError;
use crate::workload::random::{XorShift64Star, ZipfError};
use crate::workload::spec::{Workload, WorkloadError};

/// Smallest `memory.max`: one charge batch for the process itself and one to work with.
pub const MIN_MEMORY_PAGES: u64 = 128;

/// A run that cannot be made.
#[derive(Debug, Error)]
pub enum RunError {
    /// The limit leaves no room to work.
    #[error(
        "memory of {pages} pages is less than {MIN_MEMORY_PAGES} (512 KiB): a process cannot run"
    )]
    TooSmall {
        /// Pages asked for.
        pages: u64,
    },
    /// A process needs more address space than there is.
    #[error("process {0} does not fit into an address space")]
    AddressSpace(String),
    /// The machine cannot have the zones given.
    #[error(transparent)]
    Zones(#[from] ZoneError),
    /// A setting is wrong.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The monitor is wrong.
    #[error(transparent)]
    Damon(#[from] DamonError),
    /// The workload is wrong.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A distribution is wrong.
    #[error(transparent)]
    Zipf(#[from] ZipfError),
    /// Something acts on the machine that a yardstick has no part in.
    #[error("{0} is a yardstick: no agent and no DAMON can act beside it")]
    Yardstick(String),
    /// A run of a yardstick accesses too much.
    #[error("more than {max} accesses: a yardstick keeps them all; make the workload shorter")]
    TooLong {
        /// How many can be.
        max: usize,
    },
    /// It was stopped from outside.
    #[error("stopped before the end")]
    Stopped,
}

/// What runs on the machine.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A workload.
    Workload(Arc<Workload>),
    /// A trace, and the order given to accesses whose real order is not known.
    Trace(Arc<Replay>, Arrangement),
}

impl Subject {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subject::Workload(workload) => &workload.name,
            Subject::Trace(replay, _) => &replay.name,
        }
    }

    /// What it stands for, in a sentence.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Subject::Workload(workload) => workload.description.clone(),
            Subject::Trace(replay, _) => replay.description(),
        }
    }

    /// Its swap unless the plan has another: the workload's own; of a trace, zram.
    #[must_use]
    pub fn swap(&self) -> Option<DeviceKind> {
        match self {
            Subject::Workload(workload) => workload.swap.parse().ok(),
            Subject::Trace(..) => Some(DeviceKind::Zram),
        }
    }

    /// `memory.max` unless the plan has another: the workload's own; of a trace, half its pages.
    ///
    /// # Errors
    /// The workload's is not a size.
    pub fn memory_pages(&self) -> Result<u64, WorkloadError> {
        match self {
            Subject::Workload(workload) => workload.pages("memory", &workload.memory),
            Subject::Trace(replay, _) => Ok((replay.footprint_pages() / 2).max(MIN_MEMORY_PAGES)),
        }
    }

    /// No less than the different pages that it accesses.
    ///
    /// # Errors
    /// A size of the workload is none.
    pub(in crate::experiment) fn footprint_pages_max(&self) -> Result<u64, WorkloadError> {
        let workload = match self {
            Subject::Workload(workload) => workload,
            // Of places in chunks, some are never accessed.
            Subject::Trace(replay, _) => return Ok(replay.footprint_pages()),
        };
        let mut pages = anon_pages(workload).saturating_add(
            workload
                .trace
                .as_ref()
                .map_or(0, |trace| u64::from(trace.pages)),
        );
        for file in &workload.file {
            // A process may have a copy for itself each time it starts.
            let copies = workload.process.iter().map(|process| {
                let own = process.area.iter().any(|area| area.own);
                u64::from(own) * u64::from(process.count) * u64::from(process.repeat)
            });
            let copies = 1 + copies.sum::<u64>();
            pages = pages.saturating_add(workload.pages("size", &file.size)? * copies);
        }
        Ok(pages)
    }
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What runs.
    pub subject: Subject,
    /// `memory.max`; [`Subject::memory_pages`] unless given.
    pub memory_pages: Option<u64>,
    /// Swap: a device or none; the workload's, or zram for a trace, unless given.
    pub swap: Option<Option<DeviceKind>>,
    /// Settings, `key=value`.
    pub settings: Vec<String>,
    /// DAMON beside the policy, `USE[:KEY=VALUE…]`.
    pub damon: Option<String>,
    /// Policy.
    pub policy: Policy,
    /// Seed.
    pub seed: u64,
    /// An agent that reclaims beside the LRU.
    pub proactive: Option<ProactivePlan>,
}

impl Plan {
    /// The monitor asked for, by the rules of the policy's kernel.
    ///
    /// # Errors
    /// What that kernel refuses.
    pub fn damon(&self) -> Result<Option<Damon>, DamonError> {
        let profile = self.policy.kernel.damon;
        let parse = |text: &String| Damon::parse(text, profile);
        self.damon.as_ref().map(parse).transpose()
    }

    /// `memory.max`: the plan's, or the subject's own.
    ///
    /// # Errors
    /// Less than a process needs, or no size.
    pub(in crate::experiment) fn limit_pages(&self) -> Result<u64, RunError> {
        let pages = match self.memory_pages {
            Some(pages) => pages,
            None => self.subject.memory_pages()?,
        };
        match pages {
            ..MIN_MEMORY_PAGES => Err(RunError::TooSmall { pages }),
            _ => Ok(pages),
        }
    }

    /// The machine it runs on.
    ///
    /// # Errors
    /// Settings, sizes or zones that are wrong.
    pub(super) fn machine_config(&self) -> Result<MachineConfig, RunError> {
        let memory_pages = self.limit_pages()?;
        let machine_pages = match &self.subject {
            Subject::Workload(workload) if workload.machine_memory.is_some() => {
                let size = workload.machine_memory.as_deref().unwrap_or_default();
                workload.pages("machine_memory", size)?
            }
            _ => memory_pages.saturating_mul(4),
        };
        let machine_pages = machine_pages.clamp(1 << 12, 1 << 30) as u32;
        let (cpus, anon_pages) = match &self.subject {
            Subject::Workload(workload) => (workload.cpus as usize, anon_pages(workload)),
            Subject::Trace(replay, _) => (1, replay.anon_pages()),
        };
        let kind = self.swap.unwrap_or_else(|| self.subject.swap());
        let swap_pages = anon_pages.saturating_add(1024).min(1 << 30) as u32;
        let mut config = MachineConfig {
            policy: self.policy,
            cpus,
            swap: kind.map(|kind| SwapConfig::new(kind, swap_pages)),
            zones: match &self.subject {
                Subject::Workload(workload) => match &workload.zones {
                    Some(zones) => Some(zones.pages(workload)?),
                    None => None,
                },
                Subject::Trace(..) => None,
            },
            seed: self.seed,
            ..MachineConfig::new(machine_pages)
        };
        let of_workload: &[String] = match &self.subject {
            Subject::Workload(workload) => &workload.settings,
            Subject::Trace(..) => &[],
        };
        let all = || of_workload.iter().chain(&self.settings);
        for setting in all() {
            settings::apply(&mut config, setting)?;
        }
        let phase_is_set = all().any(|text| text.starts_with("stat_flush_phase_us="));
        if config.stat_flush_ns > 0 && !phase_is_set {
            // Nobody knows when the timer fires first: that is part of what a seed draws.
            let mut random = XorShift64Star::new(self.seed ^ 0x5DEE_CE66_D1CE_4E5B);
            config.stat_flush_phase_ns = random.draw() % config.stat_flush_ns;
        }
        config.check_zones()?;
        Ok(config)
    }
}

/// Room for all that a workload can swap at the same time.
fn anon_pages(workload: &Workload) -> u64 {
    let of_processes: u64 = workload
        .process
        .iter()
        .flat_map(|process| {
            let copies = u64::from(process.count) * u64::from(process.forks + 1);
            process.area.iter().map(move |area| (area, copies))
        })
        .filter(|(area, _)| area.file.is_none())
        .map(|(area, copies)| workload.area_pages(area).unwrap_or(0) * copies)
        .sum();
    let of_trace = workload
        .trace
        .as_ref()
        .map_or(0, |trace| u64::from(trace.pages) + u64::from(trace.hot));
    of_processes + of_trace
}
