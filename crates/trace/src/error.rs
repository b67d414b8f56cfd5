// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a trace, always with the file and the place in it.

use std::path::{Path, PathBuf};

/// A trace that cannot be read, written or understood.
///
/// Offsets count bytes of the decompressed data, so they can be looked up with
/// `zstdcat FILE | tail -c +OFFSET`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened or created.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Reading failed, or the compressed data is damaged or ends early.
    #[error("{}: cannot read on after byte {offset} of its {content} data: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Decompressed bytes read before.
        offset: u64,
        /// The compression that was recognised, or "plain".
        content: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Writing failed; what was written before stays readable as far as the format allows.
    #[error("{}: cannot write after byte {offset}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Bytes written before.
        offset: u64,
        /// Why.
        source: std::io::Error,
    },
    /// A record violates the format.
    #[error("{}: not valid {format} at byte {offset}{}: {what}", path.display(), line_text(*line))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
        /// Where the record begins.
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
        /// The format it was read as.
        format: &'static str,
        /// Where the record begins.
        offset: u64,
        /// Bytes there are.
        got: usize,
        /// Bytes a record needs.
        expected: usize,
    },
    /// It contains no request at all.
    #[error("{}: no requests in this {format} trace", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The format it was read as.
        format: &'static str,
    },
    /// Neither name nor content identifies the format.
    #[error("{}: cannot tell its format ({hint}); name one with --trace-format: {known}", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// What was looked at.
        hint: String,
        /// The formats there are.
        known: String,
    },
    /// The named format cannot be the format of this file.
    #[error("{}: this is not {format}: {what}", path.display())]
    WrongFormat {
        /// The file.
        path: PathBuf,
        /// The format named.
        format: &'static str,
        /// Why it cannot be.
        what: String,
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
        /// What it may take.
        max_bytes: u64,
    },
    /// It decompresses to far more than traces do.
    #[error(
        "{}: over {expansion_max} times its size when decompressed ({bytes} bytes so far), which \
         is more than usual for a trace; if it is one, raise --expansion-max", path.display()
    )]
    Expansion {
        /// The file.
        path: PathBuf,
        /// Decompressed so far.
        bytes: u64,
        /// The times it may be.
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
    /// A [`TraceError::Table`].
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
