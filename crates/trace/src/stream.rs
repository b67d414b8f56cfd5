// SPDX-License-Identifier: Apache-2.0
//! A trace as a stream of single-page accesses; memory is bounded by one batch.

use std::path::{Path, PathBuf};

use super::access::{Access, Request};
use super::error::TraceError;
use super::format::{Format, PAGE_SHIFT_DEFAULT, ReadOptions, RequestReader};
use super::input::Input;
use super::page_trace;
use super::progress::ReadProgress;
use super::reader::csv;
use super::registry;

/// Number of accesses in a batch.
pub const BATCH_ACCESSES: usize = 4096;

/// Number of requests taken from a reader at once.
const BLOCK_REQUESTS: usize = 64;

/// A trace to read, and how to read it.
#[derive(Debug, Clone)]
pub struct TraceSource {
    /// The file.
    pub path: PathBuf,
    /// The format; `None` to detect it from content and name.
    pub format: Option<&'static Format>,
    /// Settings of the reader.
    pub options: ReadOptions,
    /// Whether to count a run of accesses to the same page as one access.
    pub collapse_repeats: bool,
    /// Receives how much has been read.
    pub progress: Option<ReadProgress>,
}

impl TraceSource {
    /// A file whose format is detected from content and name.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            format: None,
            options: ReadOptions::default(),
            collapse_repeats: false,
            progress: None,
        }
    }

    /// Refuses what cannot be read a second time, such as a pipe.
    ///
    /// # Errors
    /// [`TraceError::ReadOnce`].
    pub fn require_file(&self) -> Result<(), TraceError> {
        // What does not exist and what is a directory has an error of its own when it is opened.
        let found = std::fs::metadata(&self.path);
        if found.is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            return Err(TraceError::ReadOnce {
                path: self.path.clone(),
            });
        }
        Ok(())
    }

    /// Starts reading.
    ///
    /// # Errors
    /// The file cannot be opened, its format cannot be detected, its beginning is invalid, or its
    /// header has another page size than was given.
    pub fn open(&self) -> Result<AccessStream, TraceError> {
        let mut input = Input::open(&self.path)?;
        input.set_expansion_max(self.options.limits.expansion_max);
        input.set_progress(self.progress.clone());
        let format = match self.format {
            Some(format) => format,
            None => registry::detect(&mut input)?,
        };
        if !self.options.columns.is_empty() && format.name != csv::FORMAT.name {
            return Err(TraceError::WrongFormat {
                path: self.path.clone(),
                format: csv::FORMAT.name,
                what: format!(
                    "it is {}, which has no columns to name (--column)",
                    format.name
                ),
            });
        }
        let compression = input.compression();
        let reader = (format.open)(input, &self.options)?;
        let header = reader.page_trace_header();
        let page_shift = self.options.page_shift_of(&self.path, header)?;
        let mut stream = AccessStream::new(&self.path, format, reader);
        stream.page_shift = page_shift;
        stream.collapse_repeats = self.collapse_repeats;
        stream.compression = compression;
        stream.memory_max_bytes = self.options.limits.memory_max_bytes;
        Ok(stream)
    }
}

/// The accesses of a trace, in order.
pub struct AccessStream {
    path: PathBuf,
    format: &'static Format,
    compression: &'static str,
    page_shift: u32,
    memory_max_bytes: u64,
    reader: Box<dyn RequestReader>,
    /// Requests taken from the reader, and how many of them were returned.
    block: Vec<Request>,
    block_at: usize,
    /// An error found while reading ahead, returned once the requests before it are.
    failed: Option<TraceError>,
    /// Whether an error was returned: it is the end.
    has_failed: bool,
    /// The rest of the request that did not fit in the last batch.
    rest: Request,
    collapse_repeats: bool,
    last_page: Option<u64>,
    requests: u64,
}

impl AccessStream {
    /// Splits the requests of a reader into accesses. `path` is for messages. Its
    /// [`page_shift`](Self::page_shift) is that of a header, or else [`PAGE_SHIFT_DEFAULT`], also
    /// if the reader was opened with another one.
    #[must_use]
    pub fn new(path: &Path, format: &'static Format, reader: Box<dyn RequestReader>) -> Self {
        let header = reader.page_trace_header();
        Self {
            path: path.to_path_buf(),
            format,
            compression: "plain",
            page_shift: header.map_or(PAGE_SHIFT_DEFAULT, |header| header.page_shift.into()),
            memory_max_bytes: u64::MAX,
            reader,
            block: Vec::new(),
            block_at: 0,
            failed: None,
            has_failed: false,
            rest: Request::default(),
            collapse_repeats: false,
            last_page: None,
            requests: 0,
        }
    }

    /// The format being read.
    #[must_use]
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// How the file is compressed.
    #[must_use]
    pub fn compression(&self) -> &'static str {
        self.compression
    }

    /// A page is `1 << page_shift` bytes, at most 63: as its header says, or else as the
    /// [`TraceSource`] asked for.
    #[must_use]
    pub fn page_shift(&self) -> u32 {
        self.page_shift
    }

    /// Records read so far; a record may be several accesses.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// Checks the memory of a consumer that has kept `kept_bytes` so far; to be called after every
    /// batch.
    ///
    /// # Errors
    /// [`TraceError::Memory`] if that exceeds the limit.
    pub fn check_memory(&self, kept_bytes: usize) -> Result<(), TraceError> {
        if kept_bytes as u64 > self.memory_max_bytes {
            return Err(TraceError::Memory {
                path: self.path.clone(),
                max_bytes: self.memory_max_bytes,
            });
        }
        Ok(())
    }

    /// A remark to report at the end of the trace, such as that the file was truncated.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.reader.note()
    }

    /// What a page trace says of all its accesses, also if it was written as CSV; other formats
    /// have a header only if they are known to differ from the default one.
    #[must_use]
    pub fn page_trace_header(&self) -> Option<&page_trace::Header> {
        self.reader.page_trace_header()
    }

    /// The next request, not split; as stored, unless repeats are collapsed. If the last batch
    /// ended inside a request, the rest of that comes first.
    ///
    /// # Errors
    /// Those of the reader, and [`TraceError::Empty`] at the end of a trace without requests. After
    /// an error the stream is at its end.
    pub fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        let is_there = self.rest.page_count > 0 || self.take_request()?;
        let request = std::mem::take(&mut self.rest);
        Ok(is_there.then_some(request))
    }

    /// Makes the next request the rest; returns false at the end.
    #[inline(always)]
    fn take_request(&mut self) -> Result<bool, TraceError> {
        loop {
            if self.block_at == self.block.len() {
                self.next_block()?;
            }
            if self.block.is_empty() {
                break;
            }
            self.rest = self.block[self.block_at];
            self.block_at += 1;
            self.requests += 1;
            if !self.collapse_repeats || self.collapse() {
                return Ok(true);
            }
        }
        match self.requests {
            0 if !self.has_failed => {
                self.has_failed = true;
                Err(TraceError::Empty {
                    path: self.path.clone(),
                    format: self.format.name,
                    note: self.reader.note().map(str::to_owned),
                })
            }
            _ => Ok(false),
        }
    }

    /// Drops the first page of the rest if the last request ended in it; returns false if nothing
    /// is left.
    fn collapse(&mut self) -> bool {
        let rest = &mut self.rest;
        if rest.page_count == 0 {
            return true;
        }
        let first = rest.first_page;
        let last = first.wrapping_add(rest.page_count - 1);
        if self.last_page.replace(last) == Some(first) {
            rest.first_page = first.wrapping_add(1);
            rest.page_count -= 1;
        }
        rest.page_count > 0
    }

    /// Replaces the block with the next one, which is empty at the end.
    fn next_block(&mut self) -> Result<(), TraceError> {
        self.block.clear();
        self.block_at = 0;
        if self.failed.is_none() && !self.has_failed {
            let read = self.reader.next_requests(BLOCK_REQUESTS, &mut self.block);
            self.failed = read.err();
        }
        match self.failed.take() {
            Some(error) if self.block.is_empty() => {
                self.has_failed = true;
                Err(error)
            }
            failed => {
                self.failed = failed;
                Ok(())
            }
        }
    }

    /// Replaces the content of `batch` with the next accesses, at most [`BATCH_ACCESSES`]. Returns
    /// false at the end.
    ///
    /// # Errors
    /// As [`AccessStream::next_request`]. Accesses before an error have already been returned.
    pub fn next_batch(&mut self, batch: &mut Vec<Access>) -> Result<bool, TraceError> {
        self.next_batch_as(batch, Access::clone)
    }

    /// Like [`AccessStream::next_batch`], keeping of each access what `keep` returns.
    pub(crate) fn next_batch_as<T>(
        &mut self,
        batch: &mut Vec<T>,
        mut keep: impl FnMut(&Access) -> T,
    ) -> Result<bool, TraceError> {
        batch.clear();
        batch.reserve(BATCH_ACCESSES);
        while batch.len() < BATCH_ACCESSES {
            if self.rest.page_count == 0 {
                match self.take_request() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) if batch.is_empty() => return Err(error),
                    Err(error) => {
                        self.failed = Some(error);
                        break;
                    }
                }
            }
            self.split(batch, &mut keep);
        }
        Ok(!batch.is_empty())
    }

    fn split<T>(&mut self, batch: &mut Vec<T>, mut keep: impl FnMut(&Access) -> T) {
        let rest = &mut self.rest;
        let room = (BATCH_ACCESSES - batch.len()) as u64;
        let take = rest.page_count.min(room);
        let access = Access {
            page: rest.first_page,
            time_ns: rest.time_ns,
            process: rest.process,
            kind: rest.kind,
            class: rest.class,
            evidence: rest.evidence,
        };
        for at in 0..take {
            let page = rest.first_page + at;
            batch.push(keep(&Access { page, ..access }));
        }
        rest.page_count -= take;
        rest.first_page = rest.first_page.wrapping_add(take);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::column::Column;
    use crate::reader::{arc, lirs};

    fn stream(format: &'static Format, text: &str) -> AccessStream {
        let path = Path::new("test");
        let input =
            Input::from_reader(path, std::io::Cursor::new(text.as_bytes().to_vec())).unwrap();
        let reader = (format.open)(input, &ReadOptions::default()).unwrap();
        AccessStream::new(path, format, reader)
    }

    fn pages(stream: &mut AccessStream) -> Vec<u64> {
        let (mut batch, mut pages) = (Vec::new(), Vec::new());
        while stream.next_batch(&mut batch).unwrap() {
            assert!(batch.len() <= BATCH_ACCESSES);
            pages.extend(batch.iter().map(|access| access.page));
        }
        pages
    }

    #[test]
    fn runs_are_split_across_batches() {
        let mut stream = stream(&arc::FORMAT, "5 10000 0 0\n7 0 0 1\n1 2 0 2\n");
        let expected: Vec<u64> = (5..10005).chain(1..3).collect();
        assert_eq!(pages(&mut stream), expected);
        assert_eq!(stream.requests(), 3);
    }

    #[test]
    fn what_does_not_fit_in_a_batch_is_the_next_request() {
        let mut stream = stream(&arc::FORMAT, "5 10000 0 0\n7 2 0 1\n");
        assert!(stream.next_batch(&mut Vec::new()).unwrap());
        let requests = std::iter::from_fn(|| stream.next_request().unwrap());
        let requests: Vec<_> = requests.map(|of| (of.first_page, of.page_count)).collect();
        assert_eq!(requests, [(5 + 4096, 10_000 - 4096), (7, 2)]);
    }

    #[test]
    fn columns_are_named_where_there_are_some() {
        let file = tempfile::Builder::new()
            .suffix(".trace")
            .tempfile()
            .unwrap();
        std::fs::write(&file, "1\n2\n").unwrap();
        let mut source = TraceSource::new(file.path());
        source.options.columns = vec![(Column::Page, "id".to_owned())];
        let error = source.open().err().unwrap().to_string();
        assert!(error.contains("this is not csv: it is lirs"), "{error}");
    }

    #[test]
    fn the_header_says_the_page_size_and_nothing_contradicts_it() {
        let text = "time_ns,page,count,kind,process,class\n0,1,1,,0,\n";
        let with_header = format!("# page trace: page_shift=16\n{text}");
        let shift = |text: &str, given| {
            let file = tempfile::Builder::new().suffix(".csv").tempfile().unwrap();
            std::fs::write(&file, text).unwrap();
            let mut source = TraceSource::new(file.path());
            source.options.page_shift = given;
            source.open().map(|stream| stream.page_shift())
        };
        assert_eq!(shift(text, None).unwrap(), 12);
        assert_eq!(shift(text, Some(14)).unwrap(), 14);
        assert_eq!(shift(&with_header, None).unwrap(), 16);
        assert_eq!(shift(&with_header, Some(16)).unwrap(), 16);
        let error = shift(&with_header, Some(12)).unwrap_err().to_string();
        assert!(error.contains("page shift 12 was given"), "{error}");
        assert!(error.contains("its header says 16"), "{error}");
    }

    #[test]
    fn the_whole_file_is_told_of() {
        let file = tempfile::Builder::new()
            .suffix(".trace")
            .tempfile()
            .unwrap();
        std::fs::write(&file, "12345\n".repeat(100_000)).unwrap();
        let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let tell = std::sync::Arc::clone(&told);
        let mut source = TraceSource::new(file.path());
        source.progress = Some(ReadProgress::new(move |read, all| {
            tell.lock().unwrap().push((read, all));
        }));
        pages(&mut source.open().unwrap());
        let told = told.lock().unwrap();
        assert!(told.is_sorted() && told.len() > 3, "{told:?}");
        assert_eq!(told.last(), Some(&(600_000, 600_000)));
    }

    #[test]
    fn repeats_collapse_across_requests() {
        let mut single = stream(&lirs::FORMAT, "1\n1\n2\n2\n2\n1\n");
        single.collapse_repeats = true;
        assert_eq!(pages(&mut single), [1, 2, 1]);
        let mut runs = stream(
            &arc::FORMAT,
            "1 3 0 0\n3 2 0 1\n9 0 0 2\n4 1 0 3\n4 2 0 4\n",
        );
        runs.collapse_repeats = true;
        let requests = std::iter::from_fn(|| runs.next_request().unwrap());
        let requests: Vec<_> = requests.map(|of| (of.first_page, of.page_count)).collect();
        assert_eq!(requests, [(1, 3), (4, 1), (9, 0), (5, 1)]);
        assert_eq!(runs.requests(), 5, "as many are stored");
    }

    #[test]
    fn an_error_comes_behind_what_was_good() {
        let mut stream = stream(&lirs::FORMAT, "1\n2\nx\n3\n");
        let mut batch = Vec::new();
        assert!(stream.next_batch(&mut batch).unwrap());
        assert_eq!(batch.len(), 2);
        let error = stream.next_batch(&mut batch).unwrap_err().to_string();
        assert!(error.contains("line 3"), "{error}");
        assert!(!stream.next_batch(&mut batch).unwrap());
        assert!(stream.next_request().unwrap().is_none());
    }

    #[test]
    fn a_trace_without_requests_is_an_error() {
        let mut stream = stream(&lirs::FORMAT, "*\n\n");
        let error = stream.next_batch(&mut Vec::new()).unwrap_err();
        assert!(matches!(error, TraceError::Empty { .. }));
        assert!(!stream.next_batch(&mut Vec::new()).unwrap());
    }
}
