// SPDX-License-Identifier: Apache-2.0
//! `agewise config`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use agewise_daemon::config::{Config, ConfigError, DEFAULT_TEXT, MADE_AT_START};

use super::daemon::EX_CONFIG;

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
    /// Check a file: unknown keys and invalid values are reported with their line, and places that
    /// do not exist with their key.
    ///
    /// Directories have to exist, except /run/agewise and /var/log/agewise, which the systemd unit
    /// creates, and that of the report files must be empty or new. What is probably not meant is
    /// only noted: a missing directory of the textfile, a rule that an earlier one covers, and keys
    /// without effect. Exit status: 0 if the daemon can start with the file; 78 if not, as
    /// for the daemon.
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
/// Output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    match &args.what {
        What::Default => out.write_all(DEFAULT_TEXT.as_bytes())?,
        What::Check { file } => {
            let config = match read(file) {
                Ok(config) => config,
                Err(error) => {
                    agewise_cli::note!("{error}");
                    return Ok(ExitCode::from(EX_CONFIG));
                }
            };
            for doubt in config.doubts() {
                agewise_cli::note!("{doubt}");
            }
            writeln!(out, "{}: good; {}", file.display(), summary(&config))?;
        }
        What::Schema => {
            serde_json::to_writer_pretty(&mut out, &Config::schema())?;
            writeln!(out)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What a daemon with this configuration does besides observing.
fn summary(config: &Config) -> String {
    let live = config.act.iter().filter(|act| !act.dry_run).count();
    let mut text = format!("rules: {}, {live} of them act", config.act.len());
    let protect = &config.protect;
    if !protect.cgroups.is_empty() {
        let rehearsed = if protect.dry_run { ", rehearsed" } else { "" };
        text += &format!("; protect: up to {}{rehearsed}", protect.up_to.name());
    }
    text
}

fn read(file: &Path) -> Result<Config, ConfigError> {
    let config = Config::read(file)?;
    config.check_places(&MADE_AT_START)?;
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_names_all_that_acts() {
        for (text, expected) in [
            ("", "rules: 0, 0 of them act"),
            (
                "[[act]]\ncgroups = ['/a']\npolicy = 'cost'\n\
                 [[act]]\ncgroups = ['/b']\npolicy = 'shrink'\ndry_run = false\n\
                 [protect]\ncgroups = ['/c']\nup_to = 'kill'\n",
                "rules: 2, 1 of them act; protect: up to kill",
            ),
            (
                "[protect]\ncgroups = ['/c']\nup_to = 'freeze'\ndry_run = true\n",
                "rules: 0, 0 of them act; protect: up to freeze, rehearsed",
            ),
        ] {
            let config = Config::parse(text).unwrap();
            assert_eq!(summary(&config), expected);
        }
    }
}
