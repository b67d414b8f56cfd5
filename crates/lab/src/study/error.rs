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
    #[error("cannot read {}: {source}", path.display())]
    Read {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot write {}: {source}", path.display())]
    Write {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("cannot run {name}: {source}")]
    Run { name: String, source: Box<RunError> },
    #[error("stopped before the end")]
    Stopped,
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error(transparent)]
    Library(#[from] LibraryError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error("cannot write the table: {0}")]
    Table(#[from] csv::Error),
    #[error("Parquet: {0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// A file is not a result, or cannot be used this way.
    #[error("{}: {what}", path.display())]
    Result {
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
        found: String,
    },
    #[error("{} is damaged: {what}; make it again", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Two results, or two rows of one, do not agree on what can have only one value.
    #[error(
        "{what} is {} in {} and {} in {}: leave one of them out",
        values[0], files[0].display(), values[1], files[1].display()
    )]
    Contradiction {
        /// A cell and its measure and seed, or the content behind a name.
        what: String,
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
