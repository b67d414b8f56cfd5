// SPDX-License-Identifier: Apache-2.0
//! A reader, and an agent that follows the files of its cgroup as the daemon does: by page tables
//! and by tracepoints.

use std::path::Path;

use agewise_cli::observe;
use agewise_host::agent::{Agent, AgentConfig, Subject, Targets};
use anyhow::ensure;

use super::Cached;
use super::reader::Reader;

pub(super) struct Watched {
    pub reader: Reader,
    pub agent: Agent,
}

impl Watched {
    /// Starts the reader, which gets the pages of the file charged to its cgroup.
    ///
    /// # Errors
    /// No memory cgroup, no BPF, or pages of the file that stay in memory.
    pub fn start(program: &Path, file: &Cached) -> anyhow::Result<Self> {
        file.drop_pages()?;
        let reader = Reader::start(program, &file.path)?;
        let subject = Subject::Cgroup(reader.cgroup().clone());
        let config = AgentConfig::new("1s,5s,30s".parse()?);
        let (mut agent, _) = observe::open_agent(Targets::Listed(vec![subject]), config)?;
        observe::follow_files(&mut agent)?;
        Ok(Watched { reader, agent })
    }

    /// Looks at page tables, and then at the page cache.
    ///
    /// # Errors
    /// One of them cannot be read.
    pub fn look(&mut self) -> anyhow::Result<()> {
        let looks = self.agent.cost().cache_looks;
        self.agent.tick()?;
        self.agent.look_at_files();
        let is_done = self.agent.cost().cache_looks > looks;
        ensure!(
            is_done,
            "no look at the page cache: {:?}",
            self.agent.report()
        );
        Ok(())
    }
}
