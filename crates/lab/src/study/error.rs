// SPDX-License-Identifier: Apache-2.0
//! Errors of studies and of their results.

use std::path::PathBuf;

use agewise_trace::TraceError;
use thiserror::Error;

use crate::experiment::machine_run::RunError;
use crate::workload::library::LibraryError;
use crate::workload::spec::WorkloadError;

/// A study that is not possible, or a result that cannot be read.
#[derive(Debug, Error)]
pub enum StudyError {
    /// An argument is invalid, or what it names does not exist.
    #[error("{0}")]
    Argument(String),
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A run is not possible.
    #[error("cannot run {name}: {source}")]
    Run {
        /// The workload or trace.
        name: String,
        /// Why.
        source: Box<RunError>,
    },
    /// The study was stopped from outside.
    #[error("stopped before the end")]
    Stopped,
    /// A trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is no such workload.
    #[error(transparent)]
    Library(#[from] LibraryError),
    /// A workload is invalid.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A table cannot be written.
    #[error("cannot write the table: {0}")]
    Table(#[from] csv::Error),
    /// A table cannot be written or read as Parquet.
    #[error("Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A file is not a result, or cannot be used this way.
    #[error("{}: {what}", path.display())]
    Result {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what to do.
        what: String,
    },
    /// A file that a result was made from is not there.
    #[error("the result needs {name} with SHA-256 {sha256}: {found}")]
    Needs {
        /// The file, as the result names it.
        name: String,
        /// SHA-256 of its content.
        sha256: String,
        /// What is there instead.
        found: String,
    },
    /// A file is not as it was written.
    #[error("{} is damaged: {what}; make it again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What shows it.
        what: String,
    },
    /// Two results, or two rows of one, do not agree on what can have only one value.
    #[error(
        "{what} is {} in {} and {} in {}: leave one of them out",
        values[0], files[0].display(), values[1], files[1].display()
    )]
    Contradiction {
        /// A cell and its measure and seed, or the content behind a name.
        what: String,
        /// Its two values.
        values: [String; 2],
        /// The files that hold them; twice the same if one file contradicts itself.
        files: [PathBuf; 2],
    },
}

impl StudyError {
    /// Makes a [`StudyError::Argument`].
    pub fn argument(what: impl Into<String>) -> Self {
        Self::Argument(what.into())
    }
}
