// SPDX-License-Identifier: Apache-2.0
//! A memory cgroup of our own for one run, removed again with all that is in it.

use std::fs::File;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, OwnCgroup};
use rustix::process::{Pid, Signal, kill_process};

use crate::own_cgroup;

/// The cgroup. Dropping it kills what is in it and removes it.
#[derive(Debug)]
pub struct Group {
    own: OwnCgroup,
}

impl Group {
    /// Makes an empty one.
    pub fn create(name: &str) -> anyhow::Result<Self> {
        let own = own_cgroup(name)?;
        Ok(Group { own })
    }

    /// The cgroup.
    pub fn cgroup(&self) -> &Cgroup {
        self.own.cgroup()
    }

    /// Moves a process into it.
    pub fn take_in(&self, pid: u32) -> anyhow::Result<()> {
        Ok(self.own.take_in(pid)?)
    }

    /// `cgroup.procs`, open for a process to write itself into.
    pub fn entrance(&self) -> anyhow::Result<File> {
        Ok(self.own.entrance()?)
    }

    /// Sets its limit; what is above it is reclaimed first, which may take some tries.
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

    /// How often it ran into its limit.
    pub fn limit_hits(&self) -> u64 {
        self.cgroup().limit_hits().ok().flatten().unwrap_or(0)
    }

    /// Memory charged to it now.
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

/// Kills what is in a cgroup now.
pub fn kill(cgroup: &Cgroup) {
    for pid in cgroup.procs(false).unwrap_or_default() {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}
