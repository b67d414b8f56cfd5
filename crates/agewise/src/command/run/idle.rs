// SPDX-License-Identifier: Apache-2.0
//! Moves out memory that a family of processes has not touched for a while.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agewise_host::access::PAGE_BYTES;
use agewise_host::agent::{Agent, Subject, Targets};
use agewise_host::guest::Guests;
use agewise_host::mover::{self, PageoutLimits, PageoutReport, ProcessMover, SourceRecheck};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;

use super::cold_files::ColdFiles;
use super::keeper::{Done, Notes, Way};
use super::summary::Summary;
use agewise_cli::observe;

/// Limits on reclaim.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory not touched for this long is cold.
    pub older_than: Duration,
    /// Average rate.
    pub rate_bytes_per_s: u64,
    /// Resident memory that each process keeps.
    pub keep_bytes: u64,
    /// Whether memory of processes that run KVM guests is moved as well.
    pub guests: Guests,
    /// Dry run: observe only.
    pub rehearse: bool,
}

/// Looks at all memory once per interval, and moves out what is cold.
pub struct Idle {
    agent: Agent,
    limits: Limits,
    interval: Duration,
    done: PageoutReport,
    /// In a rehearsal: the most at one look. What stays idle is cold at every look.
    rehearsed_bytes: u64,
    refaulted_bytes: u64,
    scans: u64,
    /// Also drops cold pages of files.
    files: Option<ColdFiles>,
}

impl Idle {
    /// Opens the access source; also returns a note if it is not the best one. Does not look yet.
    /// What `files` finds cold is dropped too.
    ///
    /// # Errors
    /// No access source works here.
    pub fn new(
        limits: Limits,
        interval: Duration,
        files: Option<ColdFiles>,
    ) -> anyhow::Result<(Self, Option<String>)> {
        let config = observe::cold_config(limits.older_than, interval)?;
        let (mut agent, note) = observe::open_agent(Targets::Listed(Vec::new()), config)?;
        mover::require_page_ages(&mut agent)?;
        let idle = Self {
            agent,
            limits,
            interval,
            done: PageoutReport::default(),
            rehearsed_bytes: 0,
            refaulted_bytes: 0,
            scans: 0,
            files,
        };
        Ok((idle, note))
    }

    /// Moves at most `bytes_max` of cold memory out of a process, where rehearsals have taken this
    /// much of swap; returns the number of bytes moved.
    fn lighten(
        &mut self,
        process: &Process,
        bytes_max: u64,
        swap_taken_bytes: u64,
    ) -> anyhow::Result<u64> {
        let mut mover = match ProcessMover::open_with(process, self.limits.guests) {
            Ok(mover) => mover,
            Err(error) if error.is_gone() => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let ages = [Some(observe::millis(self.limits.older_than)); 2];
        let cold = match mover::find_cold(&mut self.agent, process.pid(), ages, u64::MAX) {
            Ok(Some(cold)) => cold,
            Ok(None) => return Ok(0),
            Err(_) if !process.is_alive() => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let limits = PageoutLimits {
            bytes_max,
            rate_bytes_per_s: Some(self.limits.rate_bytes_per_s),
            floor_bytes: self.limits.keep_bytes,
            rehearse: self.limits.rehearse,
            swap_taken_bytes,
            ..PageoutLimits::default()
        };
        let moved = mover::move_out(
            &mut mover,
            &cold.plan,
            limits,
            &mut SourceRecheck::new(self.agent.source(), cold.target),
            &AtomicBool::new(false),
            |_| (),
        );
        self.done.add(&moved.report);
        match moved.error {
            Some(error) if !error.is_gone() => Err(error.into()),
            _ => {
                let report = &moved.report;
                Ok(report.left_bytes + report.rehearsed_bytes + report.kept_bytes)
            }
        }
    }
}

impl Way for Idle {
    fn look(&mut self, family: &[Process], notes: &mut Notes) {
        let root = ProcRoot::default();
        let subjects: Vec<Subject> = family
            .iter()
            .filter_map(|process| Subject::process(&root, process.pid()).ok())
            .collect();
        self.agent.set_targets(Targets::Listed(subjects));
        match self.agent.tick() {
            Ok(tick) => {
                self.scans += 1;
                self.refaulted_bytes += tick.refaulted_pages * PAGE_BYTES;
            }
            Err(error) => return notes.add(error.to_string()),
        }
        let troubles: Vec<String> = self
            .agent
            .spaces()
            .filter_map(|space| space.trouble().map(str::to_owned))
            .collect();
        for trouble in troubles {
            notes.add(trouble);
        }
        let pids: Vec<u32> = self
            .agent
            .spaces()
            .map(|space| space.process().pid())
            .collect();
        let before = self.done.clone();
        let most = (self.limits.rate_bytes_per_s as f64 * self.interval.as_secs_f64()) as u64;
        let mut room = most;
        for pid in pids {
            let Some(process) = family.iter().find(|process| process.pid() == pid) else {
                continue;
            };
            let taken = self.done.rehearsed_anon_bytes - before.rehearsed_anon_bytes;
            match self.lighten(process, room, taken) {
                Ok(went_bytes) => room = room.saturating_sub(went_bytes),
                Err(error) => notes.add(format!(
                    "process {pid}: {}",
                    agewise_cli::output::chain(&error)
                )),
            }
        }
        let at_once_bytes = self.done.rehearsed_bytes - before.rehearsed_bytes;
        self.rehearsed_bytes = self.rehearsed_bytes.max(at_once_bytes);
        if let Some(files) = &mut self.files {
            // What processes map and the kernel keeps did not move.
            let went_bytes = at_once_bytes + self.done.left_bytes - before.left_bytes;
            let looked = files.look(most.saturating_sub(went_bytes), self.limits.rehearse);
            if let Err(error) = looked {
                notes.add(format!("files: {}", agewise_cli::output::chain(&error)));
            }
        }
    }

    fn done(&self) -> Done {
        let files = self.files.as_ref();
        let dropped = files.map(ColdFiles::done).unwrap_or_default();
        let back_bytes = files.map_or(0, ColdFiles::refaulted_bytes);
        Done {
            left_bytes: self.done.left_bytes + dropped.left_bytes,
            rehearsed_bytes: self.rehearsed_bytes + dropped.rehearsed_bytes,
            refaulted_bytes: Some(self.refaulted_bytes + back_bytes),
        }
    }

    fn finish(self: Box<Self>, summary: &mut Summary, notes: &mut Notes) {
        summary.older_than_ms = Some(observe::millis(self.limits.older_than));
        summary.reclaimed_anon_bytes = self.done.left_anon_bytes;
        summary.reclaimed_file_bytes = self.done.left_file_bytes;
        summary.scans = self.scans;
        if let Some(files) = self.files {
            let dropped = files.done();
            summary.reclaimed_file_bytes += dropped.left_bytes;
            summary.dropped = Some(dropped);
            files.finish(notes);
        }
    }
}
