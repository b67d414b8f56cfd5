// SPDX-License-Identifier: Apache-2.0
//! The registry of trace formats: one reader a file in `reader/`, one line here.

use std::path::Path;

use super::access::Request;
use super::error::TraceError;
use super::input::Input;
use super::page_trace;
use super::reader::{
    adaptsize, arc, cache2k, corda, csv, damon, lackey, lirs, oracle_general, ucsd,
};

/// The largest run of pages one request may stand for; more is a damaged record.
pub const PAGES_PER_REQUEST_MAX: u64 = 1 << 24;

/// Decompressed bytes for each byte of a file unless asked for otherwise. Of the
/// traces that simulators share most shrink to a tenth, and a loop of numbers to 1 in 138; gzip
/// cannot do more than 1 in 1032.
pub const EXPANSION_MAX: u64 = 250;

/// Settings of a reader.
#[derive(Debug, Clone)]
pub struct ReadOptions {
    /// Byte addresses become pages by this shift (12 is 4 KiB). At most 63.
    pub page_shift: u32,
    /// Names of CSV columns, where the header's own are not recognised.
    pub columns: Vec<(csv::Column, String)>,
    /// What reading may take.
    pub limits: ReadLimits,
}

/// What reading one trace may take; more is an error that names the option.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Bytes of memory for what is kept of its accesses and pages.
    pub memory_max_bytes: u64,
    /// Decompressed bytes for each byte of the file. Asked about once 64 MiB have come.
    pub expansion_max: u64,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            memory_max_bytes: u64::MAX,
            expansion_max: EXPANSION_MAX,
        }
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            page_shift: 12,
            columns: Vec::new(),
            limits: ReadLimits::default(),
        }
    }
}

/// A reader of one format.
pub trait RequestReader: Send {
    /// The next request, or `None` at the end of the trace.
    ///
    /// # Errors
    /// With the file and the place in it. After an error the reader is at an end.
    fn next_request(&mut self) -> Result<Option<Request>, TraceError>;

    /// What is worth saying once the end has been reached, such as that the file was cut off.
    fn note(&self) -> Option<&str> {
        None
    }

    /// What the file says about itself, in our own format.
    fn page_trace_header(&self) -> Option<&page_trace::Header> {
        None
    }
}

/// Starts reading an input in one format.
pub type OpenReader = fn(Input, &ReadOptions) -> Result<Box<dyn RequestReader>, TraceError>;

/// One format.
#[derive(Debug)]
pub struct Format {
    /// Its name in `--format`.
    pub name: &'static str,
    /// One line for help and lists.
    pub summary: &'static str,
    /// What file names contain (compared in lower case).
    pub name_hints: &'static [&'static str],
    /// Groups of words (lower case): a free-text description that contains every word of a group
    /// means this format.
    pub description_hints: &'static [&'static [&'static str]],
    /// Whether the first decompressed bytes can only be this format.
    pub recognise: fn(&[u8]) -> bool,
    /// Starts reading.
    pub open: OpenReader,
}

/// Every format. The order decides where several recognise a content: the stricter comes first.
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

/// The format of this name (case and `-`, `_` do not matter).
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

/// The format a free-text description means, such as the `format` column of a manifest.
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

/// The format a file name hints at.
#[must_use]
pub fn by_file_name(path: &Path) -> Option<&'static Format> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    FORMATS
        .iter()
        .find(|format| format.name_hints.iter().any(|hint| name.contains(hint)))
        .copied()
}

/// The format the content shows, then the one the file name hints at.
///
/// # Errors
/// [`TraceError::UnknownFormat`] when neither does.
pub fn detect(input: &mut Input) -> Result<&'static Format, TraceError> {
    let head = input.peek(4096).to_vec();
    let by_content = || {
        FORMATS
            .iter()
            .find(|format| (format.recognise)(&head))
            .copied()
    };
    // A name that fits is believed unless the content is unmistakably of another format.
    if let Some(format) = by_content().or_else(|| by_file_name(input.path())) {
        return Ok(format);
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

/// Whether the complete lines of `head` (at least one) all pass. Lines of nothing are left out.
pub(crate) fn lines_all(head: &[u8], passes: impl Fn(&[u8]) -> bool) -> bool {
    let complete = match head.iter().rposition(|&byte| byte == b'\n') {
        Some(last) => &head[..last],
        None => head,
    };
    let mut lines = 0;
    complete
        .split(|&byte| byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty())
        .all(|line| {
            lines += 1;
            passes(line)
        })
        && lines > 0
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
    fn content_tells_the_format() {
        for (content, name) in [
            (&b"0\r\n1\r\n2\r\n"[..], "lirs"),
            (b"20\n*\n2877\n*\n", "lirs"),
            (b"230027 8 0 0\n1842745 64 0 1\n", "arc"),
            (b"s 0x1fffff50 1\nl 0x1fffff58 1\n", "ucsd"),
            (b"1 0 68\n2 1 7454\n", "adaptsize"),
            (b"==12== Lackey\nI  04000000,3\n L 1ffeffe7e0,8\n", "lackey"),
            (b"time,page,op\n1,2,r\n", "csv"),
        ] {
            let found = FORMATS.iter().find(|format| (format.recognise)(content));
            assert_eq!(found.map(|format| format.name), Some(name));
        }
    }
}
