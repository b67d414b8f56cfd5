// SPDX-License-Identifier: Apache-2.0
//! Processes that a tick finds, and those gone since the last one.

use std::sync::Arc;

use super::target;
use super::{Agent, Space, TickReport};
use crate::look::LookError;
use crate::untrusted::Untrusted;

impl Agent {
    /// Opens new processes, and forgets those that are gone or no longer belong to a target.
    pub(super) fn find_spaces(&mut self, watched_since_ms: Option<u64>, report: &mut TickReport) {
        let tick = self.ticks;
        self.refused.clear();
        for (pid, subjects) in &self.resolved.processes {
            let known = self.spaces.get_mut(pid);
            if !known.is_some_and(|space| space.is_alive() && !space.begins_anew) {
                self.spaces.remove(pid);
                let process = match target::open(&self.roots.proc, *pid) {
                    // Its pid was reused since the subjects were resolved.
                    Ok(Some(process)) if self.resolved.means_another(&process, subjects) => {
                        report.vanished += 1;
                        continue;
                    }
                    Ok(Some(process)) => process,
                    Ok(None) => continue,
                    Err(error) if error.is_gone() => {
                        report.vanished += 1;
                        continue;
                    }
                    Err(error) => {
                        report.failed += 1;
                        self.refused.push((subjects.clone(), error.to_string()));
                        continue;
                    }
                };
                let born_ms = watched_since_ms.and_then(|since_ms| {
                    started_ms(process.start_ticks()).filter(|ms| *ms >= since_ms)
                });
                let horizon_ms = self.config.intervals.horizon_ms();
                let counts = Arc::clone(&self.map_counts);
                let mut space = Space::new(process, self.config.clear, counts, horizon_ms, born_ms);
                space.is_alive();
                self.spaces.insert(*pid, Box::new(space));
                // It may belong to a container with file systems of its own.
                self.maps.forget_filesystems();
            }
            if let Some(space) = self.spaces.get_mut(pid) {
                let start_ticks = space.process.start_ticks();
                let is_of = |subject: &&usize| {
                    let wanted = self.resolved.subjects[**subject].start_ticks;
                    wanted.is_none_or(|wanted| wanted == start_ticks)
                };
                space.subjects.clear();
                space.subjects.extend(subjects.iter().filter(is_of));
                for subject in &space.subjects {
                    let subject = &mut self.resolved.subjects[*subject];
                    if subject.start_ticks.is_some() {
                        // It may have executed another program since it was specified.
                        subject.name = Untrusted::process(*pid, &space.comm);
                    }
                }
                space.tick = tick;
            }
        }
        self.spaces
            .retain(|_, space| space.tick == tick && !space.subjects.is_empty());
    }

    pub(super) fn read_mappings(
        &mut self,
        report: &mut TickReport,
        next_process: &mut dyn FnMut(),
    ) {
        let (maps, within) = (&mut self.maps, self.config.within.as_deref());
        self.spaces.retain(|_, space| {
            next_process();
            match space.read_mappings(maps, within) {
                Ok(()) => {
                    space.trouble = None;
                    true
                }
                Err(error) if error.is_gone() => {
                    report.vanished += 1;
                    false
                }
                Err(error) => {
                    report.failed += 1;
                    space.trouble = Some(error.to_string());
                    true
                }
            }
        });
    }

    /// Marks the processes among the subjects that have exited.
    pub(super) fn mark_gone(&mut self) {
        for (index, subject) in self.resolved.subjects.iter_mut().enumerate() {
            if subject.start_ticks.is_none() {
                continue;
            }
            let of = |subjects: &[usize]| subjects.contains(&index);
            let is_known = self.spaces.values().any(|space| of(&space.subjects))
                || self.refused.iter().any(|(subjects, _)| of(subjects));
            if !is_known {
                subject.gone = Some("the process has exited".to_owned());
            }
        }
    }
}

impl Space {
    /// Notes why a look at it failed.
    pub(super) fn fail(&mut self, error: &LookError) {
        self.trouble = Some(error.to_string());
        // Its accessed bits may be cleared at any time from now on, unseen.
        self.begins_anew = error.is_unanswered();
    }
}

/// The start time of a process, on the clock of ages. Start times count from boot and include
/// suspend; the clock of ages does not. All time suspended since boot is subtracted, so after a
/// suspend a process that started before it seems to have started too early (by at most the time
/// suspended), never too late: it then counts as one that was there already.
fn started_ms(start_ticks: u64) -> Option<u64> {
    let per_second = rustix::param::clock_ticks_per_second();
    let since_boot_ms = start_ticks.checked_mul(1000)?.checked_div(per_second)?;
    let slept_ms =
        crate::clock::boottime_ns().saturating_sub(crate::clock::monotonic_ns()) / 1_000_000;
    Some(since_boot_ms.saturating_sub(slept_ms))
}
