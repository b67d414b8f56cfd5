// SPDX-License-Identifier: Apache-2.0
//! Undoes what a killed daemon left: before its configuration is read, and regardless of it.

use std::path::{Path, PathBuf};

use agewise_cli::output;
use agewise_host::root::ProcRoot;
use agewise_host::throttle::{Ledger, LedgerError, Throttle, Undo, Undone};

use crate::config::Config;
use crate::health::{Health, Part};
use crate::options::Options;

/// The ledger of earlier versions, unless their configuration had another path.
const FORMER: &str = "/run/agewise-undo/ledger";

/// How many of the things that were undone are named.
const NAMED_MAX: usize = 8;

/// The ledger as found at the start, and the result of undoing what it contained.
#[derive(Debug, Default)]
pub(super) struct Found {
    ledger: Option<Ledger>,
    /// The state directory.
    state: Option<PathBuf>,
    /// Why there is no ledger.
    missing: String,
    /// Whether another program acts, which undoes what it does.
    is_taken: bool,
    said: Vec<String>,
    troubles: Vec<(Part, String)>,
}

impl Found {
    /// Reads the ledger and undoes what it contains, before anything else is read or opened.
    pub fn at_start(options: &Options) -> Self {
        let mut found = Found {
            state: options.state_dir(),
            ..Found::default()
        };
        match options.state_dir() {
            Some(dir) => match Ledger::open(&dir) {
                Ok((ledger, undone)) => {
                    found.ledger = Some(ledger);
                    found.take(&undone, Part::Ledger);
                }
                Err(error) => found.fail(&error),
            },
            None => {
                found.missing = "there is no directory for the ledger: set STATE_DIRECTORY".into();
            }
        }
        found.undo_file(Path::new(FORMER));
        found
    }

    /// Undoes what is in the ledger that the configuration names, as that of an earlier version
    /// did.
    pub fn undo_named(&mut self, config: &Config) {
        let Some(path) = &config.protect.ledger else {
            return;
        };
        self.undo_file(path);
        agewise_cli::note!(
            "protect.ledger is no longer used, {} is only read to undo what an earlier \
             version left: remove the key",
            path.display()
        );
    }

    fn undo_file(&mut self, path: &Path) {
        match Ledger::undo_file(path) {
            Ok(undone) => self.take(&undone, Part::Start),
            Err(error) => self.trouble(Part::Start, error.to_string()),
        }
    }

    fn fail(&mut self, error: &LedgerError) {
        self.missing = error.to_string();
        match error {
            // A running daemon is responsible for its own ledger.
            LedgerError::Taken { .. } => self.is_taken = true,
            _ => self.trouble(Part::Start, error.to_string()),
        }
    }

    /// Takes in what was undone. What was not is tried again if it belongs to the ledger of this
    /// daemon.
    fn take(&mut self, undone: &Undone, part: Part) {
        let path = undone.path.display();
        if !undone.done.is_empty() {
            let mut what: Vec<String> = undone.done.iter().map(Undo::describe).collect();
            what.truncate(NAMED_MAX);
            let message = format!(
                "{} of what a killed agewise left was undone, as noted in {path}: {}{}",
                undone.done.len(),
                what.join(", "),
                if undone.done.len() > NAMED_MAX {
                    ", ..."
                } else {
                    ""
                },
            );
            agewise_cli::note!("{message}");
            self.said.push(message);
        }
        let failures = undone.failures.iter().map(|error| (part, error));
        let others = undone.other_failures.iter();
        for (part, error) in failures.chain(others.map(|error| (Part::Start, error))) {
            let message = format!("not undone, and still noted in {path}: {error}");
            self.trouble(part, message);
        }
        for note in undone.unreadable_notes() {
            self.trouble(Part::Start, note);
        }
    }

    fn trouble(&mut self, part: Part, trouble: String) {
        agewise_cli::note!("{trouble}");
        self.said.push(trouble.clone());
        self.troubles.push((part, trouble));
    }

    /// The ledger, for recording.
    ///
    /// # Errors
    /// If there is none; says why.
    pub fn ledger(&self) -> anyhow::Result<&Ledger> {
        self.ledger.as_ref().ok_or_else(|| {
            anyhow::anyhow!("protect, shrink: nothing may be done: {}", self.missing)
        })
    }

    /// What acts on cgroups, and records it in the ledger.
    ///
    /// # Errors
    /// If nothing can be recorded, or another program acts.
    pub fn throttle(&self, proc: &ProcRoot) -> anyhow::Result<Throttle> {
        let ledger = self.ledger()?;
        ledger.claim()?;
        Ok(Throttle::new(proc.clone(), ledger.clone()))
    }

    /// The state directory.
    pub fn state(&self) -> Option<PathBuf> {
        self.state.clone()
    }

    /// Messages for the journal.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Whatever could not be undone is reported as a problem until somebody fixes it.
    pub fn tell(&self, health: &Health) {
        for part in [Part::Ledger, Part::Start] {
            let troubles = self.troubles.iter().filter(|(of, _)| *of == part);
            let troubles: Vec<&str> = troubles.map(|(_, trouble)| &**trouble).collect();
            if !troubles.is_empty() {
                health.fails(part, troubles.join("; "));
            }
        }
    }
}

/// Undoes what a killed daemon left, and nothing else. Returns whether nothing is left to undo,
/// apart from what another program undoes that still runs.
pub fn undo(options: &Options) -> bool {
    let mut found = Found::at_start(options);
    // The configuration helps to find the ledger of an earlier version, and is not needed
    // otherwise.
    match options.read() {
        Ok(config) => found.undo_named(&config),
        Err(error) => {
            let why = output::chain(&error);
            agewise_cli::note!("the configuration is not looked at: {why}");
        }
    }
    if found.is_taken {
        agewise_cli::note!("{}: it will undo what it does", found.missing);
    } else if found.ledger.is_none() && found.troubles.is_empty() {
        agewise_cli::note!("{}", found.missing);
    } else if found.said.is_empty() {
        agewise_cli::note!("there is nothing to undo");
    }
    (found.ledger.is_some() || found.is_taken) && found.troubles.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit whose daemon did not act must not fail when it stops because `agewise shrink` acts.
    #[test]
    fn what_another_program_does_is_not_left_behind() {
        let state = tempfile::tempdir().unwrap();
        let options = Options {
            config: Some(state.path().join("missing")),
            state: Some(state.path().to_owned()),
            ..Options::default()
        };
        let (ledger, _) = Ledger::open(state.path()).unwrap();
        ledger.claim().unwrap();
        assert!(Found::at_start(&options).is_taken && undo(&options));
    }

    #[test]
    fn what_is_not_tried_again_stays_a_trouble() {
        let mut found = Found::default();
        let undone = Undone {
            unreadable: vec!["rubbish".to_owned()],
            ..Undone::default()
        };
        found.take(&undone, Part::Ledger);
        found.trouble(Part::Ledger, "a cgroup".to_owned());
        let health = Health::default();
        found.tell(&health);
        let reasons = health.reasons();
        assert_eq!(reasons[0], "ledger: a cgroup");
        health.recovers(Part::Ledger);
        assert_eq!(health.reasons(), reasons[1..]);
        assert!(reasons[1].starts_with("start: ") && reasons[1].contains("rubbish"));
    }
}
