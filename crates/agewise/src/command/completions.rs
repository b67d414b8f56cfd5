// SPDX-License-Identifier: Apache-2.0
//! `agewise completions`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Arguments of `agewise completions`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Prints the script on standard output.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = crate::cli::Cli::command();
    clap_complete::generate(args.shell, &mut command, "agewise", &mut std::io::stdout());
    Ok(ExitCode::SUCCESS)
}
