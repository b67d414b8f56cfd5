// SPDX-License-Identifier: Apache-2.0
//! All trace formats: one reader per file in `reader/`, and one line here.

use std::path::Path;

use super::error::TraceError;
use super::format::Format;
use super::input::{Input, without_mark};
use super::page_trace;
use super::reader::{
    adaptsize, arc, cache2k, corda, csv, damon, lackey, lirs, oracle_general, ucsd,
};

/// All formats. If several recognise a content, the first one wins, so stricter ones come first.
pub static FORMATS: &[&Format] = &[
    &page_trace::FORMAT,
    &damon::FORMAT,
    &lackey::FORMAT,
    &ucsd::FORMAT,
    &arc::FORMAT,
    &adaptsize::FORMAT,
    &csv::FORMAT,
    &lirs::FORMAT,
    &oracle_general::FORMAT,
    &corda::FORMAT,
    &cache2k::FORMAT,
];

/// Looks up a format by name (ignoring case, `-` and `_`).
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Format> {
    let wanted = plain(name);
    FORMATS
        .iter()
        .copied()
        .find(|format| plain(format.name) == wanted)
}

/// The names of all formats, for messages.
#[must_use]
pub fn names() -> String {
    FORMATS
        .iter()
        .map(|format| format.name)
        .collect::<Vec<_>>()
        .join(", ")
}

/// The format described by free text, such as the `format` column of a manifest.
#[must_use]
pub fn by_description(description: &str) -> Option<&'static Format> {
    if let Some(format) = by_name(description.trim()) {
        return Some(format);
    }
    let text = description.to_lowercase();
    let matches_any = |format: &&&Format| {
        format
            .description_hints
            .iter()
            .any(|words| words.iter().all(|word| text.contains(word)))
    };
    FORMATS.iter().find(matches_any).copied()
}

/// The format suggested by a file name.
#[must_use]
pub fn by_file_name(path: &Path) -> Option<&'static Format> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    FORMATS
        .iter()
        .find(|format| format.name_hints.iter().any(|hint| name.contains(hint)))
        .copied()
}

/// Detects the format from the content, then from the file name.
///
/// # Errors
/// [`TraceError::UnknownFormat`] if neither is conclusive; [`TraceError::Read`] if nothing can be
/// read.
pub fn detect(input: &mut Input) -> Result<&'static Format, TraceError> {
    let head = without_mark(input.peek(4096)).to_vec();
    let by_content = || {
        FORMATS
            .iter()
            .find(|format| (format.recognise)(&head))
            .copied()
    };
    // A fitting name is accepted unless the content is clearly of another format.
    if let Some(format) = by_content().or_else(|| by_file_name(input.path())) {
        return Ok(format);
    }
    // A file damaged in its first block has no content to detect.
    if head.is_empty() {
        input.refuse_damaged()?;
    }
    let hint = if head.is_empty() {
        "the file is empty".to_string()
    } else {
        format!("first bytes {:02x?}", &head[..head.len().min(8)])
    };
    Err(TraceError::UnknownFormat {
        path: input.path().to_path_buf(),
        hint,
        known: names(),
    })
}

fn plain(name: &str) -> String {
    name.chars()
        .filter(|c| !matches!(c, '-' | '_' | ' '))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for format in FORMATS {
            assert_eq!(by_name(format.name).unwrap().name, format.name);
            assert_eq!(
                by_name(&format.name.to_uppercase()).unwrap().name,
                format.name
            );
        }
        assert!(by_name("nonsense").is_none());
    }

    #[test]
    fn descriptions_as_people_write_them() {
        for (text, name) in [
            (
                "gzip text, one decimal block number per line; CRLF line ends",
                "lirs",
            ),
            (
                "zstd text, 4 columns: start_block count 0 request_no; expand",
                "arc",
            ),
            (
                "text: \"s|l 0xADDR n\" (store/load, hex byte address); page = ADDR>>12",
                "ucsd",
            ),
            (
                "uncompressed oracleGeneral: 24-byte little-endian records u32 time",
                "oracleGeneral",
            ),
            ("gzip binary, big-endian int64 keys", "corda"),
            ("xz binary, big-endian uint32 keys, no header", "cache2k"),
            ("xz text: time id size", "adaptsize"),
            ("valgrind --tool=lackey --trace-mem=yes", "lackey"),
            ("csv with a header", "csv"),
            ("agewise page trace", "page"),
            ("CACHE2K", "cache2k"),
        ] {
            assert_eq!(
                by_description(text).map(|format| format.name),
                Some(name),
                "{text}"
            );
        }
        assert!(by_description("something else").is_none());
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_text() {
        for (text, name, first_page) in [
            ("20\n30\n", "lirs", 20),
            ("5 3 0 0\n", "arc", 5),
            ("page,op\n7,r\n", "csv", 7),
        ] {
            let marked = format!("\u{feff}{text}").into_bytes();
            let input = Input::from_reader(Path::new("test"), std::io::Cursor::new(marked));
            let mut input = input.unwrap();
            let format = detect(&mut input).unwrap();
            assert_eq!(format.name, name);
            let mut reader = (format.open)(input, &crate::ReadOptions::default()).unwrap();
            let request = reader.next_request().unwrap().unwrap();
            assert_eq!(request.first_page, first_page);
        }
    }

    /// Published traces of ARC use the third column, and servers log what ends rather than begins.
    #[test]
    fn columns_in_use_and_a_few_late_lines_are_no_other_format() {
        let name = |content: &str| {
            let content = content.as_bytes();
            let found = FORMATS.iter().find(|format| (format.recognise)(content));
            found.map(|format| format.name)
        };
        let p12 = "1494305 8 10 15\n1782849 24 10 16\n1537505 8 10 17\n";
        assert_eq!(name(p12), Some("arc"));
        let mut times: Vec<u64> = (0..20).collect();
        times.swap(7, 8);
        let late: String = times.iter().map(|time| format!("{time} 7 100\n")).collect();
        assert_eq!(name(&late), Some("adaptsize"));
    }

    /// Files of numbers in columns that are not those of a format would otherwise be misread.
    #[test]
    fn columns_of_numbers_are_not_guessed() {
        for content in [&b"1 7 100 3\n2 8 200 1\n"[..], b"9 7 100\n2 8 200\n"] {
            assert!(FORMATS.iter().all(|format| !(format.recognise)(content)));
        }
    }

    #[test]
    fn content_tells_the_format() {
        for (content, name) in [
            (&b"0\r\n1\r\n2\r\n"[..], "lirs"),
            (b"20\n*\n2877\n*\n", "lirs"),
            (b"# blocks\n20\n***\n", "lirs"),
            (b"230027 8 0 0\n1842745 64 0 1\n", "arc"),
            (b"s 0x1fffff50 1\nl 0x1fffff58 1\n", "ucsd"),
            (b"1 0 68\n2 1 7454\n", "adaptsize"),
            (b"==12== Lackey\nI  04000000,3\n L 1ffeffe7e0,8\n", "lackey"),
            (b"time,page,op\n1,2,r\n", "csv"),
            (b"# written by hand\ntime,page\n1,2\n", "csv"),
        ] {
            let found = FORMATS.iter().find(|format| (format.recognise)(content));
            assert_eq!(found.map(|format| format.name), Some(name));
        }
    }
}
