// SPDX-License-Identifier: Apache-2.0
//! `agewise daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use agewise_daemon::options::Options;
use agewise_daemon::service;

/// Run as a service: know the age of all memory at any time, and act where told to.
///
/// Looks at the memory of the cgroups and processes that its configuration names, at a fixed pace
/// and within a budget of CPU time, and follows cgroups and processes as they come and go. Without a
/// rule in the configuration (`[[act]]`) it only observes; with one it moves out memory by a policy,
/// or with dry_run writes down what it would have done. Every action is one line of JSON before it
/// and one after it.
///
/// Where the configuration protects cgroups ([protect]) and memory of theirs has to come back again
/// and again, it names who takes it, and squeezes, freezes or kills the guilty as far as it is told to.
///
/// SIGHUP: read the configuration again; one with an error changes nothing, and is reported. SIGTERM
/// and SIGINT: end; nothing is left behind. Killed and started again it goes on, with ages that begin
/// anew, after letting go of what the one before had frozen or squeezed (so does --let-go). Under
/// systemd it tells when it is ready and answers the watchdog.
///
/// Exit status: 0 told to end by SIGTERM, or all ticks done; 1 an error; 128 + the signal for
/// others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; the defaults (`agewise config default`) unless given.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Move nothing, whatever the configuration says; write down what would have been moved.
    #[arg(long)]
    dry_run: bool,

    /// Only let go of cgroups that a killed daemon left frozen or squeezed, as noted in its
    /// protect.ledger, and end. For who starts the daemon: when it has ended, however that came.
    #[arg(long, conflicts_with_all = ["dry_run", "ticks", "demo"])]
    let_go: bool,

    /// End after so many looks.
    #[arg(long, value_name = "N")]
    ticks: Option<u64>,

    /// Show a machine that is made up: the page and metrics, without root and without looking at
    /// anything. They are at metrics.listen of the configuration, enabled or not.
    #[arg(long, conflicts_with = "dry_run")]
    demo: bool,
}

/// Runs the daemon.
///
/// # Errors
/// What keeps it from starting.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        config: args.config.clone(),
        dry_run: args.dry_run,
        ticks: args.ticks,
        demo: args.demo,
    };
    if args.let_go {
        let is_well = service::let_go(&options)?;
        return Ok(if is_well {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    let signal = service::run(&options)?;
    Ok(match signal {
        None | Some(libc::SIGTERM) => ExitCode::SUCCESS,
        Some(signal) => ExitCode::from(agewise_cli::signal::Stop::exit_code(signal)),
    })
}
