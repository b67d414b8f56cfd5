// SPDX-License-Identifier: Apache-2.0
//! `agewise lab curve`.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agewise_host::untrusted::clean;
use agewise_lab::study::curve::{CurveOutcome, CurveRequest, require_different};
use agewise_lab::study::description::Description;
use agewise_lab::study::parquet;
use agewise_lab::study::result::Form;
use agewise_lab::study::setup::expand;
use agewise_lab::study::table::Table;
use agewise_lab::{plot, yardstick};
use agewise_trace::Reading;
use agewise_trace::curve::{Curve, SamplingPlan, SizeSpec};
use agewise_trace::yardstick::Yardstick;
use anyhow::Context;

use super::results::{BUILD, OutputFile, output_file, write};
use crate::command::trace::input::{InputArgs, ReadingBar};
use agewise_cli::output::Format;
use agewise_cli::progress::Progress;
use agewise_cli::units;
use agewise_cli::usage::{WrongArgument, ensure_apart};

/// Draw miss-ratio curves: the share of accesses that miss, as a function of memory size in pages.
///
/// Exact curves count every access: LRU for all sizes in one pass, the other policies in one run
/// per size, in parallel. They hold the trace in memory, 4 bytes per access and 8 per page, and
/// each run some 10 to 20 bytes per page (OPT 4 bytes per access).
///
/// --sampled estimates from samples of the pages selected by hash (SHARDS): each keeps all accesses
/// of its pages and stands for the whole. The error is half the 95 % confidence interval over the
/// samples. It does not cover sizes that amount to a handful of pages in a sample.
///
/// A miss is an access to a page that is not in memory; the first access of each page always is
/// one. There is no warm-up.
///
/// Pictures: text on a terminal, --svg, --png, and --html, a page that loads nothing and zooms.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trace files, or names in the manifest; file names may be patterns.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<String>,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// Policies, separated by commas: opt, lru, fifo, clock, arc, lirs, lirs-paper, s3fifo,
    /// s3fifo-main-first, sieve, wtinylfu, 2q, lfu; the kernel's classic, mglru:6.12, mglru:7.2, or
    /// with -mapped appended (mglru:7.2-mapped); agewise's own reuse, optionally with parameters:
    /// reuse:look=0.25,batch=8,decay=0.99 (accesses from look to look as a share of the memory,
    /// pages evicted at a time, the share of hotness that a look keeps). mglru:FILE.toml is a
    /// profile of your own, mglru-mapped:FILE.toml the same as mapped memory.
    #[arg(long, value_name = "NAME", value_parser = PolicyList::parse,
          default_value = "opt,lru,clock")]
    pub policy: Vec<PolicyList>,

    /// Number of sizes, spread from a thousandth of the footprint to all of it on a logarithmic
    /// axis.
    #[arg(long, value_name = "N", default_value_t = CurveRequest::POINTS,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub points: u16,

    /// These sizes instead, separated by commas: pages (4096) or shares of the footprint (10%).
    #[arg(
        long,
        value_name = "SIZE",
        value_delimiter = ',',
        conflicts_with = "points"
    )]
    pub sizes: Vec<SizeSpec>,

    /// Estimate from samples.
    #[arg(long)]
    pub sampled: bool,

    /// Share of the pages in each sample.
    #[arg(
        long,
        value_name = "SHARE",
        default_value = "1%",
        value_parser = units::share,
        requires = "sampled"
    )]
    pub rate: f64,

    /// Number of samples; all together hold at most all pages.
    #[arg(long, value_name = "N", default_value_t = CurveRequest::SAMPLES, requires = "sampled")]
    pub samples: usize,

    /// Number of threads. Default: one per processor.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
          value_parser = super::jobs())]
    pub jobs: usize,

    /// Also write the curves as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,

    /// Also write the curves as PNG, 1720 pixels wide.
    #[arg(long, value_name = "FILE")]
    pub png: Option<PathBuf>,

    /// Also write the curves as one HTML page that needs nothing else.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Also write the points as Apache Parquet, with the columns of json and csv; its metadata says
    /// what was run.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,

    /// Say on standard error how long decoding and counting took.
    #[arg(long)]
    pub timing: bool,

    /// Output format: text draws; json and csv have one record per point.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Policies given together.
#[derive(Clone, Debug)]
pub struct PolicyList(Vec<Arc<dyn Yardstick>>);

impl PolicyList {
    fn parse(text: &str) -> Result<Self, String> {
        yardstick::parse_list(text).map(PolicyList)
    }
}

impl Args {
    fn policies(&self) -> Vec<Arc<dyn Yardstick>> {
        let lists = self.policy.iter();
        lists.flat_map(|list| list.0.iter().cloned()).collect()
    }
}

/// Computes, prints and writes the pictures.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    require_different(&args.policies())?;
    let sampling = if args.sampled {
        Some(SamplingPlan::new(args.rate, args.samples).map_err(WrongArgument)?)
    } else {
        None
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.jobs)
        .build()
        .context("cannot start the threads")?;
    let outputs = [&args.svg, &args.html, &args.png, &args.parquet];
    let names = expand(&args.traces)?;
    ensure_apart(&names, outputs.into_iter().flatten())?;
    // That one cannot be written is known before hours of counting.
    let svg = output_file(args.svg.as_deref())?;
    let html = output_file(args.html.as_deref())?;
    let png = output_file(args.png.as_deref())?;
    let parquet = output_file(args.parquet.as_deref())?;
    let progress = Arc::new(Progress::new("runs"));
    let traces = names.len() as u64;
    let mut by_trace: Vec<Vec<Curve>> = Vec::new();
    let (mut cells, mut table) = (Vec::new(), Table::default());
    for trace in &names {
        let (bar, progress_of_reading) = ReadingBar::show();
        let request = CurveRequest {
            trace: trace.clone(),
            reading: Reading {
                progress: progress_of_reading,
                ..args.input.reading()
            },
            policies: args.policies(),
            sizes: args.sizes.clone(),
            points: args.points,
            sampling,
            build: BUILD.to_owned(),
        };
        let progress = Arc::clone(&progress);
        let done = Arc::new(move |runs: u64| progress.advance(runs.saturating_mul(traces)));
        let outcome = pool.install(|| {
            let read = request.read(trace)?;
            bar.finish();
            request.run_on_showing(&read, &Arc::default(), done)
        })?;
        for note in &outcome.notes {
            agewise_cli::note!("{note}");
        }
        if args.timing {
            say_time(&outcome);
        }
        table.append(outcome.table());
        by_trace.push(outcome.curves.into_iter().map(drawn).collect());
        cells.extend(outcome.cells);
    }
    progress.finish();
    let curves = by_trace.concat();
    let description = Description::Curve { cells };
    write_file(svg, || Ok(plot::svg(&curves).into_bytes()))?;
    write_file(html, || Ok(plot::html(&curves).into_bytes()))?;
    write_file(png, || plot::png(&curves).map_err(anyhow::Error::msg))?;
    write_file(parquet, || Ok(parquet::bytes(&table, &description)?))?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.format {
        Format::Text => text(&mut out, &by_trace)?,
        Format::Json => write(&mut out, Form::Json, &table, &description, true)?,
        Format::Csv => write(&mut out, Form::Csv, &table, &description, true)?,
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// The curve as it is drawn and printed: names of files and of profiles can contain anything.
fn drawn(mut curve: Curve) -> Curve {
    curve.trace = clean(&curve.trace);
    curve.policy = clean(&curve.policy);
    curve
}

/// Says on standard error how long it took.
fn say_time(outcome: &CurveOutcome) {
    let Some(first) = outcome.curves.first() else {
        return;
    };
    let runs: usize = outcome.curves.iter().map(|of| of.points.len()).sum();
    agewise_cli::note!(
        "{}: {} accesses decoded in {:.3} s, {} runs in {:.3} s",
        first.trace,
        first.accesses,
        outcome.decoded_in.as_secs_f64(),
        runs,
        outcome.counted_in.as_secs_f64()
    );
}

fn write_file(
    file: Option<OutputFile<'_>>,
    bytes: impl Fn() -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<()> {
    file.map_or(Ok(()), |file| file.write(&bytes()?))
}

fn text(out: &mut impl Write, by_trace: &[Vec<Curve>]) -> std::io::Result<()> {
    for of_trace in by_trace {
        let Some(first) = of_trace.first() else {
            continue;
        };
        writeln!(
            out,
            "{}: {} accesses, {}{} pages",
            first.trace,
            first.accesses,
            if first.sampling_rate.is_some() {
                "about "
            } else {
                ""
            },
            first.footprint_pages
        )?;
        if of_trace.iter().any(|curve| curve.points.len() > 1) {
            out.write_all(plot::text(of_trace, 72, 21).as_bytes())?;
        }
        write!(out, "{:>10}", "pages")?;
        for curve in of_trace {
            write!(out, " {:>19}", curve.policy)?;
        }
        writeln!(out)?;
        let sizes = of_trace.iter().flat_map(|curve| &curve.points);
        let sizes: BTreeSet<usize> = sizes.map(|point| point.size_pages).collect();
        for &size in &sizes {
            write!(out, "{size:>10}")?;
            for curve in of_trace {
                let point = curve.points.iter().find(|point| point.size_pages == size);
                match point.and_then(|point| curve.ratio(point)) {
                    None => write!(out, " {:>19}", "-")?,
                    Some((ratio, error)) if curve.sampling_rate.is_some() => {
                        write!(out, " {ratio:>9.6} ±{error:>8.6}")?;
                    }
                    Some((ratio, _)) => write!(out, " {ratio:>19.6}")?,
                }
            }
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
