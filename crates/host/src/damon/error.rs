// SPDX-License-Identifier: Apache-2.0
//! Errors of the kernel's DAMON.

use super::Owner;
use crate::error::FileError;

/// A monitor could not be set up, or was lost.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DamonError {
    #[error(
        "this kernel has no /sys/kernel/mm/damon: it needs CONFIG_DAMON_SYSFS (Linux 5.18) and root"
    )]
    Missing,
    #[error(
        "DAMON is in use by {owner}; it has one owner at a time, and agewise never interferes: \
         stop it where it was started, or use another source (--source pagewalk)"
    )]
    Owned { owner: Owner },
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
    #[error("{what} needs Linux {since} or later: this kernel has no {file}")]
    TooOld {
        /// The part of the setup that needs it.
        what: &'static str,
        /// First kernel version with the file.
        since: &'static str,
        /// The missing file, relative to its directory.
        file: String,
    },
    /// The kernel returned EINVAL at start.
    #[error("the kernel refused the monitor (EINVAL): {hint}")]
    Refused { hint: &'static str },
    #[error("the monitor has stopped on its own: its targets have exited, or its settings failed")]
    Stopped,
    /// The monitor cannot be stopped.
    #[error(
        "process {pid} does not answer: a file system that it maps may hang. DAMON waits for it, \
         and its kernel thread {kdamond} is left running: end the process (kill -9 {pid}), then \
         write off to 0/state and 0 to nr_kdamonds in /sys/kernel/mm/damon/admin/kdamonds"
    )]
    Unanswered { pid: u32, kdamond: u32 },
    #[error(transparent)]
    File(#[from] FileError),
}

/// Advice if the kernel was built without an address space.
fn without(operations: &str) -> &'static str {
    match operations {
        "vaddr" => {
            "it was built without CONFIG_DAMON_VADDR, so processes cannot be watched; name a \
             memory cgroup (--cgroup), or use another source (--source pagewalk)"
        }
        _ => {
            "it was built without CONFIG_DAMON_PADDR, so physical memory cannot be watched; name \
             processes or cgroups (--pid, --cgroup), or use another source (--source pagewalk)"
        }
    }
}
