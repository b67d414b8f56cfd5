// SPDX-License-Identifier: Apache-2.0
//! `agewise report`: how old memory is.

mod kernel;
mod knows;
pub(crate) mod print;
mod text;

use std::io::StdoutLock;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::access::{Resolution, check_page_size};
use agewise_host::agent::{Agent, SubjectReport};
use agewise_host::guest;
use agewise_host::source::{Open, Source};
use agewise_policy::workingset::NO_UPPER_BOUND_MS;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};

use agewise_cli::observe::{self, AgeArgs, EXIT_TARGETS_GONE, ScanInterval, millis};
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;
use print::{AgentLook, Look};

/// Report how old the memory of processes or cgroups is
///
/// Repeatedly looks at the accessed bits in their page tables, clears them, and tracks for every
/// page how long ago it was last seen accessed. At the end (or every `--follow`) prints a histogram
/// for each target and NUMA node:
///
///   N0
///   1000 anon=137368 file=24530
///   5000 anon=34342 file=0
///   18446744073709551615 anon=4925624 file=892892
///
/// A line counts the bytes whose age in milliseconds is above the bound of the previous line and at
/// most its own. Lines that start with # add details: totals, memory in swap, page cache that no
/// process maps (see `--files`), what could not be looked at, and the cost of looking. What is not
/// known is null in JSON and empty in CSV, such as ages and resident memory of a target of which no
/// process could be looked at.
///
/// Anon is memory that would go to swap (private and shared memory, tmpfs); file is memory that
/// would be written back or dropped. A page that several processes of a target map counts once, and
/// is as young as its last access through any of them. Resident memory that was never seen accessed
/// is at least as old as the observation; it is counted at that age, or in the last bin with
/// `--unseen oldest`. To see ages of minutes, observe for minutes.
///
/// `--source damon` and `--source lru_gen` read the kernel's own instruments instead. They are less
/// precise: DAMON estimates by region, the multi-gen LRU knows whole generations of memory cgroups.
/// The output says how coarse it is. DAMON has one owner at a time; if somebody else runs it, it is
/// left alone and the owner is named.
///
/// Reading page tables needs root. Clearing accessed bits does not change what programs compute,
/// but it affects the kernel's own reclaim, which uses the same bits.
///
/// Exit status: 0 done; 1 an error; 2 a wrong argument; 3 every target was gone before the end;
/// 128 + the signal when interrupted (the results so far are printed), but 0 with --follow, which
/// only a signal ends unless there is a --duration.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    #[command(flatten)]
    targets: TargetArgs,

    #[command(flatten)]
    ages: AgeArgs,

    /// How to detect accesses; see `agewise doctor` for what works here.
    #[arg(long, alias = "eye", value_name = "SOURCE", default_value = "auto",
          value_parser = source_choice())]
    source: SourceChoice,

    /// Count all file memory of cgroups, mapped or not, for the cgroup it is charged to.
    ///
    /// Pages of files are found in the page cache, using BPF; each counts once, and is as young as
    /// its last access through a descriptor or through a mapping of an observed process. Anon
    /// memory then contains shared memory and tmpfs whether mapped or not. Off by default, because
    /// it costs programs that read files (0.05 to 0.15 us per cached read of 4 KiB), and looks at
    /// the cache take up to 5 % of a core if it holds many files.
    #[arg(long, conflicts_with = "pid")]
    files: bool,

    /// Observe for this long, then report. Default: 30s, or without end with --follow.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    duration: Option<Duration>,

    /// Report repeatedly, this often, until interrupted or until --duration, if given.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    follow: Option<Duration>,

    /// With --all: list cgroups separately down to this many levels; deeper ones count for those
    /// above.
    #[arg(long, value_name = "LEVELS", default_value_t = 5)]
    #[arg(conflicts_with_all = ["pid", "cgroup"])]
    depth: usize,

    /// Report at most this many targets, the first in the order of --sort; 0 for all of them.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    top: usize,

    /// The order of targets.
    #[arg(long, value_enum, default_value_t = Sort::Resident)]
    sort: Sort,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// In JSON and CSV, print 18446744073709551615 as the bound of the last bin, as in text and in
    /// agewise 0.1.0, instead of null and +Inf.
    #[arg(long)]
    numeric_last_bound: bool,
}

impl Args {
    fn printer(&self) -> print::Printer<StdoutLock<'static>> {
        let mut printer = print::Printer::new(std::io::stdout().lock(), self.format);
        printer.last_bound_ms = self.numeric_last_bound.then_some(NO_UPPER_BOUND_MS);
        printer
    }
}

/// The processes or cgroups to observe.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct TargetArgs {
    /// A process; may be given several times, or as a list.
    #[arg(
        long,
        value_name = "PID",
        value_delimiter = ',',
        conflicts_with = "all"
    )]
    pid: Vec<u32>,

    /// A memory cgroup with all cgroups below it: its path below the hierarchy, or its directory.
    #[arg(long, value_name = "PATH", conflicts_with = "all")]
    #[arg(value_parser = observe::cgroup_path())]
    cgroup: Vec<String>,

    /// Every memory cgroup of the machine (v1 or v2), each with everything below it.
    ///
    /// A page that several cgroups share counts once, in the first of them.
    #[arg(long)]
    all: bool,
}

/// The argument of `--source`; `None` for the best that works.
#[derive(Clone, Copy, Debug)]
struct SourceChoice(Option<&'static Source>);

fn source_choice() -> impl TypedValueParser<Value = SourceChoice> {
    let auto = PossibleValue::new("auto")
        .help("Page tables; without the right to read them, whole mappings");
    let sources =
        Source::of_ages().map(|source| PossibleValue::new(source.name).help(source.about));
    PossibleValuesParser::new(std::iter::once(auto).chain(sources))
        .map(|name| SourceChoice(Source::named(&name)))
}

/// The order of targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Most resident memory first.
    Resident,
    /// Most resident anon memory first.
    Anon,
    /// Most resident file memory first.
    File,
    /// Most old memory first: by the oldest bin that differs.
    Cold,
    /// Most memory in swap first.
    Swapped,
    /// By name; cgroups right before those below them.
    Name,
}

/// Runs the command.
///
/// # Errors
/// A target does not exist, privileges are missing, or output cannot be written.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let targets = if args.targets.all {
        observe::all_cgroups(args.depth)?
    } else {
        observe::listed(&args.targets.pid, &args.targets.cgroup)?
    };
    let duration = match args.follow {
        Some(_) => args.duration,
        None => Some(args.duration.unwrap_or(DEFAULT_DURATION)),
    };
    let period = args
        .follow
        .into_iter()
        .chain(duration)
        .min()
        .unwrap_or(DEFAULT_DURATION);
    let source = args.source.0;
    if let Some(source) = source
        && let Open::Histograms(open) = source.open
    {
        if !source.large_pages {
            check_page_size(source.name)?;
        }
        if args.files {
            agewise_cli::refuse!(
                "--files combines page tables and the page cache; this source reads neither"
            );
        }
        return kernel::run(args, open, &targets, duration, period);
    }
    note_if_longer(args.ages.scan_interval, period);
    let (mut agent, note) = observe::open_agent_with(targets, args.ages.config(period), source)?;
    if let Some(note) = note {
        agewise_cli::note!("{note}");
    }
    if agent.source().abilities().resolution == Resolution::Mapping
        && (args.ages.exact || args.ages.cpu_limit.is_some())
    {
        const WHAT: &str = "--exact and --cpu-limit apply to single pages; this source knows whole \
                            mappings only";
        if source.is_some() {
            agewise_cli::refuse!("{WHAT}");
        }
        agewise_cli::note!("{WHAT}");
    }
    if args.files {
        observe::follow_files(&mut agent)?;
    }
    let stop = Stop::install()?;
    let mut printer = args.printer();
    follow(
        &mut agent,
        &stop,
        duration,
        args.follow,
        |agent, truncated| {
            note_guests(agent);
            let mut reports = agent.report();
            let left = Left::of(&reports);
            let cut = sort_and_cut(&mut reports, args.sort, args.top);
            let look = Look::Agent(AgentLook {
                cost: &agent.cost(),
                truncated,
            });
            let written = printer.print(&reports, &look, cut);
            (left, written.map_err(Into::into))
        },
    )
}

/// Notes the processes (such as virtual machines) with accesses that page tables do not show.
fn note_guests(agent: &Agent) {
    for space in agent.spaces().filter(|space| space.runs_guests()) {
        agewise_cli::note!("{}", guest::note(space.process().pid()));
    }
}

/// Default length of the observation.
const DEFAULT_DURATION: Duration = Duration::from_secs(30);

/// Ticks at the agent's pace and reports at the requested times. `report` returns what is left to
/// observe, and whether it could be written.
fn follow(
    agent: &mut Agent,
    stop: &Stop,
    duration: Option<Duration>,
    period: Option<Duration>,
    mut report: impl FnMut(&Agent, bool) -> (Left, anyhow::Result<()>),
) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    let interval = Duration::from_millis(agent.config().scan_interval_ms());
    let end = duration.map(|duration| began + duration);
    let bar = progress(duration.filter(|_| period.is_none()));
    let mut next_report = period.map(|period| began + period);
    let mut next_tick = began;
    loop {
        let tick = agent.tick()?;
        let now = Instant::now();
        let ended = end.is_some_and(|end| now >= end) || stop.requested().is_some();
        let due = next_report.is_some_and(|at| now >= at);
        // Nothing is left to observe, so waiting is pointless.
        let empty = tick.subjects == 0 || agent.is_finished();
        if ended || due || empty {
            if ended || empty {
                bar.finish_and_clear();
                agent.look_at_files();
            }
            let (left, written) = report(agent, tick.truncated);
            let signal = stop.requested().filter(|_| period.is_none());
            if let Some(status) = left.status(written, signal, ended)? {
                return Ok(status);
            }
            if let (Some(at), Some(period)) = (next_report, period) {
                next_report = Some(later(at, period, now));
            }
        }
        bar.set_position(millis(began.elapsed()));
        next_tick = later(next_tick, interval, now);
        let wake = end
            .into_iter()
            .chain([next_tick])
            .min()
            .unwrap_or(next_tick);
        wait(Some(agent), stop, &bar, began, wake);
    }
}

/// The next multiple of `period` from `at` that lies after `now`; missed ones are skipped.
fn later(at: Instant, period: Duration, now: Instant) -> Instant {
    let behind = now.saturating_duration_since(at);
    let periods = (behind.as_nanos() / period.as_nanos().max(1) + 1).min(u128::from(u32::MAX));
    at + period * periods as u32
}

/// Waits and moves the progress bar.
fn wait(
    mut agent: Option<&mut Agent>,
    stop: &Stop,
    bar: &ProgressBar,
    began: Instant,
    until: Instant,
) {
    const STEP: Duration = Duration::from_millis(500);
    loop {
        let step = if bar.is_hidden() {
            until
        } else {
            until.min(Instant::now() + STEP)
        };
        if observe::pause_until(agent.as_deref_mut(), stop, step) || step >= until {
            return;
        }
        bar.set_position(millis(began.elapsed()));
    }
}

/// A progress bar on standard error, if that is a terminal and the end is known.
fn progress(duration: Option<Duration>) -> ProgressBar {
    let Some(duration) = duration else {
        return ProgressBar::hidden();
    };
    let style = ProgressStyle::with_template("observing {wide_bar} {elapsed} of {msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(millis(duration))
        .with_style(style)
        .with_message(units::duration_text(duration))
}

/// What is left to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// At least one target can be observed.
    Something,
    /// Targets exist, but none can be observed.
    NothingSeen,
    /// All targets are gone.
    Nothing,
}

impl Left {
    fn of(reports: &[SubjectReport]) -> Self {
        if reports.iter().all(|report| report.gone.is_some()) {
            return Left::Nothing;
        }
        let unseen =
            |report: &SubjectReport| report.seen_processes == 0 && report.refused_processes > 0;
        match reports
            .iter()
            .all(|report| report.gone.is_some() || unseen(report))
        {
            true => Left::NothingSeen,
            false => Left::Something,
        }
    }

    /// The exit status after a report, if it was the last: a signal ends all, or it `ended`.
    ///
    /// # Errors
    /// The report could not be written, or nothing could be looked at until the end.
    fn status(
        self,
        written: anyhow::Result<()>,
        signal: Option<i32>,
        ended: bool,
    ) -> anyhow::Result<Option<ExitCode>> {
        let status = match (signal, self) {
            (Some(signal), _) => ExitCode::from(Stop::exit_code(signal)),
            (None, Left::Nothing) => ExitCode::from(EXIT_TARGETS_GONE),
            (None, Left::NothingSeen) if ended => {
                anyhow::bail!("no process could be looked at: see the lines above")
            }
            _ if ended => ExitCode::SUCCESS,
            _ => return written.map(|()| None),
        };
        output::status(written, status).map(Some)
    }
}

/// Says that looks are as far apart as the report is long, if more was asked for.
fn note_if_longer(scan_interval: ScanInterval, period: Duration) {
    if let ScanInterval::Every(interval) = scan_interval
        && interval > period
    {
        let (asked, every) = (units::duration_text(interval), units::duration_text(period));
        agewise_cli::note!("--scan-interval {asked} is longer than the report: {every} instead");
    }
}

/// Sorts and cuts the list; returns how many targets were cut off.
fn sort_and_cut(reports: &mut Vec<SubjectReport>, sort: Sort, top: usize) -> usize {
    let total = |report: &SubjectReport| report.resident_bytes.iter().sum::<u64>();
    let descending = |key: &dyn Fn(&SubjectReport) -> Vec<u64>,
                      reports: &mut Vec<SubjectReport>| {
        reports.sort_by_cached_key(|report| (std::cmp::Reverse(key(report)), report.name.clone()));
    };
    match sort {
        Sort::Resident => descending(&|report| vec![total(report)], reports),
        Sort::Anon => descending(&|report| vec![report.resident_bytes[0]], reports),
        Sort::File => descending(&|report| vec![report.resident_bytes[1]], reports),
        Sort::Swapped => descending(&|report| vec![report.swapped_bytes], reports),
        Sort::Cold => descending(
            &|report| {
                let histogram = report.histogram();
                histogram
                    .bins()
                    .iter()
                    .rev()
                    .map(|bin| bin.amounts.iter().sum())
                    .collect()
            },
            reports,
        ),
        Sort::Name => {
            reports.sort_by_cached_key(|report| {
                let parts = report.name.as_bytes().split(|byte| *byte == b'/');
                parts.map(<[u8]>::to_vec).collect::<Vec<_>>()
            });
        }
    }
    let keep = if top == 0 {
        reports.len()
    } else {
        top.min(reports.len())
    };
    let cut = reports.len() - keep;
    reports.truncate(keep);
    cut
}
