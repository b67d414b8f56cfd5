// SPDX-License-Identifier: Apache-2.0
//! Replaces `outlet.rs` in a build without the feature `web`: a configuration that requests the
//! page and metrics is refused.

use agewise_host::throttle::Ledger;

use super::config::Metrics;
use super::state::Hub;

/// No server in this build.
#[derive(Debug, Default)]
pub struct Outlet(());

/// The configuration requests what this build lacks.
#[derive(Debug, thiserror::Error)]
#[error(
    "this agewise was built without the feature `web`: set `enabled = false` and no `textfile` or \
     `otlp` in [metrics], or build it with `--features web`"
)]
pub struct NotBuilt;

impl Outlet {
    /// Opens nothing, so records nothing.
    pub fn apart(_ledger: Option<Ledger>) -> Self {
        Outlet(())
    }

    /// Accepts a configuration without page and metrics.
    ///
    /// # Errors
    /// [`NotBuilt`] if it enables them.
    pub fn follow(&mut self, config: &Metrics, _hub: &Hub) -> Result<(), NotBuilt> {
        match config.enabled || config.textfile.is_some() || config.otlp.is_some() {
            true => Err(NotBuilt),
            false => Ok(()),
        }
    }

    /// Does nothing.
    pub fn publish(&mut self, _hub: &Hub) -> Option<String> {
        None
    }

    /// Does nothing.
    pub fn tend(&mut self, _hub: &Hub) -> Option<String> {
        None
    }

    /// Nothing is served.
    pub fn describe(&self) -> Option<String> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

    #[test]
    fn a_configuration_that_enables_metrics_is_refused() {
        let hub = Hub::new(demo::settings());
        let mut metrics = Metrics::default();
        let mut outlet = Outlet::default();
        outlet.follow(&metrics, &hub).unwrap();
        metrics.enabled = true;
        let error = outlet.follow(&metrics, &hub).unwrap_err().to_string();
        assert!(error.contains("--features web"), "{error}");
    }
}
