// SPDX-License-Identifier: Apache-2.0
//! Trace formats: how they are detected and read.

use std::path::Path;

pub use super::access::PAGES_PER_REQUEST_MAX;
use super::access::Request;
use super::error::TraceError;
use super::input::{EXPANSION_MAX, Input};
use super::page_trace::{self, PAGE_SHIFT_MAX};
use super::reader::column::Column;

/// The page shift of traces that do not record theirs: pages of 4 KiB.
pub const PAGE_SHIFT_DEFAULT: u32 = 12;

/// Settings of a reader.
#[derive(Debug, Clone, Default)]
pub struct ReadOptions {
    /// A page is `1 << page_shift` bytes, at most 63: byte addresses become pages by this shift.
    /// `None` for what the header of a page trace says, and [`PAGE_SHIFT_DEFAULT`] in formats that
    /// do not say it.
    pub page_shift: Option<u32>,
    /// Names of CSV columns, if the header uses unusual ones.
    pub columns: Vec<(Column, String)>,
    /// Limits on reading.
    pub limits: ReadLimits,
}

/// Limits on the resources for reading one trace; the error for exceeding one names the option.
#[derive(Debug, Clone, Copy)]
pub struct ReadLimits {
    /// Memory for the accesses and pages of the trace, in bytes.
    pub memory_max_bytes: u64,
    /// Decompressed bytes per byte of the file. Checked once 64 MiB have been read.
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

impl ReadOptions {
    /// The page shift of a trace without a header. `path` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Limit`] for more than 63.
    pub fn page_shift_or_default(&self, path: &Path) -> Result<u32, TraceError> {
        let shift = self.page_shift.unwrap_or(PAGE_SHIFT_DEFAULT);
        match shift <= PAGE_SHIFT_MAX.into() {
            true => Ok(shift),
            false => {
                let what = format!("a page shift of {shift}; at most {PAGE_SHIFT_MAX}");
                Err(TraceError::limit(path, what))
            }
        }
    }

    /// The page shift of a trace with this header.
    ///
    /// # Errors
    /// [`TraceError::PageShift`] if another one was given; [`TraceError::Limit`] for more than 63.
    pub(crate) fn page_shift_of(
        &self,
        path: &Path,
        header: Option<&page_trace::Header>,
    ) -> Result<u32, TraceError> {
        let Some(recorded) = header.map(|header| u32::from(header.page_shift)) else {
            return self.page_shift_or_default(path);
        };
        match self.page_shift {
            Some(given) if given != recorded => Err(TraceError::PageShift {
                path: path.to_path_buf(),
                recorded,
                given,
            }),
            _ => Ok(recorded),
        }
    }
}

/// A reader of one format.
pub trait RequestReader: Send {
    /// The next request, or `None` at the end of the trace.
    ///
    /// # Errors
    /// With the file and the place in it. What a reader returns after an error is not defined:
    /// [`crate::AccessStream`] does not ask it again.
    fn next_request(&mut self) -> Result<Option<Request>, TraceError>;

    /// Appends the next requests to `requests`, at most `count`; none at the end of the trace.
    ///
    /// # Errors
    /// As [`RequestReader::next_request`]; requests before the error have been appended.
    // Compiled into each reader, where a request is made in its place: one that is returned through
    // a call is copied right after it was written in smaller parts, which stalls.
    fn next_requests(
        &mut self,
        count: usize,
        requests: &mut Vec<Request>,
    ) -> Result<(), TraceError> {
        for _ in 0..count {
            let Some(request) = self.next_request()? else {
                break;
            };
            requests.push(request);
        }
        Ok(())
    }

    /// A remark to report at the end of the trace, such as that the file was truncated.
    fn note(&self) -> Option<&str> {
        None
    }

    /// What a page trace says of all its accesses, also if it was written as CSV; other formats
    /// have a header only if they are known to differ from the default one.
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
    /// Substrings of file names that suggest this format (compared in lower case).
    pub name_hints: &'static [&'static str],
    /// Groups of words (lower case): a free-text description that contains all words of a group
    /// means this format.
    pub description_hints: &'static [&'static [&'static str]],
    /// Whether the first decompressed bytes can only be of this format.
    pub recognise: fn(&[u8]) -> bool,
    /// Starts reading.
    pub open: OpenReader,
}

/// Whether `passes` holds for all complete lines of `head` (at least one). Empty lines are ignored.
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
