// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command as a library, for its own tests: one module per subcommand. It is not a
//! stable interface.
//!
//! Features, all on by default: `fuse` and `web` (parts of the daemon), `lab`, and `bench` (with
//! `exercise` and `demo`).

pub mod cli;
pub mod command;
mod complete;

use std::process::ExitCode;

use clap::Parser;

/// Parses the command line, runs the subcommand and prints errors on standard error.
pub fn main() -> ExitCode {
    complete::answer();
    match cli::Cli::parse().command.run() {
        Ok(code) => code,
        Err(error) if agewise_cli::output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            agewise_cli::note!("{}", agewise_cli::output::chain(&error));
            ExitCode::from(agewise_cli::usage::exit_status(&error, 1))
        }
    }
}
