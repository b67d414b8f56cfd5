// SPDX-License-Identifier: Apache-2.0
//! Traces as Parquet: what is written is read, and a file that is wrong is an error.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use agewise_trace::page_trace::{Header, Order};
use agewise_trace::{
    AccessKind, Evidence, OutputFormat, PageClass, Request, TraceError, TraceSource, TraceWriter,
};
use parquet::data_type::{DataType, DoubleType, Int64Type};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

fn write(path: &Path, header: &Header, requests: &[Request]) -> Result<(), TraceError> {
    let mut writer = TraceWriter::create(path, OutputFormat::Parquet, header)?;
    for request in requests {
        writer.push(request, || None)?;
    }
    writer.add_metadata("source", "t.csv");
    assert_eq!(writer.records(), requests.len() as u64);
    writer.finish()
}

fn read(path: &Path) -> Result<(Option<Header>, Vec<Request>), TraceError> {
    let mut stream = TraceSource::new(path).open()?;
    let mut requests = Vec::new();
    while let Some(request) = stream.next_request()? {
        requests.push(request);
    }
    Ok((stream.page_trace_header().cloned(), requests))
}

fn header() -> Header {
    Header {
        page_shift: 16,
        order: Order::Interval,
        interval_ns: 1_000_000_000,
        evidence: true,
        metadata: "command=a b\nhost=é\n".to_owned(),
    }
}

/// Requests with every value that a column can have.
fn varied(count: u64) -> Vec<Request> {
    let kinds = [AccessKind::Unknown, AccessKind::Read, AccessKind::Write];
    let classes = [PageClass::Unknown, PageClass::Anon, PageClass::File];
    let request = |at: u64| Request {
        first_page: match at % 5 {
            0 => u64::MAX,
            1 => 0,
            _ => at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 8,
        },
        page_count: if at % 5 < 2 { 1 } else { at % 7 },
        time_ns: if at.is_multiple_of(11) { u64::MAX } else { at },
        process: if at.is_multiple_of(13) { u32::MAX } else { 7 },
        kind: kinds[at as usize % 3],
        class: classes[at as usize / 3 % 3],
        evidence: Evidence::NAMES[at as usize % 5].1,
    };
    (0..count).map(request).collect()
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    // More than a row group, and nothing but nulls at the end.
    let mut requests = varied((1 << 18) + 20_000);
    requests.extend((0..10_000).map(Request::page));
    write(&path, &header(), &requests).unwrap();
    let (found, read) = read(&path).unwrap();
    assert_eq!(found, Some(header()));
    assert!(read == requests);
    let file = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(file.num_row_groups(), 2);
    let metadata = file.metadata().file_metadata().key_value_metadata();
    let mut entries = metadata.into_iter().flatten();
    let source = entries.find(|entry| entry.key == "source").unwrap();
    assert_eq!(source.value.as_deref(), Some("t.csv"));
    assert!(!directory.path().join("t.parquet.part").exists());
}

#[test]
fn it_is_not_compressed_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet.gz");
    let error = write(&path, &header(), &[]).unwrap_err().to_string();
    assert!(error.contains("leave out that ending"), "{error}");
    assert!(!path.exists());
    let plain = directory.path().join("t.parquet");
    write(&plain, &header(), &varied(3)).unwrap();
    let packed = zstd::encode_all(&fs::read(&plain).unwrap()[..], 1).unwrap();
    fs::write(&plain, packed).unwrap();
    let error = read(&plain).unwrap_err().to_string();
    assert!(error.contains("compressed with zstd"), "{error}");
}

/// Writes one column of another program.
fn column<T: DataType>(path: &Path, schema: &str, values: &[T::T]) {
    let schema = parse_message_type(&format!("message other {{ {schema} }}")).unwrap();
    let file = fs::File::create(path).unwrap();
    let mut file = SerializedFileWriter::new(file, Arc::new(schema), Default::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    let mut writer = group.next_column().unwrap().unwrap();
    let levels = vec![1; values.len()];
    writer
        .typed::<T>()
        .write_batch(values, Some(&levels), None)
        .unwrap();
    writer.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn tables_of_others_need_a_column_of_pages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other");
    column::<Int64Type>(&path, "optional int64 page;", &[3, 1, 2]);
    let (found, requests) = read(&path).unwrap();
    assert_eq!(found, None);
    assert_eq!(requests, [3, 1, 2].map(Request::page));
    column::<Int64Type>(&path, "optional int64 page;", &[3, -1]);
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("page: -1 is less than 0"), "{error}");
    column::<Int64Type>(&path, "optional int64 object;", &[3]);
    let error = read(&path).unwrap_err().to_string();
    assert!(error.contains("no column named page"), "{error}");
    column::<DoubleType>(&path, "optional double page;", &[3.0]);
    let error = read(&path).unwrap_err().to_string();
    assert!(
        error.contains("page: it is no column of whole numbers"),
        "{error}"
    );
}

/// A codec that this build does not have, in place of none.
#[test]
fn compressed_columns_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("other");
    column::<Int64Type>(&path, "optional int64 page;", &[3]);
    let whole = fs::read(&path).unwrap();
    // In the metadata of the column: the name in the path, then field 4, an enumeration.
    let before = b"\x04page\x15";
    let at = whole.windows(before.len()).rposition(|of| of == before);
    let mut forged = whole.clone();
    forged[at.unwrap() + before.len()] = 12;
    fs::write(&path, forged).unwrap();
    let error = read(&path).unwrap_err().to_string();
    assert!(
        error.contains("compressed (ZSTD") && error.contains("uncompressed"),
        "{error}"
    );
}

#[test]
fn no_file_makes_the_reader_panic() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    write(&path, &header(), &varied(40)).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 4..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("t.parquet: this is not parquet"), "{error}");
    }
    for at in 4..whole.len() {
        for bit in 0..8 {
            let mut forged = whole.clone();
            forged[at] ^= 1 << bit;
            fs::write(&path, forged).unwrap();
            // It may still be a trace, of other accesses.
            if let Err(error) = read(&path) {
                assert!(error.to_string().contains("t.parquet"), "{error}");
            }
        }
    }
}
