// SPDX-License-Identifier: Apache-2.0
//! `agewise lab run`.

use agewise_policy::table::PAGE_BYTES;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use agewise_host::untrusted::clean;
use agewise_lab::experiment::machine_run::Subject;
use agewise_lab::experiment::matrix::{MeasureSummary, SEEDS_MAX};
use agewise_lab::experiment::replay::Arrangement;
use agewise_lab::proactive::Sight;
use agewise_lab::study::columns::columns;
use agewise_lab::study::description::Description;
use agewise_lab::study::options;
use agewise_lab::study::result::Form;
use agewise_lab::study::run::{RunOutcome, RunRequest};
use agewise_lab::study::setup::expand;
use agewise_lab::study::table::Table;
use agewise_policy::proactive::Spec;
use agewise_trace::Aside;
use anyhow::Context;
use clap::ValueEnum;

use super::results::{BUILD, write};
use super::setup::{Setup, one_of};
use crate::command::trace::input::ReadingBar;
use agewise_cli::output;
use agewise_cli::progress::Progress;
use agewise_cli::units;
use agewise_cli::usage::ensure_apart;

/// Run workloads or traces on simulated memory under several policies, side by side
///
/// Each policy sees the same processes with the same seeds. The table has one column per policy:
/// means over the seeds with their 95 % intervals, and `*` (p < 0.05), `**` (0.01) or `***` (0.001)
/// where Welch's test distinguishes a mean from that of the first policy. The same build, subject
/// and seeds print the same bytes, regardless of the number of CPUs.
///
/// For a trace, processes, page types (anonymous or file), reads and writes and times are kept as
/// far as they are recorded; each access comes at its time, or as soon as the previous one is done.
/// Blocks and keys are pages of one file without read-ahead (see --access). A trace recorded by
/// interval does not record the order inside an interval: each seed replays a different one (see
/// --order), and the table shows the range over the seeds, which reflects the unknown order.
///
/// Examples:
///   agewise lab run kv --policy classic,mglru:7.2,mglru:6.12 --memory 24M --swap nvme
///   agewise lab run traces/redis.pages --memory 25%
///   agewise lab run kv --damon lru_sort:wmarks_high=1000:wmarks_mid=1001:wmarks_low=0
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Workloads of `agewise lab list`, TOML files that describe one, trace files of any format or
    /// names in the --manifest; file names may be patterns.
    #[arg(required = true, value_name = "WORKLOAD|TRACE")]
    pub subjects: Vec<String>,
    /// What to simulate on.
    #[command(flatten)]
    pub setup: Setup,
    /// Policies, the baseline first: those of `agewise lab list`, or mglru:FILE.toml, a profile of
    /// your own. Yardsticks (opt, lru, arc ...: textbook replacement policies, run on the same
    /// accesses for comparison) see each access as it happens, and have the whole limit for pages;
    /// only their major faults are reported.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          default_values = ["classic", "mglru:7.2", "mglru:6.12", "mglru:v6"])]
    pub policy: Vec<String>,
    /// An agent that reclaims beside the LRU: age:10s/40s, pressure[:…], cost[:…] or budget:BYTES.
    ///
    /// Each LRU is run without an agent and with each agent given; an agent's column is named
    /// LRU+AGENT. It sees accesses and moves pages as on a real host, at the prices measured there.
    /// All share the keys rate, floor, swap_free, pause and pause_max, and all but `budget` also
    /// backoff, regret, window, harm, start and pressure: `cost:stall=0.1%,floor=16M`. Can be given
    /// several times.
    #[arg(long, value_name = "AGENT")]
    pub proactive: Vec<Spec>,
    /// The access source of agents.
    #[arg(long, value_name = "SOURCE", default_value = "page-cache",
          value_parser = one_of(&options::SIGHTS))]
    pub sight: Sight,
    /// Seeds 1 to N. Default: 10 for a workload and 3 for a trace.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    pub seeds: Option<u64>,
    /// Write the reclaim events of the first policy's run with seed 1 into a file.
    ///
    /// The events are the `vmscan` tracepoints of Linux in the format of /sys/kernel/tracing/trace,
    /// for scripts that read that format. The run is repeated for this.
    #[arg(long, value_name = "FILE")]
    pub trace_events: Option<PathBuf>,
    /// text: a table for people; json: one object per line, policy and measure; csv: the same
    /// fields; parquet: every run, one column per measure, on standard output. All formats but text
    /// say what was run: see `agewise lab show`, `rerun` and `check`.
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// The form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    #[value(alias = "table")]
    Text,
    /// One JSON object per line.
    Json,
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl Format {
    /// The format as a table format; `None` for text.
    fn form(self) -> Option<Form> {
        match self {
            Format::Text => None,
            Format::Json => Some(Form::Json),
            Format::Csv => Some(Form::Csv),
            Format::Parquet => Some(Form::Parquet),
        }
    }
}

/// Runs and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let columns = columns(&args.policy, &args.proactive)?;
    let mut out = io::stdout().lock();
    let (mut table, mut cells, mut is_first) = (Table::default(), Vec::new(), true);
    let subjects = expand(&args.subjects)?;
    let mut events = create_events(args, &subjects)?;
    for subject in subjects {
        let (bar, progress) = ReadingBar::show();
        let mut setup = args.setup.study();
        setup.reading.progress = progress;
        let request = RunRequest {
            setup,
            subject,
            columns: columns.clone(),
            sight: args.sight,
            seeds: args.seeds,
            build: BUILD.to_owned(),
        };
        let named = request.setup.subject(&request.subject)?;
        bar.finish();
        let progress = Progress::new("runs");
        let done = |total| progress.advance(total);
        let outcome = request.run_on(&named, &Arc::default(), done)?;
        progress.finish();
        if let Some((path, file)) = events.take() {
            write_events((path, file), &request, &outcome)?;
        }
        // The head of the text has those of the trace.
        let notes = match args.format.form() {
            None => [outcome.killed().as_slice(), &outcome.remarks].concat(),
            Some(_) => outcome.notes(),
        };
        for note in notes {
            agewise_cli::note!("{note}");
        }
        match args.format.form() {
            None => {
                print_head(&mut out, &outcome)?;
                print_table(&mut out, &outcome, &outcome.summaries())?;
            }
            Some(Form::Parquet) => {
                table.append(outcome.run_table());
                cells.extend(outcome.cells);
            }
            Some(form) => {
                let cells = outcome.cells.clone();
                let description = Description::Run { cells };
                let summaries = outcome.summary_table();
                write(&mut out, form, &summaries, &description, is_first)?;
                is_first = false;
            }
        }
    }
    if args.format == Format::Parquet {
        let description = Description::Run { cells };
        write(&mut out, Form::Parquet, &table, &description, true)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Creates the file of --trace-events, if it was given: an error is then known before the run.
fn create_events<'a>(
    args: &'a Args,
    subjects: &[String],
) -> anyhow::Result<Option<(&'a Path, Aside)>> {
    let Some(path) = &args.trace_events else {
        return Ok(None);
    };
    if subjects.len() > 1 {
        agewise_cli::refuse!("--trace-events writes one run: name one workload or trace");
    }
    ensure_apart(subjects, [path])?;
    let file = Aside::create(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    Ok(Some((path, file)))
}

fn write_events(
    (path, file): (&Path, Aside),
    request: &RunRequest,
    outcome: &RunOutcome,
) -> anyhow::Result<()> {
    let trace = request.event_trace(&outcome.subject, &Arc::default())?;
    let mut out = BufWriter::new(file);
    trace
        .write(&mut out)
        .and_then(|()| out.into_inner()?.finish())
        .with_context(|| format!("cannot write {}", path.display()))?;
    if trace.lost() > 0 {
        agewise_cli::note!(
            "{}: the first {} events; {} more are left out",
            path.display(),
            trace.len(),
            trace.lost()
        );
    }
    Ok(())
}

fn print_head(out: &mut impl Write, outcome: &RunOutcome) -> io::Result<()> {
    let RunOutcome {
        subject,
        memory_pages,
        seeds,
        ..
    } = outcome;
    let kind = match subject {
        Subject::Workload(_) => "workload",
        Subject::Trace(..) => "trace",
    };
    writeln!(
        out,
        "agewise {}, {kind} {}, memory {} ({memory_pages} pages), seeds 1 to {seeds}",
        env!("CARGO_PKG_VERSION"),
        clean(subject.name()),
        units::bytes_text(memory_pages * PAGE_BYTES),
    )?;
    writeln!(out, "{}", output::message(&subject.description()))?;
    if let Subject::Trace(replay, arrangement) = subject {
        for note in &replay.notes {
            writeln!(out, "note: {}", output::message(note))?;
        }
        if replay.order_unknown {
            let orders = match arrangement {
                Arrangement::Each => "seed 1 replays rising addresses, 2 falling, others shuffled",
                Arrangement::Forward => "replayed by rising address",
                Arrangement::Reverse => "replayed by falling address",
                Arrangement::Shuffle => "each seed shuffles",
            };
            writeln!(
                out,
                "order inside an interval{} is not known: {orders}",
                match replay.interval_ns {
                    0 => String::new(),
                    ns => format!(
                        " ({})",
                        units::duration_text(std::time::Duration::from_nanos(ns))
                    ),
                }
            )?;
            writeln!(
                out,
                "a page counts once an interval: accesses, hits and latencies are of \
                 page-intervals, faults are of the program"
            )?;
        }
    }
    writeln!(out)
}

/// Formats a number with as many digits as a reader needs.
pub(super) fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

fn cell(summary: &MeasureSummary, of_orders: bool) -> String {
    if of_orders {
        return if summary.min == summary.max {
            short(summary.mean)
        } else {
            format!(
                "{} [{} to {}]",
                short(summary.mean),
                short(summary.min),
                short(summary.max)
            )
        };
    }
    let spread = match summary.ci95 {
        Some(ci95) if ci95 > 0.0 => format!(" ± {}", short(ci95)),
        _ => String::new(),
    };
    let mark = match summary.p {
        Some(p) if p < 0.001 => " ***",
        Some(p) if p < 0.01 => " **",
        Some(p) if p < 0.05 => " *",
        _ => "",
    };
    format!("{}{spread}{mark}", short(summary.mean))
}

fn print_table(
    out: &mut impl Write,
    outcome: &RunOutcome,
    summaries: &[MeasureSummary],
) -> io::Result<()> {
    const WIDTH: usize = 28;
    let results = &outcome.results;
    let of_orders = outcome.subject.has_unknown_order();
    let measures = results.first().map_or(&[][..], |first| &first.measures);
    let longest = measures.iter().map(|(name, _)| name.len()).max();
    let name_width = longest.unwrap_or(0).max(18);
    write!(out, "{:name_width$}", "")?;
    for result in results {
        write!(out, " {:>WIDTH$}", clean(&result.policy))?;
    }
    writeln!(out)?;
    for (measure, _) in measures {
        write!(out, "{measure:name_width$}")?;
        for column in 0..results.len() {
            let is_it = |of: &&MeasureSummary| of.measure == *measure && of.column == column;
            let text = summaries.iter().find(is_it);
            let text = text.map_or("-".to_owned(), |summary| cell(summary, of_orders));
            write!(out, " {text:>WIDTH$}")?;
        }
        writeln!(out)?;
    }
    let killed = |summary: &MeasureSummary| summary.measure == "oom_kills" && summary.max > 0.0;
    if summaries.iter().any(killed) {
        writeln!(
            out,
            "\noom_kills: what a process would have done after it was killed is left out"
        )?;
    }
    if of_orders {
        return writeln!(out, "\nmean [least to most over the orders replayed]\n");
    }
    writeln!(
        out,
        "\nmean ± half of the 95 % interval; *, **, ***: differs from {} with p < 0.05, 0.01, \
         0.001\n",
        clean(results.first().map_or("", |result| &result.policy))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(123_456.7), "123457");
        assert_eq!(short(12.34), "12.3");
        assert_eq!(short(0.1234), "0.123");
        assert_eq!(short(5.0), "5");
    }
}
