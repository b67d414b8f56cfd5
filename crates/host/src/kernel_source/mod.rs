// SPDX-License-Identifier: Apache-2.0
//! Access sources inside the kernel: DAMON's regions, and the generations of the multi-gen LRU.
//! They do not report single pages, so they are not an
//! [`AccessSource`](crate::access::AccessSource): they return a histogram, coarser than that from
//! page tables, and each reports how coarse.

mod damon;
mod frames;
mod generations;
mod monitor;
mod physical;
mod regions;

use agewise_policy::workingset::{Intervals, OldestPages};

use crate::agent::{Subject, SubjectReport, Targets};
use crate::cgroup::CgroupError;
use crate::damon::{Availability, Damon, DamonError};
use crate::error::FileError;
use crate::lru_gen::CommandError;
use crate::process::ProcessError;
use crate::root::Roots;

pub use damon::{DamonSource, PROCESSES_MAX};
pub(crate) use frames::FILES as FRAME_FILES;
pub use generations::GenerationSource;
pub use physical::PhysicalSource;

/// The granularity of a kernel source, which determines the report fields it can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Processes: reports how many there are, and how much of them is in swap.
    Processes,
    /// Memory cgroups, regardless of their processes.
    Cgroups,
}

/// A part of the kernel that keeps ages of memory.
pub trait KernelSource {
    /// Its name on the command line and in output.
    fn name(&self) -> &'static str;

    /// The unit it reports on.
    fn unit(&self) -> Unit;

    /// How long before a look it has to be [prepared](Self::prepare), in ms, longest first.
    fn lead_times_ms(&self) -> &[u64] {
        &[]
    }

    /// Prepares for a look some time before it.
    ///
    /// # Errors
    /// See [`KernelSourceError`].
    fn prepare(&mut self) -> Result<(), KernelSourceError> {
        Ok(())
    }

    /// The current ages of all targets. Not every source knows all fields of a report.
    ///
    /// # Errors
    /// See [`KernelSourceError`]. A missing target is reported in its own entry.
    fn look(&mut self) -> Result<Vec<SubjectReport>, KernelSourceError>;

    /// Sentences on how coarse the last look was, and what it leaves out.
    fn caveats(&self) -> Vec<String>;

    /// CPU time used so far, by the kernel and by agewise, in ns.
    fn cpu_ns(&self) -> u64;
}

/// Starts DAMON on targets: on the virtual memory of their processes if this kernel's DAMON
/// supports it; otherwise, and for all cgroups of the machine, on physical memory.
///
/// # Errors
/// The errors of [`DamonSource::start`] and [`PhysicalSource::start`].
pub fn start_damon(
    roots: Roots,
    targets: &Targets,
    intervals: Intervals,
    oldest: OldestPages,
) -> Result<Box<dyn KernelSource>, KernelSourceError> {
    let is_process = |subject: &Subject| matches!(subject, Subject::Process { .. });
    let by_process = match targets {
        Targets::Listed(subjects) if subjects.iter().any(is_process) => true,
        Targets::Listed(_) => match Damon::new(roots.sys.clone()).probe() {
            Availability::Free(offer) => offer.has("vaddr") || !offer.has("paddr"),
            // Starting it reports what is wrong.
            _ => true,
        },
        _ => false,
    };
    Ok(match by_process {
        true => Box::new(DamonSource::start(roots, targets, intervals, oldest)?),
        false => Box::new(PhysicalSource::start(roots, targets, intervals, oldest)?),
    })
}

/// Why a kernel source cannot be used, or stopped working.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelSourceError {
    #[error(transparent)]
    Damon(#[from] DamonError),
    #[error("{found} processes, but at most {PROCESSES_MAX} at a time for DAMON: name fewer")]
    TooManyProcesses {
        /// How many processes there are.
        found: usize,
    },
    #[error(
        "the kernel keeps generations by memory cgroup, not by process: name the cgroup of process \
         {pid} instead ({hint})"
    )]
    NoProcesses {
        pid: u32,
        /// Its cgroup as an argument, or where to find it.
        hint: String,
    },
    #[error("{what}")]
    Targets {
        /// The reason, and what to do.
        what: &'static str,
    },
    #[error("this kernel has no multi-gen LRU (CONFIG_LRU_GEN, since Linux 6.1)")]
    NoGenerations,
    /// The multi-gen LRU is switched off, so its generations are empty.
    #[error(
        "the multi-gen LRU is built in and switched off: echo y > /sys/kernel/mm/lru_gen/enabled"
    )]
    SwitchedOff,
    #[error(
        "the generations cannot be read: {0}; needs root and debugfs (mount -t debugfs debugfs \
         /sys/kernel/debug)"
    )]
    NoDebugfs(#[source] FileError),
    #[error(
        "the kernel lists no generations of cgroup {path}: it accounts no memory there, or the \
         hierarchy is seen from within a container"
    )]
    NotListed { path: String },
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    #[error(transparent)]
    File(#[from] FileError),
}
