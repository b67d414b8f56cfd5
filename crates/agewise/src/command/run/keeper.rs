// SPDX-License-Identifier: Apache-2.0
//! Keeps a family of processes lean: looks at all of them, moves out what is cold, counts.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use agewise_host::access::PAGE_BYTES;
use agewise_host::agent::{Agent, Subject, Targets};
use agewise_host::clock;
use agewise_host::mover::{self, PageoutLimits, PageoutReport, ProcessMover, SourceRecheck};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::Serialize;

use super::family::Family;
use super::meter::Meter;
use super::summary::Summary;
use agewise_cli::children;
use agewise_cli::observe;

/// Notes kept; what stands in the way of many processes is said of a few.
const NOTES_MAX: usize = 5;

/// What may be done.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What not being touched for so long makes cold.
    pub older_than: Duration,
    /// Average speed.
    pub rate_bytes_per_s: u64,
    /// What each process keeps.
    pub keep_bytes: u64,
    /// Look, but do not touch.
    pub rehearse: bool,
}

/// One look, for the report file.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    record: &'static str,
    elapsed_ms: u64,
    processes: usize,
    resident_bytes: u64,
    reclaimed_bytes: u64,
    refaulted_bytes: u64,
}

/// Keeps what comes from this process lean.
pub struct Keeper {
    agent: Agent,
    limits: Limits,
    interval: Duration,
    /// The one child whose status somebody else wants.
    command: Option<u32>,
    family: Vec<Process>,
    meter: Meter,
    resident_bytes: u64,
    done: PageoutReport,
    refaulted_bytes: u64,
    scans: u64,
    notes: BTreeSet<String>,
}

impl Keeper {
    /// Opens the source. Nothing is looked at yet.
    ///
    /// # Errors
    /// No source works here.
    pub fn new(limits: Limits, interval: Duration) -> anyhow::Result<Self> {
        let config = observe::cold_config(limits.older_than, interval)?;
        let (mut agent, note) = observe::open_agent(Targets::Listed(Vec::new()), config)?;
        mover::require_page_ages(&mut agent)?;
        let mut keeper = Self {
            agent,
            limits,
            interval,
            command: None,
            family: Vec::new(),
            meter: Meter::default(),
            resident_bytes: 0,
            done: PageoutReport::default(),
            refaulted_bytes: 0,
            scans: 0,
            notes: BTreeSet::new(),
        };
        keeper.note(note);
        Ok(keeper)
    }

    /// Remembers what stood in the way.
    pub fn note(&mut self, note: Option<String>) {
        if self.notes.len() < NOTES_MAX {
            self.notes.extend(note);
        }
    }

    /// Says which child is the command.
    pub fn set_command(&mut self, pid: u32) {
        self.command = Some(pid);
    }

    /// Finds the processes there are now, and lets go of those of ours that have ended.
    fn gather(&mut self) {
        let root = ProcRoot::default();
        let family = Family::of(&root, std::process::id());
        for zombie in family.zombies {
            // The command itself is waited for where its status is wanted.
            if self.command == Some(zombie) {
                continue;
            }
            if let Some(pid) = i32::try_from(zombie).ok().and_then(Pid::from_raw) {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        self.family
            .retain(|process| family.members.contains(&process.pid()) && process.is_alive());
        for pid in family.members {
            let known = self.family.iter().any(|process| process.pid() == pid);
            if !known && let Ok(process) = Process::open_user(&root, pid) {
                self.family.push(process);
            }
        }
    }

    /// Samples resident memory.
    pub fn measure(&mut self) {
        if self.family.is_empty() {
            self.gather();
        }
        self.resident_bytes = self
            .family
            .iter()
            .filter_map(|process| process.rss_bytes().ok())
            .sum();
        self.meter.sample(Instant::now(), self.resident_bytes);
    }

    /// Looks at all memory, and moves out what is cold. What fails is noted.
    pub fn look(&mut self) {
        self.gather();
        let root = ProcRoot::default();
        let subjects: Vec<Subject> = self
            .family
            .iter()
            .filter_map(|process| Subject::process(&root, process.pid()).ok())
            .collect();
        self.agent.set_targets(Targets::Listed(subjects));
        match self.agent.tick() {
            Ok(tick) => {
                self.scans += 1;
                self.refaulted_bytes += tick.refaulted_pages * PAGE_BYTES;
            }
            Err(error) => return self.note(Some(error.to_string())),
        }
        let troubles: Vec<String> = self
            .agent
            .spaces()
            .filter_map(|space| space.trouble().map(str::to_owned))
            .collect();
        for trouble in troubles {
            self.note(Some(trouble));
        }
        let pids: Vec<u32> = self
            .agent
            .spaces()
            .map(|space| space.process().pid())
            .collect();
        let mut room = (self.limits.rate_bytes_per_s as f64 * self.interval.as_secs_f64()) as u64;
        for pid in pids {
            match self.lighten(pid, room) {
                Ok(went_bytes) => room = room.saturating_sub(went_bytes),
                Err(error) => self.note(Some(format!(
                    "process {pid}: {}",
                    agewise_cli::output::chain(&error)
                ))),
            }
        }
    }

    /// Moves out what is cold in one process, at most `bytes_max`; returns how much went.
    fn lighten(&mut self, pid: u32, bytes_max: u64) -> anyhow::Result<u64> {
        let Some(process) = self.family.iter().find(|process| process.pid() == pid) else {
            return Ok(0);
        };
        let mut mover = match ProcessMover::open(process) {
            Ok(mover) => mover,
            Err(error) if error.is_gone() => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let ages = [Some(observe::millis(self.limits.older_than)); 2];
        let cold = match mover::find_cold(&mut self.agent, pid, ages, u64::MAX) {
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
            _ => Ok(moved.report.left_bytes + moved.report.kept_bytes),
        }
    }

    /// Where it stands.
    pub fn sample(&self, elapsed: Duration) -> Sample {
        Sample {
            record: "look",
            elapsed_ms: observe::millis(elapsed),
            processes: self.family.len(),
            resident_bytes: self.resident_bytes,
            reclaimed_bytes: self.done.left_bytes,
            refaulted_bytes: self.refaulted_bytes,
        }
    }

    /// What there is to say at the end.
    pub fn summary(mut self, command: Vec<String>, exit_code: u8, elapsed: Duration) -> Summary {
        self.meter.end(Instant::now());
        let children = children::children_usage();
        if self.limits.rehearse {
            let would = agewise_cli::units::bytes_text(self.done.rehearsed_bytes);
            self.note(Some(format!(
                "nothing was moved (--dry-run); {would} would have been tried"
            )));
        }
        let cpu = clock::process_cpu();
        Summary {
            record: "run",
            command,
            exit_code,
            elapsed_ms: observe::millis(elapsed),
            resident_peak_bytes: self.meter.peak_bytes().max(children.own_peak_bytes()),
            resident_mean_bytes: self.meter.mean_bytes(),
            older_than_ms: observe::millis(self.limits.older_than),
            reclaimed_bytes: self.done.left_bytes,
            reclaimed_anon_bytes: self.done.left_anon_bytes,
            reclaimed_file_bytes: self.done.left_file_bytes,
            refaulted_bytes: self.refaulted_bytes,
            scans: self.scans,
            agewise_cpu_ms: cpu.as_secs_f64() * 1e3,
            agewise_cpu_ratio: cpu.as_secs_f64() / elapsed.as_secs_f64().max(1e-9),
            command_cpu_ms: children.cpu.as_secs_f64() * 1e3,
            notes: self.notes.into_iter().collect(),
        }
    }
}
