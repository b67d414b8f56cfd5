// SPDX-License-Identifier: Apache-2.0
//! Metrics are sent by OTLP over HTTP, by a separate process without privileges (`serve`): it alone
//! makes connections, and the daemon reads no byte of what comes back.

mod encode;
pub(crate) mod send;
pub(crate) mod sending;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Instant;

use agewise_cli::units::duration_text;

use super::config::{ConfigError, Metrics};
use super::metrics::shown::Limits;
use super::serve::{Apart, Stall, Task};
use super::state::Hub;
use sending::Sending;

/// The variable in which OpenTelemetry expects attributes of all that a program sends:
/// `NAME=VALUE,NAME=VALUE`.
const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Why no metrics are sent.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Headers(#[from] ConfigError),
    #[error("cannot start the process that sends metrics: {0}")]
    Start(#[from] io::Error),
}

impl Stall for Sending {
    fn task(&self) -> Task {
        Task::Otlp(Box::new(self.clone()))
    }

    /// Nobody comes to it.
    fn open(&mut self) -> io::Result<OwnedFd> {
        Ok(std::fs::File::open("/dev/null")?.into())
    }

    fn name(&self) -> &'static str {
        "the process that sends metrics"
    }
}

/// The process that sends metrics.
#[derive(Debug)]
pub struct Sender {
    apart: Box<Apart<Sending>>,
    due: Instant,
}

/// The sender that a configuration requires instead of `now`; `None` if that is the right one.
/// Counters began when the daemon did, at `since_unix_ms`.
///
/// # Errors
/// If the headers cannot be read, or the process cannot be started.
pub fn replaced(
    now: Option<&Sender>,
    config: &Metrics,
    limits: Limits,
    since_unix_ms: u64,
) -> Result<Option<Option<Sender>>, StartError> {
    let Some(otlp) = &config.otlp else {
        return Ok(now.map(|_| None));
    };
    let sending = Sending {
        endpoint: otlp.endpoint.clone(),
        headers: otlp.headers()?,
        interval: otlp.interval.0,
        timeout: otlp.timeout.0,
        attributes: std::env::var(ATTRIBUTES).unwrap_or_default(),
        since_unix_ms,
        limits,
    };
    if now.is_some_and(|now| *now.apart.stall() == sending) {
        return Ok(None);
    }
    let sender = Sender {
        apart: Box::new(Apart::start(sending)?),
        due: Instant::now(),
    };
    Ok(Some(Some(sender)))
}

impl Sender {
    /// Passes on the results of a tick, if the interval is over. Returns messages about the
    /// process.
    pub fn publish(&mut self, hub: &Hub) -> Option<String> {
        let now = Instant::now();
        if now < self.due {
            return self.tend(hub);
        }
        self.due = (self.due + self.apart.stall().interval).max(now);
        self.apart.publish(hub)
    }

    /// Restarts the process if it has ended. Returns messages about that.
    pub fn tend(&mut self, hub: &Hub) -> Option<String> {
        self.apart.tend(hub)
    }

    /// One line for people.
    pub fn describe(&self) -> String {
        let sending = self.apart.stall();
        format!(
            "metrics are sent to {} every {}",
            sending.endpoint,
            duration_text(sending.interval)
        )
    }
}
