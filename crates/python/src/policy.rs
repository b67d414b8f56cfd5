// SPDX-License-Identifier: Apache-2.0
//! Policies written in Python, as yardsticks.

use std::ffi::c_ulong;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use agewise_trace::DenseTrace;
use agewise_trace::yardstick::{Counts, Yardstick};
use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyList;

pyo3::create_exception!(
    agewise.policy,
    PolicyError,
    PyRuntimeError,
    "A policy did what no policy can do."
);

/// Limit on the accesses reported in one call.
const BATCH: usize = 4096;

/// The first error, and the flags that end work.
#[derive(Clone, Debug, Default)]
pub struct Failure {
    /// Ends all work.
    pub stop: Arc<AtomicBool>,
    /// Set by an error; the same as `stop` except for a cell of a sweep, whose other cells go on.
    failed: Arc<AtomicBool>,
    error: Arc<Mutex<Option<PyErr>>>,
    /// The threads that run policies, as `threading.get_ident` has them.
    running: Arc<Mutex<Vec<c_ulong>>>,
}

impl Failure {
    /// One whose error ends all work.
    pub fn of_all() -> Failure {
        let failure = Failure::default();
        Failure {
            failed: Arc::clone(&failure.stop),
            ..failure
        }
    }

    /// One for a cell of the same work.
    pub fn of_a_cell(&self) -> Failure {
        Failure {
            stop: Arc::clone(&self.stop),
            running: Arc::clone(&self.running),
            ..Failure::default()
        }
    }

    fn set(&self, error: PyErr) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.failed.swap(true, Ordering::Relaxed) {
            *first = Some(error);
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.failed.load(Ordering::Relaxed)
    }

    /// Takes the error, if any.
    pub fn take(&self) -> Option<PyErr> {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.take()
    }

    /// Ends all work, also that of a policy which would never return: KeyboardInterrupt is raised
    /// in it. Otherwise it would keep its thread, and the next study would wait for that.
    pub fn interrupt(&self, py: Python<'_>) {
        self.stop.store(true, Ordering::Relaxed);
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let exception = py.get_type::<PyKeyboardInterrupt>();
        for thread in running.iter() {
            // SAFETY: `py` proves that this thread holds the interpreter's lock, and the exception
            // is a class. Threads are removed from the list under that lock, before they end.
            unsafe { ffi::PyThreadState_SetAsyncExc(thread.cast_signed(), exception.as_ptr()) };
        }
    }

    fn runs_here(&self, py: Python<'_>) -> PyResult<Running<'_>> {
        let thread = py
            .import("threading")?
            .call_method0("get_ident")?
            .extract()?;
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.push(thread);
        Ok(Running {
            failure: self,
            thread,
        })
    }
}

/// A thread that runs a policy, until it is dropped.
struct Running<'a> {
    failure: &'a Failure,
    thread: c_ulong,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let running = &self.failure.running;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|thread| *thread != self.thread);
    }
}

/// A class whose instances decide what to evict. Accesses are reported to it in batches: all hits
/// up to the next fault at once.
#[derive(Debug)]
pub struct PythonPolicy {
    class: Arc<Py<PyAny>>,
    name: String,
    sha256: Option<String>,
    failure: Failure,
}

impl PythonPolicy {
    pub fn new(
        class: Arc<Py<PyAny>>,
        name: String,
        sha256: Option<String>,
        failure: &Failure,
    ) -> PythonPolicy {
        PythonPolicy {
            class,
            name,
            sha256,
            failure: failure.clone(),
        }
    }

    fn count(
        &self,
        py: Python<'_>,
        trace: &DenseTrace,
        capacity: usize,
        counts: Counts<'_>,
    ) -> PyResult<u64> {
        let _running = self.failure.runs_here(py)?;
        let policy = self.class.bind(py).call1((capacity,))?;
        let on_access = policy.getattr("on_access")?;
        let on_fault = policy.getattr("on_fault")?;
        let evict = policy.getattr("evict")?;
        let accesses = trace.accesses();
        let mut pool = Pool::new(&self.name, trace.page_count(), capacity);
        let (mut at, mut misses) = (0, 0);
        while let Some(&page) = accesses.get(at) {
            let batch = accesses[at..].iter().take(BATCH);
            let hits = batch.take_while(|page| pool.has(**page)).count();
            if hits > 0 {
                on_access.call1((PyList::new(py, &accesses[at..at + hits])?,))?;
                at += hits;
                continue;
            }
            if self.failure.is_over() {
                return Ok(misses);
            }
            if pool.is_full() {
                pool.evict(&evict.call1((page,))?, at, page)?;
            }
            on_fault.call1((page,))?;
            pool.add(page);
            misses += u64::from(counts(at));
            at += 1;
        }
        Ok(misses)
    }
}

impl Yardstick for PythonPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        Python::attach(|py| {
            self.count(py, trace, capacity.max(1), counts)
                .unwrap_or_else(|error| {
                    self.failure.set(error);
                    0
                })
        })
    }

    fn source_sha256(&self) -> Option<&str> {
        self.sha256.as_deref()
    }

    fn failure(&self) -> Option<String> {
        if !self.failure.failed.load(Ordering::Relaxed) {
            return None;
        }
        Python::attach(|py| {
            let first = self.failure.error.lock();
            let first = first.unwrap_or_else(PoisonError::into_inner);
            first.as_ref().map(|error| self.told(py, error))
        })
    }
}

impl PythonPolicy {
    /// An error in words, where there is no traceback: in a list of failed cells.
    fn told(&self, py: Python<'_>, error: &PyErr) -> String {
        if error.is_instance_of::<PolicyError>(py) {
            // It names the policy.
            return error.value(py).to_string();
        }
        let place = || -> PyResult<String> {
            let frames = py.import("traceback")?;
            let frames = frames.call_method1("extract_tb", (error.traceback(py),))?;
            let last = frames.get_item(-1)?;
            let file: String = last.getattr("filename")?.extract()?;
            let line: u32 = last.getattr("lineno")?.extract()?;
            Ok(format!(" ({file}, line {line})"))
        };
        format!("{}: {error}{}", self.name, place().unwrap_or_default())
    }
}

/// The resident pages; the policy only decides what to evict.
struct Pool<'a> {
    policy: &'a str,
    resident: Vec<bool>,
    pages: usize,
    capacity: usize,
}

impl Pool<'_> {
    fn new(policy: &str, page_count: usize, capacity: usize) -> Pool<'_> {
        Pool {
            policy,
            resident: vec![false; page_count],
            pages: 0,
            capacity,
        }
    }

    fn has(&self, page: u32) -> bool {
        self.resident[page as usize]
    }

    fn is_full(&self) -> bool {
        self.pages == self.capacity
    }

    fn add(&mut self, page: u32) {
        self.resident[page as usize] = true;
        self.pages += 1;
    }

    /// Removes the page or pages that `evict` returned.
    fn evict(&mut self, given: &Bound<'_, PyAny>, at: usize, page: u32) -> PyResult<()> {
        let policy = self.policy;
        let place = |what: String| {
            PolicyError::new_err(format!(
                "{policy}.evict() gave {what} (access {at}, to page {page})"
            ))
        };
        let no_page = |of: &Bound<'_, PyAny>| place(format!("{of:?}, which is no page"));
        let mut leave = |victim: i64| {
            let there = usize::try_from(victim).ok();
            match there.and_then(|victim| self.resident.get_mut(victim)) {
                Some(resident) if *resident => {
                    *resident = false;
                    self.pages -= 1;
                    Ok(())
                }
                _ => Err(place(format!("page {victim}, which is not in memory"))),
            }
        };
        if let Ok(one) = given.extract::<i64>() {
            return leave(one);
        }
        // One after the other: there may be no end of them.
        for value in given.try_iter().map_err(|_| no_page(given))? {
            let value = value?;
            leave(value.extract().map_err(|_| no_page(&value))?)?;
        }
        match self.is_full() {
            true => Err(place("no page, but memory is full".to_owned())),
            false => Ok(()),
        }
    }
}
