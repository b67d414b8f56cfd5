// SPDX-License-Identifier: Apache-2.0
//! `agewise trace convert`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agewise_trace::page_trace::Header;
use agewise_trace::{
    AccessKind, DenseTrace, NEVER, OutputFormat, PageClass, Request, TraceSource, TraceWriter,
};
use anyhow::Context;

use super::input::{InputArgs, ReadingBar};
use agewise_cli::usage::ensure_apart;

/// Write a trace in another format.
///
/// page keeps everything known about each access, is compressed and indexed, and stays readable up
/// to the point where it was cut off. csv keeps as much, as text: what a page trace says of all its
/// accesses is in lines that start with # before the names of the columns. lirs keeps only the
/// order of the pages. oracleGeneral (libCacheSim) keeps pages and seconds, and takes two passes
/// and 8 bytes of memory per access. parquet is a table with the columns of csv for data frames,
/// which no command reads; its metadata holds the page trace's header, and the source with its
/// SHA-256. Files whose names end in .gz or .zst are compressed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace: a file, or a name in the manifest.
    #[arg(value_name = "TRACE")]
    pub trace: String,

    /// The file to write; replaced if it exists.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// The format to write: page, csv, lirs, oracleGeneral, parquet. Default: the one that OUT ends
    /// in (.csv, .lirs, .oracleGeneral, .parquet), or else page.
    #[arg(long, value_name = "FORMAT", value_parser = output_format)]
    pub to: Option<OutputFormat>,

    /// Stop after this many requests.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// What backs the pages if the trace does not say: anon or file.
    #[arg(long, value_name = "CLASS", value_parser = page_class)]
    pub class: Option<PageClass>,

    /// The kind of accesses if the trace does not say: read or write.
    #[arg(long, value_name = "KIND", value_parser = access_kind)]
    pub kind: Option<AccessKind>,
}

/// Converts the trace.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let to = chosen(args.to, &args.out)?;
    let (bar, progress) = ReadingBar::show();
    let mut source = args.input.source(&args.trace)?;
    source.progress = progress;
    ensure_apart([&source.path], [&args.out])?;
    let next = match to {
        OutputFormat::OracleGeneral => next_accesses(&source, args)?,
        _ => Vec::new(),
    };
    let mut stream = source.open()?;
    let header = stream
        .page_trace_header()
        .cloned()
        .unwrap_or_else(|| Header {
            page_shift: stream.page_shift() as u8,
            // CSV needs no comment for that: tools that know no comments read it, too.
            metadata: match to {
                OutputFormat::Csv => String::new(),
                _ => format!("converted_from={}\n", stream.format().name),
            },
            ..Header::default()
        });
    let mut writer = TraceWriter::create(&args.out, to, &header)?;
    #[cfg(feature = "lab")]
    if to == OutputFormat::Parquet {
        add_origin(&mut writer, &source)?;
    }
    let (mut requests, mut access) = (0, 0);
    while args.limit.is_none_or(|limit| requests < limit) {
        let Some(request) = stream.next_request()? else {
            break;
        };
        writer.push(&completed(request, args), || {
            let next_access = next.get(access).copied().filter(|&at| at != NEVER);
            access += 1;
            next_access.map(u64::from)
        })?;
        requests += 1;
    }
    let records = writer.records();
    writer.finish()?;
    bar.finish();
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    agewise_cli::note!(
        "{requests} requests read, {records} records written to {}",
        args.out.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// Says in the metadata what is converted, under the names that results have.
#[cfg(feature = "lab")]
fn add_origin(writer: &mut TraceWriter, source: &TraceSource) -> anyhow::Result<()> {
    writer.add_metadata("source", &source.path.to_string_lossy());
    // This is a second reading.
    if source.require_file().is_ok() {
        let sha256 = agewise_lab::study::setup::sha256_of(&source.path)?;
        writer.add_metadata("source_sha256", &sha256);
    }
    writer.add_metadata("version", env!("CARGO_PKG_VERSION"));
    writer.add_metadata("build", env!("AGEWISE_BUILD"));
    Ok(())
}

/// The format to write: the one asked for, which the name of the file must not contradict.
fn chosen(to: Option<OutputFormat>, out: &Path) -> anyhow::Result<OutputFormat> {
    let ending = out.extension().and_then(|ending| ending.to_str());
    if let Some(ending @ ("xz" | "bz2" | "lz4" | "zip")) = ending {
        agewise_cli::refuse!(
            "{}: .{ending} cannot be written: let the name end in .gz or .zst",
            out.display()
        );
    }
    let named = OutputFormat::of_file(out);
    match (to, named) {
        (Some(to), Some(named)) if to != named => agewise_cli::refuse!(
            "{}: the name is one of the format {}, but --to says {}: change one of them",
            out.display(),
            named.name(),
            to.name()
        ),
        _ => Ok(to.or(named).unwrap_or(OutputFormat::Page)),
    }
}

fn next_accesses(source: &TraceSource, args: &Args) -> anyhow::Result<Vec<u32>> {
    // Next-access indices refer to the accesses of the whole file, so all of them must be written.
    if args.limit.is_some() {
        agewise_cli::refuse!(
            "oracleGeneral is written of whole traces only: convert to page first, then sample or \
             cut"
        );
    }
    source.require_file()?;
    Ok(DenseTrace::read(source)
        .context("the first of two passes")?
        .next_accesses())
}

fn completed(mut request: Request, args: &Args) -> Request {
    if request.class == PageClass::Unknown {
        request.class = args.class.unwrap_or_default();
    }
    if request.kind == AccessKind::Unknown {
        request.kind = args.kind.unwrap_or_default();
    }
    request
}

fn output_format(name: &str) -> Result<OutputFormat, String> {
    OutputFormat::by_name(name).ok_or_else(|| {
        let names = OutputFormat::NAMES.map(|(name, _)| name);
        format!("cannot write '{name}'; there are {}", names.join(", "))
    })
}

fn page_class(name: &str) -> Result<PageClass, String> {
    match name {
        "anon" => Ok(PageClass::Anon),
        "file" => Ok(PageClass::File),
        _ => Err("write anon or file".into()),
    }
}

fn access_kind(name: &str) -> Result<AccessKind, String> {
    match name {
        "read" => Ok(AccessKind::Read),
        "write" => Ok(AccessKind::Write),
        _ => Err("write read or write".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_file_chooses_the_format_and_is_not_contradicted() {
        let of = |to: Option<OutputFormat>, out: &str| {
            let chosen = chosen(to, Path::new(out));
            chosen.map_err(|error| error.to_string())
        };
        for (out, format) in [
            ("o.csv", OutputFormat::Csv),
            ("dir.csv/o.CSV.gz", OutputFormat::Csv),
            ("o.lirs.zst", OutputFormat::Lirs),
            ("o.oracleGeneral", OutputFormat::OracleGeneral),
            ("o.parquet", OutputFormat::Parquet),
            ("o.pages", OutputFormat::Page),
            ("dir.csv/o", OutputFormat::Page),
            ("o.gz", OutputFormat::Page),
        ] {
            assert_eq!(of(None, out), Ok(format), "{out}");
        }
        assert_eq!(
            of(Some(OutputFormat::Lirs), "o.txt"),
            Ok(OutputFormat::Lirs)
        );
        let error = of(Some(OutputFormat::Page), "o.csv").unwrap_err();
        assert!(error.contains("format csv, but --to says page"), "{error}");
    }
}
