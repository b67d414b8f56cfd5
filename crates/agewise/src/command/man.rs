// SPDX-License-Identifier: Apache-2.0
//! `agewise man`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap::builder::{PathBufValueParser, TypedValueParser};

/// Write the manual pages into a directory: one for agewise and one for each subcommand.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory, made if it is missing. `man -l DIR/agewise.1` shows the first page.
    #[arg(value_parser = PathBufValueParser::new().try_map(directory))]
    pub directory: PathBuf,
}

fn directory(given: PathBuf) -> Result<PathBuf, &'static str> {
    match given.as_os_str() == "-" {
        true => Err("pages are files in a directory, not one text: give a directory"),
        false => Ok(given),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_not_standard_output() {
        assert!(directory("-".into()).is_err());
        assert_eq!(directory("./-".into()), Ok("./-".into()));
    }
}
