// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command as a library, for its own tests: one module per subcommand. It is not a
//! stable interface.
//!
//! Features, all on by default: `fuse` and `web` (parts of the daemon), `lab`, and `bench` (with
//! `exercise` and `demo`).

pub mod cli;
pub mod command;
mod complete;
mod descriptors;
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod names;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

/// Parses the command line, runs the subcommand and prints errors on standard error.
pub fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    names::look_up_without_libraries();
    complete::answer();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(answer) => return print(&answer),
    };
    // Those that start a command raise the limit afterwards, since it would be inherited.
    if !matches!(
        cli.command,
        command::Command::Run(_) | command::Command::Trace(_)
    ) {
        descriptors::allow_as_many_as_possible();
    }
    match cli.command.run() {
        Ok(code) => code,
        Err(error) if agewise_cli::output::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            agewise_cli::note!("{}", agewise_cli::output::chain(&error));
            ExitCode::from(agewise_cli::usage::exit_status(&error, 1))
        }
    }
}

/// Prints help, the version, or what is wrong with the command line. The parser would do so by
/// itself, but regard help as printed also where the disk is full.
fn print(answer: &clap::Error) -> ExitCode {
    let printed = answer.print().and_then(|()| io::stdout().flush());
    match printed {
        Err(error) if !answer.use_stderr() && error.kind() != io::ErrorKind::BrokenPipe => {
            agewise_cli::note!("standard output cannot be written: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::from(u8::try_from(answer.exit_code()).unwrap_or(2)),
    }
}
