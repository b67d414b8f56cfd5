// SPDX-License-Identifier: Apache-2.0
//! `agewise daemon`.

use std::path::PathBuf;
use std::process::ExitCode;

use agewise_daemon::options::Options;
use agewise_daemon::service;

/// As in sysexits.h; systemd does not start again what ends with it (RestartPreventExitStatus).
const EX_CONFIG: u8 = 78;

/// Run as a service: know the age of all memory at any time, and act by the rules configured.
///
/// Looks at the memory of the cgroups and processes that its configuration names, at a fixed pace
/// and within a budget of CPU time, and follows cgroups and processes as they come and go. Without a
/// rule in the configuration (`[[act]]`) it only observes; with one it moves out memory by a policy,
/// or with dry_run writes down what it would have done. Every action is one line of JSON before it
/// and one after it.
///
/// Where the configuration protects cgroups ([protect]) and memory of theirs has to come back again
/// and again, it names who takes it, and squeezes, freezes or kills the guilty as far as that allows.
///
/// SIGHUP: read the configuration again; one with an error changes nothing, and is reported. SIGTERM
/// and SIGINT: end; nothing is left behind. Killed and started again it goes on, with ages that begin
/// anew. What the one before had frozen, limited, mounted or bound is undone first, before the
/// configuration is read (--undo does only that). It is noted in the directory STATE_DIRECTORY of the
/// environment, for root /var/lib/agewise. Under systemd it tells when it is ready and answers the
/// watchdog.
///
/// Exit status: 0 ended by SIGTERM, or all ticks done; 1 an error; 78 one that starting again does
/// not mend: the configuration makes no sense, or asks for what this machine has not; 128 + the
/// signal for others.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration; the defaults (`agewise config default`) unless given.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Move nothing, whatever the configuration says; write down what would have been moved.
    #[arg(long)]
    dry_run: bool,

    /// Only undo what a killed daemon left, and end: cgroups that are frozen or limited, a mount and
    /// a socket that nobody answers for. No configuration is needed; one that is given may name the
    /// ledger of an earlier version, and may be broken. The exit status is 1 if something is left.
    #[arg(long, alias = "let-go", conflicts_with_all = ["dry_run", "ticks", "demo"])]
    undo: bool,

    /// End after so many looks.
    #[arg(long, value_name = "N")]
    ticks: Option<u64>,

    /// Show a machine that is made up: the page and metrics, without root and without looking at
    /// anything. They are at metrics.listen of the configuration, enabled or not.
    #[arg(long, conflicts_with = "dry_run")]
    demo: bool,

    /// With --demo: so many made-up machines with 50 containers each, at as many ports from that of
    /// metrics.listen on, to try out a Prometheus and its rules with a fleet.
    #[arg(long, value_name = "N", requires = "demo")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    hosts: Option<u16>,

    /// Serve what comes in at standard input: how the daemon starts the process that serves.
    #[arg(long, hide = true, exclusive = true)]
    server: bool,

    /// The directory of the ledger, for trying things out. It is refused if others may write to it.
    #[arg(long, value_name = "DIR", hide = true)]
    state_dir: Option<PathBuf>,
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
