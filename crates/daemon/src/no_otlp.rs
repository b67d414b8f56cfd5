// SPDX-License-Identifier: Apache-2.0
//! Replaces `otlp` in a build without that feature: a configuration that has metrics sent is
//! refused.

use super::config::Metrics;
use super::metrics::shown::Limits;
use super::state::Hub;

/// The configuration requests what this build lacks.
#[derive(Debug, thiserror::Error)]
#[error(
    "this agewise was built without the feature `otlp`: remove [metrics.otlp], or build it with \
     `--features otlp`"
)]
pub struct StartError;

/// There is none in this build.
#[derive(Debug)]
pub enum Sender {}

/// Accepts a configuration that has nothing sent.
///
/// # Errors
/// [`StartError`] for any other.
pub fn replaced(
    _now: Option<&Sender>,
    config: &Metrics,
    _limits: Limits,
    _since_unix_ms: u64,
) -> Result<Option<Option<Sender>>, StartError> {
    match config.otlp {
        None => Ok(None),
        Some(_) => Err(StartError),
    }
}

impl Sender {
    /// Never called.
    pub fn publish(&mut self, _hub: &Hub) -> Option<String> {
        match *self {}
    }

    /// Never called.
    pub fn tend(&mut self, _hub: &Hub) -> Option<String> {
        match *self {}
    }

    /// Never called.
    pub fn describe(&self) -> String {
        match *self {}
    }
}
