// SPDX-License-Identifier: Apache-2.0
//! `agewise trace sample`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_trace::curve::{StackDistances, spread_sizes};
use agewise_trace::page_trace::Header;
use agewise_trace::{DenseTrace, OutputFormat, PageSample, TraceSource, TraceWriter};
use anyhow::Context;

use super::input::{InputArgs, ReadingBar};
use agewise_cli::units;
use agewise_cli::usage::{WrongArgument, ensure_apart};

/// Write all accesses of a share of the pages, chosen by hash.
///
/// A pool of RATE times as many pages then stands for the whole (SHARDS). The loss of accuracy is
/// measured and printed: how many accesses the sample has compared with the expected number, and
/// how far its LRU miss ratios are from those of the whole trace, over 32 sizes. The check holds
/// the whole trace in memory, 4 bytes per access; --no-check skips it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace: a file, or a name in the manifest.
    #[arg(value_name = "TRACE")]
    pub trace: String,

    /// The page trace to write; replaced if it exists.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// Share of the pages.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = units::share)]
    pub rate: f64,

    /// Another seed selects other pages; the same seed selects the same pages in every trace.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Do not measure the error.
    #[arg(long)]
    pub no_check: bool,
}

/// Samples the trace and reports how accurate the sample is.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let sample = PageSample::new(args.rate, args.seed).map_err(WrongArgument)?;
    let (bar, progress) = ReadingBar::show();
    let mut source = args.input.source(&args.trace)?;
    source.progress = progress;
    ensure_apart([&source.path], [&args.out])?;
    if !args.no_check {
        source
            .require_file()
            .context("the check reads the trace again (--no-check leaves it out)")?;
    }
    let mut stream = source.open()?;
    let mut header = stream
        .page_trace_header()
        .cloned()
        .unwrap_or_else(|| Header {
            page_shift: stream.page_shift() as u8,
            metadata: format!("converted_from={}\n", stream.format().name),
            ..Header::default()
        });
    header.metadata += &format!("sample_rate={}\nsample_seed={}\n", args.rate, args.seed);
    let mut writer = TraceWriter::create(&args.out, OutputFormat::Page, &header)?;
    let (mut accesses, mut kept) = (0, 0);
    while let Some(request) = stream.next_request()? {
        accesses += request.page_count;
        for part in sample.chosen_of(request) {
            kept += part.page_count;
            writer.push(&part, || None)?;
        }
    }
    bar.finish();
    if kept == 0 {
        agewise_cli::refuse!(
            "--rate {}: no page of {} was chosen, so nothing is written: raise it",
            args.rate,
            source.path.display()
        );
    }
    writer.finish()?;
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    let share = kept as f64 / (accesses as f64 * args.rate);
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{kept} of {accesses} accesses kept; {:.1} % of what a share of {} should have",
        share * 100.0,
        args.rate
    )?;
    if !args.no_check {
        check(&mut out, &source, args, &bar)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn check(
    out: &mut impl Write,
    source: &TraceSource,
    args: &Args,
    bar: &ReadingBar,
) -> anyhow::Result<()> {
    let whole = DenseTrace::read(source)?;
    bar.finish();
    let sample = DenseTrace::read(&TraceSource::new(&args.out))?;
    let sizes = spread_sizes(whole.page_count() as u64, 32);
    let scaled: Vec<usize> = sizes
        .iter()
        .map(|&size| ((size as f64 * args.rate).round() as usize).max(1))
        .collect();
    let exact = StackDistances::of(&whole).misses(&sizes);
    let estimated = StackDistances::of(&sample).misses(&scaled);
    let accesses = whole.accesses().len() as f64;
    let errors: Vec<f64> = exact
        .iter()
        .zip(&estimated)
        .map(|(&exact, &estimated)| (estimated as f64 / args.rate - exact as f64).abs() / accesses)
        .collect();
    let worst = errors.iter().copied().fold(0.0, f64::max);
    writeln!(
        out,
        "{} of {} pages; LRU miss ratio off by {:.4} on average and {worst:.4} at worst, over {} \
         sizes",
        sample.page_count(),
        whole.page_count(),
        errors.iter().sum::<f64>() / errors.len().max(1) as f64,
        sizes.len()
    )?;
    Ok(())
}
