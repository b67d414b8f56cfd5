// SPDX-License-Identifier: Apache-2.0
//! `agewise completions`.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// Print a shell completion script on standard output.
///
/// For bash: `agewise completions bash > /etc/bash_completion.d/agewise`; for zsh write it to
/// `_agewise` in a directory of `$fpath`; for fish to `~/.config/fish/completions/agewise.fish`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell to complete for.
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(
        args.shell,
        &mut crate::cli::Cli::command(),
        "agewise",
        &mut script,
    );
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
