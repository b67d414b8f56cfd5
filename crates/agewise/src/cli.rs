// SPDX-License-Identifier: Apache-2.0
//! The command line: one subcommand per file in `command/`, listed there.

use clap::Parser;

use crate::command::Command;

/// Show how old memory is, and move cold memory out before it causes pressure.
///
/// agewise reads the accessed bits of page tables on a stock kernel, tracks the age of every page
/// of unmodified programs, and can page out idle memory. The same policies run in the lab
/// (`agewise lab`) on a simulated machine, where they can be compared on the same accesses.
///
/// Observing is the default. Anything that changes a process or the system is a command of its own,
/// and has `--dry-run`.
#[derive(Debug, Parser)]
#[command(name = "agewise", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}
