// SPDX-License-Identifier: Apache-2.0
//! `agewise trace`: traces of page accesses. One subcommand per file.

pub mod cat;
pub mod convert;
pub mod info;
pub mod input;
pub mod record;
mod record_files;
pub mod sample;

use std::process::ExitCode;

/// Read, convert and sample traces of page accesses.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands of `agewise trace`.
#[derive(Debug, clap::Subcommand)]
#[allow(missing_docs)] // a comment here would hide the help that each `Args` carries
pub enum Command {
    Record(record::Args),
    Info(info::Args),
    Convert(convert::Args),
    Sample(sample::Args),
    Cat(cat::Args),
}

/// Runs the subcommand asked for.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Record(args) if args.files => record_files::run(args),
        Command::Record(args) => record::run(args),
        Command::Info(args) => info::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Sample(args) => sample::run(args),
        Command::Cat(args) => cat::run(args),
    }
}
