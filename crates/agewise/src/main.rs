// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command.

mod cli;
mod command;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match command::run(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("agewise: {error:#}");
            ExitCode::FAILURE
        }
    }
}
