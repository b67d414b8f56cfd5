// SPDX-License-Identifier: Apache-2.0
//! Passes runs to the kernel, vector by vector, and continues after refusals.
//!
//! process_madvise goes through the vector and stops at the first range that fails (mm/madvise.c,
//! `vector_madvise`, 5.10 to 6.18). It returns the bytes of the ranges before it, or the errno if
//! there are none. A range that is even partly mlocked, hugetlb or device memory fails with EINVAL
//! where that part begins. A range with a hole fails with ENOMEM after its mapped parts have been
//! processed.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::report::{SkipReason, Skipped};
use super::runs::RunSet;
use super::space::{Mover, VECTOR_MAX};
use super::target::PageoutError;
use crate::access::AddressRange;

/// How often an interrupted call is retried before it becomes an error.
const RETRIES_MAX: u32 = 8;

/// Runs being passed to the kernel.
pub(super) struct Pass<'m> {
    mover: &'m mut dyn Mover,
    queue: VecDeque<Piece>,
    passed: Vec<AddressRange>,
    skipped: Skipped,
    calls: u64,
}

/// The outcome of a pass.
pub(super) struct Passed {
    pub passed: RunSet,
    pub skipped: Skipped,
    pub calls: u64,
    /// After an error the rest was skipped.
    pub result: Result<(), PageoutError>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    run: AddressRange,
    known: Known,
}

/// What is known about a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Nothing,
    /// It lies in one mapping: if it fails, all of it does.
    OneMapping,
    /// It lies in one mapping and stopped a call that gave no errno. It is tried once more, at the
    /// front of a vector.
    Suspect,
}

impl<'m> Pass<'m> {
    pub fn of(runs: &RunSet, mover: &'m mut dyn Mover, cancel: &AtomicBool) -> Passed {
        let piece = |run: &AddressRange| Piece {
            run: *run,
            known: Known::Nothing,
        };
        let mut pass = Self {
            mover,
            queue: runs.runs().iter().map(piece).collect(),
            passed: Vec::new(),
            skipped: Skipped::default(),
            calls: 0,
        };
        let result = pass.go(cancel);
        if let Err(error) = &result {
            pass.skip_rest(error.skip_reason());
        }
        Passed {
            passed: RunSet::from_runs(pass.passed),
            skipped: pass.skipped,
            calls: pass.calls,
            result,
        }
    }

    fn go(&mut self, cancel: &AtomicBool) -> Result<(), PageoutError> {
        let mut retries = 0;
        while !self.queue.is_empty() {
            if cancel.load(Ordering::Relaxed) {
                self.skip_rest(SkipReason::Cancelled);
                return Ok(());
            }
            let vector: Vec<AddressRange> = self
                .queue
                .iter()
                .take(VECTOR_MAX)
                .map(|piece| piece.run)
                .collect();
            self.calls += 1;
            match self.mover.page_out(&vector) {
                Ok(bytes) => {
                    retries = 0;
                    let asked_bytes: u64 = vector.iter().map(|run| run.len()).sum();
                    self.take_passed(bytes);
                    if bytes < asked_bytes {
                        self.stopped_by_front(None)?;
                    }
                }
                Err(Errno::INTR | Errno::AGAIN) if retries < RETRIES_MAX => retries += 1,
                Err(errno @ (Errno::INVAL | Errno::NOMEM)) => self.stopped_by_front(Some(errno))?,
                Err(errno) => return Err(self.fatal(errno)),
            }
        }
        Ok(())
    }

    /// Takes the first `bytes` of the queue as processed.
    fn take_passed(&mut self, mut bytes: u64) {
        while bytes > 0
            && let Some(piece) = self.queue.front_mut()
        {
            let done = AddressRange::new(piece.run.start, piece.run.len().min(bytes));
            bytes -= done.len();
            self.passed.push(done);
            piece.run.start = done.end;
            if piece.run.start >= piece.run.end {
                self.queue.pop_front();
            }
        }
    }

    /// Handles a call that stopped at the front of the queue. `errno` is known if that was the
    /// first range of its vector.
    fn stopped_by_front(&mut self, errno: Option<Errno>) -> Result<(), PageoutError> {
        let Some(piece) = self.queue.pop_front() else {
            return Ok(());
        };
        if piece.known != Known::Nothing && errno != Some(Errno::NOMEM) {
            if errno.is_none() && piece.known == Known::OneMapping {
                self.queue.push_front(Piece {
                    known: Known::Suspect,
                    ..piece
                });
            } else {
                self.skipped.add(SkipReason::Unevictable, piece.run.len());
            }
            return Ok(());
        }
        let mapped = self.mover.mapped(piece.run)?;
        let mapped_set = RunSet::from_runs(mapped.iter().copied());
        let holes = RunSet::from_runs([piece.run]).subtract(&mapped_set);
        self.skipped.add(SkipReason::Hole, holes.bytes());
        if errno == Some(Errno::NOMEM) {
            // The mapped parts were processed before the hole was reported.
            self.passed.extend(mapped_set.runs());
            return Ok(());
        }
        for run in mapped.into_iter().rev() {
            self.queue.push_front(Piece {
                run,
                known: Known::OneMapping,
            });
        }
        Ok(())
    }

    fn skip_rest(&mut self, reason: SkipReason) {
        for piece in self.queue.drain(..) {
            self.skipped.add(reason, piece.run.len());
        }
    }

    fn fatal(&mut self, errno: Errno) -> PageoutError {
        // A process that has just gone is the cause of most failures.
        if let Err(error) = self.mover.check() {
            return error;
        }
        let pid = self.mover.pid();
        match errno {
            Errno::SRCH => self.mover.why_unreachable(),
            Errno::PERM | Errno::ACCESS => PageoutError::Denied { pid },
            Errno::NOSYS => PageoutError::NotSupported,
            Errno::TIMEDOUT => PageoutError::Unanswered { pid },
            _ => PageoutError::System {
                pid,
                source: errno.into(),
            },
        }
    }
}
