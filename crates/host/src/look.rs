// SPDX-License-Identifier: Apache-2.0
//! One look at one process: reads its page tables, shows them to a viewer and clears the accessed
//! bits batch by batch. The agent, the recorder and the budget all use it.

use crate::access::{
    AccessError, AccessSource, AddressRange, Batch, LeafRun, ScanCost, SightSink, TableSight,
    Target,
};
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

/// Receives what a look shows, like a [`SightSink`], and says what to clear.
pub(crate) trait Viewer {
    fn table(&mut self, sight: &TableSight<'_>, clearer: &mut Clearer);

    /// Adjacent leaves that look alike.
    fn leaves(&mut self, run: &LeafRun<'_>, clearer: &mut Clearer) {
        run.sights().for_each(|sight| self.table(&sight, clearer));
    }

    /// This range could not be read.
    fn unreadable(&mut self, range: AddressRange) {
        let _ = range;
    }

    /// Everything read together has been shown, and is cleared next.
    fn batch_end(&mut self, batch: &Batch) {
        let _ = batch;
    }
}

/// The cost of a look, and what was cleared.
#[derive(Debug)]
pub(crate) struct Looked {
    /// The cost of reading.
    pub cost: ScanCost,
    /// The outcome of clearing. After an error, what the viewer saw is still valid.
    pub cleared: Result<ClearReport, ClearError>,
}

/// Looks at `ranges` of a process. `clearer` must be prepared for this look by [`Clearer::begin`].
/// Unless `is_clearing`, accessed bits stay set for the next look that clears.
///
/// # Errors
/// The page tables could not be read to the end. What the viewer saw before is still valid.
pub(crate) fn look(
    process: &Process,
    source: &mut dyn AccessSource,
    ranges: &[AddressRange],
    clearer: &mut Clearer,
    is_clearing: bool,
    viewer: &mut dyn Viewer,
) -> Result<Looked, AccessError> {
    let mut sink = Sink {
        viewer,
        clearer,
        hand: KernelHand::new(process),
        is_clearing,
        failed: None,
    };
    let scanned = source.scan(&Target::from(process), ranges, &mut sink);
    let Sink {
        clearer,
        mut hand,
        failed,
        ..
    } = sink;
    if matches!(scanned, Err(AccessError::Changed { .. })) {
        clearer.forget();
    }
    let cost = scanned?.cost;
    let cleared = match failed {
        Some(error) => Err(error),
        None if is_clearing => clearer.finish(&mut hand),
        None => Ok(ClearReport::default()),
    };
    Ok(Looked { cost, cleared })
}

struct Sink<'a> {
    viewer: &'a mut dyn Viewer,
    clearer: &'a mut Clearer,
    hand: KernelHand,
    is_clearing: bool,
    failed: Option<ClearError>,
}

impl SightSink for Sink<'_> {
    fn table(&mut self, sight: &TableSight<'_>) {
        self.viewer.table(sight, self.clearer);
    }

    fn leaves(&mut self, run: &LeafRun<'_>) {
        self.viewer.leaves(run, self.clearer);
    }

    fn unreadable(&mut self, range: AddressRange) {
        self.viewer.unreadable(range);
    }

    fn batch_end(&mut self, batch: &Batch) {
        self.viewer.batch_end(batch);
        if self.is_clearing && self.failed.is_none() {
            self.failed = self.clearer.clear(&mut self.hand, batch).err();
        }
    }
}
