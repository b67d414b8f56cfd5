// SPDX-License-Identifier: Apache-2.0
//! The interface of an address space for eviction, and its implementation for a real process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;

use super::runs::RunSet;
use super::target::{PageoutError, check_target};
use crate::access::AddressRange;
use crate::advice::{RANGES_MAX, advise};
use crate::cgroup::{Cgroup, Hierarchy};
use crate::error::FileError;
use crate::guest::Guests;
use crate::patient;
use crate::process::{Process, ProcessError};
use crate::root::ProcRoot;

/// Most ranges per process_madvise call.
pub const VECTOR_MAX: usize = RANGES_MAX;

/// Pages that are currently mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Present {
    /// Private anonymous memory, including private copies of file pages. It can only go to swap.
    pub anon: RunSet,
    /// Files and shared memory, which page tables do not tell apart.
    pub file: RunSet,
    /// Pages of both kinds that are mapped more than once. The kernel does not page them out.
    pub shared: RunSet,
}

impl Present {
    /// Pages of both kinds.
    pub fn all(&self) -> RunSet {
        self.anon.union(&self.file)
    }
}

/// An address space that memory can be moved out of.
pub trait Mover {
    /// The process it belongs to.
    fn pid(&self) -> u32;

    /// Asks the kernel to page out `runs` (ascending, at most [`VECTOR_MAX`]) in one call. Returns
    /// the bytes of the runs processed completely, from the first on; the call stops at a run that
    /// fails. If the first run fails, returns its errno. Processed does not mean evicted. After
    /// `TIMEDOUT` it is not known how many are processed, or when.
    fn page_out(&mut self, runs: &[AddressRange]) -> Result<u64, Errno>;

    /// The mapped parts of `within`: one run per mapping, ascending, not joined.
    fn mapped(&mut self, within: AddressRange) -> Result<Vec<AddressRange>, PageoutError>;

    /// The pages of `runs` that are present. An address space that is gone is an error.
    fn present(&mut self, runs: &RunSet) -> Result<Present, PageoutError>;

    /// The pages of `runs` that are in swap.
    fn swapped(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError>;

    /// Free swap space of the machine that limits of cgroups leave to the process, in bytes.
    fn swap_free_bytes(&mut self) -> Result<u64, PageoutError>;

    /// Resident memory of the process, in bytes.
    fn rss_bytes(&mut self) -> Result<u64, PageoutError>;

    /// Checks that the process it was opened for still runs.
    fn check(&mut self) -> Result<(), PageoutError>;

    /// Why a call did not find its memory, although it ran at the last check.
    fn why_unreachable(&mut self) -> PageoutError;
}

/// The address space of a process, as of the time it is opened.
///
/// The kernel binds an open `pagemap` to the address space, not to the process: after an exec it
/// reads as empty, so that addresses of the old program are never applied to the new one. Open it
/// no later than the walk on which the plan is based.
#[derive(Debug)]
pub struct ProcessMover<'a> {
    process: &'a Process,
    pagemap: Pagemap,
    page_bytes: u64,
    /// The cgroup it is charged to, if that or one above it may not use all of swap.
    limited: Option<Cgroup>,
}

/// Binds a mover to one address space. Callers that move a little at a time keep it.
#[derive(Debug)]
pub struct Pagemap {
    file: Arc<File>,
    entries: Vec<u64>,
}

impl Pagemap {
    /// Opens the pagemap of a process.
    ///
    /// # Errors
    /// The process is gone, or may not be read.
    pub fn open(process: &Process) -> Result<Self, PageoutError> {
        let path = process.path("pagemap");
        let of_thread = path.clone();
        let file = patient::call(process.pid(), || File::open(of_thread))
            .flatten()
            .map_err(|source| {
                let error = FileError::Read { path, source };
                ProcessError::from_file(process.pid(), "read the pagemap of", error)
            })?;
        process.check()?;
        Ok(Pagemap {
            file: Arc::new(file),
            entries: Vec::new(),
        })
    }
}

/// The cgroup that a process is charged to, if `memory.swap.max` limits it.
fn limited(process: &Process) -> Option<Cgroup> {
    static HIERARCHY: OnceLock<Option<Hierarchy>> = OnceLock::new();
    let hierarchy = HIERARCHY.get_or_init(|| Hierarchy::discover(&ProcRoot::default()).ok());
    let cgroup = Cgroup::of_process(hierarchy.as_ref()?, process).ok()??;
    cgroup.swap_room_bytes().ok()?.map(|_| cgroup)
}

impl<'a> ProcessMover<'a> {
    /// Opens a process of this machine that may be acted upon ([`check_target`]), and runs no
    /// guests.
    pub fn open(process: &'a Process) -> Result<Self, PageoutError> {
        Self::open_with(process, Guests::Spared)
    }

    /// Opens a process of this machine that may be acted upon ([`check_target`]).
    pub fn open_with(process: &'a Process, guests: Guests) -> Result<Self, PageoutError> {
        check_target(process, guests)?;
        Ok(Self {
            limited: limited(process),
            ..Self::with(process, Pagemap::open(process)?)
        })
    }

    /// Uses a process that may be acted upon, with its open pagemap. The caller knows how much of
    /// it may go to swap: reading that takes longer than moving a few pages.
    pub fn with(process: &'a Process, pagemap: Pagemap) -> Self {
        Self {
            process,
            pagemap,
            page_bytes: rustix::param::page_size() as u64,
            limited: None,
        }
    }

    /// Returns the pagemap, for the next mover of this address space.
    pub fn into_pagemap(self) -> Pagemap {
        self.pagemap
    }

    fn pidfd(&self) -> &'a Arc<OwnedFd> {
        // `check_target` rejects processes without a pidfd.
        self.process
            .shared_pidfd()
            .expect("a target of pageout has a pidfd")
    }

    /// Calls `each` with every page of `runs` and its pagemap entry.
    fn entries(
        &mut self,
        runs: &RunSet,
        mut each: impl FnMut(AddressRange, u64),
    ) -> Result<(), PageoutError> {
        const PAGES_MAX: u64 = 8192;
        let page = self.page_bytes;
        let mut rest = runs.runs();
        let pieces = pieces(rest, page, PAGES_MAX);
        let mut pieces = pieces.as_slice();
        while !pieces.is_empty() {
            let mut pages = 0;
            let together = pieces.iter().take_while(|piece| {
                pages += piece.len() / page;
                pages <= PAGES_MAX
            });
            let (now, later) = pieces.split_at(together.count());
            self.read_entries(now)?;
            let of_pages = now.iter().flat_map(|piece| {
                let starts = (piece.start..piece.end).step_by(page as usize);
                starts.map(|start| AddressRange::new(start, page))
            });
            for (page, entry) in of_pages.zip(&self.pagemap.entries) {
                while rest.first().is_some_and(|run| run.end <= page.start) {
                    rest = &rest[1..];
                }
                if rest.first().is_some_and(|run| run.start <= page.start) {
                    each(page, *entry);
                }
            }
            pieces = later;
        }
        Ok(())
    }

    /// Reads the entries of these pieces into the buffer, one after another.
    fn read_entries(&mut self, pieces: &[AddressRange]) -> Result<(), PageoutError> {
        let page = self.page_bytes;
        let (file, pieces) = (Arc::clone(&self.pagemap.file), pieces.to_vec());
        let mut entries = std::mem::take(&mut self.pagemap.entries);
        let read = patient::call(self.pid(), move || {
            entries.clear();
            let read = pieces.iter().try_for_each(|piece| {
                let first = piece.start / page;
                read_entries(&file, first, piece.len() / page, &mut entries)
            });
            read.map(|()| entries)
        });
        match read.flatten() {
            Ok(entries) => self.pagemap.entries = entries,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Err(self.gone()),
            Err(source) => {
                let path = self.process.path("pagemap");
                return Err(FileError::Read { path, source }.into());
            }
        }
        Ok(())
    }

    fn gone(&self) -> PageoutError {
        ProcessError::Gone {
            pid: self.process.pid(),
        }
        .into()
    }
}

/// What to read for `runs`, at most `pages_max` at once. Runs close to each other are read
/// together: an entry costs about 30 ns, a call as much as dozens of entries.
fn pieces(runs: &[AddressRange], page_bytes: u64, pages_max: u64) -> Vec<AddressRange> {
    const GAP_PAGES_MAX: u64 = 32;
    let mut pieces: Vec<AddressRange> = Vec::new();
    for run in runs {
        let mut start = run.start;
        if let Some(last) = pieces.last_mut()
            && run.start - last.end <= GAP_PAGES_MAX * page_bytes
        {
            start = last.start;
            pieces.pop();
        }
        while start < run.end {
            let end = run.end.min(start.saturating_add(pages_max * page_bytes));
            pieces.push(AddressRange { start, end });
            start = end;
        }
    }
    pieces
}

/// Adds the entries of these pages. `ESRCH` if the address space is gone, by exit or exec.
fn read_entries(file: &File, first: u64, pages: u64, entries: &mut Vec<u64>) -> io::Result<()> {
    let mut filled = entries.len();
    let mut at = first * 8;
    entries.resize(filled + pages as usize, 0);
    while filled < entries.len() {
        let words = &mut entries[filled..];
        // SAFETY: these are the bytes of initialised u64s; any bit pattern is a valid u64.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), words.len() * 8)
        };
        match file.read_at(bytes, at) {
            Ok(0) => return Err(io::Error::from_raw_os_error(libc::ESRCH)),
            Ok(read) => {
                filled += read / 8;
                at += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Bits of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;
const MAPPED_ONCE: u64 = 1 << 56;

impl Mover for ProcessMover<'_> {
    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn page_out(&mut self, runs: &[AddressRange]) -> Result<u64, Errno> {
        advise(self.pid(), self.pidfd(), runs, libc::MADV_PAGEOUT).map_err(|error| {
            let is_unanswered = error.kind() == io::ErrorKind::TimedOut;
            let errno = Errno::from_io_error(&error);
            errno.unwrap_or(if is_unanswered {
                Errno::TIMEDOUT
            } else {
                Errno::IO
            })
        })
    }

    fn mapped(&mut self, within: AddressRange) -> Result<Vec<AddressRange>, PageoutError> {
        let path = self.process.path("maps");
        let text = patient::read(self.pid(), &path)
            .map_err(|e| ProcessError::from_file(self.process.pid(), "read the maps of", e))?;
        let mut runs = Vec::new();
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|range| {
                let (start, end) = range.split_once('-')?;
                let parse = |number| u64::from_str_radix(number, 16).ok();
                Some(AddressRange {
                    start: parse(start)?,
                    end: parse(end)?,
                })
            });
            let run = range.ok_or_else(|| FileError::format(&path, "start-end", line))?;
            runs.extend(run.common(within));
        }
        Ok(runs)
    }

    fn present(&mut self, runs: &RunSet) -> Result<Present, PageoutError> {
        let mut present = Present::default();
        self.entries(runs, |page, entry| {
            if entry & PRESENT != 0 {
                let kind = if entry & FILE_OR_SHARED == 0 {
                    &mut present.anon
                } else {
                    &mut present.file
                };
                kind.push(page);
                if entry & MAPPED_ONCE == 0 {
                    present.shared.push(page);
                }
            }
        })?;
        Ok(present)
    }

    fn swapped(&mut self, runs: &RunSet) -> Result<RunSet, PageoutError> {
        let mut swapped = RunSet::default();
        self.entries(runs, |page, entry| {
            if entry & SWAPPED != 0 {
                swapped.push(page);
            }
        })?;
        Ok(swapped)
    }

    fn swap_free_bytes(&mut self) -> Result<u64, PageoutError> {
        // Read before every call, and /proc/swaps would take 20 times as long.
        let info = rustix::system::sysinfo();
        let free_bytes = info.freeswap.saturating_mul(info.mem_unit.into());
        let room = |cgroup: &Cgroup| cgroup.swap_room_bytes().ok().flatten();
        let room_bytes = self.limited.as_ref().and_then(room);
        Ok(free_bytes.min(room_bytes.unwrap_or(u64::MAX)))
    }

    fn rss_bytes(&mut self) -> Result<u64, PageoutError> {
        Ok(self.process.rss_bytes()?)
    }

    fn check(&mut self) -> Result<(), PageoutError> {
        self.process.check_running()?;
        Ok(())
    }

    fn why_unreachable(&mut self) -> PageoutError {
        // That it runs guests does not keep the kernel from reaching it.
        match check_target(self.process, Guests::Included) {
            Err(error) => error,
            Ok(()) => self.gone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Version;

    #[test]
    fn a_limit_of_the_cgroup_is_all_the_swap_there_is() {
        let process = Process::open_user(&ProcRoot::default(), std::process::id()).unwrap();
        let mut mover = ProcessMover::with(&process, Pagemap::open(&process).unwrap());
        if mover.swap_free_bytes().unwrap() < 8192 {
            return println!("SKIPPED a limit of swap: no swap is free");
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("memory.swap.max"), "8192\n").unwrap();
        std::fs::write(dir.path().join("memory.swap.current"), "4096\n").unwrap();
        mover.limited = Cgroup::open(&Hierarchy::at(Version::V2, dir.path()), "/").ok();
        assert_eq!(mover.swap_free_bytes().unwrap(), 4096);
    }
}
