// SPDX-License-Identifier: Apache-2.0
//! Access sources: how to find out which memory a process has accessed.
//!
//! An [`AccessSource`] looks once at ranges of one address space and streams a [`TableSight`] for
//! every 2 MiB that is not empty, in ascending address order, so a caller needs memory for one
//! table, not for a whole process. Sources keep no history and no policy: the engine decides what a
//! sight means for the age of a page.

use std::io;
use std::ops::Range;
use std::path::PathBuf;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};

use crate::pagewalk::entry::EntryFormat;
use crate::process::Process;

#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod leaf_run;
pub mod pagemap;

pub use crate::page::{PAGE_BYTES, TABLE_BYTES, kernel_page_bytes, pages_per_kernel_page};
pub use leaf_run::LeafRun;

/// The process to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Process id (thread group id) in the initial PID namespace of the reader's `/proc`.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat` (start time, clock ticks since boot). If set, a reused pid
    /// gives an error ([`AccessError::Reused`]) rather than another process's memory.
    pub start_ticks: Option<u64>,
}

impl From<&Process> for Target {
    fn from(process: &Process) -> Self {
        Target {
            pid: process.pid(),
            start_ticks: Some(process.start_ticks()),
        }
    }
}

impl Target {
    /// A target identified by its pid alone. A reused pid goes unnoticed.
    pub fn by_pid(pid: u32) -> Self {
        Target {
            pid,
            start_ticks: None,
        }
    }
}

/// Addresses `start..end` of one address space; a source is asked for whole pages within one
/// mapping (VMA). The page-table walk in C reads it as it is (`bpf/layout.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
}

impl AddressRange {
    /// The range of `bytes` from `start`.
    pub fn new(start: u64, bytes: u64) -> Self {
        Self {
            start,
            end: start.saturating_add(bytes),
        }
    }

    /// The addresses of these pages.
    pub fn of_pages(pages: &Range<u64>) -> Self {
        Self {
            start: pages.start.saturating_mul(PAGE_BYTES),
            end: pages.end.saturating_mul(PAGE_BYTES),
        }
    }

    /// The part made of whole `unit`s (a power of two), or `None`: partial units are cut off.
    pub fn shrunk_to(self, unit: u64) -> Option<Self> {
        debug_assert!(unit.is_power_of_two());
        let start = self.start.checked_add(unit - 1)? & !(unit - 1);
        let end = self.end & !(unit - 1);
        (start < end).then_some(Self { start, end })
    }

    /// The addresses in both, or `None`.
    pub fn common(self, other: Self) -> Option<Self> {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        (start < end).then_some(Self { start, end })
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

/// The unit in which the hardware maps the memory of a sight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Base pages: each has its own accessed bit.
    Page,
    /// One 2 MiB leaf (THP or hugetlb): one accessed bit for 512 pages.
    Huge,
    /// Part of a larger leaf (1 GiB of hugetlb; THP where pages have 16 or 64 KiB): one accessed
    /// bit for all of it.
    Giant,
}

/// Where the frame numbers of a sight come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entries<'a> {
    /// The source cannot provide them.
    Unknown,
    /// 512 entries of the raw last-level table, the one of the first page of this sight among them.
    Table(&'a [u64; PAGES_PER_TABLE], EntryFormat),
    /// The frame number of the first page of this sight.
    Leaf(u64),
}

/// One look at the part of a mapping that lies in one 2 MiB-aligned range.
///
/// Within a scan, sights come in ascending address order. Any part of the given ranges that was not
/// shown is not mapped. A 2 MiB range that contains several mappings is shown once for each, with
/// disjoint [`covered`](Self::covered).
#[derive(Clone, Copy, Debug)]
pub struct TableSight<'a> {
    /// First address of the 2 MiB range (aligned, so it may lie before the mapping).
    pub va: u64,
    /// Index of the range this belongs to, in the slice passed to [`AccessSource::scan`].
    pub range: usize,
    /// The kind of page-table entry that maps it.
    pub leaf: Leaf,
    /// The pages that belong to the range. Every other bit of this sight is zero.
    pub covered: PageSet,
    /// Present, young, dirty and swapped pages. Pages that are not the process's own memory
    /// ("special" entries: the zero page, vdso, device memory) are in none of these sets.
    pub bits: &'a TableBits,
    /// `CLOCK_MONOTONIC` time in ns before the first table of this batch was read. Every young page
    /// was accessed before then, or during the read itself (well below a millisecond).
    pub seen_ns: u64,
    pub(crate) entries: Entries<'a>,
}

impl TableSight<'_> {
    /// Returns the frame number (in 4 KiB units) of page `page` of the 2 MiB range. `None` if the
    /// page is not present or the source does not know.
    pub fn pfn(&self, page: usize) -> Option<u64> {
        if page >= PAGES_PER_TABLE || !self.bits.present.contains(page) {
            return None;
        }
        self.frame(page)
    }

    /// Like [`pfn`](Self::pfn), but also for pages that are not covered: used to find what a page
    /// must be handled together with.
    pub fn frame(&self, page: usize) -> Option<u64> {
        match self.entries {
            Entries::Table(table, format) => {
                let (entry, within) = format.shape.entry_of(self.va, page);
                Some(format.pfn(*table.get(entry)?)? + within)
            }
            Entries::Leaf(first_pfn) => Some(first_pfn + page as u64),
            Entries::Unknown => None,
        }
    }
}

/// The sights shown since the last [`SightSink::batch_end`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// `CLOCK_MONOTONIC` ns when reading began.
    pub begin_ns: u64,
    /// `CLOCK_MONOTONIC` ns when reading ended.
    pub end_ns: u64,
}

/// Receives the sights of a scan.
pub trait SightSink {
    /// Receives one table. Tables come in ascending address order.
    fn table(&mut self, sight: &TableSight<'_>);

    /// Receives several leaves at once, in the same order. The default passes them to `table` one
    /// by one.
    fn leaves(&mut self, run: &LeafRun<'_>) {
        for sight in run.sights() {
            self.table(&sight);
        }
    }

    /// Reports a range that could not be read. It is not absent but unknown: keep what was known.
    fn unreadable(&mut self, range: AddressRange) {
        let _ = range;
    }

    /// Reports that all tables read together have been shown. This is the moment to clear the young
    /// ones: accesses between the read and the clear are lost.
    fn batch_end(&mut self, batch: &Batch) {
        let _ = batch;
    }
}

/// A closure is a sink that only takes tables.
impl<F: FnMut(&TableSight<'_>)> SightSink for F {
    fn table(&mut self, sight: &TableSight<'_>) {
        self(sight)
    }
}

/// The finest unit that a source can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Every mapped page (leaf) has its own accessed bit.
    Page,
    /// Accessed bits apply to a whole mapping: `young` is either all of `present` or empty.
    Mapping,
}

/// What a source can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Granularity of `young`.
    pub resolution: Resolution,
    /// Whether [`TableSight::pfn`] is available.
    pub pfn: bool,
}

/// A way to learn which pages of a process were accessed.
pub trait AccessSource {
    /// Its name in reports and on the command line.
    fn name(&self) -> &'static str;

    /// What it can report.
    fn abilities(&self) -> Abilities;

    /// Looks once at `ranges` (whole pages, ascending, disjoint) of `target`. Returns the CPU time
    /// in ns spent reading and building bitmaps (kernel and user, without the sink).
    ///
    /// # Errors
    /// [`AccessError`]. Sights shown before an error remain valid for the time they carry.
    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<u64, AccessError>;
}

/// Checks that the kernel's pages have [`PAGE_BYTES`], for `what` cannot deal with larger ones.
///
/// # Errors
/// [`AccessError::Unsupported`] if pages are larger (AArch64 with 16 or 64 KiB).
pub fn check_page_size(what: &'static str) -> Result<(), AccessError> {
    match kernel_page_bytes() {
        PAGE_BYTES => Ok(()),
        bytes => Err(AccessError::Unsupported {
            what,
            why: format!(
                "this kernel's pages have {} KiB; it needs a kernel with pages of 4 KiB",
                bytes >> 10
            ),
        }),
    }
}

/// Why the memory of a process could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("process {pid} does not exist or has exited")]
    NoSuchProcess { pid: u32 },
    #[error("process {pid} has no address space: it is exiting or a zombie")]
    NoAddressSpace { pid: u32 },
    #[error("process {pid} is a kernel thread: it has no memory of its own")]
    KernelThread { pid: u32 },
    #[error("pid {pid} now belongs to another process than the one asked for")]
    Reused { pid: u32 },
    #[error("process {pid} replaced its address space (exec or exit) during the scan")]
    Changed { pid: u32 },
    /// The given ranges are not whole pages, not ascending, or overlap.
    #[error("address range {start:#x}-{end:#x} is empty, unaligned or out of order")]
    BadRange {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
    },
    #[error("{what}: not permitted; {hint}")]
    NoPrivilege {
        what: String,
        /// How to obtain the privilege.
        hint: &'static str,
    },
    #[error("{what} is not available here: {why}")]
    Unsupported { what: &'static str, why: String },
    /// A `/proc` file or a system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the name of the call.
        path: PathBuf,
        /// The error the system returned.
        source: io::Error,
    },
}

impl AccessError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        AccessError::Io {
            path: path.into(),
            source,
        }
    }

    /// Whether the target is gone or has become something else. Forget it: the source itself is
    /// fine.
    pub fn is_target_gone(&self) -> bool {
        matches!(
            self,
            AccessError::NoSuchProcess { .. }
                | AccessError::NoAddressSpace { .. }
                | AccessError::Reused { .. }
                | AccessError::Changed { .. }
        )
    }
}

/// Checks that `ranges` are whole pages, ascending and disjoint.
pub(crate) fn check_ranges(ranges: &[AddressRange]) -> Result<(), AccessError> {
    let mut floor = 0;
    for range in ranges {
        let aligned = range.start % PAGE_BYTES == 0 && range.end % PAGE_BYTES == 0;
        if !aligned || range.is_empty() || range.start < floor {
            return Err(AccessError::BadRange {
                start: range.start,
                end: range.end,
            });
        }
        floor = range.end;
    }
    Ok(())
}

/// The pages of the 2 MiB range at `va` that lie within `range`.
pub(crate) fn covered(va: u64, range: AddressRange) -> PageSet {
    let first = range.start.saturating_sub(va).min(TABLE_BYTES) / PAGE_BYTES;
    let last = range.end.saturating_sub(va).min(TABLE_BYTES) / PAGE_BYTES;
    if first == 0 && last == PAGES_PER_TABLE as u64 {
        return PageSet::ALL;
    }
    PageSet::range(first as usize..last as usize)
}
