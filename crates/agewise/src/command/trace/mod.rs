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

use super::commands;

/// Read, convert and sample traces of page accesses.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

commands! {
    Record => record;
    Info => info;
    Convert => convert;
    Sample => sample;
    Cat => cat;
}

/// Runs the subcommand asked for.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Record(args) if args.files => record_files::run(args),
        command => command.run(),
    }
}
