// SPDX-License-Identifier: Apache-2.0
//! Traces as Parquet: any program that reads Parquet finds in it what was written.

use std::fs;
use std::path::Path;

use agewise_trace::page_trace::{Header, Order};
use agewise_trace::{
    AccessKind, Evidence, OutputFormat, PageClass, Request, TraceError, TraceSource, TraceWriter,
};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, Row};

fn write(path: &Path, header: &Header, requests: &[Request]) -> Result<(), TraceError> {
    let mut writer = TraceWriter::create(path, OutputFormat::Parquet, header)?;
    for request in requests {
        writer.push(request, || None)?;
    }
    writer.add_metadata("source", "t.csv");
    // One without pages is no access.
    let with_pages = requests.iter().filter(|request| request.page_count > 0);
    assert_eq!(writer.records(), with_pages.count() as u64);
    writer.finish()
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

/// The row of a request.
fn row(request: &Request) -> Row {
    let text = |name: &str| match name {
        "" => Field::Null,
        name => Field::Str(name.to_owned()),
    };
    let fields = [
        ("time_ns", Field::ULong(request.time_ns)),
        ("page", Field::ULong(request.first_page)),
        ("count", Field::ULong(request.page_count)),
        ("kind", text(request.kind.name())),
        ("process", Field::UInt(request.process)),
        ("class", text(request.class.name())),
        ("evidence", text(request.evidence.name())),
    ];
    let named = fields.map(|(name, field)| (name.to_owned(), field));
    Row::new(named.to_vec())
}

#[test]
fn a_row_per_request_with_all_that_is_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet");
    // More than a row group, and nothing but nulls at the end.
    let mut requests = varied((1 << 18) + 20_000);
    requests.extend((0..10_000).map(Request::page));
    write(&path, &header(), &requests).unwrap();
    let file = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
    assert_eq!(file.num_row_groups(), 2);
    let mut rows = file.get_row_iter(None).unwrap();
    for request in requests.iter().filter(|request| request.page_count > 0) {
        assert_eq!(rows.next().unwrap().unwrap(), row(request));
    }
    assert!(rows.next().is_none());
    let metadata = file.metadata().file_metadata().key_value_metadata();
    let value = |key: &str| {
        let mut entries = metadata.into_iter().flatten();
        let entry = entries.find(|entry| entry.key == key);
        entry.and_then(|entry| entry.value.as_deref())
    };
    assert_eq!(value("source"), Some("t.csv"));
    // The lines before the columns of the same trace as CSV.
    let csv = directory.path().join("t.csv");
    let writer = TraceWriter::create(&csv, OutputFormat::Csv, &header()).unwrap();
    writer.finish().unwrap();
    let csv = fs::read_to_string(csv).unwrap();
    let columns = "time_ns,page,count,kind,process,class,evidence\n";
    assert_eq!(value("agewise_trace"), csv.strip_suffix(columns));
    assert!(!directory.path().join("t.parquet.part").exists());
}

#[test]
fn it_is_not_compressed_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.parquet.gz");
    let error = write(&path, &header(), &[]).unwrap_err().to_string();
    assert!(error.contains("leave out that ending"), "{error}");
    assert!(!path.exists());
}

#[test]
fn it_is_no_trace_to_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t");
    write(&path, &header(), &varied(3)).unwrap();
    let error = TraceSource::new(&path).open().err().unwrap().to_string();
    assert!(error.contains("t: this is Parquet"), "{error}");
}

/// However much is buffered, and by whom, when the end comes.
#[test]
fn an_error_of_the_file_system_is_said_as_it_is() {
    for count in [0, 3, 9_000, 1 << 16, 1 << 18, 300_000] {
        let full = Path::new("/dev/full");
        let error = write(full, &header(), &varied(count)).unwrap_err();
        let TraceError::Write { source, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull, "{source}");
    }
}
