// SPDX-License-Identifier: Apache-2.0
//! Errors of traces; each has the file, and the place in it.

use std::path::{Path, PathBuf};

/// A trace that cannot be read, written or parsed.
///
/// Offsets are in bytes of the decompressed data, so they can be inspected with `zstdcat FILE |
/// tail -c +OFFSET`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened or created.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It has to be read twice, and is no regular file: the second reader would get what the first
    /// one left.
    #[error(
        "{}: it has to be read twice, and is no regular file: write it to one first",
        path.display()
    )]
    ReadOnce {
        /// The pipe, socket or device.
        path: PathBuf,
    },
    /// Reading failed, or the compressed data is damaged or ends early.
    #[error("{}: cannot read on after byte {offset} of its {content} data: \
             {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Offset in the decompressed data.
        offset: u64,
        /// The detected compression, or "plain".
        content: &'static str,
        /// The cause.
        source: std::io::Error,
    },
    /// Writing failed; what was written before remains readable as far as the format allows.
    #[error("{}: cannot write after byte {offset}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Number of bytes written so far.
        offset: u64,
        /// The cause.
        source: std::io::Error,
    },
    /// A record violates the format.
    #[error("{}: not valid {format} at byte {offset}{}: {what}", path.display(), line_text(*line))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format used to read it.
        format: &'static str,
        /// The offset of the record.
        offset: u64,
        /// The line, counted from 1; 0 in binary formats.
        line: u64,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// The file ends inside a record.
    #[error(
        "{}: truncated {format}: the record at byte {offset} has {got} of {expected} bytes",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// The format used to read it.
        format: &'static str,
        /// The offset of the record.
        offset: u64,
        /// Number of bytes present.
        got: usize,
        /// Size of a record in bytes.
        expected: usize,
    },
    /// It contains no requests.
    #[error("{}: no requests in this {format} trace{}", path.display(),
            note.as_deref().map(|note| format!(" ({note})")).unwrap_or_default())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The format used to read it.
        format: &'static str,
        /// What the reader noticed, such as that the file is cut off.
        note: Option<String>,
    },
    /// Neither name nor content identifies the format.
    #[error("{}: cannot tell its format ({hint}); name one with --trace-format: \
             {known}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What the detection was based on.
        hint: String,
        /// The supported formats.
        known: String,
    },
    /// The file cannot be of the given format.
    #[error("{}: this is not {format}: {what}", path.display())]
    WrongFormat {
        /// The file.
        path: PathBuf,
        /// The given format.
        format: &'static str,
        /// The reason.
        what: String,
    },
    /// The given page size is not that of the trace.
    #[error(
        "{}: page shift {given} was given, but its header says {recorded} (2^{recorded} bytes a \
         page): leave --page-shift out", path.display()
    )]
    PageShift {
        /// The file.
        path: PathBuf,
        /// The page shift in its header.
        recorded: u32,
        /// The given page shift.
        given: u32,
    },
    /// A limit of the implementation was reached.
    #[error("{}: {what}", path.display())]
    Limit {
        /// The file.
        path: PathBuf,
        /// The limit, and what to do.
        what: String,
    },
    /// The data kept for the trace takes more memory than allowed.
    #[error(
        "{}: keeping this trace in memory takes over {max_bytes} bytes; sample it first (agewise \
         trace sample), or raise --trace-memory", path.display()
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// The limit in bytes.
        max_bytes: u64,
    },
    /// It expands more on decompression than traces do.
    #[error(
        "{}: over {expansion_max} times its size when decompressed ({bytes} bytes so far), which \
         is more than usual for a trace; if it is one, raise --expansion-max", path.display()
    )]
    Expansion {
        /// The file.
        path: PathBuf,
        /// Bytes decompressed so far.
        bytes: u64,
        /// The allowed ratio.
        expansion_max: u64,
    },
    /// A manifest or a reference table is not usable.
    #[error("{}: {what}", path.display())]
    Table {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

impl TraceError {
    /// Creates a [`TraceError::Limit`].
    pub(crate) fn limit(path: &Path, what: impl Into<String>) -> Self {
        Self::Limit {
            path: path.to_path_buf(),
            what: what.into(),
        }
    }

    /// Creates a [`TraceError::Table`].
    #[must_use]
    pub fn table(path: &Path, what: impl Into<String>) -> Self {
        Self::Table {
            path: path.to_path_buf(),
            what: what.into(),
        }
    }
}

fn line_text(line: u64) -> String {
    if line == 0 {
        String::new()
    } else {
        format!(" (line {line})")
    }
}
