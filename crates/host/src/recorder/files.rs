// SPDX-License-Identifier: Apache-2.0
//! Records reads and writes through file descriptors as a page trace in exact order.

use std::io::Write;
use std::path::Path;

use agewise_trace::page_trace::{Header, Order, PageTraceWriter};
use agewise_trace::{AccessKind, Evidence, PageClass, Request, TraceError};
use serde::Serialize;

use super::pages::PageNames;
use crate::fileio::FileIo;

/// Most pages per record; longer reads and writes are split.
const PAGES_MAX: u64 = 1 << 20;

/// Totals of a recording so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileTotals {
    /// Number of reads.
    pub reads: u64,
    /// Pages requested by the reads.
    pub read_pages: u64,
    /// Pages written, each counted as often as a write started in it.
    pub written_pages: u64,
    /// Number of files.
    pub files: u64,
    /// Reads and writes not recorded, because there are more files than numbers.
    pub unnumbered: u64,
    /// Size of the trace in bytes.
    pub trace_bytes: u64,
}

/// A recording in progress.
pub struct FileRecorder<W: Write> {
    writer: PageTraceWriter<W>,
    names: PageNames,
    start_ns: u64,
    /// Time of the last record, in ns since the beginning. Times never go back.
    written_ns: u64,
    totals: FileTotals,
}

impl<W: Write> FileRecorder<W> {
    /// Writes the header. `path` is used in messages; times are relative to `start_ns`.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn new(path: &Path, out: W, start_ns: u64, metadata: String) -> Result<Self, TraceError> {
        let header = Header {
            order: Order::Exact,
            metadata,
            ..Header::default()
        };
        Ok(FileRecorder {
            writer: PageTraceWriter::new(path, out, &header)?,
            names: PageNames::default(),
            start_ns,
            written_ns: 0,
            totals: FileTotals::default(),
        })
    }

    /// Adds a read or write.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn add(&mut self, io: &FileIo) -> Result<(), TraceError> {
        let device = u64::from(io.device) | u64::from(io.generation) << 32;
        let Some(base) = self.names.file_pages(device, io.inode) else {
            self.totals.unnumbered += 1;
            return Ok(());
        };
        let page_counts = match io.write {
            true => &mut self.totals.written_pages,
            false => {
                self.totals.reads += 1;
                &mut self.totals.read_pages
            }
        };
        let (mut page, end) = (io.first, io.last.saturating_add(1));
        *page_counts = page_counts.saturating_add(end - page);
        let since_ns = io.time_ns.saturating_sub(self.start_ns);
        self.written_ns = self.written_ns.max(since_ns);
        while page < end {
            let page_count = (end - page).min(PAGES_MAX);
            self.writer.push(&Request {
                first_page: base.wrapping_add(page),
                page_count,
                time_ns: self.written_ns,
                process: io.pid,
                kind: match io.write {
                    true => AccessKind::Write,
                    false => AccessKind::Read,
                },
                class: PageClass::File,
                evidence: Evidence::Seen,
            })?;
            page += page_count;
        }
        Ok(())
    }

    /// The totals so far.
    pub fn totals(&self) -> FileTotals {
        FileTotals {
            files: self.names.files().len() as u64,
            trace_bytes: self.writer.bytes_written(),
            ..self.totals
        }
    }

    /// Writes the remaining records and the index.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish(mut self) -> Result<FileTotals, TraceError> {
        self.writer.flush_frame()?;
        let totals = self.totals();
        self.writer.finish()?;
        Ok(totals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agewise_trace::TraceSource;
    use proptest::prelude::*;

    fn io(inode: u64, first: u64, last: u64, write: bool, time_ns: u64) -> FileIo {
        FileIo {
            time_ns,
            pid: 7,
            tid: 7,
            device: 1,
            inode,
            generation: 1,
            first,
            last,
            write,
        }
    }

    proptest! {
        #[test]
        fn pages_are_read_back_in_the_order_of_their_accesses(
            ios in prop::collection::vec(
                (0u64..4, 0u64..1 << 20, 0u64..16, any::<bool>(), 0u64..9),
                1..60,
            ),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("t.pages");
            let out = std::fs::File::create(&path).unwrap();
            let mut recorder = FileRecorder::new(&path, out, 100, "x=y\n".into()).unwrap();
            let (mut wanted, mut now_ns) = (Vec::new(), 100);
            for &(inode, first, more, write, later_ns) in &ios {
                now_ns += later_ns;
                recorder.add(&io(inode, first, first + more, write, now_ns)).unwrap();
                for page in first..=first + more {
                    wanted.push((inode, page, write, now_ns - 100));
                }
            }
            let totals = recorder.finish().unwrap();
            let pages = totals.read_pages + totals.written_pages;
            prop_assert_eq!(pages, wanted.len() as u64);
            let mut stream = TraceSource::new(&path).open().unwrap();
            let mut batch = Vec::new();
            let mut found = Vec::new();
            let mut inodes = Vec::new();
            while stream.next_batch(&mut batch).unwrap() {
                for access in &batch {
                    prop_assert_eq!((access.class, access.process), (PageClass::File, 7));
                    found.push((access.page, access.kind == AccessKind::Write, access.time_ns));
                }
            }
            for inode in ios.iter().map(|io| io.0) {
                if !inodes.contains(&inode) {
                    inodes.push(inode);
                }
            }
            let wanted: Vec<(u64, bool, u64)> = wanted
                .into_iter()
                .map(|(inode, page, write, time_ns)| {
                    let slot = inodes.iter().position(|known| *known == inode).unwrap() as u64;
                    (1 << 63 | slot << 40 | page, write, time_ns)
                })
                .collect();
            prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn long_ones_are_divided() {
        let mut recorder = FileRecorder::new(Path::new("t"), Vec::new(), 0, String::new()).unwrap();
        recorder.add(&io(1, 5, 5 + 3 * PAGES_MAX, true, 0)).unwrap();
        let totals = recorder.totals();
        assert_eq!((totals.reads, totals.written_pages), (0, 3 * PAGES_MAX + 1));
    }
}
