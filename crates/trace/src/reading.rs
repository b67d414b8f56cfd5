// SPDX-License-Identifier: Apache-2.0
//! Selects a trace, by path or by its name in a manifest, and how to read it.

use std::path::{Path, PathBuf};

use super::error::TraceError;
use super::format::{Format, ReadLimits, ReadOptions};
use super::manifest::Manifest;
use super::progress::ReadProgress;
use super::reader::column::Column;
use super::stream::TraceSource;

/// How traces are read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The format; `None` to detect it from content and name.
    pub format: Option<&'static Format>,
    /// A page is `1 << page_shift` bytes; `None` to take it from the trace
    /// ([`ReadOptions::page_shift`]).
    pub page_shift: Option<u32>,
    /// CSV columns with unusual names.
    pub columns: Vec<(Column, String)>,
    /// A CSV file naming traces, which are then given by name.
    pub manifest: Option<PathBuf>,
    /// Whether to count a run of accesses to the same page as one access.
    pub collapse_repeats: bool,
    /// Limits on reading a trace.
    pub limits: ReadLimits,
    /// Receives how much has been read.
    pub progress: Option<ReadProgress>,
}

impl Default for Reading {
    fn default() -> Self {
        let options = ReadOptions::default();
        Self {
            format: None,
            page_shift: options.page_shift,
            columns: options.columns,
            manifest: None,
            collapse_repeats: false,
            limits: options.limits,
            progress: None,
        }
    }
}

impl Reading {
    /// The trace of this path, or of this name in the manifest.
    ///
    /// # Errors
    /// [`TraceError::Table`] for a manifest that cannot be read or does not name the trace.
    pub fn source(&self, trace: &str) -> Result<TraceSource, TraceError> {
        let mut source = match &self.manifest {
            Some(manifest) => {
                let directory = manifest.parent().unwrap_or(Path::new(""));
                Manifest::read(manifest, directory)?
                    .source(trace)
                    .ok_or_else(|| {
                        TraceError::table(manifest, format!("no trace named '{trace}'"))
                    })?
            }
            None => TraceSource::new(Path::new(trace)),
        };
        source.format = self.format.or(source.format);
        source.options = ReadOptions {
            page_shift: self.page_shift,
            columns: self.columns.clone(),
            limits: self.limits,
        };
        source.collapse_repeats |= self.collapse_repeats;
        source.progress.clone_from(&self.progress);
        Ok(source)
    }
}

/// The name of a trace in tables: the file name without extensions, or the name in a manifest.
#[must_use]
pub fn short_name(trace: &str) -> &str {
    let name = trace.rsplit('/').next().unwrap_or(trace);
    name.split('.')
        .next()
        .filter(|stem| !stem.is_empty())
        .unwrap_or(name)
}
