// SPDX-License-Identifier: Apache-2.0
//! `agewise sort`: moves cold pages to the end of the kernel's lists from which reclaim takes
//! first.

mod sorter;

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;
use agewise_host::cgroup::Hierarchy;
use agewise_host::clear::Means;
use agewise_host::clock;
use agewise_host::guest::Guests;
use agewise_host::lru_gen::LruGen;
use agewise_host::mover;
use agewise_host::root::Roots;
use anyhow::bail;
use serde::Serialize;

use self::sorter::Sorter;
use super::reclaim::timing;
use agewise_cli::observe::{self, EXIT_TARGETS_GONE, GuestsArg, OneTarget};
use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units::{self, bytes_text, duration_text};

/// Sort memory by age for the kernel's own reclaim.
///
/// Watches the target page by page. Pages that were not touched for --older-than are marked as cold
/// (process_madvise(MADV_COLD)): they move to the inactive list, or to the oldest generation of the
/// multi-gen LRU. Pages found in use by two looks are activated (moved to the active list), unless
/// the multi-gen LRU is on: one byte of each is read twice and discarded, which makes the kernel
/// count them as used. So when reclaim comes, it takes what is cold first and not what is in use.
/// Nothing is written and nothing leaves memory; a page that is touched again counts as young
/// again. Works on a stock kernel; needs root.
///
/// Runs until interrupted, until the target has ended, or for --duration, with a last look at its
/// end. Each page is marked once each time it grows cold, and activated once each time it comes
/// into use, or again when the kernel has rebuilt its active lists. mlocked memory is left alone,
/// and the kernel does not mark memory that other programs map too. agewise itself and its
/// ancestors are never touched.
///
/// This command clears accessed bits with clear_refs, because clearing them with MADV_COLD, as
/// other commands may, would put hot pages on the inactive list too. Without activation that alone
/// would do harm, because the kernel spares a page for its accessed bit, which was cleared.
///
/// Exit status: 0 done, interrupted, or the target has ended; 1 an error, or nothing at all could
/// be sorted; 2 a wrong argument; 3 the target was gone before anything was sorted.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: OneTarget,

    /// Memory not touched for this long is cold.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    #[arg(value_parser = units::positive_duration)]
    older_than: Duration,

    /// Time between two looks, at least 100ms. Default: a quarter of --older-than, at most 10s.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    interval: Option<Duration>,

    /// Mark at most this much per second, on average.
    #[arg(long, value_name = "RATE", default_value = "1G/s", value_parser = units::byte_rate)]
    rate: u64,

    /// Stop after this time.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    duration: Option<Duration>,

    /// Only mark cold pages; activate nothing.
    #[arg(long)]
    cold_only: bool,

    #[command(flatten)]
    guests: GuestsArg,

    /// Do everything except marking and activating.
    #[arg(long)]
    dry_run: bool,

    /// Output format: a line (json: an object) for each pass that marked something, and the total.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The result of a pass, or of all passes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Sorted {
    /// "pass" or "total".
    record: &'static str,
    seconds: f64,
    /// Sorted.
    processes: usize,
    /// Not sorted, because they could not be looked at or marked; the reason is a note.
    failed_processes: usize,
    /// Newly found cold.
    asked_bytes: u64,
    /// Marked as cold.
    sorted_bytes: u64,
    /// Refused by the kernel: locked or unmapped meanwhile.
    refused_bytes: u64,
    /// Found in use by the look; in the total, by the last one.
    used_bytes: u64,
    /// Activated (moved to the active list); in a rehearsal, what would be.
    raised_bytes: u64,
    /// Number of system calls that marked or activated pages.
    calls: u64,
    /// Total CPU time of agewise, in ms.
    cpu_ms: f64,
    /// The part before the first look, paid once; only in the total.
    start_cpu_ms: f64,
    dry_run: bool,
}

impl Sorted {
    fn add(&mut self, pass: &Sorted) {
        for (sum, part) in [
            (&mut self.asked_bytes, pass.asked_bytes),
            (&mut self.sorted_bytes, pass.sorted_bytes),
            (&mut self.refused_bytes, pass.refused_bytes),
            (&mut self.raised_bytes, pass.raised_bytes),
            (&mut self.calls, pass.calls),
        ] {
            *sum += part;
        }
        self.used_bytes = pass.used_bytes;
        self.processes = self.processes.max(pass.processes);
        self.failed_processes = self.failed_processes.max(pass.failed_processes);
    }

    /// Whether nothing was marked or activated.
    fn is_empty(&self) -> bool {
        self.sorted_bytes + self.raised_bytes == 0
    }
}

/// Limits of the sorter.
#[derive(Clone, Copy, Debug)]
struct Limits {
    older_than: Duration,
    /// Bytes marked per second.
    rate: u64,
    activates: bool,
    guests: Guests,
    dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// A target does not exist or may not be touched, privileges are missing, or times are invalid.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interval = timing::interval(args.older_than, args.interval)?;
    let roots = Roots::default();
    let targets = args.target.find_to_act_on()?;
    let mut config = observe::cold_config(args.older_than, interval)?;
    config.clear.means = Means::Refs;
    let (mut agent, note) = observe::open_agent(targets, config)?;
    mover::require_page_ages(&mut agent)?;
    if let Some(note) = note {
        agewise_cli::note!("{note}");
    }
    let multi_gen = LruGen::new(roots.sys).is_on();
    let limits = Limits {
        older_than: args.older_than,
        rate: args.rate,
        // With the multi-gen LRU, generations replace the active list, and MADV_COLD moves pages
        // between them.
        activates: !args.cold_only && !matches!(multi_gen, Ok(Some(true))),
        guests: args.guests.into(),
        dry_run: args.dry_run,
    };
    let stop = Stop::install()?;
    let hierarchy = Hierarchy::discover(&roots.proc).ok();
    let start_cpu_ms = clock::process_cpu().as_secs_f64() * 1e3;
    let mut sorter = Sorter::new(limits, hierarchy, &stop);
    let is_first = sort(args, interval, &mut agent, &mut sorter, &stop)?;
    let total = Sorted {
        start_cpu_ms,
        ..sorter.total()
    };
    let written = print(stdout(), args.format, &total, is_first);
    match stop.requested() {
        None if total.processes == 0 && agent.is_finished() => {
            agewise_cli::note!("the target was gone before anything was sorted");
            output::status(written, ExitCode::from(EXIT_TARGETS_GONE))
        }
        None if total.processes == 0 => bail!(
            "nothing was sorted: there is no process, or only those that are left alone (init, \
             agewise and its ancestors)"
        ),
        _ => output::status(written, ExitCode::SUCCESS),
    }
}

/// Looks and sorts until the end; returns whether no pass was printed.
///
/// # Errors
/// Nothing at all can be done, or output cannot be written.
fn sort(
    args: &Args,
    interval: Duration,
    agent: &mut Agent,
    sorter: &mut Sorter<'_>,
    stop: &Stop,
) -> anyhow::Result<bool> {
    let began = Instant::now();
    let end = args.duration.map(|duration| began + duration);
    let (mut next, mut is_first, mut failed_before) = (began, true, 0);
    loop {
        let look_began = Instant::now();
        let tick = agent.tick()?;
        if agent.is_finished() {
            return Ok(is_first);
        }
        let pass = sorter.pass(agent, tick.failed);
        let why = sorter.trouble().unwrap_or_default();
        if pass.failed_processes > 0 && pass.processes == 0 && sorter.total().is_empty() {
            bail!("nothing can be sorted: {why}");
        }
        if pass.failed_processes > failed_before {
            let (failed, sorted) = (pass.failed_processes, pass.processes);
            agewise_cli::note!("{failed} processes cannot be sorted, {sorted} can: {why}");
        }
        failed_before = pass.failed_processes;
        if pass.asked_bytes + pass.raised_bytes > 0 {
            print(stdout(), args.format, &pass, std::mem::take(&mut is_first))?;
        }
        if end.is_some_and(|end| look_began >= end) {
            return Ok(is_first);
        }
        next = (next + interval).max(Instant::now());
        let wake = end.map_or(next, |end| end.min(next));
        if observe::pause_until(Some(agent), stop, wake) {
            return Ok(is_first);
        }
    }
}

fn print(
    mut out: impl Write,
    format: Format,
    sorted: &Sorted,
    is_first: bool,
) -> anyhow::Result<()> {
    match format {
        Format::Json => output::json_line(&mut out, sorted)?,
        Format::Csv => {
            let mut builder = csv::WriterBuilder::new();
            let mut csv = builder.has_headers(is_first).from_writer(&mut out);
            csv.serialize(sorted)?;
            csv.flush()?;
        }
        Format::Text => {
            let refused = match sorted.refused_bytes {
                0 => String::new(),
                bytes => format!(", {} refused", bytes_text(bytes)),
            };
            let failed = match sorted.failed_processes {
                0 => String::new(),
                count => format!("; {count} processes not sorted"),
            };
            writeln!(
                out,
                "{:<5} {:>8}  {} found cold, {} {}{refused}; {} in use, {} {}{failed}; \
                 {:.1} ms CPU",
                sorted.record,
                duration_text(Duration::from_millis((sorted.seconds * 1e3) as u64)),
                bytes_text(sorted.asked_bytes),
                bytes_text(sorted.sorted_bytes),
                if sorted.dry_run {
                    "marked (dry run)"
                } else {
                    "marked"
                },
                bytes_text(sorted.used_bytes),
                bytes_text(sorted.raised_bytes),
                if sorted.dry_run {
                    "would be activated"
                } else {
                    "activated"
                },
                sorted.cpu_ms,
            )?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_adds_what_was_done_and_has_the_last_use_and_the_most_failures() {
        let mut total = Sorted::default();
        for (used_bytes, sorted_bytes, failed_processes) in [(8192, 0, 2), (4096, 4096, 1)] {
            assert!(total.is_empty());
            total.add(&Sorted {
                used_bytes,
                sorted_bytes,
                failed_processes,
                ..Sorted::default()
            });
        }
        assert!(!total.is_empty());
        assert_eq!((total.used_bytes, total.sorted_bytes), (4096, 4096));
        let mut out = Vec::new();
        print(&mut out, Format::Text, &total, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let expected = "4.0 KiB in use, 0 B activated; 2 processes not sorted; 0.0 ms CPU
";
        assert!(text.ends_with(expected), "{text}");
        let rehearsed = Sorted {
            raised_bytes: 4096,
            dry_run: true,
            ..Sorted::default()
        };
        let mut out = Vec::new();
        print(&mut out, Format::Text, &rehearsed, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("0 B marked (dry run)"), "{text}");
        assert!(text.contains("4.0 KiB would be activated"), "{text}");
    }

    #[test]
    fn csv_has_the_fields_of_json_under_one_header() {
        let sorted = Sorted::default();
        let mut out = Vec::new();
        print(&mut out, Format::Csv, &sorted, true).unwrap();
        print(&mut out, Format::Csv, &sorted, false).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let mut columns: Vec<&str> = lines[0].split(',').collect();
        columns.sort_unstable();
        let json = serde_json::to_value(sorted).unwrap();
        let mut names: Vec<&str> = json
            .as_object()
            .unwrap()
            .keys()
            .map(|key| &key[..])
            .collect();
        names.sort_unstable();
        assert_eq!((columns, lines.len()), (names, 3), "{text}");
    }
}
