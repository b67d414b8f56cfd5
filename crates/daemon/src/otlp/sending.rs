// SPDX-License-Identifier: Apache-2.0
//! The task of the process that sends metrics.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Endpoint;
use crate::metrics::shown::Limits;

/// What the process sends, and to whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sending {
    pub(super) endpoint: Endpoint,
    pub(super) headers: Vec<(String, String)>,
    pub(super) interval: Duration,
    pub(super) timeout: Duration,
    /// Attributes of all metrics, as the environment of the daemon states them.
    pub(super) attributes: String,
    /// When the counters began, ms since 1970.
    pub(super) since_unix_ms: u64,
    pub(super) limits: Limits,
}
