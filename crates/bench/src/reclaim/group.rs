// SPDX-License-Identifier: Apache-2.0
//! A memory cgroup for one run, removed afterwards with everything in it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, Mounts, OwnCgroup};
use agewise_host::root::ProcRoot;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};

use crate::own_cgroup;

/// A memory cgroup. Dropping it kills its processes and removes it.
#[derive(Debug)]
pub struct Group {
    own: OwnCgroup,
    /// Its counterpart in the unified hierarchy, if there is one of ours.
    unified: Option<PathBuf>,
}

impl Group {
    /// Creates an empty cgroup.
    pub fn create(name: &str) -> anyhow::Result<Self> {
        let own = own_cgroup(name)?;
        Ok(Group { own, unified: None })
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

    /// Puts its processes also into a cgroup of the same path in the unified hierarchy, where the
    /// kernel counts how long they wait; nothing to do if this is v2.
    pub fn enter_unified(&mut self) -> anyhow::Result<()> {
        let unified = Mounts::read(&ProcRoot::default())?.unified();
        let Some(unified) = unified.filter(|of| of != self.cgroup().hierarchy()) else {
            return Ok(());
        };
        let dir = unified.root.join(self.cgroup().path().strip_prefix("/")?);
        fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        let procs = dir.join("cgroup.procs");
        self.unified = Some(dir);
        for pid in self.cgroup().procs(false)? {
            fs::write(&procs, pid.to_string()).with_context(|| procs.display().to_string())?;
        }
        Ok(())
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
            let is_empty = self.cgroup().procs(false).unwrap_or_default().is_empty();
            let unified = self.unified.as_ref();
            if is_empty && unified.is_none_or(|dir| fs::remove_dir(dir).is_ok()) {
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
