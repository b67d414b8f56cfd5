// SPDX-License-Identifier: Apache-2.0
//! Short-lived processes and cgroups for a daemon to follow.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_host::cgroup::OwnCgroup;
use anyhow::{Context, ensure};
use clap::value_parser;

use super::super::{PAGE_BYTES, own_cgroup, share};
use super::nest::Nest;

/// How many, how large, how long they live; and what the daemon is granted.
#[derive(Debug, clap::Args)]
pub struct CrowdArgs {
    /// Processes at a time.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    #[arg(value_parser = value_parser!(u64).range(1..=30_000))]
    pub processes: u64,
    /// Cgroups at a time.
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = value_parser!(u64).range(1..=4000))]
    pub cgroups: u64,
    /// Memory that they map, all together.
    #[arg(long, value_name = "SIZE", default_value = "16G", value_parser = units::positive_size)]
    pub mapped: u64,
    /// How much of that they touch, so that it takes memory.
    #[arg(long, value_name = "SHARE", default_value_t = 0.25, value_parser = share)]
    pub touched: f64,
    /// Processes replaced per minute, besides those that go with their cgroup.
    #[arg(long, value_name = "N", default_value_t = 3000.0)]
    pub processes_per_minute: f64,
    /// Cgroups replaced per minute.
    #[arg(long, value_name = "N", default_value_t = 120.0)]
    pub cgroups_per_minute: f64,
    /// observe.cpu_percent of the daemon.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0)]
    pub cpu_percent: f64,
}

/// Processes in cgroups, both replaced continuously.
pub struct Crowd {
    // Dropped first: its processes must end before the cgroups are removed.
    nest: Nest,
    /// The directories of the cgroups.
    pub cgroups: Vec<PathBuf>,
    pub pids: Vec<u32>,
    mapped: u64,
    /// Bytes touched by each process.
    pub touched: u64,
    next: usize,
    /// Processes started since the beginning.
    pub came: u64,
    /// Cgroups created since the beginning.
    pub cgroups_came: u64,
    processes_per_minute: f64,
    cgroups_per_minute: f64,
    top: OwnCgroup,
}

impl Crowd {
    /// Starts all processes.
    ///
    /// # Errors
    /// A cgroup cannot be created, or the kernel refuses a process.
    pub fn start(program: &Path, args: &CrowdArgs, stop: &Stop) -> anyhow::Result<Self> {
        ensure!(
            args.processes >= args.cgroups,
            "there must be a process for each cgroup"
        );
        let top = own_cgroup("daemon")?;
        let mut crowd = Crowd {
            nest: Nest::start(program)?,
            cgroups: Vec::new(),
            pids: Vec::new(),
            mapped: args.mapped / args.processes / PAGE_BYTES * PAGE_BYTES,
            touched: 0,
            next: 0,
            came: 0,
            cgroups_came: 0,
            processes_per_minute: args.processes_per_minute,
            cgroups_per_minute: args.cgroups_per_minute,
            top,
        };
        crowd.touched = (crowd.mapped as f64 * args.touched) as u64 / PAGE_BYTES * PAGE_BYTES;
        for number in 0..args.cgroups {
            let dir = crowd.top.cgroup().dir().join(number.to_string());
            std::fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
            crowd.cgroups.push(dir);
        }
        for number in 0..args.processes {
            ensure!(stop.requested().is_none(), "interrupted");
            let pid = crowd.spawn(usize::try_from(number)?)?;
            crowd.pids.push(pid);
        }
        crowd.came = 0;
        Ok(crowd)
    }

    /// The directory of the cgroup that contains all others.
    pub fn dir(&self) -> PathBuf {
        self.top.cgroup().dir()
    }

    /// The name of that cgroup.
    ///
    /// # Errors
    /// The name is not valid text.
    pub fn name(&self) -> anyhow::Result<String> {
        let dir = self.dir();
        let name = dir.file_name().and_then(|name| name.to_str());
        Ok(name.context("a name that is text")?.to_owned())
    }

    /// Replaces a cgroup or a process if one is due, `elapsed` after the start; returns false if
    /// none is.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn turn(&mut self, elapsed: Duration) -> anyhow::Result<bool> {
        let minutes = elapsed.as_secs_f64() / 60.0;
        // A cgroup's processes are replaced with it, and count too.
        if (self.cgroups_came as f64) < minutes * self.cgroups_per_minute {
            self.replace_cgroup()?;
        } else if (self.came as f64) < minutes * self.processes_per_minute {
            self.replace_process()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Process `number` goes to cgroup `number` modulo the number of cgroups.
    fn spawn(&mut self, number: usize) -> anyhow::Result<u32> {
        let procs = self.cgroups[number % self.cgroups.len()].join("cgroup.procs");
        self.came += 1;
        self.nest.spawn(&procs, self.mapped, self.touched)
    }

    /// Ends a process and starts another in its place.
    fn replace_process(&mut self) -> anyhow::Result<()> {
        self.next = (self.next + 7) % self.pids.len();
        self.nest.end(self.pids[self.next])?;
        self.pids[self.next] = self.spawn(self.next)?;
        Ok(())
    }

    /// Removes a cgroup with its processes and creates another, every second time under the same
    /// name.
    fn replace_cgroup(&mut self) -> anyhow::Result<()> {
        let place = usize::try_from(self.cgroups_came).unwrap_or(0) % self.cgroups.len();
        self.cgroups_came += 1;
        let numbers = (place..self.pids.len()).step_by(self.cgroups.len());
        for number in numbers.clone() {
            self.nest.end(self.pids[number])?;
        }
        let old = &self.cgroups[place];
        std::fs::remove_dir(old).with_context(|| format!("cannot remove {}", old.display()))?;
        if self.cgroups_came.is_multiple_of(2) {
            self.cgroups[place] = self
                .top
                .cgroup()
                .dir()
                .join(format!("again-{}", self.cgroups_came));
        }
        std::fs::create_dir(&self.cgroups[place])?;
        for number in numbers {
            self.pids[number] = self.spawn(number)?;
        }
        Ok(())
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        for pid in std::mem::take(&mut self.pids) {
            let _ = self.nest.end(pid);
        }
        for dir in &self.cgroups {
            let mut tries = 0..50;
            while let Err(error) = std::fs::remove_dir(dir) {
                if tries.next().is_none() {
                    agewise_cli::note!("cannot remove {}: {error}", dir.display());
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
}
