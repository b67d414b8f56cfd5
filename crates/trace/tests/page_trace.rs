// SPDX-License-Identifier: Apache-2.0
//! Page traces: what is written can be read back, even from a truncated file.

use std::io::{Cursor, Write};
use std::path::Path;

use agewise_trace::page_trace::{FORMAT, Frame, Header, Order, PageTraceWriter, frames, open_at};
use agewise_trace::{
    AccessKind, Evidence, Input, OutputFormat, PageClass, ReadOptions, Request, RequestReader,
    TraceError, TraceSource, TraceWriter,
};
use proptest::prelude::*;

fn open(bytes: &[u8]) -> Result<Box<dyn RequestReader>, TraceError> {
    let input = Input::from_reader(Path::new("t"), Cursor::new(bytes.to_vec()))?;
    (FORMAT.open)(input, &ReadOptions::default())
}

fn rest(reader: &mut dyn RequestReader) -> Result<Vec<Request>, TraceError> {
    let mut requests = Vec::new();
    while let Some(request) = reader.next_request()? {
        requests.push(request);
    }
    Ok(requests)
}

/// Writes requests, with a frame for every `frame` requests.
fn write(requests: &[Request], frame: usize, header: &Header) -> Vec<u8> {
    let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), header).unwrap();
    for part in requests.chunks(frame) {
        part.iter()
            .for_each(|request| writer.push(request).unwrap());
        writer.flush_frame().unwrap();
    }
    writer.finish().unwrap()
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let page = prop_oneof![
        0u64..1000,
        any::<u64>().prop_map(|page| page >> 12),
        Just(u64::MAX)
    ];
    let request = (
        page,
        1u64..100,
        any::<u64>(),
        0u32..4,
        0u8..3,
        0u8..3,
        0u8..5,
    )
        .prop_map(
            |(first_page, count, time_ns, process, kind, class, evidence)| Request {
                first_page,
                page_count: if count > 20 || first_page == u64::MAX {
                    1
                } else {
                    count
                },
                time_ns,
                process,
                kind: [AccessKind::Unknown, AccessKind::Read, AccessKind::Write][usize::from(kind)],
                class: [PageClass::Unknown, PageClass::Anon, PageClass::File][usize::from(class)],
                evidence: [
                    Evidence::Seen,
                    Evidence::Fault,
                    Evidence::Inferred,
                    Evidence::MinorFault,
                    Evidence::MajorFault,
                ][usize::from(evidence)],
            },
        );
    proptest::collection::vec(request, 0..120)
}

fn headers() -> impl Strategy<Value = Header> {
    let metadata = proptest::collection::vec("[ -~]{0,20}\n", 0..4);
    let parts = (
        0u8..=63,
        any::<bool>(),
        any::<u64>(),
        any::<bool>(),
        metadata,
    );
    let any_header = parts.prop_map(
        |(page_shift, by_interval, interval_ns, evidence, metadata)| {
            let order = match by_interval {
                true => Order::Interval,
                false => Order::Exact,
            };
            Header {
                page_shift,
                order,
                interval_ns,
                evidence,
                metadata: metadata.concat(),
            }
        },
    );
    prop_oneof![Just(Header::default()), any_header]
}

/// Writes the trace again in a format, as the conversion does.
fn convert(from: &Path, to: &Path, format: OutputFormat) {
    let mut stream = TraceSource::new(from).open().unwrap();
    let header = stream.page_trace_header().cloned().unwrap_or_default();
    let mut writer = TraceWriter::create(to, format, &header).unwrap();
    while let Ok(Some(request)) = stream.next_request() {
        writer.push(&request, || None).unwrap();
    }
    writer.finish().unwrap();
}

fn with_evidence() -> Header {
    Header {
        evidence: true,
        ..Header::default()
    }
}

proptest! {
    #[test]
    fn written_is_read(requests in requests(), frame in 1usize..50) {
        let header = Header {
            page_shift: 16,
            order: Order::Interval,
            interval_ns: 100_000_000,
            evidence: true,
            metadata: "command=true\n".into(),
        };
        let mut reader = open(&write(&requests, frame, &header)).unwrap();
        prop_assert_eq!(reader.page_trace_header(), Some(&header));
        prop_assert_eq!(&rest(&mut *reader).unwrap(), &requests);
        prop_assert!(reader.note().is_none());
        // Version 1 does not record evidence: all were seen.
        let mut reader = open(&write(&requests, frame, &Header::default())).unwrap();
        let seen = requests.into_iter().map(|request| Request {
            evidence: Evidence::Seen,
            ..request
        });
        prop_assert_eq!(rest(&mut *reader).unwrap(), seen.collect::<Vec<_>>());
    }

    /// As CSV it keeps everything: converted back, it is the same file.
    #[test]
    fn nothing_is_lost_as_csv(requests in requests(), header in headers()) {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        let bytes = write(&requests, 1 << 15, &header);
        std::fs::write(at("before.pagetrace"), &bytes).unwrap();
        convert(&at("before.pagetrace"), &at("between.csv"), OutputFormat::Csv);
        convert(&at("between.csv"), &at("after.pagetrace"), OutputFormat::Page);
        prop_assert_eq!(std::fs::read(at("after.pagetrace")).unwrap(), bytes);
    }

    /// Truncated anywhere, a file returns every request of its full frames, and reports the
    /// truncation.
    #[test]
    fn cut_off_files_are_read(requests in requests(), frame in 1usize..50,
                              cut in any::<prop::sample::Index>()) {
        let whole = write(&requests, frame, &with_evidence());
        let cut = cut.index(whole.len());
        let Ok(mut reader) = open(&whole[..cut]) else {
            prop_assert!(cut < 32, "only a header that was cut off is an error");
            return Ok(());
        };
        let read = rest(&mut *reader).unwrap();
        prop_assert!(requests.starts_with(&read));
        prop_assert!(read.len() == requests.len() || read.len().is_multiple_of(frame));
        prop_assert!(reader.note().is_some() || read.len() == requests.len());
    }

    /// One changed byte gives an error, unless it is in a part that is not read (the index).
    #[test]
    fn damage_is_noticed(requests in requests(), at in any::<prop::sample::Index>(),
                         change in 1u8..=255) {
        let mut bytes = write(&requests, 30, &with_evidence());
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        if let Ok(read) = open(&bytes).and_then(|mut reader| rest(&mut *reader)) {
            prop_assert!(requests.starts_with(&read));
        }
    }
}

#[test]
fn the_index_leads_to_a_time() {
    let requests: Vec<Request> = (0..100)
        .map(|at| Request {
            time_ns: at * 10,
            ..Request::page(at)
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("t.pagetrace");
    let bytes = write(&requests, 20, &Header::default());
    std::fs::write(&path, &bytes).unwrap();
    let index = frames(&path).unwrap();
    assert_eq!(index.len(), 5);
    assert_eq!(
        index[2],
        Frame {
            offset: index[2].offset,
            requests_before: 40,
            first_time_ns: 400
        }
    );
    for (time_ns, first) in [(0, 0), (399, 20), (400, 40), (5000, 80)] {
        let mut reader = open_at(&path, time_ns).unwrap();
        assert_eq!(
            reader.next_request().unwrap().unwrap().first_page,
            first,
            "{time_ns}"
        );
    }

    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = frames(&path).unwrap_err().to_string();
    assert!(
        error.contains("cut off") && error.contains("t.pagetrace"),
        "{error}"
    );
}

/// A full disk gives an error with the offset, and what was written before can be read.
#[test]
fn a_full_disk_leaves_full_frames() {
    struct Full<'a>(&'a mut Vec<u8>, usize);
    impl Write for Full<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            if self.0.len() + bytes.len() > self.1 {
                return Err(std::io::ErrorKind::StorageFull.into());
            }
            self.0.extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut disk = Vec::new();
    let mut writer =
        PageTraceWriter::new(Path::new("t"), Full(&mut disk, 400), &Header::default()).unwrap();
    let mut pushed = 0;
    let error = loop {
        let request = Request {
            time_ns: pushed,
            ..Request::page(pushed * pushed)
        };
        let result = writer.push(&request).and_then(|()| match pushed % 10 {
            9 => writer.flush_frame(),
            _ => Ok(()),
        });
        match result {
            Ok(()) => pushed += 1,
            Err(error) => break error,
        }
    };
    drop(writer);
    assert!(
        matches!(error, TraceError::Write { offset, .. } if offset > 32),
        "{error}"
    );
    let mut reader = open(&disk).unwrap();
    let read = rest(&mut *reader).unwrap();
    assert!(!read.is_empty() && read.len().is_multiple_of(10) && (read.len() as u64) < pushed + 1);
}

/// The first bytes of a file, as in the description of the format.
#[test]
fn the_header_byte_by_byte() {
    let header = Header {
        page_shift: 12,
        metadata: "a=b\n".into(),
        ..Header::default()
    };
    let bytes = write(&[], 1, &header);
    assert_eq!(
        &bytes[..16],
        b"\x89AGEWPT\n\x01\x00\x20\x00\x0c\x00\x00\x00"
    );
    assert_eq!(write(&[], 1, &with_evidence())[8], 3, "the version");
    assert_eq!(&bytes[16..24], [0; 8]);
    assert_eq!(&bytes[24..28], [4, 0, 0, 0]);
    assert_eq!(&bytes[32..36], b"a=b\n");
    assert_eq!(&bytes[36..44], b"INDX\0\0\0\0");
    assert_eq!(&bytes[bytes.len() - 8..], b"AGEWPTIX");
}
