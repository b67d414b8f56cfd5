// SPDX-License-Identifier: Apache-2.0
//! Access sources: how accesses to the memory of a process become known.
//!
//! An [`AccessSource`] looks once at ranges of one address space and streams a [`TableSight`] for
//! every 2 MiB that holds something, in rising order of address, so a caller needs memory for one
//! table and not for one process. Sources hold no history and no policy: what a sight means for
//! the age of a page is decided in the engine.

use std::io;
use std::ops::ControlFlow;
use std::path::PathBuf;

use agewise_policy::table::{PAGES_PER_TABLE, PageSet, TableBits};
use serde::Serialize;

use crate::pagewalk::entry::{EntryFormat, SwapEntry};
use crate::process::Process;

#[cfg(any(test, feature = "testing"))]
pub mod fake;
mod leaf_run;
pub mod pagemap;

pub use leaf_run::LeafRun;

/// Bytes of a base page on the architectures served.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes that one [`TableSight`] spans.
pub const TABLE_BYTES: u64 = PAGE_BYTES * PAGES_PER_TABLE as u64;

/// The process to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Process id (thread group id) in the initial PID namespace of the reader's `/proc`.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat` (start time, clock ticks since boot). With it a reused pid is
    /// an error ([`AccessError::Reused`]) instead of another process's memory.
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
    /// A target known by its pid only: a reused pid is not noticed.
    pub fn by_pid(pid: u32) -> Self {
        Target {
            pid,
            start_ticks: None,
        }
    }
}

/// Addresses `start..end` of the target, whole pages, as one mapping (VMA) has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AddressRange {
    /// First byte.
    pub start: u64,
    /// Behind the last byte.
    pub end: u64,
}

impl AddressRange {
    /// Bytes in the range.
    pub fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.end <= self.start
    }
}

/// The unit in which the hardware maps what a sight shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Leaf {
    /// Base pages: each bit is a fact of its own.
    Page,
    /// One 2 MiB leaf (THP or hugetlb): one accessed bit for 512 pages.
    Huge,
    /// Part of a 1 GiB leaf (hugetlb): one accessed bit for 262144 pages.
    Giant,
}

/// Where frame numbers and swap entries of a sight come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entries<'a> {
    /// The source does not know them.
    Unknown,
    /// The raw last-level table.
    Table(&'a [u64; PAGES_PER_TABLE], EntryFormat),
    /// The raw leaf entry, and the frame number of the first page of this sight.
    Leaf(u64, u64),
}

/// One look at the part of one mapping that lies in one 2 MiB-aligned range.
///
/// Within a scan sights come in rising order of address. What was in the given ranges and was not
/// shown is not mapped. A 2 MiB range in which several mappings lie is shown once for each, with
/// disjoint [`covered`](Self::covered).
#[derive(Clone, Copy, Debug)]
pub struct TableSight<'a> {
    /// First address of the 2 MiB range (aligned, may lie before the mapping).
    pub va: u64,
    /// Index of the range, in the slice given to [`AccessSource::scan`], that this is part of.
    pub range: usize,
    /// What maps it.
    pub leaf: Leaf,
    /// The pages that belong to the range. Every other bit of this sight is zero.
    pub covered: PageSet,
    /// Present, young, dirty, swapped. Pages that are not memory of the process (the zero page,
    /// vdso, device memory: "special" entries) are in none of them.
    pub bits: &'a TableBits,
    /// The slot holds an entry that is neither: a page under migration, a poisoned page, a guard or
    /// userfaultfd marker. Nothing is known of its age in this scan.
    pub other: &'a PageSet,
    /// `CLOCK_MONOTONIC` ns before the first table of this batch was read: every young page had
    /// been accessed by then or within the read itself (well below a millisecond).
    pub seen_ns: u64,
    pub(crate) entries: Entries<'a>,
}

impl TableSight<'_> {
    /// Frame number (4 KiB units) of page `page` of the 2 MiB range; `None` where nothing is
    /// present or the source does not know.
    pub fn pfn(&self, page: usize) -> Option<u64> {
        if page >= PAGES_PER_TABLE || !self.bits.present.contains(page) {
            return None;
        }
        match self.entries {
            Entries::Unknown => None,
            Entries::Table(table, format) => format.pfn(table[page]),
            Entries::Leaf(_, first_pfn) => Some(first_pfn + page as u64),
        }
    }

    /// The same whether the page is covered or not: for what a page must be taken together with.
    pub fn frame(&self, page: usize) -> Option<u64> {
        match self.entries {
            Entries::Table(table, format) => format.pfn(*table.get(page)?),
            Entries::Leaf(_, first_pfn) => Some(first_pfn + page as u64),
            Entries::Unknown => None,
        }
    }

    /// The raw page-table entry of page `page` (of the leaf, for huge ones), where the source has
    /// it.
    pub fn raw(&self, page: usize) -> Option<u64> {
        match self.entries {
            Entries::Unknown => None,
            Entries::Table(table, _) => table.get(page).copied(),
            Entries::Leaf(entry, _) => Some(entry),
        }
    }

    /// Swap device and slot of page `page`, where it is swapped and the source knows.
    pub fn swap_entry(&self, page: usize) -> Option<SwapEntry> {
        if page >= PAGES_PER_TABLE || !self.bits.swapped.contains(page) {
            return None;
        }
        match self.entries {
            Entries::Table(table, format) => format.swap_entry(table[page]),
            Entries::Unknown | Entries::Leaf(..) => None,
        }
    }
}

/// What has been shown since the last [`SightSink::batch_end`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// `CLOCK_MONOTONIC` ns when reading began.
    pub begin_ns: u64,
    /// `CLOCK_MONOTONIC` ns when reading ended.
    pub end_ns: u64,
    /// Sights shown.
    pub sights: u32,
}

/// Takes what a scan shows.
pub trait SightSink {
    /// One table, in rising order of address.
    fn table(&mut self, sight: &TableSight<'_>);

    /// Some leaves at once, in the same order. One by one unless a sink knows better.
    fn leaves(&mut self, run: &LeafRun<'_>) {
        for sight in run.sights() {
            self.table(&sight);
        }
    }

    /// Nothing could be learnt of this part: not absent, unknown. Keep what was known.
    fn unreadable(&mut self, range: AddressRange) {
        let _ = range;
    }

    /// All tables read together have been shown. The moment to clear what was young among them:
    /// accesses between the read and the clear are lost. `Break` ends the scan.
    fn batch_end(&mut self, batch: &Batch) -> ControlFlow<()> {
        let _ = batch;
        ControlFlow::Continue(())
    }
}

/// A closure is a sink that takes tables and nothing else.
impl<F: FnMut(&TableSight<'_>)> SightSink for F {
    fn table(&mut self, sight: &TableSight<'_>) {
        self(sight)
    }
}

/// What one scan cost and met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScanCost {
    /// CPU time of reading and of making bitmaps (kernel and user, not the sink's), ns.
    pub cpu_ns: u64,
    /// System calls that read page tables.
    pub calls: u64,
    /// Last-level tables read.
    pub tables: u64,
    /// 2 MiB and 1 GiB leaves met (a 1 GiB leaf counts 512 times).
    pub leaves: u64,
    /// Pages found present (4 KiB units).
    pub present_pages: u64,
    /// Tables given up: they changed under the read, or made no sense.
    pub unreadable: u64,
    /// Tables read again because they changed under the read.
    pub retries: u64,
}

impl ScanCost {
    /// Sum of two scans.
    pub fn add(&mut self, other: &ScanCost) {
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
        self.calls = self.calls.saturating_add(other.calls);
        self.tables = self.tables.saturating_add(other.tables);
        self.leaves = self.leaves.saturating_add(other.leaves);
        self.present_pages = self.present_pages.saturating_add(other.present_pages);
        self.unreadable = self.unreadable.saturating_add(other.unreadable);
        self.retries = self.retries.saturating_add(other.retries);
    }
}

/// The result of a scan that was not refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScanReport {
    /// What it cost.
    pub cost: ScanCost,
    /// Every range was walked to its end. False after a `Break` of the sink.
    pub complete: bool,
}

/// The finest unit that a source can distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resolution {
    /// Every mapped page (leaf) has its own accessed bit.
    Page,
    /// Only whether anything in a mapping was accessed: `young` is all of `present`, or nothing.
    Mapping,
}

/// What a source knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// How fine `young` is.
    pub resolution: Resolution,
    /// [`TableSight::pfn`] is known.
    pub pfn: bool,
    /// Looking alone changes what the next look sees (the source clears as it reads).
    pub clears: bool,
}

/// A way to learn which pages of a process were accessed.
pub trait AccessSource {
    /// Its name in reports and on the command line.
    fn name(&self) -> &'static str;

    /// What it knows.
    fn abilities(&self) -> Abilities;

    /// Look once at `ranges` (whole pages, rising, disjoint) of `target`.
    ///
    /// # Errors
    /// [`AccessError`]. Sights shown before an error stay true for the time they carry.
    fn scan(
        &mut self,
        target: &Target,
        ranges: &[AddressRange],
        sink: &mut dyn SightSink,
    ) -> Result<ScanReport, AccessError>;
}

/// Whether the kernel's pages are of [`PAGE_BYTES`], by which everything here counts.
///
/// # Errors
/// [`AccessError::Unsupported`] where they are larger (AArch64 with 16 or 64 KiB).
pub fn check_page_size() -> Result<(), AccessError> {
    match rustix::param::page_size() as u64 {
        PAGE_BYTES => Ok(()),
        bytes => Err(AccessError::Unsupported {
            what: "looking at memory",
            why: format!(
                "this kernel's pages are of {} KiB; run one with pages of 4 KiB",
                bytes >> 10
            ),
        }),
    }
}

/// Why a process could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No process has this pid (any more).
    #[error("process {pid} does not exist or has exited")]
    NoSuchProcess {
        /// The pid asked for.
        pid: u32,
    },
    /// The process exits, or is a zombie.
    #[error("process {pid} has no address space: it is exiting or a zombie")]
    NoAddressSpace {
        /// The pid asked for.
        pid: u32,
    },
    /// Kernel threads have no memory of their own.
    #[error("process {pid} is a kernel thread: it has no memory of its own")]
    KernelThread {
        /// The pid asked for.
        pid: u32,
    },
    /// The pid was given to another process.
    #[error("pid {pid} now belongs to another process than the one asked for")]
    Reused {
        /// The pid asked for.
        pid: u32,
    },
    /// The process called exec, or exited, during the scan.
    #[error("process {pid} replaced its address space (exec or exit) during the scan")]
    Changed {
        /// The pid asked for.
        pid: u32,
    },
    /// The ranges given are not whole pages, not rising, or overlap.
    #[error("address range {start:#x}-{end:#x} is empty, unaligned or out of order")]
    BadRange {
        /// First byte.
        start: u64,
        /// Behind the last byte.
        end: u64,
    },
    /// A privilege is missing.
    #[error("{what}: not permitted; {hint}")]
    NoPrivilege {
        /// What was attempted.
        what: String,
        /// What to do.
        hint: &'static str,
    },
    /// The machine or the kernel cannot do it.
    #[error("{what} is not available here: {why}")]
    Unsupported {
        /// What was attempted.
        what: &'static str,
        /// Why not.
        why: String,
    },
    /// A file of `/proc` or a system call failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file, or the name of the call.
        path: PathBuf,
        /// What the system said.
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

    /// The target is gone or became something else: forget it, nothing is wrong with the source.
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

/// `ranges` are whole pages, rising and disjoint.
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

/// The pages of the 2 MiB range at `va` that lie in `range`.
pub(crate) fn covered(va: u64, range: AddressRange) -> PageSet {
    let first = range.start.saturating_sub(va).min(TABLE_BYTES) / PAGE_BYTES;
    let last = range.end.saturating_sub(va).min(TABLE_BYTES) / PAGE_BYTES;
    if first == 0 && last == PAGES_PER_TABLE as u64 {
        return PageSet::ALL;
    }
    PageSet::range(first as usize..last as usize)
}
