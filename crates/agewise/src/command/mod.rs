// SPDX-License-Identifier: Apache-2.0
//! One subcommand a file: its arguments and what it does.

pub mod completions;
pub mod config;
pub mod daemon;
#[cfg(feature = "bench")]
pub mod demo;
pub mod doctor;
#[cfg(feature = "lab")]
pub mod lab;
pub mod man;
pub mod reclaim;
pub mod report;
pub mod run;
pub mod size;
pub mod sort;
pub mod trace;
pub mod watch;

use std::process::ExitCode;

use crate::cli::{Cli, Command};

/// Runs the subcommand asked for.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        #[cfg(feature = "bench")]
        Command::Bench(args) => agewise_bench::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Daemon(args) => daemon::run(&args),
        #[cfg(feature = "bench")]
        Command::Demo(args) => demo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "bench")]
        Command::Exercise(args) => agewise_bench::exercise::run(&args),
        #[cfg(feature = "lab")]
        Command::Lab(args) => lab::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Reclaim(args) => reclaim::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Size(args) => size::run(&args),
        Command::Sort(args) => sort::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Watch(args) => watch::run(&args),
    }
}
