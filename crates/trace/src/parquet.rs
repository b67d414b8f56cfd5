// SPDX-License-Identifier: Apache-2.0
//! Writes a trace as Apache Parquet, one row group at a time: the columns of
//! [CSV](crate::reader::csv), and the header of a page trace in the metadata, written as in CSV.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Encoding;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use crate::access::Request;
use crate::error::TraceError;
use crate::page_trace::Header;
use crate::sink::Sink;

/// Requests in a full row group, which is held in memory until it is written: 12 MiB.
const GROUP_REQUESTS: usize = 1 << 18;

/// Key of the header in the metadata: the lines that precede the columns of a CSV file.
const HEADER_KEY: &str = "agewise_trace";

/// The columns in the order in which [`ParquetWriter::write_group`] writes them. A text that is not
/// known is null; evidence is null for what was seen.
const SCHEMA: &str = "message trace {
    required int64 time_ns (INTEGER(64,false));
    required int64 page (INTEGER(64,false));
    required int64 count (INTEGER(64,false));
    optional binary kind (STRING);
    required int32 process (INTEGER(32,false));
    optional binary class (STRING);
    optional binary evidence (STRING);
}";

/// A Parquet file being written.
pub(crate) struct ParquetWriter {
    path: PathBuf,
    file: SerializedFileWriter<Lent>,
    group: Vec<Request>,
}

impl ParquetWriter {
    pub(crate) fn new(path: &Path, sink: Sink, header: &Header) -> Result<Self, TraceError> {
        let metadata = KeyValue::new(HEADER_KEY.to_owned(), header.to_comments());
        let mut properties =
            WriterProperties::builder().set_key_value_metadata(Some(vec![metadata]));
        // Neighbouring values differ little; texts and processes repeat, which is the default.
        for name in ["time_ns", "page", "count"] {
            properties = properties
                .set_column_dictionary_enabled(ColumnPath::from(name), false)
                .set_column_encoding(ColumnPath::from(name), Encoding::DELTA_BINARY_PACKED);
        }
        let schema = parse_message_type(SCHEMA).map(Arc::new);
        let properties = Arc::new(properties.build());
        let lent = Lent(Some(sink));
        let file = schema.and_then(|schema| SerializedFileWriter::new(lent, schema, properties));
        Ok(Self {
            path: path.to_path_buf(),
            file: file.map_err(|error| write_error(path, 0, error))?,
            group: Vec::new(),
        })
    }

    pub(crate) fn add_metadata(&mut self, key: &str, value: &str) {
        let entry = KeyValue::new(key.to_owned(), value.to_owned());
        self.file.append_key_value_metadata(entry);
    }

    pub(crate) fn push(&mut self, request: &Request) -> Result<(), TraceError> {
        self.group.push(*request);
        match self.group.len() < GROUP_REQUESTS {
            true => Ok(()),
            false => self.write_group(),
        }
    }

    /// Writes what is left and the end of the file.
    pub(crate) fn finish(mut self) -> Result<Sink, TraceError> {
        if !self.group.is_empty() {
            self.write_group()?;
        }
        let ended = self.file.finish();
        let sink = ended.and_then(|_| Ok(self.file.inner_mut().take_back()?));
        let offset = self.file.bytes_written() as u64;
        sink.map_err(|error| write_error(&self.path, offset, error))
    }

    fn write_group(&mut self) -> Result<(), TraceError> {
        let requests = std::mem::take(&mut self.group);
        let mut write = || {
            let mut group = self.file.next_row_group()?;
            let number = |of: fn(&Request) -> u64| {
                let numbers = requests.iter().map(of).map(u64::cast_signed);
                numbers.collect::<Vec<i64>>()
            };
            let text = |of: fn(&Request) -> &'static str| requests.iter().map(of).collect();
            let process = requests.iter().map(|of| of.process.cast_signed());
            column::<Int64Type>(&mut group, &number(|of| of.time_ns), None)?;
            column::<Int64Type>(&mut group, &number(|of| of.first_page), None)?;
            column::<Int64Type>(&mut group, &number(|of| of.page_count), None)?;
            texts(&mut group, text(|of| of.kind.name()))?;
            column::<Int32Type>(&mut group, &process.collect::<Vec<_>>(), None)?;
            texts(&mut group, text(|of| of.class.name()))?;
            texts(&mut group, text(|of| of.evidence.name()))?;
            group.close().map(drop)
        };
        let written = write();
        let offset = self.file.bytes_written() as u64;
        written.map_err(|error| write_error(&self.path, offset, error))
    }
}

/// The destination until the end of the file: where the library gives back what it was given, it
/// loses why its last bytes could not be written.
struct Lent(Option<Sink>);

impl Lent {
    fn sink(&mut self) -> io::Result<&mut Sink> {
        self.0.as_mut().ok_or_else(Self::ended)
    }

    fn take_back(&mut self) -> io::Result<Sink> {
        self.0.take().ok_or_else(Self::ended)
    }

    fn ended() -> io::Error {
        io::Error::other("the file has ended")
    }
}

impl Write for Lent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.sink()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.sink()?.flush()
    }
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let writer = group.next_column()?;
    let mut writer = writer.ok_or_else(|| ParquetError::General("no such column".to_owned()))?;
    writer
        .typed::<T>()
        .write_batch(values, levels, None)
        .and_then(|_| writer.close())
}

/// Writes a column of texts; an empty one is null.
fn texts(
    group: &mut SerializedRowGroupWriter<'_, impl Write + Send>,
    texts: Vec<&'static str>,
) -> Result<(), ParquetError> {
    let levels = texts.iter().map(|text| i16::from(!text.is_empty()));
    let levels: Vec<i16> = levels.collect();
    let values = texts.into_iter().filter(|text| !text.is_empty());
    let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
    column::<ByteArrayType>(group, &values, Some(&levels))
}

fn write_error(path: &Path, offset: u64, error: ParquetError) -> TraceError {
    // The library wraps what the file system said.
    let source = match error {
        ParquetError::External(inner) => match inner.downcast::<io::Error>() {
            Ok(inner) => *inner,
            Err(inner) => io::Error::other(inner),
        },
        error => io::Error::other(error),
    };
    TraceError::Write {
        path: path.to_path_buf(),
        offset,
        source,
    }
}
