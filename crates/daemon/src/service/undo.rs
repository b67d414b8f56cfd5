// SPDX-License-Identifier: Apache-2.0
//! Undoes what a killed daemon left: before its configuration is read, and regardless of it.

use std::path::{Path, PathBuf};

use agewise_cli::output;
use agewise_host::throttle::{Ledger, LedgerError, Undone};

use crate::config::Config;
use crate::health::{Health, Part};
use crate::options::Options;

/// The ledger of earlier versions, unless their configuration had another path.
const FORMER: &str = "/run/agewise-undo/ledger";

/// The ledger as found at the start, and the result of undoing what it contained.
#[derive(Debug, Default)]
pub(super) struct Found {
    ledger: Option<Ledger>,
    /// The state directory.
    state: Option<PathBuf>,
    /// Why there is no ledger.
    missing: String,
    said: Vec<String>,
    troubles: Vec<String>,
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
                    found.take(&undone);
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
            Ok(undone) => self.take(&undone),
            Err(error) => self.trouble(error.to_string()),
        }
    }

    fn fail(&mut self, error: &LedgerError) {
        self.missing = error.to_string();
        match error {
            // A running daemon is responsible for its own ledger.
            LedgerError::Taken { .. } => {}
            _ => self.trouble(error.to_string()),
        }
    }

    fn take(&mut self, undone: &Undone) {
        let path = undone.path.display();
        if undone.count > 0 {
            let message = format!(
                "{} of what a killed agewise left was undone, as noted in {path}",
                undone.count
            );
            agewise_cli::note!("{message}");
            self.said.push(message);
        }
        for error in &undone.failures {
            self.trouble(format!("not undone, and still noted in {path}: {error}"));
        }
        for note in undone.unreadable_notes() {
            self.trouble(note);
        }
    }

    fn trouble(&mut self, trouble: String) {
        agewise_cli::note!("{trouble}");
        self.said.push(trouble.clone());
        self.troubles.push(trouble);
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
        if !self.troubles.is_empty() {
            health.fails(Part::Ledger, self.troubles.join("; "));
        }
    }
}

/// Undoes what a killed daemon left, and nothing else. Returns whether nothing is left to undo.
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
    if found.ledger.is_none() && found.troubles.is_empty() {
        agewise_cli::note!("{}", found.missing);
    } else if found.said.is_empty() {
        agewise_cli::note!("there is nothing to undo");
    }
    found.ledger.is_some() && found.troubles.is_empty()
}
