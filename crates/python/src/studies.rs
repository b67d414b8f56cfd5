// SPDX-License-Identifier: Apache-2.0
//! Studies whose rows are passed to Python as the text that the command prints with `--format
//! json`.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agewise_lab::reference::mutation::mutate;
use agewise_lab::reference::verify::{Effort, verify_unless_stopped};
use agewise_lab::reference::{Cell, rows};
use agewise_lab::reproduce::{Choice, Summary, find, reproduce_unless_stopped};
use agewise_lab::study::StudyError;
use agewise_lab::whatif::Beside;
use agewise_trace::TraceSource;
use pyo3::prelude::*;
use serde::Serialize;

use crate::progress::Counter;
use crate::{Failure, limits, wait};

/// Rows as JSON, one per line.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn push(&mut self, row: &impl Serialize) -> Result<(), StudyError> {
        let line = serde_json::to_string(row).map_err(|error| argument(&error))?;
        self.0.push_str(&line);
        self.0.push('\n');
        Ok(())
    }

    fn all<'a, T: Serialize + 'a>(
        rows: impl IntoIterator<Item = &'a T>,
    ) -> Result<Lines, StudyError> {
        let mut lines = Lines::default();
        rows.into_iter().try_for_each(|row| lines.push(row))?;
        Ok(lines)
    }
}

fn argument(error: &dyn std::error::Error) -> StudyError {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(because) = cause {
        words = format!("{words}: {because}");
        cause = because.source();
    }
    StudyError::Argument(words)
}

/// Compares the predictions of `agewise whatif` for traces with exact results.
#[pyfunction]
pub fn whatif(py: Python<'_>, traces: Vec<PathBuf>, percent: f64) -> PyResult<String> {
    let limits = limits(None);
    let work = move |stop: &Arc<AtomicBool>| {
        let mut lines = Lines::default();
        for trace in traces {
            if stop.load(Ordering::Relaxed) {
                return Err(StudyError::Stopped);
            }
            let mut source = TraceSource::new(&trace);
            source.options.limits = limits;
            lines.push(&Beside::of(&source, percent)?)?;
        }
        Ok(lines.0)
    };
    wait(py, &Failure::of_all(), || Ok(()), work)
}

/// Runs the benchmarks of a document again.
#[pyfunction]
pub fn reproduce(
    py: Python<'_>,
    name: String,
    seeds: i64,
    benchmark: Option<String>,
    variant: Option<String>,
    settings: Vec<String>,
    advance: Bound<'_, PyAny>,
) -> PyResult<String> {
    let counter = Counter::default();
    let count = counter.clone();
    let work = move |stop: &Arc<AtomicBool>| {
        let document = find(&name).map_err(|error| argument(&error))?;
        let choice = Choice {
            benchmark: benchmark.as_deref(),
            variant: variant.as_deref(),
            seeds: u64::try_from(seeds).unwrap_or(0),
            settings: &settings,
        };
        let rows = reproduce_unless_stopped(document, &choice, stop, |total| count.one_of(total));
        let rows = rows.map_err(|error| argument(&error))?;
        let mut lines = Lines::all(&rows)?;
        lines.push(&Summary::of(document, &rows))?;
        Ok(lines.0)
    };
    let failure = Failure::of_all();
    wait(py, &failure, || counter.tell(&advance), work)
}

/// Compares the simulated machine with counts of real kernels.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per argument of the Python function
pub fn verify_kernel(
    py: Python<'_>,
    reference: Option<PathBuf>,
    extended: bool,
    kernel: Option<String>,
    flush_phases: u64,
    single: bool,
    wrong: Option<String>,
    advance: Bound<'_, PyAny>,
) -> PyResult<String> {
    let counter = Counter::default();
    let count = counter.clone();
    let effort = Effort {
        flush_phases: flush_phases.max(1),
        perturb: !single,
    };
    let work = move |stop: &Arc<AtomicBool>| {
        let cells = cells(reference, extended, kernel)?;
        let done = |total| count.one_of(total as u64);
        let lines = match &wrong {
            Some(rule) => {
                let caught = mutate(&cells, rule, effort, stop, done);
                let caught = caught.map_err(|error| argument(&error))?;
                if caught.is_empty() {
                    let what = format!("no change of a rule begins with `{rule}`");
                    return Err(StudyError::argument(what));
                }
                Lines::all(&caught)?
            }
            None => {
                let reports = verify_unless_stopped(&cells, effort, stop, done);
                let reports = reports.map_err(|error| argument(&error))?;
                Lines::all(reports.iter().flat_map(|report| &report.comparisons))?
            }
        };
        Ok(lines.0)
    };
    let failure = Failure::of_all();
    wait(py, &failure, || counter.tell(&advance), work)
}

fn cells(
    reference: Option<PathBuf>,
    extended: bool,
    kernel: Option<String>,
) -> Result<Vec<Cell>, StudyError> {
    let (name, read) = match reference {
        None => {
            let text = match extended {
                true => rows::EXTENDED,
                false => rows::COMMITTED,
            };
            ("the reference".to_owned(), rows::read(text.as_bytes()))
        }
        Some(path) => {
            let file = File::open(&path).map_err(|source| StudyError::Read {
                path: path.clone(),
                source,
            })?;
            (path.display().to_string(), rows::read(file))
        }
    };
    let mut cells = read.map_err(|error| argument(&error))?;
    if let Some(kernel) = kernel {
        cells.retain(|cell| cell.kernel == kernel);
        if cells.is_empty() {
            return Err(StudyError::Argument(format!(
                "{name} has no row of kernel {kernel}"
            )));
        }
    }
    Ok(cells)
}
