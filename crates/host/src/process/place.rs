// SPDX-License-Identifier: Apache-2.0
//! On which CPU a process runs, and keeping a thread of ours there.
//!
//! Unmapping a page of a running program from another CPU costs an interrupt there, some 10 us in a
//! virtual machine; from the CPU it runs on it costs nothing of the kind.

use std::path::PathBuf;

use rustix::thread::{CpuSet, sched_setaffinity};

use super::stat::cpu_of;
use crate::error::{self, FileError};

/// The CPU a thread ran on last, by `/proc/PID/task/TID/stat` (field 39).
///
/// # Errors
/// The thread is gone, or the file makes no sense.
pub fn last_cpu(pid: u32, tid: u32) -> Result<usize, FileError> {
    let path = PathBuf::from(format!("/proc/{pid}/task/{tid}/stat"));
    let text = error::read(&path)?;
    cpu_of(&text).ok_or_else(|| FileError::format(&path, "a stat line with 39 fields", &text))
}

/// CPU time of the first thread of a process, clock ticks.
///
/// # Errors
/// The thread is gone, or the file makes no sense.
pub fn leader_ticks(pid: u32) -> Result<u64, FileError> {
    let path = PathBuf::from(format!("/proc/{pid}/task/{pid}/stat"));
    let text = error::read(&path)?;
    let stat = super::Stat::parse(&path, &text)?;
    Ok(stat.user_ticks.saturating_add(stat.system_ticks))
}

/// Keeps the calling thread on one CPU; `false` if that may not be.
pub fn stay_on(cpu: usize) -> bool {
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_run_where_we_stay() {
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let cpu = last_cpu(std::process::id(), tid).unwrap();
            assert!(stay_on(cpu));
            assert_eq!(last_cpu(std::process::id(), tid).unwrap(), cpu);
            assert!(!stay_on(usize::MAX));
        })
        .join()
        .unwrap();
    }
}
