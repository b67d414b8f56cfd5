// SPDX-License-Identifier: Apache-2.0
//! The machine on which the daemon runs, or one that a test makes up.

use agewise_cli::observe;
use agewise_host::agent::{Agent, AgentConfig, Targets};
use agewise_host::root::Roots;

/// Opens an agent for targets; also returns messages about its source.
type OpenAgent = fn(&Roots, Targets, AgentConfig) -> anyhow::Result<(Agent, Option<String>)>;

/// The roots of processes and cgroups, and the clock.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) roots: Roots,
    /// Milliseconds, on the clock of [`Agent::now_ms`].
    pub(super) now_ms: fn() -> u64,
    pub(super) open_agent: OpenAgent,
}

impl Default for Surroundings {
    fn default() -> Self {
        Surroundings {
            roots: Roots::default(),
            now_ms: Agent::now_ms,
            open_agent: |_, targets, config| observe::open_agent(targets, config),
        }
    }
}
