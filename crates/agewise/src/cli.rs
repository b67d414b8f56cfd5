// SPDX-License-Identifier: Apache-2.0
//! The command line: one subcommand a file in `command/`, listed here.

use clap::{Parser, Subcommand};

use crate::command;

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

/// The subcommands. What each is for is said once, on its arguments.
#[derive(Debug, Subcommand)]
#[allow(missing_docs)] // a comment here would hide the help that each `Args` carries
pub enum Command {
    #[cfg(feature = "bench")]
    Bench(agewise_bench::Args),
    Completions(command::completions::Args),
    Config(command::config::Args),
    Daemon(command::daemon::Args),
    #[cfg(feature = "bench")]
    Demo(command::demo::Args),
    Doctor(command::doctor::Args),
    #[cfg(feature = "bench")]
    Exercise(agewise_bench::exercise::Args),
    #[cfg(feature = "lab")]
    Lab(command::lab::Args),
    Man(command::man::Args),
    Reclaim(command::reclaim::Args),
    Report(command::report::Args),
    Run(command::run::Args),
    Size(command::size::Args),
    Sort(command::sort::Args),
    Trace(command::trace::Args),
    Watch(command::watch::Args),
}
