// SPDX-License-Identifier: Apache-2.0
//! Keeps a family of processes lean: finds the processes, has their memory moved out, and counts.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use agewise_host::clock;
use agewise_host::guest;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::Serialize;

use super::family::Family;
use super::meter::Meter;
use super::summary::Summary;
use agewise_cli::children;
use agewise_cli::observe;

/// The most notes kept. An obstacle that many processes share is reported for a few of them.
const NOTES_MAX: usize = 5;

/// Distinct notes on what went wrong, at most [`NOTES_MAX`].
#[derive(Debug, Default)]
pub struct Notes(BTreeSet<String>);

impl Notes {
    pub fn add(&mut self, note: String) {
        if self.0.len() < NOTES_MAX {
            self.0.insert(note);
        }
    }
}

/// What was done so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    pub left_bytes: u64,
    /// Bytes that would have been tried in a dry run.
    pub rehearsed_bytes: u64,
    /// How much of what left came back, if known.
    pub refaulted_bytes: Option<u64>,
}

/// A way to choose and move a family's memory.
pub trait Way {
    /// Does what is due for these processes, and notes failures.
    fn look(&mut self, family: &[Process], notes: &mut Notes);

    /// What was done so far.
    fn done(&self) -> Done;

    /// Cleans up, and adds its own figures to the summary.
    fn finish(self: Box<Self>, summary: &mut Summary, notes: &mut Notes);
}

/// One look, as written to the report file.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    record: &'static str,
    elapsed_ms: u64,
    processes: usize,
    resident_bytes: u64,
    reclaimed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    refaulted_bytes: Option<u64>,
}

/// Keeps the descendants of this process lean.
pub struct Keeper {
    way: Box<dyn Way>,
    /// The child that somebody else waits for.
    command: Option<u32>,
    family: Vec<Process>,
    meter: Meter,
    resident_bytes: u64,
    notes: Notes,
    rehearses: bool,
    warns_of_guests: bool,
}

impl Keeper {
    /// Creates a keeper; nothing is looked at yet. With `rehearses` nothing will be moved.
    pub fn new(way: Box<dyn Way>, rehearses: bool) -> Self {
        Self {
            way,
            rehearses,
            warns_of_guests: false,
            command: None,
            family: Vec::new(),
            meter: Meter::default(),
            resident_bytes: 0,
            notes: Notes::default(),
        }
    }

    /// Adds a note, if there is one.
    pub fn note(&mut self, note: Option<String>) {
        note.into_iter().for_each(|note| self.notes.add(note));
    }

    pub fn set_command(&mut self, pid: u32) {
        self.command = Some(pid);
    }

    /// Whether to note processes that run KVM guests: their memory goes all the same.
    pub fn warn_of_guests(&mut self, warns: bool) {
        self.warns_of_guests = warns;
    }

    /// Finds the current processes, and reaps adopted children that have exited.
    fn gather(&mut self) {
        let root = ProcRoot::default();
        let family = Family::of(&root, std::process::id());
        for zombie in family.zombies {
            // The command itself is waited for where its exit status is needed.
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

    /// Finds all processes, and does what is due for them.
    pub fn look(&mut self) {
        self.gather();
        if self.warns_of_guests {
            let root = ProcRoot::default();
            let pids = self.family.iter().map(Process::pid);
            let warnings = pids.filter_map(|pid| guest::warning(&root, pid));
            warnings.for_each(|warning| self.notes.add(warning));
        }
        self.way.look(&self.family, &mut self.notes);
    }

    /// The state after `elapsed` time.
    pub fn sample(&self, elapsed: Duration) -> Sample {
        let done = self.way.done();
        Sample {
            record: "look",
            elapsed_ms: observe::millis(elapsed),
            processes: self.family.len(),
            resident_bytes: self.resident_bytes,
            reclaimed_bytes: done.left_bytes,
            refaulted_bytes: done.refaulted_bytes,
        }
    }

    /// Ends the work of a command that ran for `elapsed`, and returns the summary. `began` is when
    /// agewise itself started to work.
    pub fn summary(
        mut self,
        command: Vec<String>,
        exit_code: u8,
        elapsed: Duration,
        began: Instant,
    ) -> Summary {
        self.meter.end(Instant::now());
        let children = children::children_usage();
        let done = self.way.done();
        if self.rehearses {
            let would = agewise_cli::units::bytes_text(done.rehearsed_bytes);
            self.note(Some(format!(
                "nothing was moved (--dry-run); {would} would have been tried"
            )));
        }
        let mut summary = Summary {
            record: "run",
            command,
            exit_code,
            elapsed_ms: observe::millis(elapsed),
            resident_peak_bytes: self.meter.peak_bytes().max(children.own_peak_bytes()),
            resident_mean_bytes: self.meter.mean_bytes(),
            reclaimed_bytes: done.left_bytes,
            refaulted_bytes: done.refaulted_bytes,
            command_cpu_ms: children.cpu.as_secs_f64() * 1e3,
            ..Summary::default()
        };
        self.way.finish(&mut summary, &mut self.notes);
        let cpu = clock::process_cpu();
        summary.agewise_cpu_ms = cpu.as_secs_f64() * 1e3;
        // Most of a short run is agewise's start, which the command's time does not include.
        summary.agewise_cpu_ratio = cpu.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9);
        summary.notes = self.notes.0.into_iter().collect();
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Way for Nothing {
        fn look(&mut self, _: &[Process], _: &mut Notes) {}

        fn done(&self) -> Done {
            Done::default()
        }

        fn finish(self: Box<Self>, _: &mut Summary, _: &mut Notes) {}
    }

    #[test]
    fn the_cost_of_a_short_command_is_a_share_of_all_the_time() {
        let keeper = Keeper::new(Box::new(Nothing), false);
        let (own, short) = (Duration::from_secs(10), Duration::from_micros(1));
        let began = Instant::now()
            .checked_sub(own)
            .expect("a machine up for longer");
        let summary = keeper.summary(Vec::new(), 0, short, began);
        let ratio = summary.agewise_cpu_ms / 1e3 / own.as_secs_f64();
        assert!(summary.agewise_cpu_ratio <= ratio, "{summary:?}");
    }
}
