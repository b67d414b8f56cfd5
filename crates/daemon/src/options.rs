// SPDX-License-Identifier: Apache-2.0
//! How the daemon was started.

use std::path::PathBuf;

use agewise_host::throttle::state_directory;

use super::config::Config;

/// How the daemon was started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration; `None` for the defaults.
    pub config: Option<PathBuf>,
    /// Move nothing, whatever the configuration says.
    pub dry_run: bool,
    /// End after this many ticks.
    pub ticks: Option<u64>,
    /// Show a made-up machine.
    pub demo: bool,
    /// Show this many simulated machines, each on its own port; 0 means 1.
    pub hosts: u16,
    /// The directory of the ledger; `None` for [`state_directory`].
    pub state: Option<PathBuf>,
}

impl Options {
    /// Reads the configuration.
    ///
    /// # Errors
    /// If it cannot be read, or is invalid.
    pub fn read(&self) -> anyhow::Result<Config> {
        Ok(match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        })
    }
    /// Reads the configuration again, without waiting for a file system that does not respond.
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn read_again(&self) -> anyhow::Result<Config> {
        Ok(match &self.config {
            Some(path) => Config::read_in_time(path)?,
            None => Config::default(),
        })
    }

    /// The directory of the ledger; `None` if the environment names no home.
    pub fn state_dir(&self) -> Option<PathBuf> {
        self.state.clone().or_else(state_directory)
    }
}
