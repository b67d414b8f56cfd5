// SPDX-License-Identifier: Apache-2.0
//! Sweeps, run here as a whole or elsewhere cell by cell.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use agewise_lab::study::StudyError;
use agewise_lab::study::sweep::{Advance, Dataset, Done, Errand, Sweep, damage};
use agewise_trace::yardstick::Yardstick;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::policy::{Failure, PythonPolicy};
use crate::{BUILD, Class, exception, limits, trace_memory_bytes, wait};

/// Cells that could not be run, and why.
type Failed = Vec<(String, String)>;

/// The number of cells run, the number found, the failed ones, and what the command notes.
type Outcome = (usize, usize, Failed, Vec<String>);

/// The classes among the policies of a sweep, by name. One that fails in a cell fails that cell.
fn by_name(
    own: Vec<Class>,
    failure: &Failure,
) -> impl Fn(&str) -> Option<Arc<dyn Yardstick>> + Send + use<> {
    let shared = |(class, name, sha256): Class| (Arc::new(class), name, sha256);
    let own: Vec<_> = own.into_iter().map(shared).collect();
    let failure = failure.clone();
    move |policy| {
        let (class, name, sha256) = own.iter().find(|(_, name, _)| name == policy)?;
        Some(Arc::new(PythonPolicy::new(
            Arc::clone(class),
            name.clone(),
            sha256.clone(),
            &failure.of_a_cell(),
        )))
    }
}

/// Runs a sweep into a directory. Calls `advance` with cells done, all cells, and the seconds left.
/// Traces share the memory unless `trace_memory` says how much each may take.
#[pyfunction]
pub fn sweep(
    py: Python<'_>,
    spec: PathBuf,
    out: PathBuf,
    prune: bool,
    trace_memory: Option<u64>,
    own: Vec<Class>,
    advance: Bound<'_, PyAny>,
) -> PyResult<Outcome> {
    let last = Arc::new(Mutex::new(None::<Advance>));
    let seen = Arc::clone(&last);
    let tick = || {
        let advanced = last.lock().unwrap_or_else(PoisonError::into_inner).take();
        match advanced {
            Some(Advance { done, total, left }) => {
                advance.call1((done, total, left.as_secs_f64())).map(drop)
            }
            None => Ok(()),
        }
    };
    let limits = limits(trace_memory);
    let failure = Failure::of_all();
    let own = by_name(own, &failure);
    let (sweep, outcome) = wait(py, &failure, tick, move |stop| {
        let mut sweep = Sweep::read(&spec, limits, BUILD, &own)?;
        if trace_memory.is_none() {
            sweep.share_memory(limits.memory_max_bytes);
        }
        let outcome = sweep.run(&out, prune, stop, |advance| {
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(advance);
        })?;
        Ok((sweep, outcome))
    })?;
    let failed = outcome.failed.into_iter();
    let failed = failed.map(|(cell, error)| (cell, error.to_string()));
    let mut notes = notes(&sweep, &outcome.damaged);
    notes.extend(outcome.remarks);
    Ok((outcome.ran, outcome.found, failed.collect(), notes))
}

/// What the command notes about the description, and about damaged files, whose cells are missing.
fn notes(sweep: &Sweep, damaged: &[PathBuf]) -> Vec<String> {
    let notes = sweep.notes().iter().cloned();
    notes.chain(damage(damaged)).collect()
}

/// A cell to run elsewhere: its id, its values, the hash of its workload or trace, and that one's
/// file.
type PyErrand = (String, BTreeMap<String, String>, String, Option<PathBuf>);

/// A directory of a sweep, locked until it is closed, with the cells that are missing in it.
#[pyclass(frozen, module = "agewise._native")]
pub struct OpenSweep {
    /// None once closed.
    dataset: Mutex<Option<Dataset>>,
    missing: Vec<Errand>,
    notes: Vec<String>,
}

#[pymethods]
impl OpenSweep {
    #[new]
    fn new(
        py: Python<'_>,
        spec: PathBuf,
        out: PathBuf,
        prune: bool,
        own: Vec<Class>,
    ) -> PyResult<Self> {
        let failure = Failure::of_all();
        let own = by_name(own, &failure);
        let work = move |stop: &Arc<AtomicBool>| {
            // This hashes every trace.
            let sweep = Sweep::read(&spec, limits(None), BUILD, &own)?;
            if stop.load(Ordering::Relaxed) {
                return Err(StudyError::Stopped);
            }
            let (dataset, missing) = sweep.open(&out, prune)?;
            let notes = notes(&sweep, dataset.damaged());
            Ok(OpenSweep {
                dataset: Mutex::new(Some(dataset)),
                missing,
                notes,
            })
        };
        wait(py, &failure, || Ok(()), work)
    }

    /// Number of cells found.
    fn found(&self) -> PyResult<usize> {
        self.with(|dataset| Ok(dataset.found()))
    }

    /// What the command notes, of cells that were put here too.
    fn notes(&self) -> PyResult<Vec<String>> {
        self.with(|dataset| Ok([self.notes.clone(), dataset.remarks()].concat()))
    }

    /// Unlocks the directory. An exception may keep what refers to this for as long as the
    /// interpreter runs.
    fn close(&self) {
        let mut dataset = self.dataset.lock().unwrap_or_else(PoisonError::into_inner);
        *dataset = None;
    }

    /// The missing cells.
    fn missing(&self) -> Vec<PyErrand> {
        let errands = self.missing.iter().cloned();
        let errands = errands.map(|of| (of.id, of.values, of.sha256, of.file));
        errands.collect()
    }

    /// Stores the file of a cell, and what is to be said about it.
    fn put(
        &self,
        id: &str,
        partition: PathBuf,
        bytes: Vec<u8>,
        notes: Vec<String>,
    ) -> PyResult<()> {
        let done = Done {
            partition,
            bytes,
            notes,
        };
        self.with(|dataset| dataset.put(id, &done).map_err(exception))
    }
}

impl OpenSweep {
    fn with<T>(&self, of: impl FnOnce(&Dataset) -> PyResult<T>) -> PyResult<T> {
        let dataset = self.dataset.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = || PyRuntimeError::new_err("the sweep is closed");
        of(dataset.as_ref().ok_or_else(closed)?)
    }
}

/// Runs a cell sent from elsewhere, with its file in another place. Returns the directory for its
/// result, the contents of the result, and what is to be said about it. Each processor of this
/// machine may run another cell, so without `trace_memory` they share the memory.
#[pyfunction]
pub fn run_cell<'py>(
    py: Python<'py>,
    errand: PyErrand,
    file: Option<PathBuf>,
    trace_memory: Option<u64>,
    own: Vec<Class>,
) -> PyResult<(PathBuf, Bound<'py, PyBytes>, Vec<String>)> {
    let cells = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let share = (trace_memory_bytes() / cells).max(1);
    let limits = limits(trace_memory.or(Some(share)));
    let (id, values, sha256, _) = errand;
    let errand = Errand {
        id,
        values,
        sha256,
        file: None,
    };
    let failure = Failure::of_all();
    let own = by_name(own, &failure);
    let done = wait(
        py,
        &failure,
        || Ok(()),
        move |stop| errand.run(file.as_deref(), limits, BUILD, &own, stop),
    )?;
    Ok((done.partition, PyBytes::new(py, &done.bytes), done.notes))
}
