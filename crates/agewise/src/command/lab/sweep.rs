// SPDX-License-Identifier: Apache-2.0
//! `agewise lab sweep`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agewise_cli::output;
use agewise_cli::progress::Progress;
use agewise_cli::units;
use agewise_lab::study::sweep::{Sweep, damage};
use agewise_trace::ReadLimits;

use super::results::BUILD;
use crate::command::trace::input::trace_memory_default;

/// Run many combinations of workloads, policies, memory and settings, on all cores
///
/// The file lists values, of which every combination is a cell; a cell is what `lab run` does for
/// one policy. Its keys are those of `lab run`: workload, policy, proactive, memory, swap, damon,
/// seeds, set.NAME and options.NAME (access, order, sight, trace_format, page_shift, column,
/// manifest, collapse_repeats); keys at the top apply to all grids. `draw = N` draws N random
/// combinations (draw_seed), also from ranges: { from = "8M", to = "1G", scale = "log" }. A
/// [[skip]] leaves out the cells that have all of its values.
///
///   seeds = 3
///   [[grid]]
///   workload = ["kv", "traces/*.pages"]
///   policy = ["classic", "mglru:7.2"]
///   set.swappiness = [10, 100]
///   [[skip]]
///   policy = "classic"
///   set.swappiness = 10
///
/// With `trace` in place of `workload` a cell is what `lab curve` does for one policy: policy,
/// points or sizes ("10%,40%"), rate and samples (then estimated), and options of reading.
///
/// The results are Parquet files, one row per run, which DuckDB and polars can read in place, and
/// which `lab show` and `lab check` treat as one result:
/// DIRECTORY/workload=NAME/policy=NAME/CELL.parquet (for curves trace=NAME). A cell whose file
/// exists is not run again: an interrupted sweep, even after kill -9, resumes where it stopped. A
/// damaged file (by checksum) is run again. Files belong to a description, a build of agewise and
/// the content of traces; others are refused, or deleted with --prune.
///
/// Exit status 1 if a cell could not be run; all others are then complete.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// A TOML file that describes the cells.
    #[arg(value_name = "FILE")]
    pub spec: PathBuf,
    /// Directory for the results; created if missing.
    #[arg(long, short, value_name = "DIRECTORY")]
    pub out: PathBuf,
    /// Print how many cells there are and how many are done, and run none.
    #[arg(long)]
    pub dry_run: bool,
    /// Delete results in the directory that do not belong to this sweep.
    #[arg(long)]
    pub prune: bool,
    /// Number of threads. Default: one per processor.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
          value_parser = super::jobs())]
    pub jobs: usize,
    /// Memory for holding each trace, such as 2G; a trace that needs more is refused. Every thread
    /// may hold one. Default: a quarter of this machine's memory, shared equally by the traces that
    /// are held at once, as many as there are threads.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size)]
    pub trace_memory: Option<u64>,
}

/// Runs the missing cells.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let limits = ReadLimits {
        memory_max_bytes: args.trace_memory.unwrap_or_else(trace_memory_default),
        ..ReadLimits::default()
    };
    let mut sweep = Sweep::read(&args.spec, limits, BUILD, &|_| None)?;
    for note in sweep.notes() {
        agewise_cli::note!("{}: {note}", args.spec.display());
    }
    let mut out = io::stdout().lock();
    if args.dry_run {
        let (found, damaged) = sweep.found(&args.out)?;
        say_damaged(&damaged);
        writeln!(out, "{}, {found} of them done", cells(sweep.len()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.jobs)
        .build()?;
    if args.trace_memory.is_none() {
        sweep.share_memory(trace_memory_default());
    }
    let progress = Progress::with_estimate("cells");
    let outcome = pool.install(|| {
        sweep.run(&args.out, args.prune, &Arc::default(), |advance| {
            progress.set(advance.done as u64, advance.total as u64, advance.left);
        })
    })?;
    progress.finish();
    say_damaged(&outcome.damaged);
    for (cell, error) in &outcome.failed {
        agewise_cli::note!("{}: {error}", output::message(cell));
    }
    for remark in &outcome.remarks {
        agewise_cli::note!("{}", output::message(remark));
    }
    let written = writeln!(
        out,
        "{}: {} run, {} were there, {} failed",
        cells(sweep.len()),
        outcome.ran,
        outcome.found,
        outcome.failed.len()
    );
    output::status(
        written.map_err(Into::into),
        match outcome.failed.is_empty() {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

fn cells(count: usize) -> String {
    format!("{count} cell{}", if count == 1 { "" } else { "s" })
}

/// Says in one line which cells have to be run again.
fn say_damaged(files: &[PathBuf]) {
    if let Some(words) = damage(files) {
        agewise_cli::note!("{words}");
    }
}
