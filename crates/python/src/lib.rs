// SPDX-License-Identifier: Apache-2.0
//! Native functions of the Python package: the studies of the lab, as the command runs them.

mod arrow;
mod policy;
mod progress;
mod studies;
mod sweep;
mod trace;

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, mem, process, thread};

use agewise_lab::experiment::contender::Contender;
use agewise_lab::proactive::Sight;
use agewise_lab::study::columns::{contenders, with_agents};
use agewise_lab::study::curve::{CurveRequest, require_different};
use agewise_lab::study::description::Description;
use agewise_lab::study::run::RunRequest;
use agewise_lab::study::setup::Setup;
use agewise_lab::study::table::{Table, Value};
use agewise_lab::study::{StudyError, options, parquet};
use agewise_lab::yardstick;
use agewise_policy::proactive::Spec;
use agewise_trace::curve::{SamplingPlan, SizeSpec};
use agewise_trace::yardstick::Yardstick;
use agewise_trace::{ReadLimits, Reading, TraceError};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyDict};
use rayon::{ThreadPool, ThreadPoolBuildError, ThreadPoolBuilder};

use policy::{Failure, PolicyError, PythonPolicy};
use progress::Counter;

/// Interval at which Python checks for signals.
const SIGNALS_EVERY: Duration = Duration::from_millis(20);

/// Commit of this build, or `unknown`.
const BUILD: &str = env!("AGEWISE_BUILD");

/// A policy as passed from Python.
#[derive(FromPyObject)]
enum AnyPolicy {
    /// The name of one of the lab's policies.
    Name(String),
    /// A class.
    Class(Class),
}

/// A class, with its name and the hash of its source.
type Class = (Py<PyAny>, String, Option<String>);

impl AnyPolicy {
    fn yardstick(self, failure: &Failure) -> Result<Arc<dyn Yardstick>, String> {
        match self {
            AnyPolicy::Name(name) => yardstick::parse(&name),
            AnyPolicy::Class((class, name, sha256)) => Ok(Arc::new(PythonPolicy::new(
                Arc::new(class),
                name,
                sha256,
                failure,
            ))),
        }
    }
}

/// A table with the description of its study.
#[pyclass(frozen, module = "agewise._native")]
struct Results {
    rows: Table,
    /// The rows written to Parquet: the same, or one per run.
    runs: Table,
    description: Description,
    notes: Vec<String>,
}

#[pymethods]
impl Results {
    /// The rows, as dictionaries.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        dictionaries(py, &self.rows)
    }

    /// Number of rows.
    fn __len__(&self) -> usize {
        self.rows.rows.len()
    }

    /// The rows as a capsule with an Arrow stream.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may ignore the requested schema.
        let _ = requested_schema;
        arrow::capsule(py, &self.rows)
    }

    /// What the command says of them on standard error.
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// One row per run, as dictionaries.
    fn runs<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        dictionaries(py, &self.runs)
    }

    /// The file that the command writes with `--format parquet`, as bytes.
    fn parquet<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = parquet::bytes(&self.runs, &self.description);
        let bytes = bytes.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

fn dictionaries<'py>(py: Python<'py>, table: &Table) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let dictionary = |row: agewise_lab::study::table::Row<'_>| {
        let dictionary = PyDict::new(py);
        for (name, value) in row.iter() {
            match value {
                Value::Null => dictionary.set_item(name, py.None())?,
                Value::Text(text) => dictionary.set_item(name, &**text)?,
                Value::Count(count) => dictionary.set_item(name, count)?,
                Value::Number(number) => dictionary.set_item(name, number)?,
            }
        }
        Ok(dictionary)
    };
    table.rows().map(dictionary).collect()
}

/// An exception with the message of the command.
fn exception(error: StudyError) -> PyErr {
    let words = error.to_string();
    match error {
        StudyError::Read { source, .. }
        | StudyError::Write { source, .. }
        | StudyError::Trace(TraceError::Open { source, .. } | TraceError::Write { source, .. }) => {
            match source.raw_os_error() {
                Some(code) => PyOSError::new_err((code, words)),
                None => PyOSError::new_err(words),
            }
        }
        StudyError::Stopped | StudyError::Parquet(_) | StudyError::Table(_) => {
            PyRuntimeError::new_err(words)
        }
        _ => PyValueError::new_err(words),
    }
}

/// The threads of this process. One that was forked has none of those of its parent, and would
/// wait for them for ever; so would a policy that runs on one of them and starts another study,
/// which therefore gets a thread of its own.
fn threads() -> PyResult<Arc<ThreadPool>> {
    static THREADS: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);
    let failed = |error: ThreadPoolBuildError| PyRuntimeError::new_err(error.to_string());
    if rayon::current_thread_index().is_some() {
        let one = ThreadPoolBuilder::new().num_threads(1).build();
        return one.map(Arc::new).map_err(failed);
    }
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((pid, pool)) = &*threads
        && *pid == process::id()
    {
        return Ok(Arc::clone(pool));
    }
    let pool = Arc::new(ThreadPoolBuilder::new().build().map_err(failed)?);
    // What is the parent's is not ended here.
    mem::forget(threads.replace((process::id(), Arc::clone(&pool))));
    Ok(pool)
}

/// Runs `work` on a thread of its own, without the interpreter's lock. Ctrl-C returns at once; the
/// work ends soon after.
fn wait<T: Send + 'static>(
    py: Python<'_>,
    failure: &Failure,
    tick: impl Fn() -> PyResult<()>,
    work: impl FnOnce(&Arc<AtomicBool>) -> Result<T, StudyError> + Send + 'static,
) -> PyResult<T> {
    let stop = Arc::clone(&failure.stop);
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let threads = threads()?;
    thread::spawn(move || {
        // After Ctrl-C nobody receives the result.
        let _ = sender.send(threads.install(|| work(&stop)));
    });
    loop {
        let received = py.detach(|| match receiver.lock() {
            Ok(receiver) => receiver.recv_timeout(SIGNALS_EVERY),
            Err(_) => Err(RecvTimeoutError::Disconnected),
        });
        match received {
            Ok(result) => {
                tick()?;
                return result.map_err(|error| failure.take().unwrap_or_else(|| exception(error)));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the lab failed"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals().and_then(|()| tick()) {
                    failure.interrupt(py);
                    return Err(interrupt);
                }
            }
        }
    }
}

/// A quarter of this machine's memory, like the command's limit; no limit if unknown.
fn trace_memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib.saturating_mul(1024) / 4)
}

/// Limits on a trace of which so many bytes may be held, or the default.
fn limits(trace_memory: Option<u64>) -> ReadLimits {
    ReadLimits {
        memory_max_bytes: trace_memory.unwrap_or_else(trace_memory_bytes),
        ..ReadLimits::default()
    }
}

fn setup(options: &str, trace_memory: Option<u64>) -> PyResult<(Setup, Sight)> {
    let (mut setup, mut sight) = (Setup::default(), Sight::default());
    options::from_text(options, &mut setup, &mut sight).map_err(exception)?;
    setup.reading.limits = limits(trace_memory);
    Ok((setup, sight))
}

/// How a trace is read that is not replayed.
fn reading(options: &str, trace_memory: Option<u64>) -> PyResult<Reading> {
    let (setup, sight) = setup(options, trace_memory)?;
    options::require_reading(&setup, sight).map_err(exception)?;
    Ok(setup.reading)
}

/// Runs policies on the simulated machine.
#[pyfunction]
#[pyo3(signature = (
    subject, policies, proactive, memory, swap, settings, damon, options, trace_memory, seeds,
    advance
))]
#[allow(clippy::too_many_arguments)] // one per argument of the Python function
fn run(
    py: Python<'_>,
    subject: String,
    policies: Vec<AnyPolicy>,
    proactive: Vec<String>,
    memory: Option<String>,
    swap: Option<String>,
    settings: Vec<String>,
    damon: Option<String>,
    options: &str,
    trace_memory: Option<u64>,
    seeds: Option<i64>,
    advance: Bound<'_, PyAny>,
) -> PyResult<Results> {
    let agents: Result<Vec<Spec>, _> = proactive.iter().map(|agent| agent.parse()).collect();
    let agents = agents.map_err(|error| PyValueError::new_err(format!("{error}")))?;
    let (setup, sight) = setup(options, trace_memory)?;
    let failure = Failure::of_all();
    let mut all = Vec::new();
    for policy in policies {
        match policy {
            AnyPolicy::Name(name) => all.extend(contenders(&[name]).map_err(exception)?),
            class => {
                let yardstick = class.yardstick(&failure).map_err(PyValueError::new_err)?;
                all.push(Contender::Yardstick(yardstick));
            }
        }
    }
    let request = RunRequest {
        setup: Setup {
            memory,
            swap,
            settings,
            damon,
            ..setup
        },
        subject,
        columns: with_agents(all, &agents).map_err(exception)?,
        sight,
        seeds: seeds.map(|seeds| u64::try_from(seeds).unwrap_or(0)),
        build: BUILD.to_owned(),
    };
    let counter = Counter::default();
    let count = counter.clone();
    let tick = || counter.tell(&advance);
    let outcome = wait(py, &failure, tick, move |stop| {
        request.run(stop, |total| count.one_of(total))
    })?;
    Ok(Results {
        notes: outcome.notes(),
        rows: outcome.summary_table(),
        runs: outcome.run_table(),
        description: Description::Run {
            cells: outcome.cells,
        },
    })
}

/// Computes the curves of policies on a trace alone.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // one per argument of the Python function
fn curve(
    py: Python<'_>,
    trace: String,
    policies: Vec<AnyPolicy>,
    sizes: Vec<String>,
    points: i64,
    sampling: Option<(f64, i64)>,
    options: &str,
    trace_memory: Option<u64>,
    advance: Bound<'_, PyAny>,
) -> PyResult<Results> {
    let points = u16::try_from(points)
        .ok()
        .filter(|points| (1..=4096).contains(points));
    let points = points.ok_or_else(|| PyValueError::new_err("points: from 1 to 4096"))?;
    if policies.is_empty() {
        return Err(PyValueError::new_err("no policy given"));
    }
    let failure = Failure::of_all();
    let policies = policies
        .into_iter()
        .map(|policy| policy.yardstick(&failure));
    let policies: Vec<_> = policies
        .collect::<Result<_, _>>()
        .map_err(PyValueError::new_err)?;
    require_different(&policies).map_err(exception)?;
    let sizes = sizes.iter().map(|size| size.parse::<SizeSpec>());
    let sampling = sampling
        .map(|(rate, samples)| SamplingPlan::new(rate, usize::try_from(samples).unwrap_or(0)));
    let request = CurveRequest {
        trace,
        reading: reading(options, trace_memory)?,
        policies,
        sizes: sizes
            .collect::<Result<_, _>>()
            .map_err(PyValueError::new_err)?,
        points,
        sampling: sampling.transpose().map_err(PyValueError::new_err)?,
        build: BUILD.to_owned(),
    };
    let counter = Counter::default();
    let count = counter.clone();
    let tick = || counter.tell(&advance);
    let outcome = wait(py, &failure, tick, move |stop| {
        let read = request.read(&request.trace)?;
        request.run_on_showing(&read, stop, Arc::new(move |total| count.one_of(total)))
    })?;
    let table = outcome.table();
    Ok(Results {
        rows: table.clone(),
        runs: table,
        description: Description::Curve {
            cells: outcome.cells,
        },
        notes: outcome.notes,
    })
}

/// The native part of the package.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("build", BUILD)?;
    module.add_class::<Results>()?;
    module.add_class::<trace::TraceReader>()?;
    module.add_class::<sweep::OpenSweep>()?;
    module.add_function(wrap_pyfunction!(sweep::run_cell, module)?)?;
    module.add_function(wrap_pyfunction!(studies::whatif, module)?)?;
    module.add_function(wrap_pyfunction!(studies::reproduce, module)?)?;
    module.add_function(wrap_pyfunction!(studies::verify_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(trace::write_trace, module)?)?;
    module.add_function(wrap_pyfunction!(trace::write_columns, module)?)?;
    module.add("PolicyError", module.py().get_type::<PolicyError>())?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(sweep::sweep, module)?)?;
    module.add_function(wrap_pyfunction!(curve, module)?)
}
