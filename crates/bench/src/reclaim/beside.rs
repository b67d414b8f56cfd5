// SPDX-License-Identifier: Apache-2.0
//! What else the machine does meanwhile.

use std::process::{Child, Command, Stdio};

use anyhow::Context;
use serde::Serialize;

/// What runs beside the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Beside {
    /// A process on every CPU that never waits.
    Busy,
}

/// Spins for as long as we are there, however we end.
const SPIN: &str = "while kill -0 $PPID 2>/dev/null; do \
                    i=0; while [ $i -lt 99999 ]; do i=$((i+1)); done; done";

/// The processes; killed when dropped.
pub struct Company(Vec<Child>);

impl Beside {
    /// Starts them.
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
            company.0.push(child);
        }
        Ok(company)
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have been killed by somebody else.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
