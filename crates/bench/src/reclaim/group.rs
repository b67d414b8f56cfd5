// SPDX-License-Identifier: Apache-2.0
//! A memory cgroup for one run, removed afterwards with everything in it.

use std::fs::File;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, OwnCgroup};
use rustix::process::{Pid, Signal, kill_process};

use crate::own_cgroup;

/// A memory cgroup. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Group {
    own: OwnCgroup,
}

impl Group {
    /// Creates an empty cgroup.
    pub fn create(name: &str) -> anyhow::Result<Self> {
        let own = own_cgroup(name)?;
        Ok(Group { own })
    }

    pub fn cgroup(&self) -> &Cgroup {
        self.own.cgroup()
    }

    /// Moves a process into it.
    pub fn take_in(&self, pid: u32) -> anyhow::Result<()> {
        Ok(self.own.take_in(pid)?)
    }

    /// `cgroup.procs`, opened so that a process can write itself into it.
    pub fn entrance(&self) -> anyhow::Result<File> {
        Ok(self.own.entrance()?)
    }

    /// Sets the limit. The kernel first reclaims what exceeds it, which may take several tries.
    pub fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            match self.own.set_limit(bytes) {
                Ok(()) => return Ok(()),
                Err(error) if began.elapsed() > Duration::from_secs(60) => return Err(error.into()),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Number of times it hit its limit.
    pub fn limit_hits(&self) -> u64 {
        self.cgroup().limit_hits().ok().flatten().unwrap_or(0)
    }

    /// Memory currently charged to it, in bytes.
    pub fn usage_bytes(&self) -> u64 {
        self.cgroup().usage_bytes().ok().flatten().unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            kill(self.cgroup());
            if self.cgroup().procs(false).unwrap_or_default().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Kills the processes in a cgroup.
pub fn kill(cgroup: &Cgroup) {
    for pid in cgroup.procs(false).unwrap_or_default() {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
