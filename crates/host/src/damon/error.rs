// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with the kernel's DAMON.

use super::Owner;
use crate::error::FileError;

/// A monitor could not be set up, or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    /// No interface.
    #[error(
        "this kernel has no /sys/kernel/mm/damon: it needs CONFIG_DAMON_SYSFS (Linux 5.18) and root"
    )]
    Missing,
    /// Somebody else runs it.
    #[error(
        "DAMON is in use by {owner}; it has one owner at a time, and agewise never interferes: stop \
         it where it was started, or use another source (--source pagewalk)"
    )]
    Owned {
        /// Who.
        owner: Owner,
    },
    /// The address space is not supported by this build of the kernel.
    #[error(
        "this kernel's DAMON cannot watch '{wanted}' (it offers: {offered}): {}",
        without(wanted)
    )]
    NoOperations {
        /// `vaddr` or `paddr`.
        wanted: &'static str,
        /// What `avail_operations` lists.
        offered: String,
    },
    /// A file the setup needs does not exist on this kernel.
    #[error("{what} needs Linux {since} or later: this kernel has no {file}")]
    TooOld {
        /// The part of the setup.
        what: &'static str,
        /// First kernel that has it.
        since: &'static str,
        /// The missing file, relative to its directory.
        file: String,
    },
    /// A filter by memory cgroup that is not a path.
    #[error(
        "a DAMON filter by memory cgroup names it by number, which means something in the lab only; \
         watch the processes of the cgroup instead"
    )]
    MemcgFilter,
    /// EINVAL at start.
    #[error("the kernel refused the monitor (EINVAL): {hint}")]
    Refused {
        /// What to check.
        hint: &'static str,
    },
    /// The kernel thread ended on its own.
    #[error("the monitor has stopped on its own: its targets have exited, or its settings failed")]
    Stopped,
    /// Any other failure of a file.
    #[error(transparent)]
    File(#[from] FileError),
}

/// What helps where the kernel was built without an address space.
fn without(operations: &str) -> &'static str {
    match operations {
        "vaddr" => {
            "it was built without CONFIG_DAMON_VADDR, so processes cannot be watched; name a memory \
             cgroup (--cgroup), or use another source (--source pagewalk)"
        }
        _ => {
            "it was built without CONFIG_DAMON_PADDR, so physical memory cannot be watched; name \
             processes or cgroups (--pid, --cgroup), or use another source (--source pagewalk)"
        }
    }
}
