// SPDX-License-Identifier: Apache-2.0
//! Which trace to read and how: arguments shared by all commands that read traces.

use std::path::PathBuf;
use std::sync::Arc;

use agewise_host::memory::MemInfo;
use agewise_host::root::ProcRoot;
use agewise_trace::reader::column::Column;
use agewise_trace::{
    EXPANSION_MAX, Format, ReadLimits, ReadProgress, Reading, TraceSource, registry,
};

use agewise_cli::progress::Progress;
use agewise_cli::units;

/// How traces are read.
#[derive(Debug, Clone, clap::Args)]
pub struct InputArgs {
    /// The format of the trace: lirs, arc, oracleGeneral, ucsd, cache2k, corda, adaptsize, csv,
    /// lackey, damon, page. By default detected from content and file name; compression (gzip, xz,
    /// zstd) is always detected.
    #[arg(long, value_name = "FORMAT", value_parser = known_format)]
    pub trace_format: Option<&'static Format>,

    /// A page is 2^BITS bytes; byte addresses become pages by this shift. Default: as the header
    /// of a page trace says, which this option must match; 12 (4 KiB) for other formats.
    #[arg(long, value_name = "BITS", value_parser = clap::value_parser!(u32).range(0..=63))]
    pub page_shift: Option<u32>,

    /// A CSV column with a different name, such as page=object or time_us=when.
    #[arg(long, value_name = "COLUMN=HEADER", value_parser = named_column)]
    pub column: Vec<(Column, String)>,

    /// A CSV file naming traces (columns file, trace_name, format): traces can then be given by
    /// name.
    #[arg(long, value_name = "FILE")]
    pub manifest: Option<PathBuf>,

    /// Memory for holding a trace, such as 2G; a trace that needs more is refused. Default: a
    /// quarter of this machine's memory.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size)]
    pub trace_memory: Option<u64>,

    /// Limit on decompressed bytes per byte of a compressed file; a file that expands more is
    /// refused.
    #[arg(long, value_name = "TIMES", default_value_t = EXPANSION_MAX,
          value_parser = clap::value_parser!(u64).range(1..))]
    pub expansion_max: u64,

    /// Count a run of accesses to the same page as one access.
    #[arg(long)]
    pub collapse_repeats: bool,
}

impl InputArgs {
    /// The arguments as options of the reader.
    pub fn reading(&self) -> Reading {
        Reading {
            format: self.trace_format,
            page_shift: self.page_shift,
            columns: self.column.clone(),
            manifest: self.manifest.clone(),
            collapse_repeats: self.collapse_repeats,
            limits: ReadLimits {
                memory_max_bytes: self.trace_memory.unwrap_or_else(trace_memory_default),
                expansion_max: self.expansion_max,
            },
            progress: None,
        }
    }

    /// The trace with this path, or with this name in the manifest.
    pub fn source(&self, trace: &str) -> anyhow::Result<TraceSource> {
        Ok(self.reading().source(trace)?)
    }
}

/// A bar for how much of a trace has been read.
#[derive(Debug)]
pub struct ReadingBar(Arc<Progress>);

impl ReadingBar {
    /// A bar, and what draws it while a trace is read.
    pub fn show() -> (Self, Option<ReadProgress>) {
        let bar = Arc::new(Progress::of_bytes("read"));
        let drawn = Arc::clone(&bar);
        let progress = ReadProgress::new(move |read, all| drawn.at(read, all));
        (Self(bar), Some(progress))
    }

    /// Removes the bar, before anything else is drawn.
    pub fn finish(&self) {
        self.0.finish();
    }
}

/// A quarter of this machine's memory; no limit if that cannot be read.
pub fn trace_memory_default() -> u64 {
    MemInfo::of_machine(&ProcRoot::default()).map_or(u64::MAX, |memory| memory.total_bytes / 4)
}

/// Looks up a format by name.
pub fn known_format(name: &str) -> Result<&'static Format, String> {
    registry::by_name(name).ok_or_else(|| {
        format!(
            "there is no trace format '{name}'; there are {}",
            registry::names()
        )
    })
}

fn named_column(text: &str) -> Result<(Column, String), String> {
    let (column, header) = text.split_once('=').ok_or("write COLUMN=HEADER")?;
    let column = Column::by_name(column).ok_or_else(|| {
        format!(
            "there is no column '{column}'; there are page, address, bytes, count, time_ns, \
                 time_us, time_ms, time_s, kind, process, class, evidence"
        )
    })?;
    Ok((column, header.to_string()))
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_help_has_every_format() {
        let command = InputArgs::augment_args(clap::Command::new("t"));
        let format = command
            .get_arguments()
            .find(|of| of.get_id() == "trace_format");
        let help = format
            .and_then(clap::Arg::get_help)
            .expect("a help")
            .to_string();
        let (list, _) = help.split_once('.').expect("a sentence");
        let named: Vec<&str> = list.split([' ', ',', ':', '\n']).collect();
        for format in agewise_trace::FORMATS {
            assert!(named.contains(&format.name), "{}: {list}", format.name);
        }
    }
}
