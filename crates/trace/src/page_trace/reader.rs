// SPDX-License-Identifier: Apache-2.0
//! Reads a page trace, as a stream or from a point in time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::layout::{
    FRAME_HEADER_BYTES, FRAME_MAGIC, FrameHeader, HEADER_BYTES, Header, INDEX_ENTRY_BYTES,
    INDEX_MAGIC, MAGIC, TRAILER_BYTES, TRAILER_MAGIC, crc32, u32_at, u64_at,
};
use super::record::Previous;
use crate::access::Request;
use crate::error::TraceError;
use crate::format::{Format, ReadOptions, RequestReader};
use crate::input::Input;

/// The page trace.
pub static FORMAT: Format = Format {
    name: "page",
    name_hints: &[".pagetrace"],
    description_hints: &[&["page trace"], &["pagetrace"]],
    recognise: |head| head.starts_with(&MAGIC),
    open: |input, _: &ReadOptions| Ok(Box::new(PageTraceReader::new(input)?)),
};

/// One frame of a page trace, from its index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its offset in the file.
    pub offset: u64,
    /// Number of requests in earlier frames.
    pub requests_before: u64,
    /// Time of its first request.
    pub first_time_ns: u64,
}

struct PageTraceReader {
    input: Input,
    header: Header,
    raw: Vec<u8>,
    position: usize,
    left: u32,
    previous: Previous,
    note: Option<String>,
    finished: bool,
}

impl PageTraceReader {
    fn new(mut input: Input) -> Result<Self, TraceError> {
        let header = read_header(&mut input)?;
        Ok(Self::behind_header(input, header))
    }

    fn behind_header(input: Input, header: Header) -> Self {
        let evidence = header.evidence;
        Self {
            input,
            header,
            raw: Vec::new(),
            position: 0,
            left: 0,
            previous: Previous::start(0, evidence),
            note: None,
            finished: false,
        }
    }

    /// Unpacks the next frame; returns false at the end, with or without an index.
    fn next_frame(&mut self) -> Result<bool, TraceError> {
        let offset = self.input.offset();
        let head = self.input.peek(4);
        if head.len() == 4 && head == INDEX_MAGIC {
            return Ok(false);
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let got = self.input.read_bytes(&mut bytes)?;
        if got < FRAME_HEADER_BYTES {
            return Ok(self.cut_off(offset));
        }
        if bytes[..4] != FRAME_MAGIC {
            return Err(self
                .input
                .malformed(FORMAT.name, "neither a frame nor the index"));
        }
        let header =
            FrameHeader::decode(&bytes).map_err(|what| self.input.malformed(FORMAT.name, what))?;
        let mut packed = vec![0; header.packed_bytes as usize];
        if self.input.read_bytes(&mut packed)? < packed.len() {
            return Ok(self.cut_off(offset));
        }
        if crc32(&[&packed]) != header.payload_crc {
            return Err(self.input.malformed(FORMAT.name, "the frame is damaged"));
        }
        self.raw = zstd::bulk::decompress(&packed, header.raw_bytes as usize)
            .map_err(|error| self.input.malformed(FORMAT.name, error.to_string()))?;
        self.position = 0;
        self.left = header.requests;
        self.previous = Previous::start(header.first_time_ns, self.header.evidence);
        Ok(true)
    }

    fn cut_off(&mut self, offset: u64) -> bool {
        self.note = Some(format!(
            "{}: cut off after byte {offset}; read up to the last full frame",
            self.input.path().display()
        ));
        false
    }
}

impl RequestReader for PageTraceReader {
    // For RequestReader::next_requests, which makes requests in their place.
    #[inline(always)]
    fn next_request(&mut self) -> Result<Option<Request>, TraceError> {
        while self.left == 0 {
            if self.finished {
                return Ok(None);
            }
            // Anything but a frame ends the trace, including errors.
            self.finished = true;
            self.finished = !self.next_frame()?;
        }
        let mut rest = &self.raw[self.position..];
        let request = self.previous.decode(&mut rest);
        self.position = self.raw.len() - rest.len();
        self.left -= 1;
        request.map(Some).map_err(|what| {
            self.left = 0;
            self.finished = true;
            self.input.malformed(FORMAT.name, what)
        })
    }

    fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    fn page_trace_header(&self) -> Option<&Header> {
        Some(&self.header)
    }
}

fn read_header(input: &mut Input) -> Result<Header, TraceError> {
    let mut bytes = [0; HEADER_BYTES];
    let got = input.read_bytes(&mut bytes)?;
    if got < HEADER_BYTES {
        return Err(TraceError::Truncated {
            path: input.path().to_path_buf(),
            format: FORMAT.name,
            offset: 0,
            got,
            expected: HEADER_BYTES,
        });
    }
    let (mut header, metadata_bytes) =
        Header::decode(&bytes).map_err(|what| TraceError::WrongFormat {
            path: input.path().to_path_buf(),
            format: FORMAT.name,
            what,
        })?;
    let mut metadata = vec![0; metadata_bytes];
    let got = input.read_bytes(&mut metadata)?;
    if got < metadata_bytes || u32_at(&bytes, 28) != crc32(&[&bytes[..28], &metadata]) {
        return Err(input.malformed(FORMAT.name, "the header is damaged"));
    }
    header.metadata = String::from_utf8(metadata)
        .map_err(|_| input.malformed(FORMAT.name, "the metadata is not UTF-8"))?;
    Ok(header)
}

/// The frames of a page trace, from its index. The file itself must not be compressed.
///
/// # Errors
/// [`TraceError::Malformed`] if the index is missing (the file was truncated) or damaged.
pub fn frames(path: &Path) -> Result<Vec<Frame>, TraceError> {
    let io = |source| TraceError::Open {
        path: path.to_path_buf(),
        source,
    };
    let bad = |offset, what: &str| TraceError::Malformed {
        path: path.to_path_buf(),
        format: FORMAT.name,
        offset,
        line: 0,
        what: what.into(),
    };
    let mut file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    let trailer_offset = length
        .checked_sub(TRAILER_BYTES as u64)
        .ok_or_else(|| bad(0, "too short to have an index"))?;
    let mut trailer = [0; TRAILER_BYTES];
    file.seek(SeekFrom::Start(trailer_offset)).map_err(io)?;
    file.read_exact(&mut trailer).map_err(io)?;
    if trailer[24..] != TRAILER_MAGIC {
        return Err(bad(
            trailer_offset,
            "no index at the end: the file was cut off",
        ));
    }
    let (index_offset, count) = (u64_at(&trailer, 0), u32_at(&trailer, 16));
    let index_bytes = 8 + u64::from(count) * INDEX_ENTRY_BYTES as u64;
    if index_offset.checked_add(index_bytes) != Some(trailer_offset) {
        return Err(bad(trailer_offset, "the trailer is damaged"));
    }
    let mut index = vec![0; index_bytes as usize];
    file.seek(SeekFrom::Start(index_offset)).map_err(io)?;
    file.read_exact(&mut index).map_err(io)?;
    if crc32(&[&index, &trailer[..20]]) != u32_at(&trailer, 20) {
        return Err(bad(index_offset, "the index is damaged"));
    }
    Ok(index[8..]
        .chunks_exact(INDEX_ENTRY_BYTES)
        .map(|entry| Frame {
            offset: u64_at(entry, 0),
            requests_before: u64_at(entry, 8),
            first_time_ns: u64_at(entry, 16),
        })
        .collect())
}

/// A reader that starts at the last frame beginning at or before `time_ns`. Its first requests may
/// be older than `time_ns`.
///
/// # Errors
/// As [`frames`], and those of reading.
pub fn open_at(path: &Path, time_ns: u64) -> Result<Box<dyn RequestReader>, TraceError> {
    let mut input = Input::open(path)?;
    let header = read_header(&mut input)?;
    let frames = frames(path)?;
    let behind = frames.partition_point(|frame| frame.first_time_ns <= time_ns);
    let Some(frame) = frames.get(behind.saturating_sub(1)) else {
        return Ok(Box::new(PageTraceReader::behind_header(input, header)));
    };
    let io = |source| TraceError::Open {
        path: path.to_path_buf(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    file.seek(SeekFrom::Start(frame.offset)).map_err(io)?;
    let input = Input::from_reader(path, file)?;
    Ok(Box::new(PageTraceReader::behind_header(input, header)))
}
