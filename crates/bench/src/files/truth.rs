// SPDX-License-Identifier: Apache-2.0
//! Accuracy of the reads that the tracepoints report: pages are read in every possible way and
//! compared with what was reported.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use agewise_host::pagecache::{AccessNotes, Accessed};
use anyhow::{Context, bail, ensure};
use io_uring::{IoUring, opcode, types};
use memmap2::Mmap;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::Cached;
use crate::PAGE_BYTES;

/// A way of reading.
#[derive(Clone, Copy)]
enum Way {
    Pread,
    LongPread,
    Sendfile,
    Mapping,
    IoUring,
}

impl Way {
    /// Pages per read.
    fn pages(self) -> u64 {
        match self {
            Way::Pread | Way::Mapping => 1,
            Way::LongPread => 64,
            Way::Sendfile | Way::IoUring => 8,
        }
    }
}

/// The share of the pages read that were not reported, and the share of the others that were.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Truth {
    pub missed_ratio: f64,
    pub false_ratio: f64,
}

/// The results by way of reading.
pub(super) struct Truths {
    pub pread: Truth,
    pub long_pread: Truth,
    pub sendfile: Truth,
    pub mmap: Truth,
    /// `None` if the kernel or its settings do not allow io_uring.
    pub io_uring: Option<Truth>,
    /// All ways that pass the tracepoints, alternating.
    pub mixed: Truth,
}

/// Measures each way of reading.
pub(super) fn measure(file: &Cached) -> anyhow::Result<Truths> {
    let mut reader = Reader::new(file)?;
    let has_ring = reader.ring.is_some();
    let mut mixed = vec![Way::Pread, Way::LongPread, Way::Sendfile];
    mixed.extend(has_ring.then_some(Way::IoUring));
    Ok(Truths {
        pread: reader.truth(&[Way::Pread])?,
        long_pread: reader.truth(&[Way::LongPread])?,
        sendfile: reader.truth(&[Way::Sendfile])?,
        mmap: reader.truth(&[Way::Mapping])?,
        io_uring: has_ring
            .then(|| reader.truth(&[Way::IoUring]))
            .transpose()?,
        mixed: reader.truth(&mixed)?,
    })
}

struct Reader<'a> {
    file: &'a Cached,
    map: Mmap,
    out: File,
    ring: Option<IoUring>,
    source: Accessed,
    random: Pcg64Mcg,
}

impl<'a> Reader<'a> {
    fn new(file: &'a Cached) -> anyhow::Result<Self> {
        Ok(Reader {
            file,
            // SAFETY: nobody else uses this file, and it keeps its size.
            map: unsafe { Mmap::map(&file.file)? },
            out: File::options().write(true).open("/dev/null")?,
            ring: IoUring::new(1).ok(),
            source: Accessed::open()?,
            random: Pcg64Mcg::seed_from_u64(14),
        })
    }

    /// Reads about one page in 128 in these ways, alternating.
    fn truth(&mut self, ways: &[Way]) -> anyhow::Result<Truth> {
        self.source.look()?;
        let mut wanted = BTreeSet::new();
        for turn in 0..self.file.pages / 128 {
            let way = ways[turn as usize % ways.len()];
            let pages = way.pages();
            let first = self.random.random_range(0..self.file.pages - pages);
            self.read(way, first)?;
            wanted.extend(first..first + pages);
        }
        let noted = self.noted()?;
        let missed = wanted.difference(&noted).count() as f64;
        let wrong = noted.difference(&wanted).count() as f64;
        let others = self.file.pages - wanted.len() as u64;
        Ok(Truth {
            missed_ratio: missed / wanted.len() as f64,
            false_ratio: wrong / others.max(1) as f64,
        })
    }

    fn read(&mut self, way: Way, first: u64) -> anyhow::Result<()> {
        let pages = way.pages();
        match way {
            Way::Pread | Way::LongPread => self.file.read(first, pages)?,
            Way::Sendfile => self.send(first, pages)?,
            Way::Mapping => {
                std::hint::black_box(self.map[(first * PAGE_BYTES) as usize]);
            }
            Way::IoUring => self.submit(first, pages)?,
        }
        Ok(())
    }

    /// Pages of the file that were reported since the last look.
    fn noted(&mut self) -> anyhow::Result<BTreeSet<u64>> {
        let number = self.file.file.metadata()?.ino() as u32;
        let seen = self.source.look()?;
        let mut noted = BTreeSet::new();
        for (block, pages) in seen.blocks {
            if block.number == number {
                let first = u64::from(block.block) * 512;
                noted.extend(pages.pages().map(|page| first + page as u64));
            }
        }
        Ok(noted)
    }

    fn send(&self, first: u64, pages: u64) -> anyhow::Result<()> {
        let (to, from) = (self.out.as_raw_fd(), self.file.file.as_raw_fd());
        let mut offset = i64::try_from(first * PAGE_BYTES)?;
        let mut left = (pages * PAGE_BYTES) as usize;
        while left > 0 {
            // SAFETY: the descriptors are ours, and the offset outlives the call.
            let sent = unsafe { libc::sendfile(to, from, &mut offset, left) };
            if sent <= 0 {
                bail!("sendfile: {}", std::io::Error::last_os_error());
            }
            left -= sent as usize;
        }
        Ok(())
    }

    fn submit(&mut self, first: u64, pages: u64) -> anyhow::Result<()> {
        let ring = self.ring.as_mut().context("no io_uring")?;
        let mut buffer = vec![0u8; (pages * PAGE_BYTES) as usize];
        let length = u32::try_from(buffer.len())?;
        let from = types::Fd(self.file.file.as_raw_fd());
        let read = opcode::Read::new(from, buffer.as_mut_ptr(), length)
            .offset(first * PAGE_BYTES)
            .build();
        // SAFETY: the buffer outlives the read, whose completion is awaited here.
        unsafe { ring.submission().push(&read)? };
        ring.submit_and_wait(1)?;
        let done = ring.completion().next().context("a read without an end")?;
        ensure!(
            usize::try_from(done.result()) == Ok(buffer.len()),
            "io_uring: a read of {length} bytes gave {}",
            done.result()
        );
        Ok(())
    }
}
