// SPDX-License-Identifier: Apache-2.0
//! What to run, and the machine it needs.

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

/// Largest machine (256 GiB): simulating a page takes up to 64 bytes, so one of this size takes 4
/// GiB.
pub const MAX_MACHINE_PAGES: u64 = 1 << 26;

/// Most pages of a trace whose memory is derived from them: half of them, in a machine four times
/// as large as that.
const MAX_DERIVING_PAGES: u64 = MAX_MACHINE_PAGES / 2;

/// A run that is not possible.
#[derive(Debug, Error)]
pub enum RunError {
    #[error(
        "memory of {pages} pages is less than {MIN_MEMORY_PAGES} (512 KiB): a process cannot run"
    )]
    TooSmall { pages: u64 },
    #[error(
        "memory of {pages} pages is more than the largest machine has, {MAX_MACHINE_PAGES} (256 \
         GiB): make it smaller, or sample the trace (agewise trace sample)"
    )]
    TooLarge { pages: u64 },
    /// The trace is too large for a memory derived from it.
    #[error(
        "no size of memory is given, and none is derived from a trace of over {MAX_DERIVING_PAGES} \
         different pages (this one has {pages}): give one (--memory), or sample the trace (agewise \
         trace sample)"
    )]
    NoMemory {
        /// Different pages of the trace.
        pages: u64,
    },
    #[error("process {0} does not fit into an address space")]
    AddressSpace(String),
    #[error(transparent)]
    Zones(#[from] ZoneError),
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(transparent)]
    Damon(#[from] DamonError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Zipf(#[from] ZipfError),
    /// An agent or DAMON was asked for beside a yardstick.
    #[error("{0} is a yardstick: no agent and no DAMON can act beside it")]
    Yardstick(String),
    /// A yardstick of another crate could not count to the end.
    #[error("{0}")]
    Policy(String),
    #[error("more than {max} accesses: a yardstick keeps them all; make the workload shorter")]
    TooLong { max: usize },
    #[error("stopped before the end")]
    Stopped,
}

/// What runs on the machine.
#[derive(Clone, Debug)]
pub enum Subject {
    Workload(Arc<Workload>),
    /// A trace, and the order of accesses whose real order is unknown.
    Trace(Arc<Replay>, Arrangement),
}

impl Subject {
    /// Name of the subject.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Subject::Workload(workload) => &workload.name,
            Subject::Trace(replay, _) => &replay.name,
        }
    }

    /// Description in one sentence.
    #[must_use]
    pub fn description(&self) -> String {
        match self {
            Subject::Workload(workload) => workload.description.clone(),
            Subject::Trace(replay, _) => replay.description(),
        }
    }

    /// Remarks about the trace, such as that its file was truncated.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match self {
            Subject::Workload(_) => &[],
            Subject::Trace(replay, _) => &replay.notes,
        }
    }

    /// Whether it is a trace that does not record the order of the accesses inside an interval.
    #[must_use]
    pub fn has_unknown_order(&self) -> bool {
        matches!(self, Subject::Trace(replay, _) if replay.order_unknown)
    }

    /// Default swap device: the workload's own; zram for a trace.
    #[must_use]
    pub fn swap(&self) -> Option<DeviceKind> {
        match self {
            Subject::Workload(workload) => workload.swap.parse().ok(),
            Subject::Trace(..) => Some(DeviceKind::Zram),
        }
    }

    /// Default of `memory.max`, in pages: the workload's own; half the pages of a trace.
    ///
    /// # Errors
    /// Fails if the workload's value is not a size.
    pub fn memory_pages(&self) -> Result<u64, WorkloadError> {
        match self {
            Subject::Workload(workload) => workload.pages("memory", &workload.memory),
            Subject::Trace(replay, _) => Ok((replay.footprint_pages() / 2).max(MIN_MEMORY_PAGES)),
        }
    }

    /// An upper bound of the number of different pages it accesses.
    ///
    /// # Errors
    /// Fails if a size in the workload is invalid.
    pub(in crate::experiment) fn footprint_pages_max(&self) -> Result<u64, WorkloadError> {
        let workload = match self {
            Subject::Workload(workload) => workload,
            // Counts pages, not places in chunks, some of which are never accessed.
            Subject::Trace(replay, _) => return Ok(replay.footprint_pages()),
        };
        let mut pages = anon_pages(workload).saturating_add(
            workload
                .trace
                .as_ref()
                .map_or(0, |trace| u64::from(trace.pages)),
        );
        for file in &workload.file {
            // Each start of a process may have a copy of the file of its own.
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

/// One run: subject, machine, policy and seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The workload or trace.
    pub subject: Subject,
    /// `memory.max`; None for [`Subject::memory_pages`].
    pub memory_pages: Option<u64>,
    /// Swap device, or `Some(None)` for no swap; None for the workload's own, or zram for a trace.
    pub swap: Option<Option<DeviceKind>>,
    /// Settings as `key=value`.
    pub settings: Vec<String>,
    /// DAMON beside the policy, as `USE[:KEY=VALUE…]`.
    pub damon: Option<String>,
    pub policy: Policy,
    pub seed: u64,
    /// An agent that reclaims beside the kernel, if any.
    pub proactive: Option<ProactivePlan>,
}

impl Plan {
    /// A run of a workload with its own memory and swap, without settings, monitor and agent.
    pub fn of(workload: impl Into<Arc<Workload>>, policy: Policy, seed: u64) -> Plan {
        Plan {
            subject: Subject::Workload(workload.into()),
            memory_pages: None,
            swap: None,
            settings: Vec::new(),
            damon: None,
            policy,
            seed,
            proactive: None,
        }
    }

    /// The monitor that was asked for, by the rules of the policy's kernel.
    ///
    /// # Errors
    /// Fails where that kernel would refuse it.
    pub fn damon(&self) -> Result<Option<Damon>, DamonError> {
        let profile = self.policy.kernel.damon;
        let parse = |text: &String| Damon::parse(text, profile);
        self.damon.as_ref().map(parse).transpose()
    }

    /// `memory.max` of the plan or of the subject, in pages.
    ///
    /// # Errors
    /// Fails if it is invalid or less than a process needs.
    pub(in crate::experiment) fn limit_pages(&self) -> Result<u64, RunError> {
        if let (None, Subject::Trace(replay, _)) = (self.memory_pages, &self.subject) {
            check_deriving(replay.footprint_pages())?;
        }
        let pages = match self.memory_pages {
            Some(pages) => pages,
            None => self.subject.memory_pages()?,
        };
        match pages {
            ..MIN_MEMORY_PAGES => Err(RunError::TooSmall { pages }),
            MIN_MEMORY_PAGES..=MAX_MACHINE_PAGES => Ok(pages),
            _ => Err(RunError::TooLarge { pages }),
        }
    }

    /// The configuration of the machine.
    ///
    /// # Errors
    /// Fails if settings, sizes or zones are invalid.
    pub(super) fn machine_config(&self) -> Result<MachineConfig, RunError> {
        let memory_pages = self.limit_pages()?;
        let machine_pages = match &self.subject {
            Subject::Workload(workload) if workload.machine_memory.is_some() => {
                let size = workload.machine_memory.as_deref().unwrap_or_default();
                workload.pages("machine_memory", size)?
            }
            _ => memory_pages.saturating_mul(4),
        };
        let machine_pages = machine_pages.clamp(1 << 12, MAX_MACHINE_PAGES) as u32;
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
                    Some(zones) => Some(vec![zones.pages(workload)?]),
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
        let all = || in_order(of_workload).chain(in_order(&self.settings));
        for setting in all() {
            settings::apply(&mut config, setting)?;
        }
        let phase_is_set = all().any(|text| text.starts_with("stat_flush_phase_us="));
        if config.stat_flush_ns > 0 && !phase_is_set {
            // When the timer first fires is unknown in practice, so the seed decides.
            let mut random = XorShift64Star::new(self.seed ^ 0x5DEE_CE66_D1CE_4E5B);
            config.stat_flush_phase_ns = random.draw() % config.stat_flush_ns;
        }
        config.check_zones()?;
        Ok(config)
    }
}

/// Settings given together in the order in which they are applied: a device first, since it
/// replaces what others change of it, and sweeps give settings in the order of their names.
fn in_order(settings: &[String]) -> impl Iterator<Item = &String> {
    let of = move |device: bool| {
        let settings = settings.iter();
        settings.filter(move |text| text.starts_with("file_device=") == device)
    };
    of(true).chain(of(false))
}

/// Whether the memory for a trace of this many different pages can be derived from them.
fn check_deriving(pages: u64) -> Result<(), RunError> {
    match pages {
        ..=MAX_DERIVING_PAGES => Ok(()),
        _ => Err(RunError::NoMemory { pages }),
    }
}

/// Most anonymous pages that a workload can have at the same time, all of which may be swapped out.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::library;

    #[test]
    fn a_device_does_not_undo_what_is_set_of_it() {
        let config = |settings: [&str; 2]| {
            let plan = Plan {
                settings: settings.map(str::to_owned).to_vec(),
                ..Plan::of(library::find("kv").unwrap(), Policy::default(), 1)
            };
            plan.machine_config().unwrap().file_device
        };
        for setting in ["file_channels=3", "file_bandwidth=1M", "file_page_us=7"] {
            let expected = config(["file_device=hdd", setting]);
            assert_ne!(expected, DeviceKind::Hdd.model());
            assert_eq!(config([setting, "file_device=hdd"]), expected);
        }
        let last = config(["file_device=hdd", "file_device=pmem"]);
        assert_eq!(last, DeviceKind::Pmem.model());
    }

    #[test]
    fn memory_is_not_derived_from_a_huge_trace() {
        assert!(check_deriving(1 << 25).is_ok());
        let error = check_deriving((1 << 25) + 1).unwrap_err().to_string();
        assert!(error.contains("over 33554432 different pages"), "{error}");
        assert!(error.contains("--memory"), "{error}");
    }
}
