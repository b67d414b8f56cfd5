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

/// The subcommands of `agewise lab`.
#[derive(Debug, clap::Subcommand)]
#[allow(missing_docs)] // a comment here would hide the help that each `Args` carries
pub enum Command {
    Run(run::Args),
    List(list::Args),
    Inspect(inspect::Args),
    VerifyKernel(verify_kernel::Args),
    Balloon(balloon::Args),
    Curve(curve::Args),
    Damon(damon::Args),
    Fuzz(fuzz::Args),
    VerifyPolicies(verify_policies::Args),
    Reproduce(reproduce::Args),
    Show(show::Args),
    Sweep(sweep::Args),
    Check(check::Args),
    Rerun(rerun::Args),
    Whatif(whatif::Args),
}

/// Runs the subcommand asked for.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    command(&args.command).map_err(|error| {
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

fn command(command: &Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Run(args) => run::run(args),
        Command::List(args) => list::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::VerifyKernel(args) => verify_kernel::run(args),
        Command::Balloon(args) => balloon::run(args),
        Command::Curve(args) => curve::run(args),
        Command::Damon(args) => damon::run(args),
        Command::Fuzz(args) => fuzz::run(args),
        Command::VerifyPolicies(args) => verify_policies::run(args),
        Command::Reproduce(args) => reproduce::run(args),
        Command::Check(args) => check::run(args),
        Command::Show(args) => show::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Rerun(args) => rerun::run(args),
        Command::Whatif(args) => whatif::run(args),
    }
}
