// SPDX-License-Identifier: Apache-2.0
//! Load on the machine during a run.

use std::process::{Command, Stdio};

use agewise_cli::children::Killed;
use anyhow::Context;
use serde::Serialize;

/// What runs beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// A process on every CPU that never waits.
    Busy,
}

/// Spins until we have exited, for whatever reason.
const SPIN: &str = "while kill -0 $PPID 2>/dev/null; do \
                    i=0; while [ $i -lt 99999 ]; do i=$((i+1)); done; done";

/// The background processes; killed when dropped.
pub struct Company(#[allow(dead_code, reason = "dropped")] Vec<Killed>);

impl Beside {
    /// Starts the processes.
    pub fn start(self) -> anyhow::Result<Company> {
        let Beside::Busy = self;
        let cpus = std::thread::available_parallelism()?.get();
        let mut company = Company(Vec::new());
        for _ in 0..cpus {
            let child = Command::new("sh")
                .args(["-c", SPIN])
                .stdin(Stdio::null())
                .spawn()
                .context("cannot start a busy process")?;
            company.0.push(Killed(child));
        }
        Ok(company)
    }
}
