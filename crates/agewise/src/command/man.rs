// SPDX-License-Identifier: Apache-2.0
//! `agewise man`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;

/// Write the manual pages into a directory: one for agewise and one for each subcommand.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, made if it is missing. `man -l DIR/agewise.1` shows the first page.
    pub directory: PathBuf,
}

/// Writes the pages.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    std::fs::create_dir_all(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    // A `help` page at every level would double the number of pages without adding anything.
    let command = crate::cli::Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))?;
    writeln!(
        std::io::stdout(),
        "manual pages written to {}",
        directory.display()
    )?;
    Ok(ExitCode::SUCCESS)
}
