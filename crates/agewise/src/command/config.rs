// SPDX-License-Identifier: Apache-2.0
//! `agewise config`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use agewise_daemon::config::{Config, DEFAULT_TEXT};

/// The configuration of `agewise daemon`: print the defaults, check a file, print the schema.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the defaults with an explanation of each key: a file to start from.
    Default,
    /// Check a file: unknown keys and invalid values are reported with their line.
    ///
    /// Exit status: 0 if the file is valid; 1 if it is not, or cannot be read.
    Check {
        /// The file.
        file: PathBuf,
    },
    /// Print the JSON Schema of the file, for editors.
    Schema,
}

/// Runs the command.
///
/// # Errors
/// The file cannot be read or is invalid.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match &args.what {
        What::Default => out.write_all(DEFAULT_TEXT.as_bytes())?,
        What::Check { file } => {
            let config = Config::read(file)?;
            let rules = config.act.len();
            let live = config.act.iter().filter(|act| !act.dry_run).count();
            writeln!(
                out,
                "{}: good; rules: {rules}, {live} of them move memory",
                file.display()
            )?;
        }
        What::Schema => {
            serde_json::to_writer_pretty(&mut out, &Config::schema())?;
            writeln!(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
