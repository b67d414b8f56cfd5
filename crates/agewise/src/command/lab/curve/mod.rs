// SPDX-License-Identifier: Apache-2.0
//! `agewise lab curve`.

mod parquet;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use agewise_lab::{plot, yardstick};
use agewise_trace::DenseTrace;
use agewise_trace::curve::{
    self, Curve, Point, SamplingPlan, SizeSpec, exact, read_samples, spread_sizes,
};
use agewise_trace::yardstick::Yardstick;
use anyhow::Context;
use serde::Serialize;

use crate::command::trace::input::{InputArgs, short_name};
use agewise_cli::output::{self, Format};

/// Draw miss-ratio curves: the share of accesses that miss, by the pages of memory there are.
///
/// Exact curves count every access: LRU for all sizes in one pass, the other policies in a run a
/// size, in parallel. They hold the trace in memory, 4 bytes an access and 8 a page, and each run
/// some 10 to 20 bytes a page (OPT 4 bytes an access).
///
/// --sampled estimates from samples of the pages chosen by hash (SHARDS): each keeps all accesses
/// of its pages and stands for the whole. The error is half the 95 % confidence interval over the
/// samples. It does not cover sizes that come to a handful of pages in a sample.
///
/// A miss is an access of a page that is not in memory; the first access of each page always is
/// one. There is no warm-up.
///
/// Pictures: text on a terminal, --svg, --png, and --html, a page that fetches nothing and zooms.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Trace files, or names in the manifest.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<String>,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// Policies, parted by commas: opt, lru, fifo, clock, arc, lirs, lirs-paper, s3fifo, sieve,
    /// wtinylfu, 2q, lfu; the kernel's classic, mglru-6.12, mglru-7.2, each also -mapped; agewise's
    /// own reuse, which may be followed by parameters: reuse:look=0.25,batch=8,decay=0.99 (accesses
    /// from look to look as a share of the memory, pages evicted at a time, what a look leaves of
    /// hotness).
    #[arg(long, value_name = "NAME", value_parser = PolicyList::parse,
          default_value = "opt,lru,clock")]
    pub policy: Vec<PolicyList>,

    /// Sizes, spread from a thousandth of the footprint to all of it on a logarithmic axis.
    #[arg(long, value_name = "N", default_value_t = 32,
          value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub points: u16,

    /// These sizes instead, parted by commas: pages (4096) or shares of the footprint (10%).
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
        default_value_t = 0.01,
        requires = "sampled"
    )]
    pub rate: f64,

    /// Samples; all together hold at most all pages.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "sampled")]
    pub samples: usize,

    /// Threads; one a processor when not given.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
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

    /// Also write the points as Apache Parquet, with the columns of json and csv.
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,

    /// Say on standard error how long decoding and counting took.
    #[arg(long)]
    pub timing: bool,

    /// Text draws; json and csv have one record a point.
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

/// A point as it is printed.
#[derive(Debug, Serialize)]
struct Record<'a> {
    trace: &'a str,
    policy: &'a str,
    size_pages: usize,
    footprint_pages: u64,
    accesses: u64,
    misses: u64,
    miss_ratio: f64,
    /// Half the width of the 95 % confidence interval of the miss ratio; 0 when counted.
    miss_ratio_error: f64,
    /// Share of the pages in each sample; null when counted.
    sampling_rate: Option<f64>,
}

impl<'a> Record<'a> {
    fn of(curve: &'a Curve, point: &Point) -> Self {
        let (miss_ratio, miss_ratio_error) = curve.ratio(point);
        Self {
            trace: &curve.trace,
            policy: &curve.policy,
            size_pages: point.size_pages,
            footprint_pages: curve.footprint_pages,
            accesses: curve.accesses,
            misses: point.misses.round() as u64,
            miss_ratio,
            miss_ratio_error,
            sampling_rate: curve.sampling_rate,
        }
    }
}

/// Computes, prints and writes the pictures.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let plan = if args.sampled {
        Some(SamplingPlan::new(args.rate, args.samples).map_err(anyhow::Error::msg)?)
    } else {
        None
    };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.jobs)
        .build()
        .context("cannot start the threads")?;
    let mut curves = Vec::new();
    for trace in &args.traces {
        curves.extend(match plan {
            Some(plan) => estimate(args, trace, plan, &pool)?,
            None => count(args, trace, &pool)?,
        });
    }
    write_picture(args.svg.as_deref(), || Ok(plot::svg(&curves).into_bytes()))?;
    write_picture(
        args.html.as_deref(),
        || Ok(plot::html(&curves).into_bytes()),
    )?;
    write_picture(args.png.as_deref(), || {
        plot::png(&curves).map_err(anyhow::Error::msg)
    })?;
    if let Some(path) = &args.parquet {
        let file =
            fs::File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
        parquet::write(file, &records(&curves))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    print(args, &curves)?;
    Ok(ExitCode::SUCCESS)
}

fn count(args: &Args, trace: &str, pool: &rayon::ThreadPool) -> anyhow::Result<Vec<Curve>> {
    let source = args.input.source(trace)?;
    let started = Instant::now();
    let mut stream = source.open()?;
    let dense = DenseTrace::from_stream(&source.path, &mut stream)?;
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    let decoded = started.elapsed();
    let sizes = sizes(args, dense.page_count() as u64);
    let policies = args.policies();
    let curves = pool.install(|| exact(short_name(trace), &dense, &policies, &sizes));
    if args.timing {
        let accesses = dense.accesses().len();
        agewise_cli::note!(
            "{trace}: {accesses} accesses decoded in {:.3} s, {} runs in {:.3} s",
            decoded.as_secs_f64(),
            policies.len() * sizes.len(),
            (started.elapsed() - decoded).as_secs_f64()
        );
    }
    Ok(curves)
}

fn estimate(
    args: &Args,
    trace: &str,
    plan: SamplingPlan,
    pool: &rayon::ThreadPool,
) -> anyhow::Result<Vec<Curve>> {
    /// A sample of fewer pages says little.
    const SAMPLE_PAGES_MIN: usize = 100;
    let source = args.input.source(trace)?;
    let mut stream = source.open()?;
    let samples = read_samples(&mut stream, plan)?;
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    let fewest = samples.smallest_sample_pages();
    if fewest < SAMPLE_PAGES_MIN {
        agewise_cli::note!(
            "{trace}: a sample has only {fewest} pages; raise --rate, or count without \
             --sampled"
        );
    }
    let sizes = sizes(args, samples.footprint_pages());
    let policies = args.policies();
    Ok(pool.install(|| curve::sampled(short_name(trace), &samples, &policies, &sizes)))
}

fn sizes(args: &Args, footprint_pages: u64) -> Vec<usize> {
    if args.sizes.is_empty() {
        return spread_sizes(footprint_pages, usize::from(args.points));
    }
    let mut sizes: Vec<usize> = args
        .sizes
        .iter()
        .map(|size| size.pages(footprint_pages))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

fn write_picture(
    path: Option<&Path>,
    draw: impl Fn() -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<()> {
    match path {
        Some(path) => {
            fs::write(path, draw()?).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    }
}

fn records(curves: &[Curve]) -> Vec<Record<'_>> {
    let mut records = Vec::new();
    for curve in curves {
        records.extend(curve.points.iter().map(|point| Record::of(curve, point)));
    }
    records
}

fn print(args: &Args, curves: &[Curve]) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    match args.format {
        Format::Text => text(&mut out, curves)?,
        Format::Json => {
            for record in records(curves) {
                output::json_line(&mut out, &record)?;
            }
        }
        Format::Csv => {
            let mut csv = csv::Writer::from_writer(&mut out);
            for record in records(curves) {
                csv.serialize(record)?;
            }
            csv.flush()?;
        }
    }
    out.flush()?;
    Ok(())
}

fn text(out: &mut impl Write, curves: &[Curve]) -> std::io::Result<()> {
    for of_trace in curves.chunk_by(|a, b| a.trace == b.trace) {
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
        if first.points.len() > 1 {
            out.write_all(plot::text(of_trace, 72, 21).as_bytes())?;
        }
        write!(out, "{:>10}", "pages")?;
        for curve in of_trace {
            write!(out, " {:>19}", curve.policy)?;
        }
        writeln!(out)?;
        for (at, point) in first.points.iter().enumerate() {
            write!(out, "{:>10}", point.size_pages)?;
            for curve in of_trace {
                let (ratio, error) = curve.ratio(&curve.points[at]);
                if curve.sampling_rate.is_some() {
                    write!(out, " {ratio:>9.6} ±{error:>8.6}")?;
                } else {
                    write!(out, " {ratio:>19.6}")?;
                }
            }
            writeln!(out)?;
        }
        writeln!(out)?;
    }
    Ok(())
}
