// SPDX-License-Identifier: Apache-2.0
//! One look at one process: an access source reads its page tables and shows them to a sink, which
//! has the accessed bits cleared batch by batch. The agent, the recorder and the budget each have a
//! sink of their own; [`Clearing`] is what these share.

use crate::access::{AccessError, Batch};
use crate::clear::hand::KernelHand;
use crate::clear::{ClearError, ClearReport, Clearer};
use crate::error::FileError;
use crate::process::{Process, ProcessError};

/// Why a look at a process failed or stopped early.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    #[error(transparent)]
    Source(#[from] AccessError),
    #[error(transparent)]
    Maps(#[from] FileError),
    /// A file of its directory in `/proc` could not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Its accessed bits could not be cleared, so later looks would learn nothing more.
    #[error(transparent)]
    Clear(#[from] ClearError),
}

impl LookError {
    /// Whether the process is gone, or its pid belongs to another one. Not a fault.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            LookError::Source(error) => error.is_target_gone(),
            LookError::Maps(error) => error.is_not_found(),
            LookError::Process(error) => error.is_gone(),
            LookError::Clear(error) => matches!(error, ClearError::Gone { .. }),
        }
    }

    /// Whether the process did not answer when its accessed bits were to be cleared: they may be at
    /// any later time.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, LookError::Clear(ClearError::System { source, .. })
            if source.kind() == std::io::ErrorKind::TimedOut)
    }
}

/// The cost of a look, and what was cleared.
#[derive(Debug)]
pub(crate) struct Looked {
    /// CPU time of reading, ns.
    pub read_ns: u64,
    /// The outcome of clearing. After an error, what the sink saw is still valid.
    pub cleared: Result<ClearReport, ClearError>,
}

/// The part that all sinks of a look share: a sink judges each table with the clearer, and says
/// when a batch and the scan end.
pub(crate) struct Clearing<'a> {
    pub clearer: &'a mut Clearer,
    pub hand: KernelHand,
    is_on: bool,
    failed: Option<ClearError>,
}

impl<'a> Clearing<'a> {
    /// `clearer` must be prepared for this look by [`Clearer::begin`]. Unless `is_on`, accessed
    /// bits stay set for the next look that clears.
    pub fn new(process: &Process, clearer: &'a mut Clearer, is_on: bool) -> Self {
        Clearing {
            clearer,
            hand: KernelHand::new(process),
            is_on,
            failed: None,
        }
    }

    /// Clears what was judged of a batch.
    pub fn batch_end(&mut self, batch: &Batch) {
        if self.is_on && self.failed.is_none() {
            self.failed = self.clearer.clear(&mut self.hand, batch).err();
        }
    }

    /// Ends the look; `scanned` is what the source returned.
    ///
    /// # Errors
    /// The page tables could not be read to the end. What the sink saw before is still valid.
    pub fn end(mut self, scanned: Result<u64, AccessError>) -> Result<Looked, AccessError> {
        if matches!(scanned, Err(AccessError::Changed { .. })) {
            self.clearer.forget();
        }
        let read_ns = scanned?;
        let cleared = match self.failed {
            Some(error) => Err(error),
            None if self.is_on => self.clearer.finish(&mut self.hand),
            None => Ok(ClearReport::default()),
        };
        Ok(Looked { read_ns, cleared })
    }
}
