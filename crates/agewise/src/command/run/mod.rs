// SPDX-License-Identifier: Apache-2.0
//! `agewise run`: keeps a program lean while it runs.

pub mod child;
pub mod cold_files;
pub mod family;
pub mod held;
pub mod idle;
pub mod keeper;
pub mod meter;
pub mod summary;

use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agewise_host::cgroup::{CgroupError, Hierarchy, OwnCgroup};
use agewise_host::clock;
use agewise_host::guest::Guests;
use agewise_host::pagecache::check_cachestat;
use agewise_host::root::ProcRoot;
use agewise_host::swap;
use anyhow::Context;

use super::reclaim::{swap_note, timing};
use agewise_cli::observe::GuestsArg;
use agewise_cli::output;
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_cli::usage::exit_status;
use child::{Child, Waiting};
use cold_files::ColdFiles;
use held::Held;
use idle::{Idle, Limits};
use keeper::Keeper;
use summary::Summary;

/// Run a program and keep it lean: move out what it has not touched for a while, or hold it below a
/// limit.
///
/// Starts COMMAND and looks at its memory and that of all its descendants. With --older-than, a
/// page that has not been touched for that long is moved out, as by `agewise reclaim`; with --files
/// also clean pages of files that nobody maps, as by `agewise reclaim --files`. With --memory,
/// COMMAND runs in a cgroup of its own with that limit, and the pages worth least are moved to swap
/// ahead of demand, as the daemon does with the policy `budget`; this needs swap. Both need root.
/// At the end it reports on standard error the peak and mean resident memory, what was moved out,
/// and what that cost.
///
/// With --memory or --files there is a cgroup, created near that of agewise (`agewise-run-PID`;
/// below it in cgroup v1, beside it in v2) and removed at the end. Anything that COMMAND left
/// running then continues in the cgroup of agewise. If agewise is killed, COMMAND keeps running
/// below the limit, and the next `agewise run` with a cgroup removes it once it is empty.
///
/// COMMAND has the standard streams and the process group of agewise: it can be stopped, continued
/// and interrupted from the terminal as without agewise, and signals sent only to agewise are
/// passed on to it.
///
/// Exit status: that of COMMAND, or 128 + the signal that ended it; 125 if agewise itself failed
/// before it started COMMAND, 126 if COMMAND cannot be run, 127 if it is not found; 2 a wrong
/// argument. A signal that arrives before COMMAND is started ends agewise with 128 + the signal.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("way").args(["older_than", "memory"]).required(true))]
pub struct Args {
    /// Memory not touched for this long is cold.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    older_than: Option<Duration>,

    /// Hold all its memory below this limit instead.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size)]
    #[arg(conflicts_with_all = ["interval", "rate", "keep"])]
    memory: Option<u64>,

    /// Which pages go first with --memory: those worth least judged by their past use, or those
    /// used least.
    #[arg(
        long,
        value_name = "ORDER",
        default_value = "reuse",
        conflicts_with = "older_than"
    )]
    #[arg(value_parser = ["reuse", "heat"])]
    by: String,

    /// With --memory, hold it from the start, not only once the kernel alone has brought in twice
    /// as many pages as the limit holds.
    ///
    /// Until then nothing is looked at or moved, so a program that nearly fits never has more
    /// faults than with the kernel alone. From the start, one that does not fit has fewer sooner,
    /// and one that grows without coming back to what has left is spared direct reclaim.
    #[arg(long, conflicts_with = "older_than")]
    from_start: bool,

    /// Also let clean pages of files that it reads go: with --memory those of its page cache that
    /// are worth least (without this the kernel selects among them), with --older-than those that
    /// were not accessed for that long and are not mapped.
    ///
    /// Only pages charged to the cgroup of COMMAND count: it was the first to read them. With
    /// --older-than they are found and dropped as by `agewise reclaim --files`; --rate
    /// holds for all memory together. Network and FUSE file systems are left alone.
    #[arg(long)]
    files: bool,

    /// Time between two looks, at least 100ms. Default: a quarter of --older-than, at most 10s.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    interval: Option<Duration>,

    /// Move at most this much per second, on average.
    #[arg(long, value_name = "RATE", default_value = "256M/s", value_parser = units::byte_rate)]
    rate: u64,

    /// Leave each process at least this much resident memory.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size)]
    keep: u64,

    #[command(flatten)]
    guests: GuestsArg,

    /// Look, and say what would be moved out, without touching it.
    #[arg(long)]
    dry_run: bool,

    /// Also write the final report into this file, as JSON, after one line per look.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Exit status if agewise itself fails, as with `timeout` and `env`; hardly any command uses it.
const EXIT_OWN_FAILURE: u8 = 125;
/// With a limit, time between two searches for new processes.
const FIND_EVERY: Duration = Duration::from_secs(1);
/// Longest time between two samples of resident memory.
const SAMPLE_EVERY: Duration = Duration::from_millis(250);

/// Runs the command.
///
/// # Errors
/// None: failures are reported here, since their exit status must differ from the command's.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let now = Instant::now();
    // What came before took at least its CPU time.
    let began = now.checked_sub(clock::process_cpu()).unwrap_or(now);
    // The handlers before the cgroup, which a signal would leave behind.
    let prepared = Waiting::install()
        .context("cannot handle signals")
        .and_then(|signals| Ok((signals, prepare(args)?)));
    let (mut signals, prepared) = match prepared {
        Ok(both) => both,
        Err(error) => {
            agewise_cli::note!(
                "{}; the command was not started",
                agewise_cli::output::chain(&error)
            );
            return Ok(ExitCode::from(exit_status(&error, EXIT_OWN_FAILURE)));
        }
    };
    if let Some(signal) = signals.arrived() {
        return Ok(ExitCode::from(Stop::exit_code(signal)));
    }
    let child = match Child::spawn_in(prepared.own.as_deref(), &args.command, signals) {
        Ok(child) => child,
        Err(error) => {
            agewise_cli::note!("{error}");
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    let summary = attend(args, prepared, child, began)?;
    // If standard error is closed or full, the status still is that of the command.
    let _ = write!(std::io::stderr(), "{summary}");
    Ok(ExitCode::from(summary.exit_code))
}

/// The result of everything that can fail before the command starts.
struct Prepared {
    keeper: Keeper,
    /// The cgroup in which the command starts.
    own: Option<Arc<OwnCgroup>>,
    /// Time to the first look, and between looks.
    first: Duration,
    interval: Duration,
    report: Option<File>,
}

fn prepare(args: &Args) -> anyhow::Result<Prepared> {
    let report = match &args.report {
        Some(path) => {
            Some(File::create(path).with_context(|| format!("cannot write {}", path.display()))?)
        }
        None => None,
    };
    let Some(older_than) = args.older_than else {
        let limit_bytes = args.memory.context("--older-than or --memory is needed")?;
        let guests = args.guests.into();
        let measure = if args.from_start {
            "on"
        } else {
            "kernel_first"
        };
        let how = format!("by={},measure={measure}", args.by);
        let held = Held::new(limit_bytes, &how, args.files, guests, args.dry_run)?;
        return Ok(Prepared {
            own: held.own(),
            keeper: Keeper::new(Box::new(held), args.dry_run),
            first: Duration::ZERO,
            interval: FIND_EVERY,
            report,
        });
    };
    let interval = timing::interval(older_than, args.interval)?;
    let (own, files) = match args.files {
        true => {
            check_cachestat().context("--files")?;
            let own = Arc::new(make_cgroup()?);
            let files = ColdFiles::open(Arc::clone(&own), older_than)?;
            (Some(own), Some(files))
        }
        false => (None, None),
    };
    let limits = Limits {
        older_than,
        rate_bytes_per_s: args.rate,
        keep_bytes: args.keep,
        guests: args.guests.into(),
        rehearse: args.dry_run,
    };
    let (idle, note) = Idle::new(limits, interval, files)?;
    let mut keeper = Keeper::new(Box::new(idle), args.dry_run);
    keeper.note(note);
    keeper.note(swap_note(swap::free_bytes(&ProcRoot::default())?));
    Ok(Prepared {
        keeper,
        own,
        first: interval,
        interval,
        report,
    })
}

/// What to say if the report could not be written.
fn unwritten(args: &Args, error: &std::io::Error) -> String {
    let path = args.report.as_deref().unwrap_or(Path::new(""));
    format!("--report: cannot write {}: {error}", path.display())
}

/// Prefix of the name of the command's own cgroup; the pid of this process follows.
const PREFIX: &str = "agewise-run";

/// Creates the cgroup in which the command starts.
fn make_cgroup() -> anyhow::Result<OwnCgroup> {
    let hierarchy = Hierarchy::discover(&ProcRoot::default())?;
    OwnCgroup::make_near(&hierarchy, PREFIX).map_err(|error| match &error {
        CgroupError::File(file) if file.is_denied() => {
            anyhow::anyhow!("{error}: the command gets a cgroup of its own, which needs root")
        }
        _ => error.into(),
    })
}

/// Keeps the command lean until it ends. `own_began` is when agewise itself began.
fn attend(
    args: &Args,
    prepared: Prepared,
    mut child: Child,
    own_began: Instant,
) -> anyhow::Result<Summary> {
    let Prepared {
        mut keeper,
        first,
        interval,
        mut report,
        ..
    } = prepared;
    keeper.set_command(child.pid());
    keeper.warn_of_guests(Guests::from(args.guests) == Guests::Included);
    let began = Instant::now();
    let mut next_look = began + first;
    let mut next_sample = began;
    let status = loop {
        let now = Instant::now();
        if now >= next_look {
            keeper.look();
            if let Some(file) = &mut report {
                // A failure to write the report must not end the command.
                let written = output::json_line(file, &keeper.sample(began.elapsed()));
                keeper.note(written.err().map(|error| unwritten(args, &error)));
            }
            next_look = Instant::now().max(next_look + interval);
        }
        keeper.measure();
        next_sample = (next_sample + SAMPLE_EVERY).max(now);
        match child.wait_until(next_look.min(next_sample)) {
            Ok(None) => {}
            Ok(Some(status)) => break status,
            Err(error) => return Err(error).context("cannot wait for the command"),
        }
    };
    let command = args
        .command
        .iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let exit_code = child::exit_code(status);
    let summary = keeper.summary(command, exit_code, began.elapsed(), own_began);
    if let Some(file) = &mut report
        && let Err(error) = output::json_line(file, &summary)
    {
        agewise_cli::note!("{}", unwritten(args, &error));
    }
    Ok(summary)
}
