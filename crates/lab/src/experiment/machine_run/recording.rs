// SPDX-License-Identifier: Apache-2.0
//! Which pages a run accesses, in order, for policies that decide over them alone.

use agewise_trace::DenseTrace;

use super::super::task::Operation;
use super::{Run, RunError};
use crate::machine::{Machine, ProcessId};

/// The most accesses that are kept: 2 GiB.
const ACCESSES_MAX: usize = 1 << 28;

/// Marks anonymous pages.
const ANON: u64 = 1 << 63;

/// Accesses so far.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pages: Vec<u64>,
    is_full: bool,
}

impl Recording {
    /// An access that has just happened. Pages of a file are the same however they are accessed;
    /// anonymous pages belong to one process, so a forked child has its own.
    pub fn note(&mut self, machine: &Machine, process: ProcessId, operation: Operation) {
        let page = match operation {
            Operation::Touch { vpn, .. } => match machine.file_page(process, vpn) {
                Some((file, page)) => u64::from(file) << 32 | u64::from(page),
                None => ANON | (process.index() as u64) << 36 | vpn,
            },
            Operation::Io { file, index, .. } => u64::from(file.number()) << 32 | u64::from(index),
            _ => return,
        };
        match self.pages.len() < ACCESSES_MAX {
            true => self.pages.push(page),
            false => self.is_full = true,
        }
    }
}

impl Run {
    /// From now on keeps what is accessed.
    pub fn record_accesses(&mut self) {
        self.recording = Some(Box::default());
    }

    /// What was accessed since [`Run::record_accesses`], and how many different pages of it are
    /// anonymous.
    ///
    /// # Errors
    /// More than can be kept.
    pub fn take_accesses(&mut self) -> Result<(DenseTrace, u64), RunError> {
        let recording = self.recording.take().unwrap_or_default();
        if recording.is_full {
            return Err(RunError::TooLong { max: ACCESSES_MAX });
        }
        let trace = DenseTrace::from_pages(&recording.pages);
        let anon_pages = trace.pages().iter().filter(|page| **page & ANON != 0);
        let anon_pages = anon_pages.count() as u64;
        Ok((trace, anon_pages))
    }
}
