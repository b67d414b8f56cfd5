// SPDX-License-Identifier: Apache-2.0
//! What the daemon runs on: this machine, or one that a test makes up.

use agewise_cli::observe;
use agewise_host::agent::{Agent, AgentConfig, Targets};
use agewise_host::root::Roots;

/// Opens an agent for targets; also returns messages about its source.
type OpenAgent = fn(&Roots, Targets, AgentConfig) -> anyhow::Result<(Agent, Option<String>)>;

/// Where the daemon finds processes and cgroups, and its clock.
#[derive(Clone, Debug)]
pub(super) struct Surroundings {
    pub(super) roots: Roots,
    /// Milliseconds, by the clock of [`Agent::now_ms`].
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
