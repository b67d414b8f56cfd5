// SPDX-License-Identifier: Apache-2.0
//! `agewise trace info`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use agewise_host::untrusted::clean;
use agewise_trace::{QUANTILES, Summary, short_name};
use serde::Serialize;

use super::input::{InputArgs, ReadingBar};
use agewise_cli::output::{self, Format};
use agewise_cli::units;

/// Summarise traces: requests, footprint, reuse distances, sequentiality, types.
///
/// The reuse distance of an access is the number of different pages accessed since its page was
/// last accessed: LRU keeps the page that long if it has more pages than that. Holds the trace in
/// memory, 4 bytes per access.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trace files, or names in the manifest.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<String>,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// A summary as printed.
#[derive(Debug, Serialize)]
struct Record<'a> {
    trace: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
    reuse_distance_p10: Option<u64>,
    reuse_distance_p50: Option<u64>,
    reuse_distance_p75: Option<u64>,
    reuse_distance_p90: Option<u64>,
    reuse_distance_p99: Option<u64>,
}

/// The columns of CSV: the fields of JSON.
const COLUMNS: &str = "trace,trace_format,compression,page_bytes,requests,accesses,\
    footprint_pages,pages_accessed_once,repeats,sequential,reads,writes,anon,file,faults,\
    major_faults,minor_faults,inferred,processes,first_time_ns,last_time_ns,reuse_distance_p10,\
    reuse_distance_p50,reuse_distance_p75,reuse_distance_p90,reuse_distance_p99";

impl<'a> Record<'a> {
    fn of(trace: &'a str, summary: &'a Summary) -> Self {
        let distance = |at: usize| summary.reuse_distances.map(|distances| distances[at]);
        Self {
            trace,
            summary,
            reuse_distance_p10: distance(0),
            reuse_distance_p50: distance(1),
            reuse_distance_p75: distance(2),
            reuse_distance_p90: distance(3),
            reuse_distance_p99: distance(4),
        }
    }
}

/// Reads the traces and prints their summaries.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for (at, trace) in args.traces.iter().enumerate() {
        let (bar, progress) = ReadingBar::show();
        let mut source = args.input.source(trace)?;
        source.progress = progress;
        let summary = Summary::read(&source)?;
        bar.finish();
        if let Some(note) = &summary.note {
            agewise_cli::note!("{note}");
        }
        let name = short_name(trace);
        match args.format {
            Format::Text => text(&mut out, &clean(trace), &summary)?,
            Format::Json => output::json_line(&mut out, &Record::of(name, &summary))?,
            Format::Csv => {
                if at == 0 {
                    writeln!(out, "{COLUMNS}")?;
                }
                output::csv_row(&mut out, COLUMNS, &Record::of(name, &summary))?;
            }
        }
        out.flush()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(out: &mut impl Write, trace: &str, summary: &Summary) -> std::io::Result<()> {
    let page_shift = summary.page_shift;
    let of_accesses = |count| of_accesses(summary, count);
    let bytes =
        u64::try_from(u128::from(summary.footprint_pages) << page_shift).unwrap_or(u64::MAX);
    writeln!(out, "{trace}")?;
    writeln!(
        out,
        "  format          {} ({})",
        summary.format, summary.compression
    )?;
    writeln!(out, "  requests        {}", summary.requests)?;
    writeln!(out, "  accesses        {}", summary.accesses)?;
    writeln!(
        out,
        "  footprint       {} pages ({} at {} a page)",
        summary.footprint_pages,
        units::bytes_text(bytes),
        units::bytes_text(1u64 << page_shift)
    )?;
    writeln!(
        out,
        "  accessed once   {} pages ({:.1} % of all)",
        summary.pages_accessed_once,
        100.0 * summary.pages_accessed_once as f64 / summary.footprint_pages.max(1) as f64
    )?;
    writeln!(out, "  same page again {}", of_accesses(summary.repeats))?;
    writeln!(out, "  next page       {}", of_accesses(summary.sequential))?;
    kinds(out, summary)?;
    if summary.processes > 0 {
        writeln!(out, "  processes       {}", summary.processes)?;
    }
    if summary.last_time_ns > summary.first_time_ns {
        let span = Duration::from_nanos(summary.last_time_ns - summary.first_time_ns);
        writeln!(out, "  time            {}", units::duration_text(span))?;
    }
    match summary.reuse_distances {
        None => writeln!(out, "  reuse distance  no page is accessed twice"),
        Some(distances) => {
            write!(out, "  reuse distance ")?;
            for (share, distance) in QUANTILES.iter().zip(distances) {
                write!(out, " p{:.0} {distance}", share * 100.0)?;
            }
            writeln!(out, " pages")
        }
    }
}

/// A count with its share of the accesses.
fn of_accesses(summary: &Summary, count: u64) -> String {
    let share = count as f64 / summary.accesses.max(1) as f64;
    format!("{count} ({:.1} %)", 100.0 * share)
}

/// What kinds of accesses there are, as far as the trace says.
fn kinds(out: &mut impl Write, summary: &Summary) -> std::io::Result<()> {
    let of_accesses = |count| of_accesses(summary, count);
    let unknown_kind = summary.accesses - summary.reads - summary.writes;
    let unknown_class = summary.accesses - summary.anon - summary.file;
    if summary.faults > 0 {
        writeln!(out, "  page faults     {}", of_accesses(summary.faults))?;
        if summary.major_faults + summary.minor_faults > 0 {
            let (major, minor) = (summary.major_faults, summary.minor_faults);
            let unknown = summary.faults.saturating_sub(major + minor);
            writeln!(
                out,
                "                  {major} major, {minor} minor, {unknown} not known"
            )?;
        }
    }
    if summary.inferred > 0 {
        writeln!(
            out,
            "  inferred        {}, to spare the program",
            of_accesses(summary.inferred)
        )?;
    }
    if unknown_kind < summary.accesses {
        writeln!(
            out,
            "  kind            read {}, write {}, unknown {unknown_kind}",
            of_accesses(summary.reads),
            of_accesses(summary.writes)
        )?;
    }
    if unknown_class < summary.accesses {
        writeln!(
            out,
            "  class           anon {}, file {}, unknown {unknown_class}",
            of_accesses(summary.anon),
            of_accesses(summary.file)
        )?;
    }
    Ok(())
}
