// SPDX-License-Identifier: Apache-2.0
//! The command line: one subcommand a file in `command/`, listed there.

use clap::Parser;

use crate::command::Command;

/// See how old memory is, and move what is cold out before it hurts.
///
/// agewise reads the accessed bits of page tables on a stock kernel, keeps an age for every page of
/// unmodified programs, and can page out what has been idle. The same policies run in the lab
/// (`agewise lab`) on a simulated machine, where they can be compared on the same accesses.
///
/// Observing is the default. Whatever changes a process or the system is a command of its own, and
/// has `--dry-run`.
#[derive(Debug, Parser)]
#[command(name = "agewise", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}
