// SPDX-License-Identifier: Apache-2.0
//! Records the page accesses of a run in order, for policies that decide over accesses alone.

use std::collections::HashSet;
use std::ops::Range;

use agewise_trace::DenseTrace;

use super::super::task::Operation;
use super::{Run, RunError};
use crate::machine::{Machine, ProcessId};

/// Limit on recorded accesses: 2.25 GiB.
const ACCESSES_MAX: usize = 1 << 28;

/// Marks anonymous pages.
const ANON: u64 = 1 << 63;

/// Accesses recorded so far.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pages: Vec<u64>,
    /// Whether each access reads if the page is not in memory.
    reads: Vec<bool>,
    is_full: bool,
    /// Anonymous pages that were released, and not accessed since.
    released: HashSet<u64>,
}

impl Recording {
    /// Records an access that has just happened. A page of a file is the same page however it is
    /// accessed; anonymous pages belong to one process, so a forked child has its own.
    pub fn note(&mut self, machine: &Machine, process: ProcessId, operation: Operation) {
        let (page, reads) = match operation {
            Operation::Touch { vpn, .. } => match machine.file_page(process, vpn) {
                Some((file, page)) => (u64::from(file) << 32 | u64::from(page), true),
                None => {
                    let page = anon_page(process, vpn);
                    // What was released is not on a device: the page is filled with zeros.
                    (page, !self.released.remove(&page))
                }
            },
            // A page is written as a whole, so writing it reads nothing.
            Operation::Io { file, index, write } => {
                (u64::from(file.number()) << 32 | u64::from(index), !write)
            }
            _ => return,
        };
        if self.pages.len() == ACCESSES_MAX {
            self.is_full = true;
            return;
        }
        self.pages.push(page);
        self.reads.push(reads);
    }

    /// The pages of a range are free. They stay the same pages: others would fill the memory of
    /// policies that do not learn of a release, where a kernel reuses what is free.
    fn release(&mut self, process: ProcessId, pages: Range<u64>) {
        self.released
            .extend(pages.map(|vpn| anon_page(process, vpn)));
    }
}

fn anon_page(process: ProcessId, vpn: u64) -> u64 {
    ANON | (process.index() as u64) << 36 | vpn
}

impl Run {
    /// Frees what is mapped in a range.
    pub(super) fn release(&mut self, process: ProcessId, start_vpn: u64) {
        self.machine.discard(process, start_vpn);
        if let Some(recording) = &mut self.recording {
            recording.release(process, self.machine.range_of(process, start_vpn));
        }
    }

    /// Starts recording accesses.
    pub fn record_accesses(&mut self) {
        self.recording = Some(Box::default());
    }

    /// The accesses since [`Run::record_accesses`], and which of them read from a device if the
    /// page is not in memory: not the first access to an anonymous page, nor the first after its
    /// release, nor writes to a file.
    ///
    /// # Errors
    /// Fails if there were more accesses than can be recorded.
    pub fn take_accesses(&mut self) -> Result<(DenseTrace, Vec<bool>), RunError> {
        let mut recording = self.recording.take().unwrap_or_default();
        if recording.is_full {
            return Err(RunError::TooLong { max: ACCESSES_MAX });
        }
        let trace = DenseTrace::from_pages(&recording.pages);
        let mut seen = 0;
        for (reads, &page) in recording.reads.iter_mut().zip(trace.accesses()) {
            // Pages are numbered in the order of their first accesses.
            if page == seen {
                seen += 1;
                *reads &= trace.pages()[page as usize] & ANON == 0;
            }
        }
        Ok((trace, recording.reads))
    }
}
