// SPDX-License-Identifier: Apache-2.0
//! Reads a trace from Parquet, a few thousand rows at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

use parquet::basic::{self, ConvertedType};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};

use super::{HEADER_KEY, contained};
use crate::access::Request;
use crate::compression::Compression;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;
use crate::page_trace::Header;
use crate::reader::csv;

/// Parquet with the columns of CSV. `page` is required; other columns are ignored.
pub static FORMAT: Format = Format {
    name: "parquet",
    summary: "Apache Parquet with the columns time_ns, page, count, kind, process, class, evidence",
    name_hints: &[".parquet"],
    description_hints: &[&["parquet"]],
    recognise: |head| head.starts_with(b"PAR1"),
    // Its end says where everything is, so it is read from the file, not from the stream.
    open: |input: Input, options: &ReadOptions| {
        if input.compression() != Compression::Plain.name() {
            let what = format!(
                "it is compressed with {}: decompress it",
                input.compression()
            );
            return Err(wrong(input.path(), what));
        }
        Ok(Box::new(Reader::open(input.path(), options)?))
    },
};

/// Rows that are read at once.
const ROWS: usize = 8192;

/// The columns that are read.
const COLUMNS: [&str; 7] = [
    "time_ns", "page", "count", "kind", "process", "class", "evidence",
];

struct Column {
    name: &'static str,
    /// Whether its numbers have no sign.
    is_unsigned: bool,
    reader: ColumnReader,
}

struct Reader {
    path: PathBuf,
    file: SerializedFileReader<File>,
    header: Option<Header>,
    /// The place of each of [`COLUMNS`] in the file.
    places: [Option<usize>; COLUMNS.len()],
    next_group: usize,
    /// The columns of the current row group, and the rows that are left in it.
    columns: Vec<Column>,
    rows_left: usize,
    rows_read: u64,
    /// What has been read, the next one last.
    requests: Vec<Request>,
    failed: bool,
}

impl Reader {
    fn open(path: &Path, options: &ReadOptions) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::Open {
            path: path.to_path_buf(),
            source,
        })?;
        let file = caught(path, || SerializedFileReader::new(file).map_err(text))?;
        let metadata = file.metadata().file_metadata();
        let schema = metadata.schema_descr();
        let place = |name: &str| {
            let mut columns = schema.columns().iter();
            columns.position(|column| column.path().string() == name)
        };
        let places = COLUMNS.map(place);
        for at in places.into_iter().flatten() {
            let column = schema.column(at);
            if column.max_rep_level() > 0 || column.max_def_level() > 1 {
                return Err(wrong(path, format!("{} is a nested column", column.name())));
            }
        }
        if let Some(codec) = codec(&file) {
            return Err(TraceError::Limit {
                path: path.to_path_buf(),
                what: format!(
                    "its columns are compressed ({codec}), which is not read: write it without \
                     compression (compression=\"uncompressed\" of polars, \"none\" of pyarrow)"
                ),
            });
        }
        if place("page").is_none() {
            return Err(wrong(path, "it has no column named page"));
        }
        let mut entries = metadata.key_value_metadata().into_iter().flatten();
        let lines = entries.find(|entry| entry.key == HEADER_KEY);
        let lines = lines.and_then(|entry| entry.value.as_deref());
        let mut header = header(lines.unwrap_or_default()).map_err(|what| wrong(path, what))?;
        if header.is_none() && place("evidence").is_some() {
            header = Some(Header {
                page_shift: options.page_shift_or_default() as u8,
                evidence: true,
                ..Header::default()
            });
        }
        Ok(Self {
            path: path.to_path_buf(),
            file,
            header,
            places,
            next_group: 0,
            columns: Vec::new(),
            rows_left: 0,
            rows_read: 0,
            requests: Vec::new(),
            failed: false,
        })
    }

    /// Reads the next rows; false at the end.
    fn read_rows(&mut self) -> Result<bool, String> {
        while self.rows_left == 0 {
            if self.next_group >= self.file.num_row_groups() {
                return Ok(false);
            }
            let group = self.file.get_row_group(self.next_group).map_err(text)?;
            self.next_group += 1;
            self.columns.clear();
            for (name, at) in COLUMNS.iter().zip(self.places) {
                if let Some(at) = at {
                    let kind = group.metadata().column(at).column_descr().converted_type();
                    self.columns.push(Column {
                        name,
                        is_unsigned: matches!(
                            kind,
                            ConvertedType::UINT_32 | ConvertedType::UINT_64
                        ),
                        reader: group.get_column_reader(at).map_err(text)?,
                    });
                }
            }
            self.rows_left = usize::try_from(group.metadata().num_rows()).map_err(|_| {
                format!("row group {} has no valid number of rows", self.next_group)
            })?;
        }
        let rows = self.rows_left.min(ROWS);
        let one = Request {
            page_count: 1,
            ..Request::default()
        };
        self.requests = vec![one; rows];
        for column in &mut self.columns {
            fill(column, &mut self.requests).map_err(|what| {
                let (first, last) = (self.rows_read + 1, self.rows_read + rows as u64);
                format!("rows {first} to {last}: {}: {what}", column.name)
            })?;
        }
        self.rows_left -= rows;
        self.requests.reverse();
        Ok(true)
    }
}

impl RequestReader for Reader {
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        if self.failed {
            return Ok(None);
        }
        self.failed = true;
        if self.requests.is_empty() {
            let path = self.path.clone();
            if !caught(&path, || self.read_rows())? {
                return Ok(None);
            }
        }
        let Some(request) = self.requests.pop() else {
            return Ok(None);
        };
        self.rows_read += 1;
        let checked = csv::checked(request);
        let request =
            checked.map_err(|what| wrong(&self.path, format!("row {}: {what}", self.rows_read)))?;
        self.failed = false;
        Ok(Some(request))
    }

    fn page_trace_header(&self) -> Option<&Header> {
        self.header.as_ref()
    }
}

/// How columns are compressed, if any is.
fn codec(file: &SerializedFileReader<File>) -> Option<basic::Compression> {
    let groups = file.metadata().row_groups().iter();
    let mut codecs = groups
        .flat_map(|group| group.columns())
        .map(|chunk| chunk.compression());
    codecs.find(|codec| *codec != basic::Compression::UNCOMPRESSED)
}

/// Reads a column of the next rows into the requests.
fn fill(column: &mut Column, requests: &mut [Request]) -> Result<(), String> {
    let (name, is_unsigned) = (column.name, column.is_unsigned);
    let rows = requests.len();
    let of_numbers = matches!(name, "time_ns" | "page" | "count" | "process");
    match &mut column.reader {
        ColumnReader::Int64ColumnReader(column) if of_numbers => {
            let numbers = values(column, rows)?.into_iter();
            let number = |of: i64| match is_unsigned {
                true => Ok(of.cast_unsigned()),
                false => u64::try_from(of).map_err(|_| of),
            };
            set_numbers(name, numbers.map(|of| of.map(number)), requests)
        }
        ColumnReader::Int32ColumnReader(column) if of_numbers => {
            let numbers = values(column, rows)?.into_iter();
            let number = |of: i32| match is_unsigned {
                true => Ok(of.cast_unsigned().into()),
                false => u64::try_from(of).map_err(|_| of.into()),
            };
            set_numbers(name, numbers.map(|of| of.map(number)), requests)
        }
        ColumnReader::ByteArrayColumnReader(column) if !of_numbers => {
            for (value, request) in values(column, rows)?.iter().zip(requests) {
                let text = value.as_ref().map_or(&b""[..], ByteArray::data);
                match name {
                    "kind" => request.kind = csv::kind(text)?,
                    "class" => request.class = csv::class(text)?,
                    _ => request.evidence = csv::evidence(text)?,
                }
            }
            Ok(())
        }
        _ if of_numbers => Err("it is no column of whole numbers".to_owned()),
        _ => Err("it is no column of texts".to_owned()),
    }
}

/// Sets a column of numbers; one that is less than 0 is an error.
fn set_numbers(
    name: &str,
    values: impl Iterator<Item = Option<Result<u64, i64>>>,
    requests: &mut [Request],
) -> Result<(), String> {
    for (value, request) in values.zip(requests) {
        let value = value.transpose();
        let value = value.map_err(|negative| format!("{negative} is less than 0"))?;
        match (name, value) {
            ("page", None) => return Err("a page is null".to_owned()),
            (_, None) => {}
            ("page", Some(value)) => request.first_page = value,
            ("time_ns", Some(value)) => request.time_ns = value,
            ("count", Some(value)) => request.page_count = value,
            (_, Some(value)) => {
                let process = u32::try_from(value);
                request.process = process.map_err(|_| format!("{value} is too large"))?;
            }
        }
    }
    Ok(())
}

/// The next values of a column, of which there must be as many as rows.
fn values<T: DataType>(
    column: &mut ColumnReaderImpl<T>,
    rows: usize,
) -> Result<Vec<Option<T::T>>, String> {
    let (mut levels, mut found) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let more = column.read_records(rows - read, Some(&mut levels), None, &mut found);
        match more.map_err(text)?.0 {
            0 => return Err("it ends too early".to_owned()),
            more => read += more,
        }
    }
    let mut found = found.into_iter();
    // A column without nulls has no levels.
    if levels.is_empty() {
        return Ok(found.map(Some).collect());
    }
    let value = |level: i16| (level > 0).then(|| found.next()).flatten();
    Ok(levels.into_iter().map(value).collect())
}

/// The header of a page trace from its lines, if there are any.
fn header(lines: &str) -> Result<Option<Header>, String> {
    let mut header = None;
    for line in lines.lines() {
        if !Header::read_comment(&mut header, line.as_bytes())? {
            return Err(format!("its metadata have an unknown line: {line:?}"));
        }
    }
    Ok(header)
}

/// The result of the Parquet library, which panics on some files that are wrong.
fn caught<T>(path: &Path, read: impl FnOnce() -> Result<T, String>) -> Result<T, TraceError> {
    let read = contained(read).unwrap_or_else(|| Err("its content contradicts itself".to_owned()));
    read.map_err(|what| wrong(path, what))
}

fn text(error: ParquetError) -> String {
    error.to_string()
}

fn wrong(path: &Path, what: impl Into<String>) -> TraceError {
    TraceError::WrongFormat {
        path: path.to_path_buf(),
        format: FORMAT.name,
        what: what.into(),
    }
}
