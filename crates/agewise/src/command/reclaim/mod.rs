// SPDX-License-Identifier: Apache-2.0
//! `agewise reclaim`: moves cold memory out, once.

mod ends;
pub mod files;
pub mod record;
pub mod timing;
mod work;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;
use agewise_host::mover::{self, Cold, PageoutLimits, RefaultWatch, SourceRecheck};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::swap;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressStyle};

use agewise_cli::observe::{self, EXIT_TARGETS_GONE, GuestsArg, OneTarget};
use agewise_cli::output::Format;
use agewise_cli::signal::Stop;
use agewise_cli::units::{self, bytes_text, duration_text};
use ends::Ends;
use record::{Planned, Reclaimed};
use work::{Work, open_movers, rss_bytes, together_bytes};

/// Move memory out that has not been touched for a while, once.
///
/// First observes the processes for as long as it takes to know what is that old, shows what it
/// found, moves it out (anonymous memory to swap; pages of files out of the process and, unless
/// others use them, out of memory), and watches for some seconds what comes back.
///
/// Right before a page is moved it is looked at once more; a page that was touched stays. mlocked
/// memory stays, and so do huge pages that were partly touched. What was asked for, what left, what
/// stayed and why, and what came back is accounted for in full and printed. Without free swap only
/// pages of files can leave, and the command says so. agewise itself and its ancestors are never
/// touched. Needs root.
///
/// Exit status: 0 done; 1 an error; 2 a wrong argument; 3 the target was gone before the end; 128 +
/// the signal when interrupted (what was done so far is printed).
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: OneTarget,

    /// Memory not touched for this long is cold.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    older_than: Duration,

    /// Time between two looks, at least 100ms. Default: a quarter of --older-than, at most 10s.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    interval: Option<Duration>,

    /// How long to observe before moving anything. Default: --older-than plus one interval.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    observe: Option<Duration>,

    /// Move at most this much out. Memory that was asked for but stays (because other processes map
    /// it too) is not counted.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size)]
    max_bytes: Option<u64>,

    /// Move at most this much per second, on average.
    #[arg(long, value_name = "RATE", default_value = "256M/s", value_parser = units::byte_rate)]
    rate: u64,

    /// Leave the target at least this much resident memory. What several of its processes share
    /// counts once.
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = units::size)]
    keep: u64,

    /// Watch for this long what comes back; 0s to skip.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = units::duration)]
    watch: Duration,

    /// Move pages of files out instead, whichever process reads them: clean ones that no process
    /// maps.
    ///
    /// They are found in the page cache of the cgroup, using the kernel's tracepoints
    /// (`agewise files` lists them), opened read-only, and dropped with posix_fadvise. What comes
    /// back is not watched.
    #[arg(long, conflicts_with_all = ["pid", "keep", "watch", "guests"])]
    files: bool,

    /// With --files: also network and FUSE file systems, from which pages are slow to come back.
    #[arg(long, requires = "files", conflicts_with = "pid")]
    far: bool,

    #[command(flatten)]
    guests: GuestsArg,

    /// Do everything except moving.
    #[arg(long)]
    dry_run: bool,

    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the command.
///
/// # Errors
/// A target does not exist or may not be touched, privileges are missing, or times are invalid.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interval = timing::interval(args.older_than, args.interval)?;
    let observation = timing::observation(args.older_than, interval, args.observe)?;
    if args.files {
        return files::run(args, interval, observation);
    }
    let targets = args.target.find_to_act_on()?;
    let (mut agent, note) =
        observe::open_agent(targets, observe::cold_config(args.older_than, interval)?)?;
    mover::require_page_ages(&mut agent)?;
    let free_swap_bytes = swap::free_bytes(&ProcRoot::default())?;
    for note in note.into_iter().chain(swap_note(free_swap_bytes)) {
        agewise_cli::note!("{note}");
    }
    let stop = Stop::install()?;
    if !observe_for(&mut agent, observation, interval, &stop)? {
        return match stop.requested() {
            Some(signal) => {
                agewise_cli::note!("interrupted while observing; nothing was moved");
                Ok(ExitCode::from(Stop::exit_code(signal)))
            }
            None => {
                agewise_cli::note!("the target is gone; nothing was moved");
                Ok(ExitCode::from(EXIT_TARGETS_GONE))
            }
        };
    }
    let mut ends = Ends::default();
    let mut cold = find_all(&mut agent, args.older_than, &mut ends);
    cold.sort_by_key(|cold| std::cmp::Reverse(cold.bytes.iter().sum::<u64>()));
    evict_all(args, &mut agent, &cold, &stop, &mut ends)?;
    Ok(ExitCode::from(match stop.requested() {
        Some(signal) => Stop::exit_code(signal),
        None => ends.status(),
    }))
}

/// A note for the user if there is no free swap.
pub fn swap_note(free_swap_bytes: u64) -> Option<String> {
    (free_swap_bytes == 0).then(|| {
        "no free swap: anonymous memory cannot leave, only pages of files can (swap or zram would \
         change that)"
            .to_owned()
    })
}

/// Ticks for `duration`; returns false if interrupted or if nothing is left to observe.
fn observe_for(
    agent: &mut Agent,
    duration: Duration,
    interval: Duration,
    stop: &Stop,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    let end = began + duration;
    let bar = bar(
        "observing {wide_bar} {elapsed} of {msg}",
        observe::millis(duration),
    );
    bar.set_message(duration_text(duration));
    loop {
        let tick = agent.tick()?;
        if tick.processes == 0 && tick.failed > 0 {
            let troubles: Vec<String> = agent
                .report()
                .into_iter()
                .flat_map(|report| report.troubles)
                .collect();
            bail!("nothing could be looked at: {}", troubles.join("; "));
        }
        if agent.is_finished() {
            bar.finish_and_clear();
            return Ok(false);
        }
        bar.set_position(observe::millis(began.elapsed()));
        let now = Instant::now();
        if now >= end {
            bar.finish_and_clear();
            return Ok(true);
        }
        if observe::pause_until(Some(&mut *agent), stop, (now + interval).min(end)) {
            bar.finish_and_clear();
            return Ok(false);
        }
    }
}

/// A progress bar on standard error, if that is a terminal.
fn bar(template: &str, length: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

/// Finds cold memory in all observed processes except agewise and its ancestors.
fn find_all(agent: &mut Agent, older_than: Duration, ends: &mut Ends) -> Vec<Cold> {
    let ages = [Some(observe::millis(older_than)); 2];
    let pids: Vec<u32> = agent.spaces().map(|space| space.process().pid()).collect();
    let mut found = Vec::new();
    for pid in pids {
        if mover::own_lineage().contains(&pid) {
            agewise_cli::note!(
                "process {pid} is agewise itself or one of its ancestors: left alone"
            );
            ends.failed += 1;
            continue;
        }
        match mover::find_cold(agent, pid, ages, u64::MAX) {
            Ok(cold) => found.extend(cold),
            // One of several processes may have ended; continue with the others.
            Err(error) => {
                agewise_cli::note!("process {pid}: {error}");
                ends.count(&error);
            }
        }
    }
    found
}

fn evict_all(
    args: &Args,
    agent: &mut Agent,
    cold: &[Cold],
    stop: &Stop,
    ends: &mut Ends,
) -> anyhow::Result<()> {
    let mut opened = Vec::new();
    for cold in cold {
        match Process::open_user(&ProcRoot::default(), cold.target.pid) {
            Ok(process) if Some(process.start_ticks()) == cold.target.start_ticks => {
                opened.push((cold, process));
            }
            Ok(_) => ends.gone += 1,
            Err(error) => ends.count(&error.into()),
        }
    }
    let mut works = open_movers(args, &opened, ends)?;
    let mut out = std::io::stdout().lock();
    let planned: Vec<Planned> = works.iter().map(Work::planned).collect();
    record::print_plan(&mut out, args.format, &planned, args.older_than)?;
    out.flush()?;
    let before_bytes = together_bytes(&works);
    move_all(args, agent, &mut works, before_bytes, stop);
    let after_bytes = together_bytes(&works);
    watch_all(args, &mut works, stop);
    for work in &works {
        match work {
            _ if work.is_over() => ends.gone += 1,
            _ if work.result.error.is_empty() => ends.done += 1,
            _ => ends.failed += 1,
        }
    }
    let results: Vec<Reclaimed> = works.into_iter().map(|work| work.result).collect();
    let total = Reclaimed::total(&results, [before_bytes, after_bytes], args.dry_run);
    record::print_results(&mut out, args.format, &results, &total)?;
    out.flush()?;
    Ok(())
}

/// Moves memory out of one process after the other, within limits shared by all, which have
/// `resident_bytes` together.
fn move_all(
    args: &Args,
    agent: &mut Agent,
    works: &mut [Work<'_>],
    resident_bytes: u64,
    stop: &Stop,
) {
    let mut room = args.max_bytes.unwrap_or(u64::MAX);
    let mut swap_taken_bytes = 0;
    let mut above_floor = resident_bytes.saturating_sub(args.keep);
    let asked: u64 = works.iter().map(|work| work.cold.plan.asked_bytes()).sum();
    let progress = bar(
        "moving out {wide_bar} {bytes} of {total_bytes} {msg}",
        asked,
    );
    for work in works.iter_mut() {
        let limits = PageoutLimits {
            bytes_max: room,
            rate_bytes_per_s: Some(args.rate),
            // The floor covers all processes: what the others keep counts towards it.
            floor_bytes: work
                .result
                .resident_before_bytes
                .saturating_sub(above_floor),
            rehearse: args.dry_run,
            swap_taken_bytes,
            ..PageoutLimits::default()
        };
        let before = progress.position();
        let moved = mover::move_out(
            &mut work.mover,
            &work.cold.plan,
            limits,
            &mut SourceRecheck::new(agent.source(), work.cold.target),
            stop.flag(),
            |report| {
                progress.set_position(before + report.accounted_bytes());
                progress.set_message(format!("{} left", bytes_text(report.left_bytes)));
            },
        );
        work.left = Instant::now();
        let went = moved.report.left_bytes + moved.report.rehearsed_bytes;
        room = room.saturating_sub(went);
        swap_taken_bytes += moved.report.rehearsed_anon_bytes;
        above_floor = above_floor.saturating_sub(went);
        work.result.resident_after_bytes = rss_bytes(&mut work.mover);
        work.result.error = moved
            .error
            .map(|error| error.to_string())
            .unwrap_or_default();
        work.result.report = moved.report;
        work.result.unwatched_bytes = moved.evicted.untracked_bytes;
        work.watch = Some(RefaultWatch::new(moved.evicted));
    }
    progress.finish_and_clear();
}

/// Looks for refaults from time to time until `--watch` is over.
fn watch_all(args: &Args, works: &mut [Work<'_>], stop: &Stop) {
    const LOOK_EVERY: Duration = Duration::from_secs(1);
    let left: u64 = works.iter().map(|work| work.result.report.left_bytes).sum();
    if args.dry_run || args.watch.is_zero() || left == 0 {
        return;
    }
    let began = Instant::now();
    let end = began + args.watch;
    let progress = bar(
        "watching what comes back {wide_bar} {msg}",
        observe::millis(args.watch),
    );
    loop {
        let stopped = stop.wait_until((Instant::now() + LOOK_EVERY).min(end));
        let mut back = 0;
        for work in works.iter_mut() {
            work.look_what_comes_back();
            back += work.result.refaulted_bytes;
        }
        progress.set_position(observe::millis(began.elapsed()));
        progress.set_message(format!("{} back", bytes_text(back)));
        if stopped || Instant::now() >= end || works.iter().all(Work::is_over) {
            progress.finish_and_clear();
            return;
        }
    }
}
