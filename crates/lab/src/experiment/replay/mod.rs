// SPDX-License-Identifier: Apache-2.0
//! A trace laid out on the simulated machine: where each page is, and when it is accessed.
//!
//! What a trace records is kept: processes, anonymous or file, read or write, time. What it does
//! not record is decided here and reported in [`Replay::notes`]:
//!
//! - Neighbouring pages stay neighbours, and empty stretches between them are left out: page tables
//!   and page-cache nodes are as full as in the program, and untouched memory costs nothing.
//! - An access of unknown kind is a read, except the first access to an anonymous page, which must
//!   write: a page that was only read would be the zero page.
//! - Anonymous memory that several processes touch (shared memory) is accessed through the first.
//! - If the order is unknown ([`Order::Interval`]), accesses are spread evenly over their interval,
//!   in an order that the caller chooses ([`Arrangement`]).

mod cursor;
mod layout;

use std::path::Path;

use agewise_trace::page_trace::Order;
use agewise_trace::{AccessStream, TraceError};

pub(super) use cursor::Cursor;
pub use cursor::{Arrangement, GAP_NS_MAX};
use layout::Reading;

/// How pages of files, and pages of unknown type, are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Read and written through a file descriptor: the policies see each access.
    Descriptor,
    /// Mapped: the policies find accessed bits.
    Mapping,
    /// As anonymous memory, except pages that the trace says belong to files: these are mapped.
    Anonymous,
}

/// One access: 8 bytes.
#[derive(Clone, Copy, Debug)]
struct Item {
    page: u32,
    /// Process in the upper bits; bit 0 is set for a write.
    who: u32,
}

/// Accesses with the same time.
#[derive(Clone, Copy, Debug)]
struct Moment {
    /// One past its last access.
    end: usize,
    time_ns: u64,
    /// Whether all are page faults, which happened at this time and not at some time before it.
    exact: bool,
}

/// Where a page is on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    /// In the anonymous memory of a process, this many pages from its start.
    Anon { process: u32, page: u32 },
    /// In the file.
    File { page: u32 },
}

/// A trace ready to run.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Name in tables.
    pub name: String,
    /// Whether the order within a moment is unknown.
    pub order_unknown: bool,
    /// Time between two scans of the recorder; 0 if it did not scan.
    pub interval_ns: u64,
    /// How the file is accessed.
    pub through: Through,
    /// Remarks of the reader, and decisions made here.
    pub notes: Vec<String>,
    homes: Vec<Home>,
    items: Vec<Item>,
    moments: Vec<Moment>,
    first_time_ns: u64,
    anon_pages: u64,
    /// Places of anonymous memory, by process.
    pub(super) anon_places: Vec<u32>,
    /// Places of the file.
    pub(super) file_places: u32,
}

impl Replay {
    /// Reads a whole trace. If `through` is None, the format decides: mapped for a recording of
    /// accessed bits, through a descriptor for all others.
    ///
    /// # Errors
    /// Fails if reading fails; [`TraceError::Limit`] if the trace is too large for a machine.
    pub fn read(
        name: &str,
        path: &Path,
        stream: &mut AccessStream,
        through: Option<Through>,
    ) -> Result<Replay, TraceError> {
        let header = stream.page_trace_header();
        let order = header.map_or(Order::Exact, |header| header.order);
        let interval_ns = header.map_or(0, |header| header.interval_ns);
        let order_unknown = order == Order::Interval;
        let through = through.unwrap_or(if order_unknown {
            Through::Mapping
        } else {
            Through::Descriptor
        });
        let mut reading = Reading::new(through);
        let mut batch = Vec::new();
        while stream.next_batch(&mut batch)? {
            for access in &batch {
                reading.add(access).map_err(|what| TraceError::Limit {
                    path: path.to_path_buf(),
                    what,
                })?;
            }
            stream.check_memory(reading.memory_bytes())?;
        }
        let mut replay = reading.lay_out().map_err(|what| TraceError::Limit {
            path: path.to_path_buf(),
            what,
        })?;
        name.clone_into(&mut replay.name);
        replay.order_unknown = order_unknown;
        replay.interval_ns = interval_ns;
        replay.notes.extend(stream.note().map(str::to_owned));
        Ok(replay)
    }

    /// Number of different pages.
    #[must_use]
    pub fn footprint_pages(&self) -> u64 {
        self.homes.len() as u64
    }

    /// Number of different anonymous pages; the others belong to the file.
    #[must_use]
    pub fn anon_pages(&self) -> u64 {
        self.anon_pages
    }

    /// Number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.anon_places.len()
    }

    /// Description in a line or two.
    #[must_use]
    pub fn description(&self) -> String {
        let file_pages = self.footprint_pages() - self.anon_pages;
        let by = match self.through {
            Through::Descriptor => "by file descriptor",
            Through::Mapping | Through::Anonymous => "mapped",
        };
        let mut parts = Vec::new();
        if self.anon_pages > 0 {
            parts.push(format!("{} anonymous", self.anon_pages));
        }
        if file_pages > 0 {
            parts.push(format!("{file_pages} of files, {by}"));
        }
        format!(
            "{} accesses of {} pages ({}) by {} process{}",
            self.items.len(),
            self.footprint_pages(),
            parts.join("; "),
            self.processes(),
            if self.processes() == 1 { "" } else { "es" },
        )
    }

    pub(super) fn home(&self, page: u32) -> Home {
        self.homes[page as usize]
    }
}

#[cfg(test)]
mod tests;
