// SPDX-License-Identifier: Apache-2.0
//! The `agewise` command as a library, for its own tests: one module per subcommand. It is not a
//! stable interface.
//!
//! Features, all on by default: `fuse` and `web` (parts of the daemon), `lab`, and `bench` (with
//! `exercise` and `demo`).

pub mod cli;
pub mod command;
mod complete;
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod names;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

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
        raise_file_limit();
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

/// Raises the soft limit of open files to the hard one. Each process that is followed takes a
/// descriptor, and the usual soft limit of services and sessions, 1024, only protects programs that
/// use `select`.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    // If refused, what cannot be opened is reported.
    let _ = setrlimit(Resource::Nofile, raised);
}
