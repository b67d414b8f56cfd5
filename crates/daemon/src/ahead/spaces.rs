// SPDX-License-Identifier: Apache-2.0
//! The address spaces of a target under a budget, and what was read about its cgroup.

use std::collections::BTreeMap;

use agewise_host::budgeted::{HeldFiles, HeldMemory, OpenFiles};
use agewise_host::cgroup::Usage;
use agewise_host::mover::PageoutError;
use agewise_policy::budget::Counted;
use agewise_policy::proactive::SwapRoom;

use super::report::{Held, Report};

/// A page cache that could not be opened is tried again after this time, us.
const FILES_AGAIN_US: u64 = 60_000_000;

/// The address spaces of a target, and what was read about its cgroup.
pub(super) struct Spaces<M> {
    pub by_pid: BTreeMap<u32, M>,
    /// What each process had consumed when it was last read, and what all did while they were held,
    /// also those that are gone: the sum must not fall, nor rise by what one did before.
    counted: BTreeMap<u32, Counted>,
    consumed: Counted,
    /// The page cache, if files are held as well; or why it cannot be, and when that is tried
    /// again, us.
    pub files: Option<Result<Box<dyn HeldFiles>, String>>,
    files_due_us: u64,
    /// Usage of its cgroup, once it has been read.
    usage: Option<Usage>,
    pub slow: Slow,
    /// When they are read next, us.
    pub slow_due_us: u64,
    /// CPU time spent on holding it so far.
    pub cpu_ns: u64,
}

/// Values read once a second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slow {
    pub limit_bytes: Option<u64>,
    pub floor_bytes: u64,
    pub file_bytes: u64,
    pub swap_bytes: u64,
    pub room: SwapRoom,
}

impl Slow {
    /// Reads them again.
    pub fn read(&mut self, held: &Held, room: SwapRoom) {
        self.room = crate::world::swap_room(room, held.cgroup.as_ref());
        let Some(cgroup) = &held.cgroup else { return };
        if let Ok(limits) = cgroup.limits() {
            self.limit_bytes = limits.lowest_bytes();
            self.floor_bytes = limits.min_bytes.max(limits.low_bytes);
        }
        if let Ok(stat) = cgroup.stat() {
            self.file_bytes = stat.file_bytes;
            self.swap_bytes = cgroup.out_bytes(&stat).unwrap_or(0);
        }
    }
}

impl<M: HeldMemory> Spaces<M> {
    /// None, and nothing read yet.
    pub fn new() -> Self {
        Spaces {
            by_pid: BTreeMap::new(),
            counted: BTreeMap::new(),
            consumed: Counted::default(),
            files: None,
            files_due_us: 0,
            usage: None,
            slow: Slow::default(),
            slow_due_us: 0,
            cpu_ns: 0,
        }
    }

    /// Opens new processes and drops those that are gone; returns whether any are new.
    pub fn follow(&mut self, held: &Held, report: &mut Report) -> bool {
        let processes = &held.processes;
        self.by_pid.retain(|pid, space| {
            processes.contains(&(*pid, space.start_ticks())) && space.is_alive()
        });
        self.counted.retain(|pid, _| self.by_pid.contains_key(pid));
        let mut has_new = false;
        for (pid, start_ticks) in processes {
            if !self.by_pid.contains_key(pid)
                && let Some(space) = trouble(report, M::open(*pid, *start_ticks, held.guests))
            {
                if let Some(now) = space.counted(self.with_reads()) {
                    self.counted.insert(*pid, now);
                }
                self.by_pid.insert(*pid, space);
                has_new = true;
            }
        }
        has_new
    }

    /// Opens the page cache if it must be held as well; returns whether that happened just now.
    pub fn follow_files(&mut self, held: &Held, open: &OpenFiles<'_>, now_us: u64) -> bool {
        let Some(cgroup) = held.cgroup.as_ref().filter(|_| held.files) else {
            if self.files.take().is_some() {
                self.counted.clear();
            }
            return false;
        };
        let mut is_new = false;
        if !self.with_reads() && (self.files.is_none() || now_us >= self.files_due_us) {
            self.files_due_us = now_us.saturating_add(FILES_AGAIN_US);
            self.files = Some(open(cgroup).map_err(|error| error.to_string()));
            is_new = self.with_reads();
        }
        if is_new {
            // Other pages count as faults from now on.
            self.counted.clear();
        }
        if let Some(files) = self.held_files() {
            files.spare(&held.without);
        }
        is_new
    }

    /// Whether pages read from a device count, rather than major faults.
    fn with_reads(&self) -> bool {
        matches!(self.files, Some(Ok(_)))
    }

    /// What the processes have consumed so far.
    pub fn consumed(&mut self) -> Counted {
        let with_reads = self.with_reads();
        for (pid, space) in &self.by_pid {
            let Some(now) = space.counted(with_reads) else {
                continue;
            };
            if let Some(before) = self.counted.insert(*pid, now) {
                self.consumed.add(&now.since(&before));
            }
        }
        self.consumed
    }

    pub fn held_files(&mut self) -> Option<&mut dyn HeldFiles> {
        let files = self.files.as_mut()?.as_mut().ok()?;
        Some(&mut **files)
    }

    /// Memory charged to the cgroup, or resident memory of the processes.
    pub fn charged_bytes(&mut self, held: &Held) -> Option<u64> {
        let Some(cgroup) = &held.cgroup else {
            return Some(self.by_pid.values().filter_map(M::resident_bytes).sum());
        };
        let usage = self.usage.take().or_else(|| Usage::open(cgroup).ok())?;
        let bytes = usage.bytes()?;
        self.usage = Some(usage);
        Some(bytes)
    }
}

/// Records a problem. That a process ended is none.
pub(super) fn trouble<T>(report: &mut Report, result: Result<T, PageoutError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            if !error.is_gone() {
                report.trouble = Some(error.to_string());
            }
            None
        }
    }
}
