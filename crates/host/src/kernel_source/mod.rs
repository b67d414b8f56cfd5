// SPDX-License-Identifier: Apache-2.0
//! Access sources in the kernel: DAMON's regions, and the generations of the multi-gen LRU. They
//! know no single pages, so they are not an [`AccessSource`](crate::access::AccessSource): they
//! return a histogram, coarser than that of page tables, and each reports how coarse.

mod damon;
mod frames;
mod generations;
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

/// What a kernel source distinguishes, and so which fields of a report it can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Processes: how many there are, and how much of them is in swap.
    Processes,
    /// Memory cgroups, whatever processes they have.
    Cgroups,
}

/// Something in the kernel that knows how old memory is.
pub trait KernelSource {
    /// Its name on the command line and in output.
    fn name(&self) -> &'static str;

    /// What it distinguishes.
    fn unit(&self) -> Unit;

    /// How long before a look it has to be [prepared](Self::prepare), ms, longest first.
    fn lead_times_ms(&self) -> &[u64] {
        &[]
    }

    /// Does what must be done some time before a look.
    ///
    /// # Errors
    /// See [`KernelSourceError`].
    fn prepare(&mut self) -> Result<(), KernelSourceError> {
        Ok(())
    }

    /// The ages of all targets as of now. Not all fields of a report are known to every source.
    ///
    /// # Errors
    /// See [`KernelSourceError`]. A missing target is reported by the target itself.
    fn look(&mut self) -> Result<Vec<SubjectReport>, KernelSourceError>;

    /// How coarse the last look was, and what it leaves out: sentences.
    fn caveats(&self) -> Vec<String>;

    /// CPU time that it cost so far, the kernel's own and ours, in ns.
    fn cpu_ns(&self) -> u64;
}

/// Starts DAMON on targets: by the virtual memory of their processes where this kernel's DAMON
/// watches that; else, and for all cgroups of the machine, by physical memory.
///
/// # Errors
/// Those of [`DamonSource::start`] and [`PhysicalSource::start`].
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
            // What is wrong is said when it is started.
            _ => true,
        },
        _ => false,
    };
    Ok(match by_process {
        true => Box::new(DamonSource::start(roots, targets, intervals, oldest)?),
        false => Box::new(PhysicalSource::start(roots, targets, intervals, oldest)?),
    })
}

/// A source of the kernel's cannot be used, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelSourceError {
    /// DAMON.
    #[error(transparent)]
    Damon(#[from] DamonError),
    /// More processes than a monitor can watch.
    #[error("{found} processes, but at most {PROCESSES_MAX} at a time for DAMON: name fewer")]
    TooManyProcesses {
        /// How many there are.
        found: usize,
    },
    /// Generations belong to cgroups.
    #[error(
        "the kernel keeps generations by memory cgroup, not by process: name the cgroup of process \
         {pid} instead ({hint})"
    )]
    NoProcesses {
        /// The process asked for.
        pid: u32,
        /// Its cgroup as an argument, or where to find it.
        hint: String,
    },
    /// The targets cannot be named to this source.
    #[error("{what}")]
    Targets {
        /// What is wrong, and what to do.
        what: &'static str,
    },
    /// The kernel was built without the multi-gen LRU.
    #[error("this kernel has no multi-gen LRU (CONFIG_LRU_GEN, since Linux 6.1)")]
    NoGenerations,
    /// It does not decide now, so its generations are empty.
    #[error(
        "the multi-gen LRU is built in and switched off: echo y > /sys/kernel/mm/lru_gen/enabled"
    )]
    SwitchedOff,
    /// The file of debugfs.
    #[error(
        "the generations cannot be read: {0}; needs root and debugfs (mount -t debugfs debugfs \
         /sys/kernel/debug)"
    )]
    NoDebugfs(#[source] FileError),
    /// A cgroup is not in the kernel's list.
    #[error(
        "the kernel lists no generations of cgroup {path}: it accounts no memory there, or the \
         hierarchy is seen from within a container"
    )]
    NotListed {
        /// Its path.
        path: String,
    },
    /// Aging was refused.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A process.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Any other file.
    #[error(transparent)]
    File(#[from] FileError),
}
