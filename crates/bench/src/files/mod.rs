// SPDX-License-Identifier: Apache-2.0
//! `agewise bench files`: the cost and accuracy of following the page cache.
//!
//! Known parts of a file of our own are read. What an agent reports is compared with that, and the
//! results of the page-cache walk with `cachestat(2)` and `/proc/meminfo`.

mod dropping;
mod maps;
pub(crate) mod reader;
mod truth;
mod watched;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use agewise_host::clock::thread_cpu_ns;
use agewise_host::memory::MemInfo;
use agewise_host::pagecache::{
    AccessNotes, Accessed, CacheKind, CacheSink, CacheWalk, Folios, Inode, Leaf, SuperBlock,
    WalkReport, cachestat,
};
use agewise_host::root::ProcRoot;
use anyhow::Context;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use serde::Serialize;

use crate::PAGE_BYTES;
use crate::statistics::{Change, median};
use agewise_cli::output::Format;
use agewise_cli::signal::Stop;
use agewise_cli::units;

/// Pages read in the timed loops: 64 MiB, more than the CPU caches hold.
const LOOP_PAGES: u64 = 16 << 10;
/// Fewest pairs, whatever is asked for: an interval of fewer says little.
const PAIRS_MIN: usize = 6;
/// Number of walks; their median is reported.
const WALKS: usize = 5;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Size of the file that is read; with it, how much the walk of one GiB costs.
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::positive_size)]
    size: u64,
    /// Where it is made; not on tmpfs.
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Pairs of spans with and without the programs, for the price of each loop.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pairs: usize,
    /// Length of a span: the time from look to look.
    #[arg(long, value_name = "DURATION", default_value = "2s")]
    #[arg(value_parser = units::positive_duration)]
    span: Duration,
    /// How to print.
    #[arg(long, value_enum, default_value_t)]
    pub(super) format: Format,
}

/// The result.
#[derive(Serialize)]
pub(super) struct Files {
    size_bytes: u64,
    /// By way of reading.
    pread: truth::Truth,
    long_pread: truth::Truth,
    sendfile: truth::Truth,
    mmap: truth::Truth,
    mixed: truth::Truth,
    /// `None` if the kernel or its settings do not allow io_uring.
    io_uring_missed_ratio: Option<f64>,
    io_uring_false_ratio: Option<f64>,
    /// Relative difference between the file's pages found by the walk and those of cachestat.
    resident_error_ratio: f64,
    /// Relative difference between all pages of files and shared memory and `Cached` of meminfo.
    machine_error_ratio: f64,
    pread_4k: Price,
    pread_64k: Price,
    /// Reads of the hot half of the file while the cold half is dropped.
    dropping: dropping::Dropping,
    maps: maps::Maps,
    /// CPU time of one walk of the whole page cache.
    walk_ms: f64,
    walk_inodes: u64,
    walk_files: u64,
    walk_pages: u64,
    /// What the file alone adds to a walk of its file system.
    walk_ms_per_gib: f64,
    /// A walk of that file system without the file, per inode.
    walk_us_per_inode: f64,
}

/// CPU time of a cached read without the BPF programs, and the change that they cause.
#[derive(Serialize)]
struct Price {
    ns: f64,
    #[serde(flatten)]
    change: Change,
}

/// Runs the measurement.
pub(super) fn measure(program: &Path, args: &Args, stop: &Stop) -> anyhow::Result<Files> {
    let dir = tempfile::tempdir_in(&args.directory)
        .with_context(|| format!("a directory in {}", args.directory.display()))?;
    let pages = (args.size / PAGE_BYTES).max(2 * LOOP_PAGES);
    let mut walk = CacheWalk::open()?;
    let device = dir.path().metadata()?.dev();
    let device = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
    let (before_ms, before) = time_walks(&mut walk, device, stop)?;
    let file = Cached::new(dir.path().join("file"), pages)?;
    let (with_file_ms, _) = time_walks(&mut walk, device, stop)?;
    let whole = walk.walk(&|_| true, &mut Nothing)?;
    let resident_error_ratio = file.resident_error(&mut walk)?;
    let machine_error_ratio = machine_error(&mut walk)?;
    let (pread_4k, pread_64k) = (price(&file, 1, args, stop)?, price(&file, 16, args, stop)?);
    let maps = maps::measure(&file)?;
    let truth::Truths {
        pread,
        long_pread,
        sendfile,
        mmap,
        io_uring,
        mixed,
    } = truth::measure(program, &file)?;
    let gib = (pages * PAGE_BYTES) as f64 / f64::from(1 << 30);
    Ok(Files {
        size_bytes: pages * PAGE_BYTES,
        pread,
        long_pread,
        sendfile,
        mmap,
        mixed,
        io_uring_missed_ratio: io_uring.map(|truth| truth.missed_ratio),
        io_uring_false_ratio: io_uring.map(|truth| truth.false_ratio),
        resident_error_ratio,
        machine_error_ratio,
        pread_4k,
        pread_64k,
        dropping: dropping::measure(program, &file, args.pairs.max(PAIRS_MIN), stop)?,
        maps,
        walk_ms: whole.cpu_ns as f64 / 1e6,
        walk_inodes: whole.inodes,
        walk_files: whole.files,
        walk_pages: whole.pages,
        walk_ms_per_gib: (with_file_ms - before_ms) / gib,
        walk_us_per_inode: before_ms * 1000.0 / before.inodes.max(1) as f64,
    })
}

/// A file with all pages in memory and clean.
struct Cached {
    path: PathBuf,
    file: File,
    pages: u64,
}

impl Cached {
    fn new(path: PathBuf, pages: u64) -> anyhow::Result<Self> {
        let mut file = File::create(&path)?;
        let block = vec![7u8; 1 << 20];
        let mut left = pages * PAGE_BYTES;
        while left > 0 {
            let length = left.min(block.len() as u64) as usize;
            file.write_all(&block[..length])?;
            left -= length as u64;
        }
        file.sync_all()?;
        let file = File::open(&path)?;
        let cached = Cached { path, file, pages };
        cached.read(0, pages)?;
        // SAFETY: the descriptor is ours. From here on, reads do not trigger readahead.
        unsafe { libc::posix_fadvise(cached.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(cached)
    }

    /// Reads pages in units of 1 MiB.
    fn read(&self, first: u64, pages: u64) -> std::io::Result<()> {
        let mut buffer = vec![0; 1 << 20];
        let (mut at, end) = (first * PAGE_BYTES, (first + pages) * PAGE_BYTES);
        while at < end {
            let length = (end - at).min(buffer.len() as u64) as usize;
            self.file.read_exact_at(&mut buffer[..length], at)?;
            at += length as u64;
        }
        Ok(())
    }

    /// Drops the pages from memory, so that they are charged to whoever reads them next.
    fn drop_pages(&self) -> anyhow::Result<()> {
        for _ in 0..100 {
            rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed)?;
            if cachestat(&self.file, 0..0)?.pages == 0 {
                return Ok(());
            }
            // A page in the batch of a CPU cannot be dropped.
            std::thread::sleep(Duration::from_millis(20));
        }
        anyhow::bail!("{}: pages stay in memory", self.path.display())
    }

    fn resident_error(&self, walk: &mut CacheWalk) -> anyhow::Result<f64> {
        let mut sum = Sum {
            number: self.file.metadata()?.ino(),
            ..Sum::default()
        };
        walk.walk(&|on| on.kind == CacheKind::File, &mut sum)?;
        let truth = cachestat(&self.file, 0..0).context("cachestat (Linux 6.5)")?;
        Ok(sum.of_file as f64 / truth.pages.max(1) as f64 - 1.0)
    }
}

/// Counts pages.
#[derive(Default)]
struct Sum {
    /// The inode that is counted separately.
    number: u64,
    open: u64,
    of_file: u64,
    mapped_or_not: u64,
}

impl CacheSink for Sum {
    fn leaves(&mut self, _: &Arc<SuperBlock>, _: &Inode, leaves: &[Leaf], _: &Folios<'_>) {
        self.open += leaves.iter().map(Leaf::pages).sum::<u64>();
    }

    fn end(&mut self, on: &Arc<SuperBlock>, inode: &Inode, valid: bool) {
        let pages = std::mem::take(&mut self.open);
        if valid && on.kind != CacheKind::Device {
            self.mapped_or_not += pages;
        }
        if valid && inode.number == self.number {
            // Other file systems may use the same inode number: ours is the largest file.
            self.of_file = self.of_file.max(pages);
        }
    }
}

fn machine_error(walk: &mut CacheWalk) -> anyhow::Result<f64> {
    let cached = || -> anyhow::Result<f64> {
        let info = MemInfo::of_machine(&ProcRoot::default())?;
        Ok(info.file_bytes as f64)
    };
    let before = cached()?;
    let mut sum = Sum::default();
    walk.walk(&|_| true, &mut sum)?;
    let truth = (before + cached()?) / 2.0;
    Ok((sum.mapped_or_not * PAGE_BYTES) as f64 / truth - 1.0)
}

struct Nothing;

impl CacheSink for Nothing {
    fn leaves(&mut self, _: &Arc<SuperBlock>, _: &Inode, _: &[Leaf], _: &Folios<'_>) {}
    fn end(&mut self, _: &Arc<SuperBlock>, _: &Inode, _: bool) {}
}

/// CPU time of a walk of one file system in ms: the median of several walks.
fn time_walks(walk: &mut CacheWalk, device: u32, stop: &Stop) -> anyhow::Result<(f64, WalkReport)> {
    let mut reports = Vec::new();
    for _ in 0..WALKS {
        anyhow::ensure!(stop.requested().is_none(), "interrupted");
        reports.push(walk.walk(&|on| on.device == device, &mut Nothing)?);
    }
    let times: Vec<f64> = reports
        .iter()
        .map(|report| report.cpu_ns as f64 / 1e6)
        .collect();
    let last = reports.pop().context("some walks")?;
    Ok((median(&times), last))
}

/// The price of a cached read of this many pages.
fn price(file: &Cached, pages: u64, args: &Args, stop: &Stop) -> anyhow::Result<Price> {
    let mut random = Pcg64Mcg::seed_from_u64(pages);
    let mut buffer = vec![0; (pages * PAGE_BYTES) as usize];
    let mut pairs = Vec::new();
    for _ in 0..args.pairs.max(PAIRS_MIN) {
        anyhow::ensure!(stop.requested().is_none(), "interrupted");
        let with_first = random.random::<bool>();
        let mut ns = [0.0; 2];
        for with in [with_first, !with_first] {
            let mut source = with.then(Accessed::open).transpose()?;
            // After a look all pages are new to the programs, as on a machine that is observed.
            if let Some(source) = &mut source {
                source.look()?;
            }
            let (began, cpu_ns, mut reads) = (Instant::now(), thread_cpu_ns(), 0u64);
            while began.elapsed() < args.span {
                for _ in 0..64 {
                    let first = random.random_range(0..LOOP_PAGES - pages);
                    file.file.read_exact_at(&mut buffer, first * PAGE_BYTES)?;
                }
                reads += 64;
            }
            // Measure CPU time: elapsed time would include other processes.
            ns[usize::from(with)] = (thread_cpu_ns() - cpu_ns) as f64 / reads as f64;
            drop(source);
        }
        pairs.push((ns[0], ns[1]));
    }
    let without: Vec<f64> = pairs.iter().map(|(without, _)| *without).collect();
    let change = Change::of_pairs(&pairs).context("fewer than three pairs")?;
    let ns = median(&without);
    Ok(Price { ns, change })
}
