// SPDX-License-Identifier: Apache-2.0
//! `agewise lab whatif`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_cli::output::{self, Format};
use agewise_lab::whatif::Beside;
use agewise_trace::TraceSource;

use crate::command::trace::input::{ReadingBar, known_format, trace_memory_default};

/// Compare the predictions of `agewise whatif` with exact results, on traces.
///
/// Shows each trace look by look (its intervals; without intervals, a sixty-fourth as many accesses
/// as it has pages) to the simulation of a sample of its pages, and compares the predicted misses
/// with those of an exact LRU over all pages, at 31 sizes from 10 to 100 % of the pages. First uses
/// are left out on both sides.
///
/// `error` is the mean absolute error of the miss ratio, `within` the share of the sizes at which
/// the true value lies within the predicted interval. `ahead_within` is the share of intervals,
/// predicted from an eighth of the trace, within which the true value of the next eighth lies; null
/// for a trace of fewer than 64 looks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Recorded traces, of any format `agewise trace info` knows.
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,

    /// Their format, as for `agewise trace info`. By default detected.
    #[arg(long, value_name = "FORMAT", value_parser = known_format)]
    trace_format: Option<&'static agewise_trace::Format>,

    /// Share of the pages that is simulated, percent; 100 to 32768 pages.
    #[arg(long, value_name = "PERCENT", default_value_t = 1.0, value_parser = percent)]
    sample: f64,

    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

fn percent(text: &str) -> Result<f64, String> {
    agewise_cli::observe::percent(text).map_err(|_| format!("'{text}' is not a share of the pages"))
}

/// Compares the predictions and prints the result.
///
/// # Errors
/// A trace cannot be read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    let mut records = Vec::new();
    for path in &args.traces {
        let mut source = TraceSource::new(path);
        source.format = args.trace_format;
        source.options.limits.memory_max_bytes = trace_memory_default();
        let (bar, progress) = ReadingBar::show();
        source.progress = progress;
        let mut record = Beside::of(&source, args.sample)?;
        bar.finish();
        if let Some(note) = &record.note {
            agewise_cli::note!("{note}");
        }
        record.trace = agewise_host::untrusted::clean(&record.trace);
        match args.format {
            Format::Text => text(&mut out, &record)?,
            Format::Json => output::json_line(&mut out, &record)?,
            Format::Csv => {}
        }
        records.push(record);
    }
    match args.format {
        Format::Csv => output::rows(&mut out, args.format, &records)?,
        Format::Text if records.len() > 1 => {
            let mean = |of: &dyn Fn(&Beside) -> f64| {
                records.iter().map(of).sum::<f64>() / records.len() as f64
            };
            let (error, within) = (mean(&|of| of.error), mean(&|of| of.within));
            writeln!(out, "mean error {error:.4}, within {:.1} %", within * 100.0)?;
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn text(out: &mut impl Write, record: &Beside) -> std::io::Result<()> {
    write!(
        out,
        "{:<32} {:>6} of {:>8} pages, {:>6} looks: error {:.4}, within {:>5.1} %",
        record.trace,
        record.sampled_pages,
        record.pages,
        record.looks,
        record.error,
        record.within * 100.0
    )?;
    if let Some(ahead) = record.ahead_within {
        write!(out, ", ahead {:>5.1} %", ahead * 100.0)?;
    }
    writeln!(out)?;
    out.flush()
}
