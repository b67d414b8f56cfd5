// SPDX-License-Identifier: Apache-2.0
//! A memory cgroup of our own for one run, removed again with all that is in it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{Cgroup, Hierarchy, Version};
use agewise_host::root::ProcRoot;
use anyhow::{Context, bail};

/// The cgroup. Dropping it kills what is in it and removes it.
#[derive(Debug)]
pub struct Group {
    cgroup: Cgroup,
    dir: PathBuf,
}

impl Group {
    /// Makes an empty one.
    pub fn create(name: &str) -> anyhow::Result<Self> {
        let hierarchy = Hierarchy::discover(&ProcRoot::default())?;
        let path = format!("/agewise-bench-{}-{name}", std::process::id());
        let dir = hierarchy.root.join(&path[1..]);
        std::fs::create_dir(&dir)
            .with_context(|| format!("cannot make the cgroup {}", dir.display()))?;
        let cgroup = Cgroup::open(&hierarchy, &path);
        match cgroup {
            Ok(cgroup) => Ok(Group { cgroup, dir }),
            Err(error) => {
                let _ = std::fs::remove_dir(&dir);
                Err(error.into())
            }
        }
    }

    /// The cgroup.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// Moves a process into it.
    pub fn take_in(&self, pid: u32) -> anyhow::Result<()> {
        std::fs::write(self.dir.join("cgroup.procs"), pid.to_string())
            .with_context(|| format!("process {pid} cannot join {}", self.dir.display()))
    }

    /// Where a shell puts itself in.
    pub fn procs_file(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// Sets its limit; what is above it is reclaimed first, which may take some tries.
    pub fn limit(&self, bytes: u64) -> anyhow::Result<()> {
        let file = match self.cgroup.hierarchy().version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        let began = Instant::now();
        loop {
            match std::fs::write(self.dir.join(file), bytes.to_string()) {
                Ok(()) => return Ok(()),
                Err(error) if began.elapsed() > Duration::from_secs(60) => {
                    bail!("{file} cannot be set to {bytes}: {error}")
                }
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// How often it ran into its limit.
    pub fn limit_hits(&self) -> u64 {
        self.cgroup.limit_hits().ok().flatten().unwrap_or(0)
    }

    /// Kills what is in it now.
    pub fn kill(&self) {
        for pid in self.cgroup.procs(false).unwrap_or_default() {
            if let Some(pid) = i32::try_from(pid)
                .ok()
                .and_then(rustix::process::Pid::from_raw)
            {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }

    /// Memory charged to it now.
    pub fn usage_bytes(&self) -> u64 {
        self.cgroup.usage_bytes().ok().flatten().unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..100 {
            self.kill();
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
