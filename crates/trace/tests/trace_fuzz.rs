// SPDX-License-Identifier: Apache-2.0
//! Arbitrary bytes: every reader ends, with requests or a clear error.

use std::io::{Cursor, Write};
use std::path::Path;

use agewise_trace::page_trace::{Header, PageTraceWriter};
use agewise_trace::{
    AccessStream, FORMATS, Format, Input, ReadOptions, Request, TraceError, TraceSource, format,
    registry,
};
use proptest::prelude::*;

const NAME: &str = "some.trace";

/// Reads requests up to the end or an error. Requests are not split: a few bytes may stand for very
/// many pages.
fn read(format: &Format, bytes: &[u8]) -> (usize, Option<TraceError>) {
    let input = Input::from_reader(Path::new(NAME), Cursor::new(bytes.to_vec()));
    let mut reader = match input.and_then(|input| (format.open)(input, &ReadOptions::default())) {
        Ok(reader) => reader,
        Err(error) => return (0, Some(error)),
    };
    let mut requests = 0;
    loop {
        match reader.next_request() {
            Ok(Some(request)) => {
                assert!(request.page_count <= format::PAGES_PER_REQUEST_MAX);
                let single = request.page_count == 1;
                assert!(single || request.first_page.checked_add(request.page_count).is_some());
                requests += 1;
                assert!(
                    requests <= bytes.len() * 2000,
                    "more requests than bytes can hold"
                );
            }
            Ok(None) => return (requests, None),
            Err(error) => {
                assert!(error.to_string().contains(NAME), "{error}");
                // What a reader returns after an error is not defined.
                return (requests, Some(error));
            }
        }
    }
}

/// Numbers at and beyond the limits of the types in readers.
const EXTREMES: &[&str] = &[
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "-9223372036854775809",
    "4294967296",
    "99999999999999999999999999999999999999999",
    "-1",
    "0",
    "",
    "1e400",
    "0xffffffffffffffff",
    "NaN",
];

/// As [`read`], for damaged compressed data, which may expand enormously.
fn read_bounded(format: &Format, bytes: &[u8]) {
    let input = Input::from_reader(Path::new(NAME), Cursor::new(bytes.to_vec()));
    let Ok(mut reader) = input.and_then(|input| (format.open)(input, &ReadOptions::default()))
    else {
        return;
    };
    for _ in 0..10_000 {
        if !matches!(reader.next_request(), Ok(Some(_))) {
            return;
        }
    }
}

/// The valid beginning of a file in each format, for mutations.
fn seed(name: &str) -> Vec<u8> {
    match name {
        "lirs" => b"1\n2\r\n*\n3\n18446744073709551615\n".to_vec(),
        "arc" => b"230027 8 0 0\n1842745 64 0 1\n216082 8 0 2\n".to_vec(),
        "ucsd" => b"s 0x1fffff50 1\nl 0x1fffff58 6\n".to_vec(),
        "adaptsize" => b"1 0 68\n2 1 7454\n".to_vec(),
        "lackey" => b"==1== x\nI  04000000,3\n L 1ffeffe7e0,8\n M 0,4\n".to_vec(),
        "csv" => b"# page trace: page_shift=12 order=interval interval_ns=9 evidence=true\n\
            # metadata: a=b\ntime_us,address,bytes,op,pid,class,evidence\n\
            1,4096,5000,r,7,anon,\n2.5,0x10,1,w,8,file,minor_fault\n"
            .to_vec(),
        "damon" => b"k 1.5: damon_aggregated: target_id=0 nr_regions=2 4096-8192: 5 0\n".to_vec(),
        "page" => page_trace(&[Request::page(7), Request::page(8), Request::page(1 << 40)]),
        "oracleGeneral" | "corda" | "cache2k" => (0..=255).collect(),
        _ => panic!("{name}: a format without a seed here is a format that is not tested"),
    }
}

fn page_trace(requests: &[Request]) -> Vec<u8> {
    let mut writer = PageTraceWriter::new(Path::new("t"), Vec::new(), &Header::default()).unwrap();
    requests
        .iter()
        .for_each(|request| writer.push(request).unwrap());
    writer.finish().unwrap()
}

#[test]
fn every_format_has_a_seed_that_reads() {
    for format in FORMATS {
        let (requests, error) = read(format, &seed(format.name));
        // 256 bytes are not a multiple of 24-byte records.
        let cut = format.name == "oracleGeneral";
        assert!(
            requests > 0 && (error.is_some() == cut),
            "{} {error:?}",
            format.name
        );
    }
}

/// The input does not have the lines that a reader expects.
#[test]
fn a_format_named_wrongly_is_an_error() {
    let lirs: String = (0..1000).map(|n| format!("{n}\n")).collect();
    for format in FORMATS.iter().filter(|format| format.name != "lirs") {
        let (requests, error) = read(format, lirs.as_bytes());
        let message = error.expect(format.name).to_string();
        assert_eq!(requests, 0, "{}: {message}", format.name);
    }
    let binary: Vec<u8> = (0..1000u32).flat_map(u32::to_be_bytes).collect();
    let texts = [
        "lirs",
        "arc",
        "ucsd",
        "adaptsize",
        "lackey",
        "csv",
        "damon",
        "page",
    ];
    for name in texts {
        let (requests, error) = read(registry::by_name(name).unwrap(), &binary);
        assert!(requests == 0 && error.is_some(), "{name}");
    }
}

#[test]
fn damaged_compression_is_an_error_with_the_place() {
    let text: String = (0..50_000u64)
        .map(|n| format!("{}\n", n * 7919 % 100_003))
        .collect();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    // Without its checksum, zstd could not detect a changed literal byte.
    let mut zstd = zstd::Encoder::new(Vec::new(), 3).unwrap();
    zstd.include_checksum(true).unwrap();
    zstd.write_all(text.as_bytes()).unwrap();
    for whole in [gzip.finish().unwrap(), zstd.finish().unwrap()] {
        let (all, error) = read(registry::by_name("lirs").unwrap(), &whole);
        assert!(error.is_none() && all == 50_000);
        let (some, error) = read(
            registry::by_name("lirs").unwrap(),
            &whole[..whole.len() / 2],
        );
        let message = error.expect("an error").to_string();
        assert!(some < all && message.contains("after byte"), "{message}");
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 0x55;
        damaged[middle + 1] ^= 0xaa;
        let (_, error) = read(registry::by_name("lirs").unwrap(), &damaged);
        assert!(error.is_some());
    }
}

#[test]
fn empty_and_missing_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty.trace");
    std::fs::write(&path, "").unwrap();
    for format in FORMATS {
        let source = TraceSource {
            format: Some(*format),
            ..TraceSource::new(&path)
        };
        let result = source
            .open()
            .and_then(|mut stream| stream.next_batch(&mut Vec::new()));
        assert!(result.is_err(), "{}", format.name);
    }
    let unknown = TraceSource::new(&path).open().err().unwrap().to_string();
    assert!(unknown.contains("--trace-format"), "{unknown}");
    let missing = TraceSource::new(&directory.path().join("no"))
        .open()
        .err()
        .unwrap();
    assert!(matches!(missing, TraceError::Open { .. }));
    let a_directory = TraceSource::new(directory.path())
        .open()
        .err()
        .unwrap()
        .to_string();
    assert!(a_directory.contains("directory"), "{a_directory}");
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let text = proptest::collection::vec(
        prop_oneof![
            4 => proptest::sample::select(b"0123456789".to_vec()),
            2 => proptest::sample::select(b" \n,.:-*xLSIMrw=".to_vec()),
            1 => any::<u8>(),
        ],
        0..400,
    );
    prop_oneof![proptest::collection::vec(any::<u8>(), 0..600), text]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_end(bytes in bytes()) {
        for format in FORMATS {
            read(format, &bytes);
        }
        let mut input = Input::from_reader(Path::new(NAME), Cursor::new(bytes.clone())).unwrap();
        let _ = registry::detect(&mut input);
    }

    #[test]
    fn mutated_traces_end(at in any::<prop::sample::Index>(), byte in any::<u8>(),
                          cut in any::<prop::sample::Index>(), repeat in 0usize..3) {
        for format in FORMATS {
            let mut bytes = seed(format.name);
            let place = at.index(bytes.len());
            bytes[place] = byte;
            for _ in 0..repeat {
                let from = cut.index(bytes.len());
                bytes.extend_from_within(from..);
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            read(format, &bytes);
        }
    }

    /// Replaces any number in a valid text with one at or beyond a limit.
    #[test]
    fn extreme_numbers_end(which in any::<prop::sample::Index>(), what in 0usize..EXTREMES.len()) {
        for format in FORMATS {
            let bytes = seed(format.name);
            let digit = |at: usize| bytes[at].is_ascii_digit();
            let starts: Vec<usize> = (0..bytes.len())
                .filter(|&at| digit(at) && (at == 0 || !digit(at - 1)))
                .collect();
            if starts.is_empty() {
                continue;
            }
            let start = *which.get(&starts);
            let end = (start..bytes.len()).find(|&at| !digit(at)).unwrap_or(bytes.len());
            let changed = [&bytes[..start], EXTREMES[what].as_bytes(), &bytes[end..]].concat();
            read(format, &changed);
        }
    }

    /// Every format with every compression, whole, damaged and truncated.
    #[test]
    fn compressed_formats_end(at in any::<prop::sample::Index>(), byte in any::<u8>(),
                              cut in any::<prop::sample::Index>()) {
        for format in FORMATS {
            let bytes = seed(format.name);
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(&bytes).unwrap();
            for packed in [gzip.finish().unwrap(), zstd::encode_all(&bytes[..], 1).unwrap()] {
                prop_assert_eq!(read(format, &packed).0, read(format, &bytes).0, "{}", format.name);
                let mut damaged = packed.clone();
                damaged[at.index(packed.len())] = byte;
                read_bounded(format, &damaged);
                read_bounded(format, &packed[..cut.index(packed.len())]);
            }
        }
    }

    #[test]
    fn mutated_compression_ends(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let text = b"1\n2\n3\n".repeat(50);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&text).unwrap();
        // "1\n2\n3\n" as compressed by xz 5.4.
        let xz = XZ.to_vec();
        for mut bytes in [gzip.finish().unwrap(), zstd::encode_all(&text[..], 1).unwrap(), xz] {
            let place = at.index(bytes.len());
            bytes[place] = byte;
            let path = Path::new(NAME);
            if let Ok(mut input) = Input::from_reader(path, Cursor::new(bytes))
                && let Ok(format) = registry::detect(&mut input)
                && let Ok(reader) = (format.open)(input, &ReadOptions::default())
            {
                let mut stream = AccessStream::new(path, format, reader);
                for _ in 0..1000 {
                    if !matches!(stream.next_request(), Ok(Some(_))) {
                        break;
                    }
                }
            }
        }
    }
}

const XZ: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0x01, 0x00, 0x05, 0x31, 0x0a, 0x32, 0x0a, 0x33,
    0x0a, 0x00, 0x00, 0x00, 0xe3, 0xc1, 0xb1, 0x7e, 0x5b, 0xb8, 0x57, 0x4e, 0x00, 0x01, 0x1e, 0x06,
    0xc1, 0x2f, 0xa4, 0x1d, 0x1f, 0xb6, 0xf3, 0x7d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
];

#[test]
fn xz_is_read() {
    let (requests, error) = read(registry::by_name("lirs").unwrap(), XZ);
    assert!(requests == 3 && error.is_none(), "{error:?}");
    let (_, error) = read(registry::by_name("lirs").unwrap(), &XZ[..XZ.len() - 20]);
    assert!(error.unwrap().to_string().contains("xz"));
}
