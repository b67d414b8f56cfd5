// SPDX-License-Identifier: Apache-2.0
//! Writes a page trace. Nothing is ever rewritten: if the writer stops, every full frame stays
//! readable.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::layout::{FRAME_REQUESTS_MAX, FrameHeader, Header, INDEX_MAGIC, TRAILER_MAGIC, crc32};
use super::record::Previous;
use crate::access::Request;
use crate::error::TraceError;

/// zstd's level; higher levels hardly shrink the files.
const ZSTD_LEVEL: i32 = 6;

/// Writes requests in frames, and an index of the frames at the end.
pub struct PageTraceWriter<W: Write> {
    path: PathBuf,
    out: W,
    /// Bytes written so far.
    offset: u64,
    /// The current frame.
    raw: Vec<u8>,
    previous: Previous,
    requests: u32,
    accesses: u64,
    first_time_ns: u64,
    /// Whether requests record how they are known.
    evidence: bool,
    /// Offset, number of earlier requests and first time of each frame.
    index: Vec<[u64; 3]>,
    total_requests: u64,
}

impl<W: Write> PageTraceWriter<W> {
    /// Writes the header. `path` is for messages.
    ///
    /// # Errors
    /// [`TraceError::Write`]; [`TraceError::Limit`] for metadata of more than 64 KiB, or a page
    /// shift of more than 63.
    pub fn new(path: &Path, out: W, header: &Header) -> Result<Self, TraceError> {
        let bytes = header
            .encode()
            .map_err(|what| TraceError::limit(path, what))?;
        let mut writer = Self {
            path: path.to_path_buf(),
            out,
            offset: 0,
            raw: Vec::new(),
            previous: Previous::start(0, header.evidence),
            evidence: header.evidence,
            requests: 0,
            accesses: 0,
            first_time_ns: 0,
            index: Vec::new(),
            total_requests: 0,
        };
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Adds a request; one without pages is ignored.
    ///
    /// # Errors
    /// [`TraceError::Write`] if a full frame cannot be written; [`TraceError::Limit`] for a request
    /// that no reader accepts ([`Request::page_count`]).
    pub fn push(&mut self, request: &Request) -> Result<(), TraceError> {
        if request.page_count == 0 {
            return Ok(());
        }
        request
            .check()
            .map_err(|what| TraceError::limit(&self.path, what))?;
        if self.requests == 0 {
            self.first_time_ns = request.time_ns;
            self.previous = Previous::start(request.time_ns, self.evidence);
        }
        self.previous.encode(request, &mut self.raw);
        self.requests += 1;
        self.accesses = self.accesses.saturating_add(request.page_count);
        if self.requests == FRAME_REQUESTS_MAX {
            self.flush_frame()
        } else {
            Ok(())
        }
    }

    /// Writes the current frame, so that a later crash cannot lose it.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn flush_frame(&mut self) -> Result<(), TraceError> {
        if self.requests == 0 {
            return Ok(());
        }
        let packed =
            zstd::bulk::compress(&self.raw, ZSTD_LEVEL).map_err(|source| self.error(source))?;
        let header = FrameHeader {
            packed_bytes: packed.len() as u32,
            raw_bytes: self.raw.len() as u32,
            requests: self.requests,
            accesses: self.accesses,
            first_time_ns: self.first_time_ns,
            payload_crc: crc32(&[&packed]),
        };
        self.index
            .push([self.offset, self.total_requests, self.first_time_ns]);
        self.total_requests += u64::from(self.requests);
        self.put(&header.encode())?;
        self.put(&packed)?;
        self.out.flush().map_err(|source| self.error(source))?;
        self.raw.clear();
        self.requests = 0;
        self.accesses = 0;
        Ok(())
    }

    /// Writes the current frame and the index, and returns the sink.
    ///
    /// # Errors
    /// [`TraceError::Write`].
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.flush_frame()?;
        let index_offset = self.offset;
        let mut bytes = Vec::from(INDEX_MAGIC);
        bytes.extend((self.index.len() as u32).to_le_bytes());
        for entry in &self.index {
            bytes.extend(entry.iter().flat_map(|value| value.to_le_bytes()));
        }
        let mut trailer = Vec::new();
        trailer.extend(index_offset.to_le_bytes());
        trailer.extend(self.total_requests.to_le_bytes());
        trailer.extend((self.index.len() as u32).to_le_bytes());
        let crc = crc32(&[&bytes, &trailer]);
        trailer.extend(crc.to_le_bytes());
        trailer.extend(TRAILER_MAGIC);
        self.put(&bytes)?;
        self.put(&trailer)?;
        self.out.flush().map_err(|source| self.error(source))?;
        Ok(self.out)
    }

    /// Bytes written so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.offset
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), TraceError> {
        self.out
            .write_all(bytes)
            .map_err(|source| self.error(source))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn error(&self, source: std::io::Error) -> TraceError {
        TraceError::Write {
            path: self.path.clone(),
            offset: self.offset,
            source,
        }
    }
}
