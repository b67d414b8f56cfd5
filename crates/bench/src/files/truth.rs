// SPDX-License-Identifier: Apache-2.0
//! Accuracy of the accesses that an agent reports which follows page tables and tracepoints: pages
//! are read in every possible way and compared with what was reported.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use super::Cached;
use super::reader::Way;
use super::watched::Watched;

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
    /// All of these ways, alternating.
    pub mixed: Truth,
}

/// Measures each way of reading.
pub(super) fn measure(program: &Path, file: &Cached) -> anyhow::Result<Truths> {
    let mut judge = Judge {
        watched: Watched::start(program, file)?,
        file,
        random: Pcg64Mcg::seed_from_u64(14),
    };
    judge.watched.reader.ask("map")?;
    // Mapping it made every page look accessed.
    judge.watched.look()?;
    let has_ring = judge.watched.reader.has_ring()?;
    let mut all = Way::ALL.to_vec();
    all.retain(|way| has_ring || *way != Way::IoUring);
    Ok(Truths {
        pread: judge.truth(&[Way::Pread])?,
        long_pread: judge.truth(&[Way::LongPread])?,
        sendfile: judge.truth(&[Way::Sendfile])?,
        mmap: judge.truth(&[Way::Mapping])?,
        io_uring: has_ring.then(|| judge.truth(&[Way::IoUring])).transpose()?,
        mixed: judge.truth(&all)?,
    })
}

struct Judge<'a> {
    watched: Watched,
    file: &'a Cached,
    random: Pcg64Mcg,
}

impl Judge<'_> {
    /// Reads about one page in 128 in these ways, alternating.
    fn truth(&mut self, ways: &[Way]) -> anyhow::Result<Truth> {
        self.watched.look()?;
        self.watched.agent.take_cache_uses();
        let mut wanted = BTreeSet::new();
        for turn in 0..self.file.pages / 128 {
            let way = ways[turn as usize % ways.len()];
            let pages = way.pages();
            let first = self.random.random_range(0..self.file.pages - pages);
            self.watched.reader.read(way, first)?;
            wanted.extend(first..first + pages);
        }
        self.watched.look()?;
        let noted = self.noted()?;
        let missed = wanted.difference(&noted).count() as f64;
        let wrong = noted.difference(&wanted).count() as f64;
        let others = self.file.pages - wanted.len() as u64;
        Ok(Truth {
            missed_ratio: missed / wanted.len() as f64,
            false_ratio: wrong / others.max(1) as f64,
        })
    }

    /// Pages of the file that were reported since the last call.
    fn noted(&mut self) -> anyhow::Result<BTreeSet<u64>> {
        let number = self.file.file.metadata()?.ino() as u32;
        let uses = self.watched.agent.take_cache_uses();
        let of_file = uses.iter().filter(|(block, _)| block.number == number);
        let pages = of_file.flat_map(|(block, pages)| {
            let first = block.pages().start;
            pages.pages().map(move |page| first + page as u64)
        });
        Ok(pages.collect())
    }
}
