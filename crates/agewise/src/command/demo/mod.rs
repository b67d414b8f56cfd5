// SPDX-License-Identifier: Apache-2.0
//! `agewise demo`: the tour that `make run` shows.

mod curve;
pub mod program;

use agewise_policy::table::PAGE_BYTES;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use agewise_host::agent::{Agent, AgentConfig, Subject, Targets};
use agewise_host::mover::{
    self, Mover, PageoutError, PageoutLimits, ProcessMover, RefaultWatch, SourceRecheck,
};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap::{self, ZramDevice, ZramOptions};
use anyhow::{Context, bail};

use super::doctor;
use super::report::print::{AgentLook, Look, Printer};
use agewise_bench::exercise::spawned::Spawned;
use agewise_bench::hotcold;
use agewise_cli::observe;
use agewise_cli::output::Format;
use agewise_cli::signal::Stop;
use agewise_cli::units::{bytes_text, duration_text};
use program::Program;

/// Show agewise at work on this machine, in less than a minute.
///
/// Shows what works here, starts an exerciser (half of its memory is never touched again, and every
/// access checks the page) beside a real program, shows how old their memory is, moves out what is
/// cold, and shows that resident memory falls and both keep running unharmed. Then the lab: what
/// share of the accesses of a recorded program would miss, depending on its memory and the policy
/// that manages it. Everything it starts ends with it, even if it is interrupted.
///
/// Without root it does what it can on processes of its own user, and says what it left out.
/// Without swap only pages of files can leave; --zram temporarily creates a compressed swap device.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Make a zram swap device for as long as this runs (root only).
    #[arg(long)]
    zram: bool,

    /// Where the exerciser's mapped file is made; not on tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
}

/// The exerciser's anonymous memory.
const SIZE: &str = "256M";
/// The exerciser's mapped file.
const FILE_SIZE: &str = "32M";
/// Memory idle for this long is cold.
const OLDER_THAN: Duration = Duration::from_secs(5);
/// Time between two looks.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long to watch for refaults.
const WATCH: Duration = Duration::from_secs(3);

/// Runs the tour.
///
/// # Errors
/// A program was harmed or could not be started.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let stop = Stop::install()?;
    heading("What this machine allows (agewise doctor)")?;
    let can_observe = doctor::run(&doctor::Args::default())? == ExitCode::SUCCESS;
    if !can_observe {
        say("Nothing can be observed here: see what doctor advises. The lab does not need it.")?;
        curve::show()?;
        return Ok(ExitCode::SUCCESS);
    }
    let result = tour(args, &stop).and_then(|()| match stop.requested() {
        None => curve::show(),
        Some(_) => Ok(()),
    });
    match (stop.requested(), result) {
        (Some(signal), _) => {
            say("Interrupted: everything that was started has ended.")?;
            Ok(ExitCode::from(Stop::exit_code(signal)))
        }
        (None, result) => result.map(|()| ExitCode::SUCCESS),
    }
}

/// Prints a line of the tour.
fn say(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout(), "{text}")
}

fn heading(text: &str) -> std::io::Result<()> {
    say(&format!("\n== {text}\n"))
}

/// One of the two programs.
struct Shown {
    name: String,
    process: Process,
}

fn tour(args: &Args, stop: &Stop) -> anyhow::Result<()> {
    // Dropped last: the programs must have ended before swap is turned off.
    let zram = lend_swap(args)?;
    heading("Two programs at work")?;
    let own = std::env::current_exe().context("cannot find agewise itself")?;
    let file = args
        .directory
        .join(format!("agewise-demo-{}", std::process::id()));
    let file = file.to_str().context("--directory is not UTF-8")?;
    let arguments = [
        "--size",
        SIZE,
        "--pattern",
        "hotcold:0.5",
        "--file",
        file,
        "--file-size",
        FILE_SIZE,
    ];
    let exerciser = Spawned::start(&own, arguments, Some(stop))?;
    say(&format!(
        "{} is an exerciser: {SIZE} and a file of {FILE_SIZE}, one half of it hot",
        exerciser.pid()
    ))?;
    let program = Program::start()?;
    let mut shown = vec![open("exerciser", exerciser.pid())?];
    match &program {
        Some(program) => {
            say(&format!(
                "{} is {}: a table; it uses a tenth of it",
                program.pid(),
                program.name()
            ))?;
            shown.push(open(program.name(), program.pid())?);
        }
        None => say("Neither python3 nor perl is installed: the exerciser runs alone.")?,
    }
    let mut agent = watch(&shown, stop)?;
    reclaim_all(&mut agent, &shown, &zram, stop)?;
    let ops = exerciser.truth().ops();
    exerciser.finish()?;
    say(&format!(
        "The exerciser read every page once more after {ops} operations: all as written."
    ))?;
    if let Some(program) = program {
        let name = program.name();
        if !program.finish()? {
            bail!("{name} came to harm: the sum over its table is wrong");
        }
        say(&format!(
            "{name} added up its whole table: the sum is correct."
        ))?;
    }
    if let Some(device) = zram {
        let path = device.path();
        device.remove()?;
        say(&format!("{} is removed.", path.display()))?;
    }
    Ok(())
}

fn open(name: &str, pid: u32) -> anyhow::Result<Shown> {
    Ok(Shown {
        name: format!("{pid} ({name})"),
        process: Process::open_user(&ProcRoot::default(), pid)?,
    })
}

/// Creates a zram device if `--zram` asks for one; otherwise reports how much swap is free.
fn lend_swap(args: &Args) -> anyhow::Result<Option<ZramDevice>> {
    let free = swap::free_bytes(&ProcRoot::default())?;
    if args.zram {
        match ZramDevice::create(&ZramOptions::new(1 << 30)) {
            Ok(device) => {
                say(&format!(
                    "\nLent for this tour: {} as swap.",
                    device.path().display()
                ))?;
                return Ok(Some(device));
            }
            Err(error) => say(&format!("\nNo zram for this tour: {error}."))?,
        }
    }
    match free {
        0 => say(
            "\nNo swap: only pages of files can leave. `agewise demo --zram` (as root) adds a zram \
             device for the tour.",
        )?,
        free => say(&format!("\nFree swap: {}.", bytes_text(free)))?,
    }
    Ok(None)
}

/// Tracks the ages of both programs and shows them.
fn watch(shown: &[Shown], stop: &Stop) -> anyhow::Result<Agent> {
    let observation = OLDER_THAN + 3 * INTERVAL;
    heading(&format!(
        "How old their memory is, after {}",
        duration_text(observation)
    ))?;
    let root = ProcRoot::default();
    let subjects: Result<Vec<Subject>, _> = shown
        .iter()
        .map(|shown| Subject::process(&root, shown.process.pid()))
        .collect();
    let mut config = AgentConfig::new("1s,2s,5s,10s".parse()?);
    config.scan_interval_ms = Some(observe::millis(INTERVAL));
    let (mut agent, note) = observe::open_agent(Targets::Listed(subjects?), config)?;
    if let Some(note) = note {
        say(&note)?;
    }
    hotcold::age(&mut agent, observation, stop)?;
    let mut printer = Printer::new(std::io::stdout().lock(), Format::Text);
    let look = Look::Agent(AgentLook {
        cost: &agent.cost(),
        truncated: false,
    });
    printer.print(&agent.report(), &look, 0)?;
    Ok(agent)
}

/// Moves out the cold memory of both programs and shows the result.
fn reclaim_all(
    agent: &mut Agent,
    shown: &[Shown],
    zram: &Option<ZramDevice>,
    stop: &Stop,
) -> anyhow::Result<()> {
    heading(&format!(
        "Memory not touched for {} leaves",
        duration_text(OLDER_THAN)
    ))?;
    if let Err(error) = mover::require_page_ages(agent) {
        return Ok(say(&format!("Skipped: {error}."))?);
    }
    let mut left = Vec::new();
    for shown in shown {
        match reclaim(agent, shown, stop)? {
            Ok(moved) => left.push(moved),
            Err(error) => say(&format!("{}: skipped: {error}", shown.name))?,
        }
    }
    if let Some(device) = zram {
        let stat = device.stat()?;
        say(&format!(
            "The device holds {} in {} of memory.",
            bytes_text(stat.original_bytes),
            bytes_text(stat.memory_bytes)
        ))?;
    }
    if stop.wait(WATCH) {
        bail!("interrupted");
    }
    for (name, mover, watch) in &mut left {
        let back = watch.look(mover)?.refaulted_bytes();
        let (back, watched) = (bytes_text(back), duration_text(WATCH));
        say(&format!("{name}: {back} came back within {watched}"))?;
    }
    Ok(say("")?)
}

/// A program, by name, after some of its memory has left, and what watches that come back.
type Moved<'a> = (&'a str, ProcessMover<'a>, RefaultWatch);

/// Moves out the cold memory of one program, if that is possible.
fn reclaim<'a>(
    agent: &mut Agent,
    shown: &'a Shown,
    stop: &Stop,
) -> anyhow::Result<Result<Moved<'a>, PageoutError>> {
    let process = &shown.process;
    let mut mover = match ProcessMover::open(process) {
        Ok(mover) => mover,
        Err(error) => return Ok(Err(error)),
    };
    let ages = [Some(observe::millis(OLDER_THAN)); 2];
    let Some(cold) = mover::find_cold(agent, process.pid(), ages, u64::MAX)? else {
        bail!("{} is gone", shown.name);
    };
    let before = mover.rss_bytes()?;
    let limits = PageoutLimits {
        rate_bytes_per_s: Some(256 << 20),
        ..PageoutLimits::default()
    };
    let mut recheck = SourceRecheck::new(agent.source(), cold.target);
    let flag = stop.flag();
    let moved = mover::move_out(&mut mover, &cold.plan, limits, &mut recheck, flag, |_| ());
    if let Some(error) = moved.error {
        return Ok(Err(error));
    }
    say(&format!(
        "{}: resident {} -> {}; {} cold, {} left ({} to swap), {:.1} us CPU per page",
        shown.name,
        bytes_text(before),
        bytes_text(mover.rss_bytes()?),
        bytes_text(cold.bytes.iter().sum()),
        bytes_text(moved.report.left_bytes),
        bytes_text(moved.report.left_anon_bytes),
        moved.report.cpu_ns_per_page(PAGE_BYTES).unwrap_or(0.0) / 1e3
    ))?;
    for (reason, bytes) in moved.report.skipped_bytes.iter() {
        let (bytes, why) = (bytes_text(bytes), reason.explanation());
        say(&format!("  not tried: {bytes}: {why}"))?;
    }
    Ok(Ok((&shown.name, mover, RefaultWatch::new(moved.evicted))))
}
