// SPDX-License-Identifier: Apache-2.0
//! Reading results: files of the rows that `lab run` and `lab curve` print.

use std::collections::HashMap;
use std::fs;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Value as Json};

use super::description::{CurveCell, Described, Description, Origin, PROFILE, RunCell};
use super::error::StudyError;
use super::parquet::{DESCRIPTION_KEY, check_whole};
use super::sweep::dataset;

/// Size limit of a result, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Format of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One JSON object per line.
    Json,
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// A result read from a file.
#[derive(Clone, Debug)]
pub struct ResultFile {
    /// What was run.
    pub description: Description,
    /// Format of the file.
    pub form: Form,
    /// Contents of the file.
    pub bytes: Vec<u8>,
    /// Rows by column, as JSON values.
    pub rows: Vec<Map<String, Json>>,
    /// The files that the rows are from, in order, each with the number of rows up to its end.
    files: Vec<(PathBuf, usize)>,
}

impl ResultFile {
    /// Reads a file written by `lab run` or `lab curve` in any format, or the directory of a sweep.
    ///
    /// # Errors
    /// Fails if it cannot be read or is not such a result. [`StudyError::Damaged`] if it is a
    /// Parquet file that does not have its checksum.
    pub fn read(path: &Path) -> Result<ResultFile, StudyError> {
        match path.is_dir() {
            true => ResultFile::read_all(path),
            false => ResultFile::parse(path, contents(path)?),
        }
    }

    /// Reads all results of a sweep as one.
    fn read_all(directory: &Path) -> Result<ResultFile, StudyError> {
        let (mut rows, mut files) = (Vec::new(), Vec::new());
        let (mut runs, mut curves) = (Vec::new(), Vec::new());
        for path in dataset::results(directory)? {
            let result = ResultFile::parse_parquet(&path, contents(&path)?)?;
            rows.extend(result.rows);
            files.push((path, rows.len()));
            match result.description {
                Description::Run { cells } => runs.extend(cells),
                Description::Curve { cells } => curves.extend(cells),
            }
        }
        let description = match (runs.is_empty(), curves.is_empty()) {
            (true, true) => {
                return Err(wrong(directory, "there is no result in it".to_owned()));
            }
            (false, false) => {
                let what = "it holds results of `lab run` and of `lab curve`: read one of them";
                return Err(wrong(directory, what.to_owned()));
            }
            (false, true) => Description::Run { cells: runs },
            (true, false) => Description::Curve { cells: curves },
        };
        Ok(ResultFile {
            description,
            form: Form::Parquet,
            bytes: Vec::new(),
            rows,
            files,
        })
    }

    /// The file that a row is from.
    #[must_use]
    pub fn file_of(&self, row: usize) -> &Path {
        let before = self.files.partition_point(|(_, end)| *end <= row);
        self.files
            .get(before)
            .map_or(Path::new(""), |(file, _)| file)
    }

    /// Reads a result from bytes; `path` appears in messages.
    ///
    /// # Errors
    /// The same as those of [`ResultFile::read`].
    pub fn parse(path: &Path, bytes: Vec<u8>) -> Result<ResultFile, StudyError> {
        let (form, rows) = match bytes.first() {
            None => return Err(wrong(path, "it is empty".to_owned())),
            Some(b'{') => (Form::Json, rows_of_json(path, &bytes)?),
            Some(_) if bytes.starts_with(b"PAR1") => {
                return ResultFile::parse_parquet(path, bytes);
            }
            Some(_) => (Form::Csv, rows_of_csv(path, &bytes)?),
        };
        let description = describe(path, &rows)?;
        Ok(ResultFile::of_one(path, form, description, bytes, rows))
    }

    fn parse_parquet(path: &Path, bytes: Vec<u8>) -> Result<ResultFile, StudyError> {
        let damaged = |what: &str| StudyError::Damaged {
            path: path.to_owned(),
            what: what.to_owned(),
        };
        check_whole(&bytes).map_err(damaged)?;
        let read = || {
            let reader = parquet_reader(path, &bytes)?;
            let description = description_of_parquet(path, &reader)?;
            Ok((description, rows_of_parquet(path, &reader)?))
        };
        // A checksum can be forged, and the reader panics on some files that are wrong.
        let (description, rows) =
            contained(read).unwrap_or_else(|| Err(damaged("it cannot be read as Parquet")))?;
        let form = Form::Parquet;
        Ok(ResultFile::of_one(path, form, description, bytes, rows))
    }

    fn of_one(
        path: &Path,
        form: Form,
        description: Description,
        bytes: Vec<u8>,
        rows: Vec<Map<String, Json>>,
    ) -> ResultFile {
        ResultFile {
            description,
            form,
            bytes,
            files: vec![(path.to_owned(), rows.len())],
            rows,
        }
    }
}

/// The bytes of a result.
fn contents(path: &Path) -> Result<Vec<u8>, StudyError> {
    let unreadable = |source| StudyError::Read {
        path: path.to_owned(),
        source,
    };
    if fs::metadata(path).map_err(unreadable)?.len() > FILE_BYTES_MAX {
        return Err(wrong(
            path,
            "it is larger than 1 GiB: no result is".to_owned(),
        ));
    }
    fs::read(path).map_err(unreadable)
}

fn wrong(path: &Path, what: String) -> StudyError {
    StudyError::Result {
        path: path.to_owned(),
        what,
    }
}

fn no_result(path: &Path, why: &str) -> StudyError {
    wrong(
        path,
        format!(
            "this is no result of `agewise lab run` or `curve` with --format json, csv or \
             parquet: {why}"
        ),
    )
}

fn rows_of_json(path: &Path, bytes: &[u8]) -> Result<Vec<Map<String, Json>>, StudyError> {
    let rows = serde_json::Deserializer::from_slice(bytes).into_iter();
    rows.collect::<Result<_, _>>()
        .map_err(|error| no_result(path, &error.to_string()))
}

fn rows_of_csv(path: &Path, bytes: &[u8]) -> Result<Vec<Map<String, Json>>, StudyError> {
    let bad = |error: csv::Error| no_result(path, &error.to_string());
    let mut reader = csv::Reader::from_reader(bytes);
    let headers = reader.headers().map_err(bad)?.clone();
    let is_text = |name: &str| {
        let texts = [
            "workload",
            "trace",
            "measure",
            "policy",
            "seeds",
            PROFILE.name,
        ];
        let columns = RunCell::COLUMNS.iter().chain(&Origin::COLUMNS);
        let mut of_text = columns.filter(|column| column.kind == super::table::Kind::Text);
        texts.contains(&name) || of_text.any(|column| column.name == name)
    };
    let is_text: Vec<bool> = headers.iter().map(is_text).collect();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let mut row = Map::new();
        for ((name, text), is_text) in headers.iter().zip(&record).zip(&is_text) {
            let value = match text {
                "" | "NaN" | "inf" | "-inf" => Json::Null,
                _ if *is_text => Json::from(text),
                _ => serde_json::from_str(text)
                    .map_err(|_| no_result(path, &format!("`{text}` under {name}")))?,
            };
            row.insert(name.to_owned(), value);
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Runs `read`. Returns `None` if it panics, of which no message is printed.
///
/// `read` must leave nothing behind that is used after a panic.
fn contained<T>(read: impl FnOnce() -> T) -> Option<T> {
    // What happens at a panic belongs to the process; here one thread at a time changes it.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = Arc::new(panic::take_hook());
    let (quiet, of_others) = (thread::current().id(), Arc::clone(&before));
    panic::set_hook(Box::new(move |info| {
        if thread::current().id() != quiet {
            of_others(info);
        }
    }));
    let result = catch_unwind(AssertUnwindSafe(read));
    drop(panic::take_hook());
    if let Ok(before) = Arc::try_unwrap(before) {
        panic::set_hook(before);
    }
    result.ok()
}

type Parquet = SerializedFileReader<bytes::Bytes>;

fn parquet_reader(path: &Path, bytes: &[u8]) -> Result<Parquet, StudyError> {
    let bytes = bytes::Bytes::copy_from_slice(bytes);
    SerializedFileReader::new(bytes).map_err(|error| no_result(path, &error.to_string()))
}

fn rows_of_parquet(path: &Path, reader: &Parquet) -> Result<Vec<Map<String, Json>>, StudyError> {
    let bad = |error: parquet::errors::ParquetError| no_result(path, &error.to_string());
    let mut rows = Vec::new();
    for row in reader.get_row_iter(None).map_err(bad)? {
        let row = row.map_err(bad)?;
        let value = |field: &Field| match field {
            Field::Str(text) => Json::from(text.as_str()),
            Field::Long(count) => Json::from(*count),
            Field::Double(number) => Json::from(*number),
            _ => Json::Null,
        };
        let columns = row.get_column_iter();
        rows.push(
            columns
                .map(|(name, of)| (name.clone(), value(of)))
                .collect(),
        );
    }
    Ok(rows)
}

fn description_of_parquet(path: &Path, reader: &Parquet) -> Result<Description, StudyError> {
    let metadata = reader.metadata().file_metadata().key_value_metadata();
    let entry = metadata
        .into_iter()
        .flatten()
        .find(|entry| entry.key == DESCRIPTION_KEY);
    let text = entry.and_then(|entry| entry.value.as_deref());
    let text = text.ok_or_else(|| no_result(path, "its metadata do not say what was run"))?;
    serde_json::from_str(text).map_err(|error| no_result(path, &error.to_string()))
}

/// Description of what was run, from the rows.
fn describe(path: &Path, rows: &[Map<String, Json>]) -> Result<Description, StudyError> {
    let first = rows
        .first()
        .ok_or_else(|| no_result(path, "it has no row"))?;
    if first.contains_key("at_ms") {
        return Err(no_result(
            path,
            "it is of `lab damon`, whose rows say what was run",
        ));
    }
    match first.contains_key("workload") {
        true => Ok(Description::Run {
            cells: distinct(path, rows, |_, _: &mut RunCell| {})?,
        }),
        false => {
            let mut points = rows.to_vec();
            for row in &mut points {
                row.insert("sizes_pages".to_owned(), Json::Array(Vec::new()));
            }
            let add = |row: &Map<String, Json>, cell: &mut CurveCell| {
                let size = row.get("size_pages").and_then(Json::as_u64);
                cell.sizes_pages.extend(size);
            };
            Ok(Description::Curve {
                cells: distinct(path, &points, add)?,
            })
        }
    }
}

/// The cells of the rows, without duplicates, in the order of the rows. `add` collects from each
/// row what a cell spreads over its rows.
fn distinct<C: serde::de::DeserializeOwned>(
    path: &Path,
    rows: &[Map<String, Json>],
    add: impl Fn(&Map<String, Json>, &mut C),
) -> Result<Vec<Described<C>>, StudyError> {
    /// Columns that may differ between rows of one cell.
    const MEASURED: [&str; 12] = [
        "measure",
        "n",
        "mean",
        "ci95",
        "min",
        "max",
        "ratio",
        "p",
        "size_pages",
        "misses",
        "miss_ratio",
        "miss_ratio_error",
    ];
    let mut cells: Vec<Described<C>> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (at, row) in rows.iter().enumerate() {
        let mut key = row.clone();
        key.retain(|name, _| !MEASURED.contains(&name.as_str()));
        let key = Json::Object(key).to_string();
        let place = match known.get(&key) {
            Some(place) => *place,
            None => {
                let cell = read_cell(row).map_err(|error| {
                    no_result(
                        path,
                        &format!(
                            "row {}: {error} (a version of agewise before results said what was \
                             run, or a later one?)",
                            at + 1
                        ),
                    )
                })?;
                cells.push(cell);
                known.insert(key, cells.len() - 1);
                cells.len() - 1
            }
        };
        add(row, &mut cells[place].cell);
    }
    Ok(cells)
}

/// The cell of a row. CSV has null for an empty text.
fn read_cell<C: serde::de::DeserializeOwned>(
    row: &Map<String, Json>,
) -> Result<Described<C>, serde_json::Error> {
    let mut row = row.clone();
    for name in ["settings", "options"] {
        if row.get(name) == Some(&Json::Null) {
            row.insert(name.to_owned(), Json::from(""));
        }
    }
    serde_json::from_value(Json::Object(row))
}
