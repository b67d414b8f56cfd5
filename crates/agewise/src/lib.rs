// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command as a library, so that its tests can reach what it is made of: the file
//! in which an exerciser keeps its truth, the plans, the tables. Not a stable interface.

pub mod cli;
pub mod command;

use std::process::ExitCode;

use clap::Parser;

/// Parses the command line, runs the subcommand and tells errors on standard error.
pub fn main() -> ExitCode {
    match cli::Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) if agewise_cli::output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agewise: {error:#}");
            ExitCode::FAILURE
        }
    }
}
