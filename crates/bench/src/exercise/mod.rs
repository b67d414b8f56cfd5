// SPDX-License-Identifier: Apache-2.0
//! `agewise exercise`: a workload that knows the truth about itself.

pub mod content;
pub mod memory;
pub mod pattern;
pub mod spawned;
pub mod summary;
pub mod truth;
mod worker;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};

use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::units;
use agewise_host::memory::MemInfo;
use agewise_host::root::ProcRoot;
use memory::PAGE_SIZE;
use pattern::Pattern;
use worker::{Ending, Worker};

/// Run a workload that knows when it last touched each of its pages
///
/// Maps memory, fills it with contents that compress as a program's do, and touches pages in a
/// pattern until it is stopped. Every access is stamped into the truth file, which other
/// programs can map and read live (`agewise bench` compares it with what agewise saw), and every
/// access checks the page: one that comes back changed ends the exerciser with an error and exit
/// status 1. At the end all pages are read once more.
///
/// Patterns:
///   hotcold:FRACTION  the fraction is hot, each of its pages touched once per round, others never
///   zipf:EXPONENT     page of rank r with probability proportional to 1/r^EXPONENT
///   uniform           every page alike
///   scan              from the first page to the last, over and over
///   shift:DURATION    a window (a quarter of the pages) that moves on after each DURATION
#[derive(Debug, Clone, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Anonymous memory to map, rounded up to whole pages.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = units::size)]
    pub size: u64,

    /// How pages are touched; see above.
    #[arg(long, default_value = "hotcold:0.5")]
    pub pattern: Pattern,

    /// The fraction of the pages that the pattern covers, the first ones; the rest is touched only
    /// once, when it is filled. hotcold and shift bring their own.
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    pub active: Option<f64>,

    /// Cover single pages all over the memory instead of the first ones.
    #[arg(long)]
    pub scatter: bool,

    /// Map this file as well, read-only, and touch it in the same pattern and as often, page for
    /// page, as the anonymous memory. A missing file is created and removed at the end. An existing
    /// one is never written, and its contents are not checked.
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,

    /// Size of the file to make, rounded up to whole pages; 64M unless given. With it the file must
    /// not exist.
    #[arg(long, value_name = "SIZE", requires = "file", value_parser = units::positive_size)]
    pub file_size: Option<u64>,

    /// Ask for 2 MiB pages; without it they are refused.
    #[arg(long)]
    pub thp: bool,

    /// Operations per second; 0 for as many as it can.
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rate: u64,

    /// The fraction of the operations that write.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.25, value_parser = fraction)]
    pub writes: f64,

    /// Keep the truth in this file: a header page, then for each page the CLOCK_MONOTONIC time (ns,
    /// u64) of its last access. The layout is in crates/bench/src/exercise/truth.rs.
    /// One on /dev/shm costs no disk I/O.
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Stop after this many seconds of work; without it, at SIGINT or SIGTERM.
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,

    /// Seed of the contents and of the choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Do not read all pages once more at the end.
    #[arg(long)]
    pub no_final_check: bool,

    /// Print a line each time this has passed.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    pub every: Option<Duration>,

    /// The form of what is printed.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Parses a fraction from 0 to 1.
fn fraction(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=1.0).contains(&number) => Ok(number),
        _ => Err(format!("'{text}' is not a fraction from 0 to 1")),
    }
}

/// Default size of the file that is created.
const FILE_SIZE: u64 = 64 << 20;

impl Args {
    /// The size of the file: its own if it exists, else that of the file to create.
    fn file_bytes(&self) -> u64 {
        match &self.file {
            None => 0,
            Some(path) => self.file_size.unwrap_or_else(|| {
                std::fs::metadata(path).map_or(FILE_SIZE, |metadata| metadata.len())
            }),
        }
    }

    fn validate(&self) -> anyhow::Result<()> {
        if rustix::param::page_size() as u64 != PAGE_SIZE {
            bail!(
                "exercise works on machines with pages of 4 KiB; this one has {}",
                units::bytes_text(rustix::param::page_size() as u64)
            );
        }
        if self.size == 0 && self.file.is_none() {
            agewise_cli::refuse!("nothing to exercise: --size is 0 and there is no --file");
        }
        if let Some(seconds) = self.seconds
            && !(seconds.is_finite() && seconds > 0.0)
        {
            agewise_cli::refuse!("--seconds {seconds}: give a number above 0");
        }
        if self.active.is_some() && matches!(self.pattern, Pattern::HotCold(_)) {
            agewise_cli::refuse!(
                "hotcold says itself which fraction is active; leave --active out"
            );
        }
        let available = MemInfo::of_machine(&ProcRoot::default())?.available_bytes;
        let wanted = self.size.saturating_add(self.file_bytes());
        if wanted > available {
            bail!(
                "{} asked for, but the machine has {} available; take a smaller --size",
                units::bytes_text(wanted),
                units::bytes_text(available)
            );
        }
        Ok(())
    }
}

/// Runs the exerciser to its end.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.validate()?;
    let stop = Stop::install().context("cannot listen for signals")?;
    let mut out = std::io::stdout().lock();
    let mut worker = Worker::new(args)?;
    if args.format == Format::Csv {
        writeln!(out, "{}", summary::COLUMNS)?;
    }
    let ending = worker.run(&stop, |summary| {
        match args.format {
            Format::Text => writeln!(out, "{}", summary.line_text())?,
            Format::Json => output::json_line(&mut out, summary)?,
            Format::Csv => output::csv_row(&mut out, summary::COLUMNS, summary)?,
        }
        out.flush()
    })?;
    match ending {
        Ending::Unharmed => Ok(ExitCode::SUCCESS),
        Ending::Changed {
            page,
            address,
            change,
        } => {
            agewise_cli::note!(
                "page {page} at {address:#x} changed: word {} should be {:#018x} and is \
                 {:#018x}",
                change.word,
                change.expected,
                change.found
            );
            Ok(ExitCode::FAILURE)
        }
    }
}
