// SPDX-License-Identifier: Apache-2.0
//! Recording the page accesses of live processes into a page trace.
//!
//! At every interval the page tables are read, and the pages with accessed bits set are written
//! with the time of the look. Their order within an interval is unknown: they are written in
//! ascending address order, and the trace says so ([`Order::Interval`]).
//!
//! Page faults, if there is a source for them, are written with their own times between the looks
//! ([`Evidence::Fault`]). A page that faulted in an interval is not also written as seen in it.
//!
//! If a program accesses so much that clearing all of it in every interval would slow it by more
//! than [`MAX_SLOWDOWN`], it is spared: some of its accesses are inferred from others, and the
//! trace says which ([`Evidence::Inferred`]).

pub mod faults;
pub mod files;
mod pace;
mod pages;
mod watched;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use crate::access::{AccessError, AccessSource, Resolution, check_page_size};
use crate::clock;
use crate::faults::{Fault, FaultKind};
use crate::look::LookError;
use crate::pagewalk::{Capacity, PageWalk};
use crate::process::{Process, ProcessError};
use agewise_trace::page_trace::{Header, Order, PageTraceWriter};
use agewise_trace::{AccessKind, Evidence, Request, TraceError};
use serde::Serialize;

use pages::PageNames;
use watched::Watched;

/// Why a recording failed.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The trace could not be written. What was written before stays readable.
    #[error("{0}; what was recorded before stays readable")]
    Write(#[from] TraceError),
    #[error(
        "a page trace needs an access source that sees single pages; '{name}' sees whole mappings \
         only: run as root on a kernel with BTF (see agewise doctor)"
    )]
    Coarse { name: &'static str },
    /// A process could not be looked at, for another reason than that it is gone.
    #[error("process {pid} cannot be recorded: {source}")]
    Watch { pid: u32, source: LookError },
    #[error("page faults cannot be recorded: {0}; --faults off does without")]
    Faults(AccessError),
}

/// Tables read before they are cleared. Accesses in between are lost to the trace, which matters at
/// short intervals: so fewer tables than elsewhere, at the cost of more calls.
const TABLES_A_CALL: u32 = 16;

/// Default limit on what recording may cost a program, as a share of its time.
pub const MAX_SLOWDOWN: f64 = 0.05;

/// Opens the access source for recordings.
///
/// # Errors
/// A privilege is missing, BPF is not available, or the kernel's pages are larger than 4 KiB, so
/// that one access would be several in the trace.
pub fn open_source() -> Result<PageWalk, AccessError> {
    check_page_size("recording accesses")?;
    let capacity = Capacity {
        tables: TABLES_A_CALL,
        ..Capacity::default()
    };
    PageWalk::open_with(None, capacity)
}

/// Totals of a recording so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of looks at all processes.
    pub intervals: u64,
    /// Accesses: young pages, summed over intervals.
    pub accesses: u64,
    /// The accesses that are page faults, with exact times.
    pub faults: u64,
    /// The page faults known to be major.
    pub major_faults: u64,
    /// Page faults lost because more of them came in an interval than fit in the ring.
    pub faults_dropped: u64,
    /// The accesses that were inferred rather than seen, to spare the program.
    pub inferred: u64,
    /// Processes currently spared.
    pub spared_processes: u64,
    /// Maximum number of pages in one interval.
    pub accesses_max: u64,
    /// Number of processes recorded so far.
    pub processes: u64,
    /// CPU time spent reading and clearing, ns.
    pub cpu_ns: u64,
    /// Size of the trace in bytes.
    pub trace_bytes: u64,
    /// Pages that cannot be cleared (hugetlb), and so are not recorded.
    pub uncleared_pages: u64,
}

/// A recording in progress.
pub struct Recorder<'a, W: Write> {
    source: &'a mut dyn AccessSource,
    writer: PageTraceWriter<W>,
    names: PageNames,
    watched: BTreeMap<u32, Watched>,
    start_ns: u64,
    last_look_ns: u64,
    max_slowdown: f64,
    totals: Totals,
    faults: Option<faults::Source>,
    pending: faults::Pending,
    /// Findings of the current look, kept until the faults before it are written.
    found: Vec<(u32, watched::Touched)>,
    /// Time of the last record, in ns since the recording began. Times never go back.
    written_ns: u64,
}

impl<'a, W: Write> Recorder<'a, W> {
    /// Writes the header. `path` is used in messages.
    ///
    /// # Errors
    /// The source cannot distinguish pages, or the trace cannot be written.
    pub fn new(
        source: &'a mut dyn AccessSource,
        path: &std::path::Path,
        out: W,
        interval: Duration,
        metadata: String,
    ) -> Result<Self, RecordError> {
        if source.abilities().resolution != Resolution::Page {
            return Err(RecordError::Coarse {
                name: source.name(),
            });
        }
        let header = Header {
            order: Order::Interval,
            evidence: true,
            interval_ns: u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX),
            metadata,
            ..Header::default()
        };
        Ok(Recorder {
            source,
            writer: PageTraceWriter::new(path, out, &header)?,
            names: PageNames::default(),
            watched: BTreeMap::new(),
            start_ns: clock::monotonic_ns(),
            last_look_ns: 0,
            max_slowdown: MAX_SLOWDOWN,
            totals: Totals::default(),
            faults: None,
            pending: faults::Pending::default(),
            found: Vec::new(),
            written_ns: 0,
        })
    }

    /// Also records page faults, of processes added from now on.
    pub fn set_faults(&mut self, source: faults::Source) {
        self.faults = Some(source);
    }

    /// Limits the cost of recording for processes added from now on. Infinite: everything is seen,
    /// whatever the cost.
    pub fn set_max_slowdown(&mut self, share: f64) {
        self.max_slowdown = share;
    }

    /// Whether a process is being recorded.
    #[must_use]
    pub fn knows(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// The time when the recording began, in `CLOCK_MONOTONIC` ns: the origin of its times.
    #[must_use]
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Time of the last look, in ns since the recording began.
    #[must_use]
    pub fn last_look_ns(&self) -> u64 {
        self.last_look_ns
    }

    /// Number of processes currently recorded.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.watched.len()
    }

    /// The totals so far.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            trace_bytes: self.writer.bytes_written(),
            ..self.totals
        }
    }

    /// Adds a process; `born_here` as in [`Watched::new`]. Ignores one that is already gone.
    ///
    /// # Errors
    /// The process may not be observed, or is a kernel thread.
    pub fn add(&mut self, pid: u32, born_here: bool) -> Result<(), ProcessError> {
        let process = match Process::open(pid) {
            Err(error) if error.is_gone() => return Ok(()),
            opened => opened?,
        };
        if let Some(slot) = self.names.process_slot(pid) {
            if let Some(faults) = &mut self.faults {
                // If no more processes can be watched for faults, the accessed bits still show its
                // accesses.
                let _ = faults.watch(pid);
            }
            self.watched.insert(
                pid,
                Watched::new(process, slot, born_here, self.max_slowdown),
            );
            self.totals.processes += 1;
        }
        Ok(())
    }

    /// Records one interval: looks at every process and writes what it accessed.
    ///
    /// # Errors
    /// [`RecordError`]. Processes that are gone are dropped without an error.
    pub fn interval(&mut self) -> Result<(), RecordError> {
        let time_ns = clock::monotonic_ns().saturating_sub(self.start_ns);
        self.last_look_ns = time_ns;
        let (mut spared, mut uncleared, mut gone) = (0, 0, Vec::new());
        self.found.clear();
        for (&pid, watched) in &mut self.watched {
            let found = &mut self.found;
            let mut keep = |touched: watched::Touched| found.push((pid, touched));
            let cpu_ns = clock::thread_cpu_ns();
            match watched.look(self.source, &mut self.names, &mut keep) {
                Ok(cleared) => uncleared += cleared.uncleared_pages,
                Err(error) if error.is_gone() => gone.push(pid),
                Err(source) => return Err(RecordError::Watch { pid, source }),
            }
            spared += u64::from(watched.is_spared());
            self.totals.cpu_ns += clock::thread_cpu_ns() - cpu_ns;
        }
        let cpu_ns = clock::thread_cpu_ns();
        let mut accesses = self.write_faults(time_ns)? + self.write_found(time_ns)?;
        if !gone.is_empty() {
            // Their last faults may have come after the look began.
            accesses += self.write_pending(u64::MAX)?;
        }
        if self.faults.is_some() {
            self.totals.cpu_ns += clock::thread_cpu_ns() - cpu_ns;
        }
        for pid in gone {
            self.watched.remove(&pid);
            self.names.forget_process(pid);
            if let Some(faults) = &mut self.faults {
                faults.forget(pid);
            }
        }
        self.totals.intervals += 1;
        self.totals.accesses += accesses;
        self.totals.spared_processes = spared;
        self.totals.uncleared_pages = uncleared;
        self.totals.accesses_max = self.totals.accesses_max.max(accesses);
        Ok(())
    }

    /// Writes the faults up to the look at `time_ns`, and removes the pages that faulted from the
    /// look's findings. Returns the number of accesses written.
    fn write_faults(&mut self, time_ns: u64) -> Result<u64, RecordError> {
        let Some(source) = &mut self.faults else {
            return Ok(0);
        };
        self.pending
            .fill(source.as_mut())
            .map_err(RecordError::Faults)?;
        self.totals.faults_dropped = source.dropped();
        // Includes pages that faulted during the look, which can only have found them after the
        // fault.
        let mut known: Vec<u64> = Vec::with_capacity(self.pending.all().len());
        known.extend(self.pending.all().iter().filter_map(|fault| {
            let watched = self.watched.get(&fault.pid)?;
            Some(watched.numbering_of(fault).page(fault.address))
        }));
        known.sort_unstable();
        known.dedup();
        if !known.is_empty() {
            let mut rest = Vec::with_capacity(self.found.len());
            for &(pid, touched) in &self.found {
                faults::without(
                    &known,
                    touched.first_page,
                    touched.pages,
                    |first_page, pages| {
                        let touched = watched::Touched {
                            first_page,
                            pages,
                            ..touched
                        };
                        rest.push((pid, touched));
                    },
                );
            }
            self.found = rest;
        }
        self.write_pending(time_ns.saturating_add(self.start_ns))
    }

    /// Writes the known faults up to this time, in `CLOCK_MONOTONIC` ns. Returns how many.
    fn write_pending(&mut self, until_ns: u64) -> Result<u64, RecordError> {
        let mut count = 0;
        for fault in self.pending.until(until_ns) {
            let is_written = self.write_fault(&fault)?;
            let is_major = is_written && fault.kind == FaultKind::Major;
            count += u64::from(is_written);
            self.totals.major_faults += u64::from(is_major);
        }
        self.totals.faults += count;
        Ok(count)
    }

    /// Writes a fault, if its process is being recorded.
    fn write_fault(&mut self, fault: &Fault) -> Result<bool, RecordError> {
        let Some(watched) = self.watched.get(&fault.pid) else {
            return Ok(false);
        };
        let numbering = watched.numbering_of(fault);
        // A late fault from another processor gets the earliest possible time.
        self.written_ns = self
            .written_ns
            .max(fault.time_ns.saturating_sub(self.start_ns));
        self.writer.push(&Request {
            first_page: numbering.page(fault.address),
            page_count: 1,
            time_ns: self.written_ns,
            process: fault.pid,
            kind: if fault.write {
                AccessKind::Write
            } else {
                AccessKind::Read
            },
            class: numbering.class,
            evidence: match fault.kind {
                FaultKind::Unknown => Evidence::Fault,
                FaultKind::Minor => Evidence::MinorFault,
                FaultKind::Major => Evidence::MajorFault,
            },
        })?;
        Ok(true)
    }

    /// Writes the findings of the look at `time_ns`. Returns the number of accesses written.
    fn write_found(&mut self, time_ns: u64) -> Result<u64, RecordError> {
        self.written_ns = self.written_ns.max(time_ns);
        let mut accesses = 0;
        for &(process, touched) in &self.found {
            accesses += touched.pages;
            if touched.evidence == Evidence::Inferred {
                self.totals.inferred += touched.pages;
            }
            self.writer.push(&Request {
                first_page: touched.first_page,
                page_count: touched.pages,
                time_ns: self.written_ns,
                process,
                kind: AccessKind::Unknown,
                class: touched.numbering.class,
                evidence: touched.evidence,
            })?;
        }
        Ok(accesses)
    }

    /// Writes the remaining records, the faults since the last look, and the index.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish(mut self) -> Result<(Totals, Vec<String>), RecordError> {
        if let Some(source) = &mut self.faults {
            self.pending
                .fill(source.as_mut())
                .map_err(RecordError::Faults)?;
            self.totals.faults_dropped = source.dropped();
            self.totals.accesses += self.write_pending(u64::MAX)?;
        }
        self.writer.flush_frame()?;
        let totals = self.totals();
        self.writer.finish()?;
        Ok((totals, self.names.files().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Leaf;
    use crate::access::fake::{FakeSource, FakeTable};
    use crate::agent::tests::Sleeper;
    use agewise_policy::table::{PageSet, TableBits};

    /// Large leaves cannot be cleared.
    #[test]
    fn pages_that_cannot_be_cleared_are_those_of_all_processes() {
        let sleepers = [Sleeper::new(), Sleeper::new()];
        let uncleared = |of: &[Sleeper]| {
            let mut source = FakeSource::new();
            for sleeper in of {
                let bits = TableBits {
                    present: PageSet::ALL,
                    young: PageSet::ALL,
                    ..TableBits::default()
                };
                let leaf = Leaf::Giant;
                source.set(sleeper.pid(), sleeper.table(), FakeTable { bits, leaf });
            }
            let (path, interval) = ("trace".as_ref(), Duration::from_secs(1));
            let mut recorder =
                Recorder::new(&mut source, path, Vec::new(), interval, String::new()).unwrap();
            for sleeper in of {
                recorder.add(sleeper.pid(), false).unwrap();
            }
            recorder.interval().unwrap();
            recorder.totals().uncleared_pages
        };
        let [first, second] = [0, 1].map(|at| uncleared(&sleepers[at..=at]));
        assert!(first > 0 && second > 0);
        assert_eq!(uncleared(&sleepers), first + second);
    }
}
