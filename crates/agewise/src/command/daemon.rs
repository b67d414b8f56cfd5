// SPDX-License-Identifier: Apache-2.0
//! `agewise daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use agewise_daemon::options::Options;
use agewise_daemon::service;

/// EX_CONFIG of sysexits.h; systemd does not restart after it (RestartPreventExitStatus).
pub(super) const EX_CONFIG: u8 = 78;

/// Run as a service: track the age of all memory, and act according to the configured rules.
///
/// Looks at the memory of the configured cgroups and processes, at a fixed pace and within a limit
/// of CPU time, and follows cgroups and processes as they come and go. Without a rule in the
/// configuration (`[[act]]`) it only observes; with one it moves memory out according to a policy,
/// or with dry_run records what it would have done. Every action is one line of JSON before it and
/// one after it.
///
/// If the configuration protects cgroups ([protect]) and their memory has to come back again and
/// again, the daemon names the cgroup that takes it, and squeezes, freezes or kills the culprit as
/// far as the configuration allows.
///
/// SIGHUP: read the configuration again; one with an error changes nothing, and is reported. If it
/// was sent because the daemon's terminal was closed, the daemon ends (unless started by nohup).
/// SIGTERM and SIGINT: end; nothing is left behind, except the directory of [files], empty.
/// If killed and restarted it continues, with ages that start from zero. It first undoes what its
/// predecessor had frozen, limited, mounted or bound, before it reads the configuration (--undo
/// does only that). These actions are recorded in the directory named by the environment variable
/// STATE_DIRECTORY, for root by default /var/lib/agewise. Under systemd it reports when it is ready
/// and answers the watchdog.
///
/// Exit status: 0 ended by SIGTERM, or all ticks done; 1 an error; 78 an error that a restart does
/// not fix: the configuration is invalid, names a directory that does not exist, or needs something
/// that this machine lacks; 128 + the signal for others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file. Default: built-in values (`agewise config default`).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Move nothing, whatever the configuration says; record what would have been moved.
    #[arg(long)]
    dry_run: bool,

    /// Only undo what a killed agewise left, and exit: frozen or limited cgroups, a dead mount and
    /// a dead socket. No configuration is needed; one that is given may name the ledger of an
    /// earlier version, and may be broken. The exit status is 1 if something is left.
    #[arg(long, alias = "let-go", conflicts_with_all = ["dry_run", "ticks", "demo"])]
    undo: bool,

    /// Exit after this many looks.
    #[arg(long, value_name = "N")]
    ticks: Option<u64>,

    /// Show a simulated machine: the page and metrics, without root and without looking at
    /// anything. They are served at metrics.listen of the configuration, enabled or not.
    #[arg(long, conflicts_with = "dry_run")]
    demo: bool,

    /// With --demo: this many simulated machines with 50 containers each, at consecutive ports
    /// starting with that of metrics.listen, to try out a Prometheus and its rules with a fleet.
    #[arg(long, value_name = "N", requires = "demo")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    hosts: Option<u16>,

    /// Serve what arrives at standard input: how the daemon starts the process that serves.
    #[arg(long, hide = true, exclusive = true)]
    server: bool,

    /// The directory of the ledger, for experiments. It is refused if others may write to it.
    #[arg(long, value_name = "DIR", hide = true)]
    state_dir: Option<PathBuf>,
}

/// Runs the daemon.
///
/// # Errors
/// An error that prevents it from starting.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        config: args.config.clone(),
        dry_run: args.dry_run,
        ticks: args.ticks,
        demo: args.demo,
        hosts: args.hosts.unwrap_or(1),
        state: args.state_dir.clone(),
    };
    if args.server {
        #[cfg(any(feature = "fuse", feature = "web"))]
        agewise_daemon::serve::run_child()?;
        return Ok(ExitCode::SUCCESS);
    }
    if args.undo {
        return Ok(match service::undo(&options) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        });
    }
    let signal = match service::run(&options) {
        Err(error) if service::is_final(&error) => {
            agewise_cli::note!("{}", agewise_cli::output::chain(&error));
            return Ok(ExitCode::from(EX_CONFIG));
        }
        ended => ended?,
    };
    Ok(match signal {
        None | Some(libc::SIGTERM) => ExitCode::SUCCESS,
        Some(signal) => ExitCode::from(agewise_cli::signal::Stop::exit_code(signal)),
    })
}
