// SPDX-License-Identifier: Apache-2.0
//! `agewise completions`.

use std::io::Write;
use std::process::ExitCode;

use clap_complete::Shell;

/// Print a shell completion script on standard output.
///
/// The script asks agewise itself, so it completes cgroups, processes, policies, workloads and
/// settings of the lab too, and stays right when agewise is updated.
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
    std::io::stdout().write_all(&crate::complete::script(args.shell)?)?;
    Ok(ExitCode::SUCCESS)
}
