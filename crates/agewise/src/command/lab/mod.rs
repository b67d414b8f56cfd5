// SPDX-License-Identifier: Apache-2.0
//! `agewise lab`: the simulated machine and the reference policies. One subcommand per file.

pub mod balloon;
pub mod check;
pub mod curve;
pub mod damon;
pub mod fuzz;
pub mod inspect;
pub mod list;
pub mod reproduce;
pub mod rerun;
mod results;
pub mod run;
mod set;
pub mod setup;
pub mod show;
pub mod sweep;
pub mod verify_kernel;
pub mod verify_policies;
pub mod whatif;

use std::process::ExitCode;

use agewise_cli::usage::WrongArgument;
use agewise_lab::reproduce::ReproduceError;
use agewise_lab::study::StudyError;

use super::commands;

/// The parser of `--jobs`. More threads than the maximum only take longer to start.
fn jobs() -> clap::builder::RangedU64ValueParser<usize> {
    clap::builder::RangedU64ValueParser::new().range(0..=1024)
}

/// Replay traces and workloads on simulated memory, and compare reclaim policies.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

commands! {
    Run => run;
    List => list;
    Inspect => inspect;
    VerifyKernel => verify_kernel;
    Balloon => balloon;
    Curve => curve;
    Damon => damon;
    Fuzz => fuzz;
    VerifyPolicies => verify_policies;
    Reproduce => reproduce;
    Show => show;
    Sweep => sweep;
    Check => check;
    Rerun => rerun;
    Whatif => whatif;
}

/// Runs the subcommand asked for.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.command.run().map_err(|error| {
        // With words around it, it is about what a file says.
        let top = error.chain().next();
        if let Some(StudyError::Argument(what)) = top.and_then(|top| top.downcast_ref()) {
            return WrongArgument(what.clone()).into();
        }
        match top.and_then(|top| top.downcast_ref()) {
            Some(wrong @ (ReproduceError::Unknown { .. } | ReproduceError::Setting(_))) => {
                WrongArgument(wrong.to_string()).into()
            }
            _ => error,
        }
    })
}
