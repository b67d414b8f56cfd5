// SPDX-License-Identifier: Apache-2.0
//! Writes traces: agewise's own page trace, and formats that other tools read.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::access::Request;
use super::error::TraceError;
use super::page_trace::{Header, PageTraceWriter};
#[cfg(feature = "parquet")]
use super::parquet::ParquetWriter;
use super::sink::Sink;

/// The formats that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFormat {
    /// Our own page trace: everything known about an access.
    Page,
    /// CSV with a header: as much, as text.
    Csv,
    /// One page per line: only the order.
    Lirs,
    /// libCacheSim's records: page, time in seconds, and the index of the next access.
    OracleGeneral,
    /// A table with the columns of CSV, if this is built with the feature `parquet`.
    Parquet,
}

impl OutputFormat {
    /// The formats by their names.
    pub const NAMES: [(&str, Self); 5] = [
        ("page", Self::Page),
        ("csv", Self::Csv),
        ("lirs", Self::Lirs),
        ("oracleGeneral", Self::OracleGeneral),
        ("parquet", Self::Parquet),
    ];

    /// Looks up a format by name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        let found = Self::NAMES
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, format)| *format)
    }

    /// The format that the name of a file asks for: its ending, before that of a compression.
    #[must_use]
    pub fn of_file(path: &Path) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        match ending.to_ascii_lowercase().as_str() {
            "gz" | "zst" => Self::of_file(Path::new(path.file_stem()?)),
            "pages" | "pagetrace" => Some(Self::Page),
            ending => Self::by_name(ending),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(_, format)| *format == self);
        found.map_or("", |(name, _)| name)
    }
}

/// Whether this build can write Parquet, under this name.
fn check_parquet(path: &Path) -> Result<(), TraceError> {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let what = match ending {
        _ if cfg!(not(feature = "parquet")) => "this build cannot write Parquet: write csv",
        Some("gz" | "zst") => "Parquet is not compressed as a whole: leave out that ending",
        _ => return Ok(()),
    };
    Err(TraceError::Limit {
        path: path.to_path_buf(),
        what: what.to_owned(),
    })
}

enum Output {
    Page(Box<PageTraceWriter<Sink>>),
    #[cfg(feature = "parquet")]
    Parquet(Box<ParquetWriter>),
    Plain(OutputFormat, Sink),
}

/// Writes a trace, which takes its name when it is finished. If the name ends in `.gz` or `.zst` it
/// is compressed; a page trace always is, Parquet never as a whole.
pub struct TraceWriter {
    path: PathBuf,
    output: Output,
    offset: u64,
    records: u64,
    line: String,
    /// Whether CSV says how accesses are known.
    evidence: bool,
    page_bytes: u32,
}

impl TraceWriter {
    /// Creates the file. `header` is written in page traces and in the metadata of Parquet, and in
    /// CSV as comments before the names of the columns, unless it is the default.
    ///
    /// # Errors
    /// [`TraceError::Open`] or [`TraceError::Write`]; [`TraceError::Limit`] for Parquet that would
    /// be compressed as a whole, or that this build cannot write, for metadata of more than 64 KiB,
    /// and for a page shift of more than 63.
    pub fn create(path: &Path, format: OutputFormat, header: &Header) -> Result<Self, TraceError> {
        let as_error = |source| TraceError::Open {
            path: path.to_path_buf(),
            source,
        };
        if format == OutputFormat::Parquet {
            check_parquet(path)?;
        }
        header
            .check()
            .map_err(|what| TraceError::limit(path, what))?;
        let sink = Sink::create(path).map_err(as_error)?;
        let output = match format {
            #[cfg(feature = "parquet")]
            OutputFormat::Parquet => {
                Output::Parquet(Box::new(ParquetWriter::new(path, sink, header)?))
            }
            OutputFormat::Page => Output::Page(Box::new(PageTraceWriter::new(path, sink, header)?)),
            _ => Output::Plain(format, sink),
        };
        let mut writer = Self {
            path: path.to_path_buf(),
            output,
            offset: 0,
            records: 0,
            line: String::new(),
            evidence: header.evidence,
            page_bytes: 1u32
                .checked_shl(header.page_shift.into())
                .unwrap_or(u32::MAX),
        };
        if format == OutputFormat::Csv {
            if *header != Header::default() {
                writer.put(header.to_comments().as_bytes())?;
            }
            let evidence = if header.evidence { ",evidence" } else { "" };
            let names = format!("time_ns,page,count,kind,process,class{evidence}\n");
            writer.put(names.as_bytes())?;
        }
        Ok(writer)
    }

    /// Adds an entry to the metadata of a Parquet file; no other format has a place for it.
    #[cfg(feature = "parquet")]
    pub fn add_metadata(&mut self, key: &str, value: &str) {
        if let Output::Parquet(writer) = &mut self.output {
            writer.add_metadata(key, value);
        }
    }

    /// Records written so far: requests if the format has them, otherwise single pages.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Adds a request. If the format needs it, `next_access` is called for each page of the request
    /// and returns the index of the next access of that page. A request without pages is no access
    /// and is not written.
    ///
    /// # Errors
    /// [`TraceError::Write`]; [`TraceError::Limit`] for a request that no reader accepts
    /// ([`Request::page_count`]).
    pub fn push(
        &mut self,
        request: &Request,
        mut next_access: impl FnMut() -> Option<u64>,
    ) -> Result<(), TraceError> {
        if request.page_count == 0 {
            return Ok(());
        }
        request
            .check()
            .map_err(|what| TraceError::limit(&self.path, what))?;
        let format = match &mut self.output {
            Output::Page(writer) => {
                self.records += 1;
                return writer.push(request);
            }
            #[cfg(feature = "parquet")]
            Output::Parquet(writer) => {
                self.records += 1;
                return writer.push(request);
            }
            Output::Plain(format, _) => *format,
        };
        if format == OutputFormat::Csv {
            self.records += 1;
            self.line = csv_line(request, self.evidence);
            return self.put_line();
        }
        self.records = self.records.saturating_add(request.page_count);
        for page in (0..request.page_count).map(|at| request.first_page.wrapping_add(at)) {
            if format == OutputFormat::OracleGeneral {
                let next = next_access();
                let record = oracle_general_record(request.time_ns, page, self.page_bytes, next);
                self.put(&record)?;
            } else {
                self.line = format!("{page}\n");
                self.put_line()?;
            }
        }
        Ok(())
    }

    /// Writes buffered data and ends the file.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(self) -> Result<(), TraceError> {
        let (path, offset) = (self.path, self.offset);
        let sink = match self.output {
            Output::Page(writer) => writer.finish()?,
            #[cfg(feature = "parquet")]
            Output::Parquet(writer) => writer.finish()?,
            Output::Plain(_, sink) => sink,
        };
        sink.finish().map_err(|source| TraceError::Write {
            path,
            offset,
            source,
        })
    }

    fn put_line(&mut self) -> Result<(), TraceError> {
        let line = std::mem::take(&mut self.line);
        let result = self.put(line.as_bytes());
        self.line = line;
        result
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        if let Output::Plain(_, sink) = &mut self.output {
            sink.write_all(bytes).map_err(|source| TraceError::Write {
                path: self.path.clone(),
                offset: self.offset,
                source,
            })?;
            self.offset += bytes.len() as u64;
        }
        Ok(())
    }
}

fn csv_line(request: &Request, with_evidence: bool) -> String {
    let (comma, evidence) = match with_evidence {
        true => (",", request.evidence.name()),
        false => ("", ""),
    };
    format!(
        "{},{},{},{},{},{}{comma}{evidence}\n",
        request.time_ns,
        request.first_page,
        request.page_count,
        request.kind.name(),
        request.process,
        request.class.name()
    )
}

/// Time in seconds and size of a page (both saturated if they do not fit), page, next access.
fn oracle_general_record(
    time_ns: u64,
    page: u64,
    page_bytes: u32,
    next_access: Option<u64>,
) -> [u8; 24] {
    let seconds = u32::try_from(time_ns / 1_000_000_000).unwrap_or(u32::MAX);
    let next = next_access
        .and_then(|at| i64::try_from(at).ok())
        .unwrap_or(-1);
    let mut record = [0; 24];
    record[0..4].copy_from_slice(&seconds.to_le_bytes());
    record[4..12].copy_from_slice(&page.to_le_bytes());
    record[12..16].copy_from_slice(&page_bytes.to_le_bytes());
    record[16..24].copy_from_slice(&next.to_le_bytes());
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_reader_accepts_is_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t");
        let formats = OutputFormat::NAMES.iter().map(|(_, format)| *format);
        let formats =
            formats.filter(|of| *of != OutputFormat::Parquet || cfg!(feature = "parquet"));
        for format in formats {
            let create = |header: &Header| TraceWriter::create(&path, format, header);
            let far = Header {
                page_shift: 64,
                ..Header::default()
            };
            let long = Header {
                metadata: "a".repeat((1 << 16) + 1),
                ..Header::default()
            };
            for header in [far, long] {
                assert!(matches!(create(&header), Err(TraceError::Limit { .. })));
            }
            let mut writer = create(&Header::default()).unwrap();
            for (first_page, page_count) in [(0, (1 << 24) + 1), (u64::MAX, 2)] {
                let request = Request {
                    first_page,
                    page_count,
                    ..Request::default()
                };
                let refused = writer.push(&request, || None);
                assert!(matches!(refused, Err(TraceError::Limit { .. })));
            }
            for page_count in [1, 0, 1] {
                let request = Request {
                    page_count,
                    ..Request::page(u64::MAX)
                };
                writer.push(&request, || None).unwrap();
            }
            assert_eq!(writer.records(), 2);
            writer.finish().unwrap();
        }
    }

    #[test]
    fn objects_of_oracle_general_are_as_large_as_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.oracleGeneral");
        for (page_shift, size) in [(12, 4096), (16, 65536), (40, u32::MAX)] {
            let header = Header {
                page_shift,
                ..Header::default()
            };
            let mut writer =
                TraceWriter::create(&path, OutputFormat::OracleGeneral, &header).unwrap();
            writer.push(&Request::page(7), || None).unwrap();
            writer.finish().unwrap();
            let record = std::fs::read(&path).unwrap();
            assert_eq!(record[12..16], u32::to_le_bytes(size));
        }
    }
}
