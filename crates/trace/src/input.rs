// SPDX-License-Identifier: Apache-2.0
//! A decompressed file, read in lines or records, that keeps track of its position.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::compression::{self, Compression};
use super::error::TraceError;
use super::progress::ReadProgress;

/// Size of the buffer, and so the longest line.
const BUFFER_BYTES: usize = 256 << 10;
/// Any file may expand to this size, however small it is: the smallest may well be one run of
/// zeros.
const EXPANSION_FROM_BYTES: u64 = 64 << 20;

/// Default limit on decompressed bytes per byte of a file. Most traces shared by simulators
/// compress to a tenth, and a loop of numbers to 1 in 138; gzip cannot do better than 1 in 1032.
pub const EXPANSION_MAX: u64 = 250;

/// The mark that editors and spreadsheets put before text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The beginning of a file without the mark that text may have there.
pub(crate) fn without_mark(head: &[u8]) -> &[u8] {
    head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head)
}

/// The content of a trace file.
pub struct Input {
    path: PathBuf,
    compression: Compression,
    source: Box<dyn Read + Send>,
    /// Bytes read from the file itself.
    file_bytes: Arc<AtomicU64>,
    /// Length of the file; 0 if it is not known.
    length_bytes: u64,
    progress: Option<ReadProgress>,
    expansion_max: u64,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Offset of `buffer[start]` in the decompressed content.
    offset: u64,
    /// Offset and number (from 1) of the last line or record returned; number 0 before any line.
    record_offset: u64,
    line: u64,
    finished: bool,
    /// An error found while looking ahead, returned once the bytes before it are consumed.
    pending: Option<std::io::Error>,
}

impl Input {
    /// Opens a file and detects its compression.
    ///
    /// # Errors
    /// [`TraceError::Open`] if the file cannot be opened or its first bytes cannot be read.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let as_error = |source| TraceError::Open {
            path: path.to_path_buf(),
            source,
        };
        let file = File::open(path).map_err(as_error)?;
        let metadata = file.metadata().map_err(as_error)?;
        if metadata.is_dir() {
            return Err(as_error(std::io::Error::other(
                "is a directory, not a trace file",
            )));
        }
        let mut input = Self::from_reader(path, file)?;
        input.length_bytes = metadata.len();
        Ok(input)
    }

    /// Reads from any reader; `path` is only for messages.
    ///
    /// # Errors
    /// As [`Input::open`].
    pub fn from_reader<R: Read + Send + 'static>(
        path: &Path,
        reader: R,
    ) -> Result<Self, TraceError> {
        let opened = compression::open(reader).map_err(|source| TraceError::Open {
            path: path.to_path_buf(),
            source,
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            compression: opened.compression,
            source: opened.content,
            file_bytes: opened.file_bytes,
            length_bytes: 0,
            progress: None,
            expansion_max: EXPANSION_MAX,
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
            offset: 0,
            record_offset: 0,
            line: 0,
            finished: false,
            pending: None,
        })
    }

    /// The file, for messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The detected compression.
    #[must_use]
    pub fn compression(&self) -> &'static str {
        self.compression.name()
    }

    /// Sets how many times its size the file may expand to.
    pub fn set_expansion_max(&mut self, expansion_max: u64) {
        self.expansion_max = expansion_max;
    }

    /// From now on reports how much of the file has been read, unless its length is unknown.
    pub fn set_progress(&mut self, progress: Option<ReadProgress>) {
        self.progress = progress.filter(|_| self.length_bytes > 0);
    }

    /// Number of bytes consumed.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Up to `wanted` of the next bytes, without consuming them; fewer at the end of the file. An
    /// error of the decompressor is kept for the read that reaches it.
    pub fn peek(&mut self, wanted: usize) -> &[u8] {
        let wanted = wanted.min(BUFFER_BYTES);
        while self.end - self.start < wanted && self.pending.is_none() && !self.finished {
            if let Err(error) = self.fill() {
                self.pending = Some(error);
            }
        }
        &self.buffer[self.start..self.end.min(self.start + wanted)]
    }

    /// The next line without its end (`\n` or `\r\n`) and, if it is the first, without a byte order
    /// mark; `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError::Read`], or [`TraceError::Malformed`] for a line of more than 256 KiB.
    pub fn next_line(&mut self, format: &'static str) -> Result<Option<&[u8]>, TraceError> {
        let mut searched = 0;
        let length = loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(found) = memchr::memchr(b'\n', &unread[searched..]) {
                break searched + found;
            }
            searched = unread.len();
            if self.finished {
                if searched == 0 {
                    return Ok(None);
                }
                break searched;
            }
            if searched == BUFFER_BYTES {
                let what = format!("no line end within {BUFFER_BYTES} bytes: this is not text");
                self.begin_record();
                return Err(self.malformed(format, what));
            }
            self.fill_or_error()?;
        };
        self.begin_record();
        self.line += 1;
        let first = self.start;
        self.consume((length + 1).min(self.end - self.start));
        let mut line = &self.buffer[first..first + length];
        if self.line == 1 {
            line = without_mark(line);
        }
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The result of `parse` for the next non-empty line; lines are trimmed. `None` at the end of
    /// the file.
    ///
    /// # Errors
    /// As [`next_line`](Self::next_line), and [`TraceError::Malformed`] with the problem reported
    /// by `parse`.
    pub fn next_parsed<T>(
        &mut self,
        format: &'static str,
        mut parse: impl FnMut(&[u8]) -> Result<Option<T>, String>,
    ) -> Result<Option<T>, TraceError> {
        while let Some(line) = self.next_line(format)? {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            match parse(line) {
                Ok(None) => {}
                Ok(parsed) => return Ok(parsed),
                Err(what) => return Err(self.malformed(format, what)),
            }
        }
        Ok(None)
    }

    /// The next record of `N` bytes, or `None` at the end of the file.
    ///
    /// # Errors
    /// [`TraceError::Read`], or [`TraceError::Truncated`] if the file ends inside the record.
    #[inline]
    pub fn next_record<const N: usize>(
        &mut self,
        format: &'static str,
    ) -> Result<Option<[u8; N]>, TraceError> {
        const { assert!(N <= BUFFER_BYTES) };
        while self.end - self.start < N && !self.finished {
            self.fill_or_error()?;
        }
        self.begin_record();
        let unread = &self.buffer[self.start..self.end];
        match unread.first_chunk::<N>() {
            Some(record) => {
                let record = *record;
                self.consume(N);
                Ok(Some(record))
            }
            None if unread.is_empty() => Ok(None),
            None => Err(TraceError::Truncated {
                path: self.path.clone(),
                format,
                offset: self.record_offset,
                got: unread.len(),
                expected: N,
            }),
        }
    }

    /// Fills `out` with the next bytes and returns their number, which is smaller only at the end.
    ///
    /// # Errors
    /// [`TraceError::Read`].
    pub fn read_bytes(&mut self, out: &mut [u8]) -> Result<usize, TraceError> {
        self.begin_record();
        let mut filled = 0;
        while filled < out.len() {
            if self.start == self.end {
                if self.finished {
                    break;
                }
                self.fill_or_error()?;
                continue;
            }
            let take = (out.len() - filled).min(self.end - self.start);
            out[filled..filled + take].copy_from_slice(&self.buffer[self.start..self.start + take]);
            filled += take;
            self.consume(take);
        }
        Ok(filled)
    }

    /// The number of the last line returned, from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Creates a [`TraceError::Malformed`] for the last line or record returned.
    #[must_use]
    pub fn malformed(&self, format: &'static str, what: impl Into<String>) -> TraceError {
        TraceError::Malformed {
            path: self.path.clone(),
            format,
            offset: self.record_offset,
            line: self.line,
            what: what.into(),
        }
    }

    /// Refuses a file of printable text if a binary format was given: its bytes would otherwise be
    /// taken for keys.
    ///
    /// # Errors
    /// [`TraceError::WrongFormat`].
    pub fn refuse_text(&mut self, format: &'static str) -> Result<(), TraceError> {
        let head = without_mark(self.peek(4096));
        let printable = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e);
        if head.len() >= 8 && head.iter().all(printable) {
            return Err(TraceError::WrongFormat {
                path: self.path.clone(),
                format,
                what: "it is text, and the format is binary".into(),
            });
        }
        Ok(())
    }

    fn begin_record(&mut self) {
        self.record_offset = self.offset;
    }

    fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Returns the decompressor's error that was found while looking ahead.
    ///
    /// # Errors
    /// [`TraceError::Read`].
    pub fn refuse_damaged(&mut self) -> Result<(), TraceError> {
        let Some(source) = self.pending.take() else {
            return Ok(());
        };
        Err(TraceError::Read {
            path: self.path.clone(),
            offset: self.offset + (self.end - self.start) as u64,
            content: self.compression.name(),
            source,
        })
    }

    fn fill_or_error(&mut self) -> Result<(), TraceError> {
        if self.pending.is_none() {
            self.pending = self.fill().err();
        }
        self.refuse_damaged()?;
        let bytes = self.offset + (self.end - self.start) as u64;
        let most = self
            .file_bytes
            .load(Ordering::Relaxed)
            .saturating_mul(self.expansion_max);
        let is_bomb = self.compression != Compression::Plain && bytes > most;
        if is_bomb && bytes > EXPANSION_FROM_BYTES {
            return Err(TraceError::Expansion {
                path: self.path.clone(),
                bytes,
                expansion_max: self.expansion_max,
            });
        }
        Ok(())
    }

    /// Reads more after the unread data. The caller has consumed something, or asks for less than
    /// the buffer's size.
    fn fill(&mut self) -> std::io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let got = loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                other => break other?,
            }
        };
        self.end += got;
        self.finished = got == 0;
        if let Some(progress) = &self.progress {
            progress.tell(self.file_bytes.load(Ordering::Relaxed), self.length_bytes);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(bytes: &[u8]) -> Input {
        Input::from_reader(Path::new("test"), std::io::Cursor::new(bytes.to_vec())).unwrap()
    }

    #[test]
    fn lines_end_in_any_way() {
        let mut input = input(b"1\r\n\n2");
        assert_eq!(input.next_line("x").unwrap(), Some(&b"1"[..]));
        assert_eq!(input.next_line("x").unwrap(), Some(&b""[..]));
        assert_eq!(input.next_line("x").unwrap(), Some(&b"2"[..]));
        let error = input.malformed("x", "bad").to_string();
        assert!(error.contains("byte 4 (line 3)"), "{error}");
        assert_eq!(input.next_line("x").unwrap(), None);
    }

    #[test]
    fn a_record_cut_short_is_truncated() {
        let mut input = input(&[0, 0, 0, 1, 0, 0]);
        assert_eq!(input.next_record::<4>("x").unwrap(), Some([0, 0, 0, 1]));
        let error = input.next_record::<4>("x").unwrap_err().to_string();
        assert!(error.contains("byte 4 has 2 of 4 bytes"), "{error}");
    }

    #[test]
    fn a_damaged_stream_gives_what_came_before() {
        let text: String = (0..200_000).map(|n| format!("{n}\n")).collect();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut gzip, text.as_bytes()).unwrap();
        let whole = gzip.finish().unwrap();
        let mut input = input(&whole[..whole.len() / 2]);
        let mut lines = 0;
        let error = loop {
            match input.next_line("x") {
                Ok(Some(_)) => lines += 1,
                Ok(None) => panic!("the end was not noticed"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(lines > 1000 && error.contains("gzip"), "{lines} {error}");
    }

    /// Compressed in one block, so that not a single byte of the damaged block is decompressed.
    #[test]
    fn a_damaged_file_is_not_called_empty() {
        let text: String = (0..5000).map(|n| format!("{}\n", n * n % 997)).collect();
        let whole = zstd::encode_all(text.as_bytes(), 3).unwrap();
        let mut input = input(&whole[..whole.len() - 20]);
        let error = crate::registry::detect(&mut input).err().unwrap();
        assert!(
            matches!(
                error,
                TraceError::Read {
                    content: "zstd",
                    offset: 0,
                    ..
                }
            ),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_grows_beyond_what_traces_do_is_refused_early() {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        let piece = b"1\n".repeat(1 << 19);
        for _ in 0..128 {
            std::io::Write::write_all(&mut gzip, &piece).unwrap();
        }
        let bomb = gzip.finish().unwrap();
        let read = |expansion_max| {
            let mut input = input(&bomb);
            input.set_expansion_max(expansion_max);
            let mut block = vec![0; 1 << 20];
            loop {
                match input.read_bytes(&mut block) {
                    Ok(0) => break Ok(input.offset()),
                    Ok(_) => {}
                    Err(error) => break Err(error),
                }
            }
        };
        let error = read(EXPANSION_MAX).unwrap_err();
        assert!(error.to_string().contains("--expansion-max"), "{error}");
        let TraceError::Expansion { bytes, .. } = error else {
            panic!("{error}");
        };
        assert!(bytes < EXPANSION_FROM_BYTES + BUFFER_BYTES as u64 + 1);
        assert_eq!(read(2000).unwrap(), 128 << 20);
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut input = input(&vec![b'7'; BUFFER_BYTES + 10]);
        assert!(
            input
                .next_line("x")
                .unwrap_err()
                .to_string()
                .contains("not text")
        );
    }
}
