// SPDX-License-Identifier: Apache-2.0
//! `agewise trace cat`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use agewise_trace::page_trace::{self, Header};
use agewise_trace::{AccessStream, Request, TraceSource};
use serde::Serialize;

use super::input::InputArgs;
use agewise_cli::output::{self, Format};
use agewise_cli::units;

/// Print the requests of a trace.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The trace: a file, or a name in the manifest.
    #[arg(value_name = "TRACE")]
    pub trace: String,

    /// How traces are read.
    #[command(flatten)]
    pub input: InputArgs,

    /// Stop after this many requests.
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Start at this time of the trace. A page trace jumps there by its index.
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    pub from: Option<Duration>,

    /// Output format. csv begins with lines of comments, as `trace convert` writes them, if the
    /// order of accesses was not recorded or pages are not of 4 KiB.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// A request as printed.
#[derive(Debug, Serialize)]
struct Record {
    time_ns: u64,
    page: u64,
    count: u64,
    kind: &'static str,
    process: u32,
    class: &'static str,
    evidence: &'static str,
}

impl Record {
    fn of(request: &Request) -> Self {
        Self {
            time_ns: request.time_ns,
            page: request.first_page,
            count: request.page_count,
            kind: request.kind.name(),
            process: request.process,
            class: request.class.name(),
            evidence: request.evidence.name(),
        }
    }
}

/// Reads the trace and prints its requests.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let source = args.input.source(&args.trace)?;
    if source.collapse_repeats {
        agewise_cli::refuse!(
            "cat prints requests as they are stored: leave out --collapse-repeats, and `_dedup` at \
             the end of a name"
        );
    }
    let from_ns = args
        .from
        .map_or(0, |from| u64::try_from(from.as_nanos()).unwrap_or(u64::MAX));
    let mut stream = open(&source, from_ns)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    if args.format == Format::Csv {
        if let Some(header) = stream
            .page_trace_header()
            .filter(|header| changes_meaning(header))
        {
            out.write_all(header.to_comments().as_bytes())?;
        }
        writeln!(out, "time_ns,page,count,kind,process,class,evidence")?;
    }
    let mut printed = 0;
    while args.limit.is_none_or(|limit| printed < limit) {
        let Some(request) = stream.next_request()? else {
            break;
        };
        if request.time_ns < from_ns {
            continue;
        }
        let record = Record::of(&request);
        match args.format {
            Format::Json => output::json_line(&mut out, &record)?,
            Format::Text | Format::Csv => {
                let Record {
                    time_ns,
                    page,
                    count,
                    kind,
                    process,
                    class,
                    evidence,
                } = record;
                if args.format == Format::Csv {
                    writeln!(
                        out,
                        "{time_ns},{page},{count},{kind},{process},{class},{evidence}"
                    )?;
                } else {
                    let seconds = time_ns as f64 / 1e9;
                    writeln!(
                        out,
                        "{seconds:>14.6} {page:>20} {count:>8} {kind:1} {process} {class} \
                         {evidence}"
                    )?;
                }
            }
        }
        printed += 1;
    }
    out.flush()?;
    if let Some(note) = stream.note() {
        agewise_cli::note!("{note}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the lines would be read back with another meaning without the header: their order or
/// the size of their pages.
fn changes_meaning(header: &Header) -> bool {
    let default = Header::default();
    header.order != default.order || header.page_shift != default.page_shift
}

/// Opens the trace, near `from_ns` if it has an index.
fn open(source: &TraceSource, from_ns: u64) -> anyhow::Result<AccessStream> {
    let stream = source.open()?;
    let is_page_trace = stream.format().name == page_trace::FORMAT.name;
    let has_index = is_page_trace && stream.compression() == "plain";
    if from_ns == 0 || !has_index || source.require_file().is_err() {
        return Ok(stream);
    }
    // A truncated trace has no index and is read from the beginning.
    match page_trace::open_at(&source.path, from_ns) {
        Ok(reader) => Ok(AccessStream::new(&source.path, &page_trace::FORMAT, reader)),
        Err(_) => Ok(stream),
    }
}
