// SPDX-License-Identifier: Apache-2.0
//! A program that reads a file in the ways and at the places it is told to, in a memory cgroup of
//! its own. It is no part of the benchmark, because agewise never looks at itself.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use agewise_host::cgroup::Cgroup;
use anyhow::{Context, bail, ensure};
use hdrhistogram::Histogram;
use io_uring::{IoUring, opcode, types};
use memmap2::{Advice, Mmap, MmapOptions};

use crate::PAGE_BYTES;
use crate::reclaim::group::Group;
use crate::servant::{self, Servant};

/// A way of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Pread,
    LongPread,
    Sendfile,
    IoUring,
    Mapping,
}

impl Way {
    pub const ALL: [Way; 5] = [
        Way::Pread,
        Way::LongPread,
        Way::Sendfile,
        Way::IoUring,
        Way::Mapping,
    ];

    /// Its name in orders.
    fn name(self) -> &'static str {
        match self {
            Way::Pread => "pread",
            Way::LongPread => "long-pread",
            Way::Sendfile => "sendfile",
            Way::IoUring => "io_uring",
            Way::Mapping => "mapping",
        }
    }

    /// Pages per read.
    pub fn pages(self) -> u64 {
        match self {
            Way::Pread | Way::Mapping => 1,
            Way::LongPread => 64,
            Way::Sendfile | Way::IoUring => 8,
        }
    }
}

/// The program, as the benchmark sees it.
pub(super) struct Reader {
    // Field order: it has ended when its cgroup is removed.
    servant: Servant,
    group: Group,
}

impl Reader {
    /// Starts it, and has it read the whole file: pages that are in no memory yet are charged to
    /// its cgroup.
    ///
    /// # Errors
    /// There is no memory cgroup to be had, or it cannot read the file.
    pub fn start(program: &Path, file: &Path) -> anyhow::Result<Self> {
        let group = Group::create("files")?;
        let servant = Servant::start(program, "reader", &[file.as_os_str()])?;
        group.take_in(servant.pid())?;
        let mut reader = Reader { servant, group };
        reader.ask("fill")?;
        Ok(reader)
    }

    pub fn cgroup(&self) -> &Cgroup {
        self.group.cgroup()
    }

    /// Whether the kernel and its settings allow io_uring.
    pub fn has_ring(&mut self) -> anyhow::Result<bool> {
        Ok(self.servant.ask("ring")? == 1)
    }

    /// Reads in this way from this page on.
    pub fn read(&mut self, way: Way, first: u64) -> anyhow::Result<()> {
        let order = format!("{} {first}", way.name());
        self.servant.ask(&order).map(drop)
    }

    /// Gives one of the orders `fill` (read the whole file), `map` (map it in base pages, all of
    /// them present) and `warm` (read each page of its first half).
    pub fn ask(&mut self, order: &str) -> anyhow::Result<()> {
        self.servant.ask(order).map(drop)
    }

    /// From now on reads pages of the first half, one after the other.
    pub fn begin(&mut self) -> anyhow::Result<()> {
        self.ask("begin")
    }

    /// Ends that. Returns the 99th percentile of the time a read took, in ns.
    pub fn end(&mut self) -> anyhow::Result<u64> {
        self.servant.ask("end")
    }
}

/// Obeys orders from standard input until it ends.
///
/// # Errors
/// The file cannot be opened, or standard input or output failed.
pub(crate) fn serve(path: &Path) -> anyhow::Result<ExitCode> {
    let mut served = Served::open(path)?;
    servant::serve(|line| served.obey(line))
}

/// What the program has open.
struct Served {
    path: PathBuf,
    file: Arc<File>,
    pages: u64,
    map: Option<Mmap>,
    out: File,
    ring: Option<IoUring>,
    reads: Option<Loop>,
}

/// Reads of the first half, until `end` is set; then the 99th percentile of their times.
struct Loop {
    end: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<u64>>,
}

impl Served {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        // SAFETY: the descriptor is ours. Reads through it do not trigger readahead.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM) };
        Ok(Served {
            path: path.to_owned(),
            pages: file.metadata()?.len() / PAGE_BYTES,
            file: Arc::new(file),
            map: None,
            out: File::options().write(true).open("/dev/null")?,
            ring: IoUring::new(1).ok(),
            reads: None,
        })
    }

    fn obey(&mut self, line: &str) -> anyhow::Result<u64> {
        match line {
            "ring" => return Ok(self.ring.is_some().into()),
            "fill" => {
                // A new descriptor, with readahead.
                std::io::copy(&mut File::open(&self.path)?, &mut std::io::sink())?;
            }
            "warm" => sweep(&self.file, self.pages / 2, &mut |_| true)?,
            "map" => {
                // SAFETY: nobody changes the file, and it keeps its size.
                let map = unsafe { Mmap::map(&*self.file)? };
                // Its large folios may be huge pages, which have one accessed bit each.
                map.advise(Advice::NoHugePage)?;
                map.advise(Advice::PopulateRead)?;
                self.map = Some(map);
            }
            "begin" => self.reads = Some(Loop::start(&self.file, self.pages / 2)?),
            "end" => return self.reads.take().context("not begun")?.end(),
            _ => {
                let (name, first) = line.split_once(' ').context("no order")?;
                let way = Way::ALL.into_iter().find(|way| way.name() == name);
                self.read(way.context("no such way")?, first.parse()?)?;
            }
        }
        Ok(0)
    }

    fn read(&mut self, way: Way, first: u64) -> anyhow::Result<()> {
        let mut buffer = vec![0; (way.pages() * PAGE_BYTES) as usize];
        match way {
            Way::Pread | Way::LongPread => {
                self.file.read_exact_at(&mut buffer, first * PAGE_BYTES)?;
            }
            Way::Sendfile => self.send(first, buffer.len())?,
            Way::Mapping => {
                let map = self.map.as_ref().context("not mapped")?;
                flush_tlb()?;
                std::hint::black_box(map[(first * PAGE_BYTES) as usize]);
            }
            Way::IoUring => self.submit(first, &mut buffer)?,
        }
        Ok(())
    }

    fn send(&self, first: u64, mut left: usize) -> anyhow::Result<()> {
        let (to, from) = (self.out.as_raw_fd(), self.file.as_raw_fd());
        let mut offset = i64::try_from(first * PAGE_BYTES)?;
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

    fn submit(&mut self, first: u64, buffer: &mut [u8]) -> anyhow::Result<()> {
        let ring = self.ring.as_mut().context("no io_uring")?;
        let length = u32::try_from(buffer.len())?;
        let from = types::Fd(self.file.as_raw_fd());
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

impl Loop {
    fn start(file: &Arc<File>, pages: u64) -> anyhow::Result<Self> {
        let (file, end) = (Arc::clone(file), Arc::new(AtomicBool::new(false)));
        let ended = Arc::clone(&end);
        let read = move || {
            let mut times = Histogram::<u64>::new(3)?;
            // At least once, however short the time was on a busy machine.
            loop {
                sweep(&file, pages, &mut |ns| {
                    times.saturating_record(ns);
                    !ended.load(Ordering::Relaxed)
                })?;
                if ended.load(Ordering::Relaxed) {
                    return Ok(times.value_at_quantile(0.99));
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(read)?;
        Ok(Loop { end, thread })
    }

    fn end(self) -> anyhow::Result<u64> {
        self.end.store(true, Ordering::Relaxed);
        self.thread.join().ok().context("the loop panicked")?
    }
}

/// Reads pages one by one, and shows how long each took in ns. Stops as soon as that returns false.
fn sweep(file: &File, pages: u64, goes_on: &mut dyn FnMut(u64) -> bool) -> std::io::Result<()> {
    let mut buffer = [0; PAGE_BYTES as usize];
    for page in 0..pages {
        let began = Instant::now();
        file.read_exact_at(&mut buffer, page * PAGE_BYTES)?;
        if !goes_on(began.elapsed().as_nanos() as u64) {
            break;
        }
    }
    Ok(())
}

/// Drops all TLB entries of this process: unmapping more than 33 pages flushes everything. A read
/// through an entry that survived a clear (`clear_refs` flushes none) would set no accessed bit.
fn flush_tlb() -> std::io::Result<()> {
    let length = 64 * PAGE_BYTES as usize;
    MmapOptions::new()
        .len(length)
        .populate()
        .map_anon()
        .map(drop)
}
