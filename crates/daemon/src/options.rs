// SPDX-License-Identifier: Apache-2.0
//! How the daemon was started.

use std::path::PathBuf;

use super::config::Config;

/// How the daemon was started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The configuration; none: the defaults.
    pub config: Option<PathBuf>,
    /// Nothing is moved, whatever the configuration says.
    pub dry_run: bool,
    /// End after this many ticks.
    pub ticks: Option<u64>,
    /// Show a machine that is made up.
    pub demo: bool,
}

impl Options {
    /// Reads the configuration.
    ///
    /// # Errors
    /// It cannot be read, or makes no sense.
    pub fn read(&self) -> anyhow::Result<Config> {
        Ok(match &self.config {
            Some(path) => Config::read(path)?,
            None => Config::default(),
        })
    }
}
