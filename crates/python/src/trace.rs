// SPDX-License-Identifier: Apache-2.0
//! Traces as columns of numbers, from which Python makes Arrow batches.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use agewise_trace::page_trace::Header;

use agewise_trace::{
    Access, AccessKind, AccessStream, OutputFormat, PageClass, Request, TraceWriter,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::{exception, reading};

/// A trace being read.
#[pyclass(frozen, module = "agewise._native")]
pub struct TraceReader(Mutex<AccessStream>);

/// One number per access: pages, times, processes, kinds and classes; in this machine's byte order
/// (little-endian), as Arrow has them.
type Columns<'py> = [Bound<'py, PyBytes>; 5];

#[pymethods]
impl TraceReader {
    #[new]
    fn new(trace: &str, options: &str) -> PyResult<Self> {
        let source = reading(options, None)?.source(trace);
        let stream = source.and_then(|source| source.open());
        let stream = stream.map_err(|error| exception(error.into()))?;
        Ok(TraceReader(Mutex::new(stream)))
    }

    /// A page is `1 << page_shift` bytes.
    fn page_shift(&self) -> u32 {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.page_shift()
    }

    /// What is to be said of it, once the end was reached.
    fn note(&self) -> Option<String> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream.note().map(str::to_owned)
    }

    /// The next batch; None at the end.
    fn next_batch<'py>(&self, py: Python<'py>) -> PyResult<Option<Columns<'py>>> {
        let batch = py.detach(|| {
            let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let mut batch = Vec::new();
            stream
                .next_batch(&mut batch)
                .map(|more| more.then_some(batch))
        });
        let batch = batch.map_err(|error| exception(error.into()))?;
        let columns = |batch: Vec<Access>| {
            let bytes = |value: fn(&Access) -> u64| {
                let values = batch.iter().flat_map(|access| value(access).to_ne_bytes());
                PyBytes::new(py, &values.collect::<Vec<u8>>())
            };
            [
                bytes(|access| access.page),
                bytes(|access| access.time_ns),
                bytes(|access| access.process.into()),
                bytes(|access| match access.kind {
                    AccessKind::Unknown => 0,
                    AccessKind::Read => 1,
                    AccessKind::Write => 2,
                }),
                bytes(|access| match access.class {
                    PageClass::Unknown => 0,
                    PageClass::Anon => 1,
                    PageClass::File => 2,
                }),
            ]
        };
        Ok(batch.map(columns))
    }
}

/// 64-bit numbers as bytes, and whether they are signed.
type Column<'py> = (Bound<'py, PyBytes>, bool);

/// The numbers of a column as unsigned numbers, and whether each is negative.
fn numbers(bytes: &[u8], is_signed: bool) -> impl Iterator<Item = (u64, bool)> {
    let (numbers, _) = bytes.as_chunks();
    let numbers = numbers.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    numbers.map(move |number| (number, is_signed && number.cast_signed() < 0))
}

/// Accesses written between two checks for signals.
const SIGNALS_EVERY: usize = 1 << 20;

/// Writes columns of pages and times, in order, and returns their number.
#[pyfunction]
pub fn write_columns(
    py: Python<'_>,
    path: PathBuf,
    pages: Column<'_>,
    times: Option<Column<'_>>,
    format: Option<&str>,
    page_shift: i64,
) -> PyResult<u64> {
    let many = |column: &Column<'_>| column.0.as_bytes().len() / 8;
    let (all, with_time) = (many(&pages), times.as_ref().map(many));
    if let Some(with_time) = with_time.filter(|with_time| *with_time != all) {
        return Err(PyValueError::new_err(format!(
            "{all} pages, but {with_time} times: each access has both"
        )));
    }
    let pages = (pages.0.as_bytes(), pages.1);
    let times = times.as_ref().map(|times| (times.0.as_bytes(), times.1));
    let mut times = times.map(|(bytes, is_signed)| numbers(bytes, is_signed));
    let pages = numbers(pages.0, pages.1).enumerate();
    let accesses = pages.map(|(at, (page, is_below))| {
        if at % SIGNALS_EVERY == 0 {
            Python::attach(|py| py.check_signals())?;
        }
        let time = times.as_mut().and_then(Iterator::next);
        let (time_ns, is_before) = time.unwrap_or_default();
        match is_below || is_before {
            true => Err(no_access(
                at,
                &format!("({}, {})", page.cast_signed(), time_ns.cast_signed()),
            )),
            false => Ok((page, time_ns)),
        }
    });
    py.detach(|| write(&path, format, page_shift, accesses))
}

/// Writes pages with their times, in order, and returns their number.
#[pyfunction]
pub fn write_trace(
    path: PathBuf,
    accesses: &Bound<'_, PyAny>,
    format: Option<&str>,
    page_shift: i64,
) -> PyResult<u64> {
    let accesses = accesses.try_iter()?.enumerate().map(|(at, access)| {
        let access = access?;
        let wrong = |_| no_access(at, &format!("{access:?}"));
        access.extract().map_err(wrong)
    });
    write(&path, format, page_shift, accesses)
}

fn no_access(at: usize, access: &str) -> PyErr {
    // What is given by mistake can be a whole table.
    let access: String = access.chars().take(200).collect();
    PyValueError::new_err(format!(
        "access {at}: {access} is no page and time: both are whole numbers from 0 to 2**64 - 1"
    ))
}

/// The format to write: the one asked for, which the name of the file must not contradict.
fn output_format(path: &Path, format: Option<&str>) -> PyResult<OutputFormat> {
    let of_file = OutputFormat::of_file(path);
    let by_name = format.map(OutputFormat::by_name);
    let format = by_name.unwrap_or(Some(of_file.unwrap_or(OutputFormat::Page)));
    let format = format.filter(|of| *of != OutputFormat::OracleGeneral);
    let format = format.ok_or_else(|| {
        PyValueError::new_err("format is \"page\", \"csv\", \"lirs\" or \"parquet\"")
    })?;
    match of_file.filter(|of_file| *of_file != format) {
        Some(of_file) => Err(PyValueError::new_err(format!(
            "{}: the name is one of the format {}, but format says {}: change one of them",
            path.display(),
            of_file.name(),
            format.name()
        ))),
        None => Ok(format),
    }
}

fn write(
    path: &Path,
    format: Option<&str>,
    page_shift: i64,
    accesses: impl Iterator<Item = PyResult<(u64, u64)>>,
) -> PyResult<u64> {
    let format = output_format(path, format)?;
    let page_shift = u8::try_from(page_shift).ok().filter(|shift| *shift < 64);
    let header = Header {
        page_shift: page_shift
            .ok_or_else(|| PyValueError::new_err("page_shift is a number of bits from 0 to 63"))?,
        ..Header::default()
    };
    let failed = |error: agewise_trace::TraceError| exception(error.into());
    let mut writer = TraceWriter::create(path, format, &header).map_err(failed)?;
    let mut last_ns = 0;
    for (at, access) in accesses.enumerate() {
        let (page, time_ns) = access?;
        if time_ns < last_ns {
            return Err(PyValueError::new_err(format!(
                "access {at}: its time {time_ns} is before {last_ns}, that of the access before"
            )));
        }
        last_ns = time_ns;
        let request = Request {
            time_ns,
            ..Request::page(page)
        };
        writer.push(&request, || None).map_err(failed)?;
    }
    let written = writer.records();
    writer.finish().map_err(failed)?;
    Ok(written)
}
