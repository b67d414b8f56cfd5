// SPDX-License-Identifier: Apache-2.0
//! Progress of a sweep, and an estimate of the time left.

use std::sync::Mutex;
use std::time::Duration;

use super::lock;

/// Progress of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Cells done, including those found done.
    pub done: usize,
    /// Total number of cells.
    pub total: usize,
    /// Estimated time left, from the times of finished cells of the same workload or trace; for
    /// subjects without a finished cell, from all finished cells.
    pub left: Duration,
}

/// Times of finished cells, by workload or trace and in total.
pub(super) struct Times {
    threads: u32,
    total: usize,
    state: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    done: usize,
    all: OfCells,
    by_subject: Vec<OfCells>,
}

#[derive(Clone, Copy, Default)]
struct OfCells {
    left: u32,
    done: u32,
    took: Duration,
}

impl OfCells {
    fn mean(self) -> Option<Duration> {
        (self.done > 0).then(|| self.took / self.done)
    }
}

impl Times {
    /// Starts with `found` finished cells and the subjects of the missing ones.
    pub(super) fn new(missing: impl Iterator<Item = usize>, found: usize) -> Times {
        let mut state = Taken {
            done: found,
            ..Taken::default()
        };
        let mut total = found;
        for at in missing {
            total += 1;
            let known = state.by_subject.len().max(at + 1);
            state.by_subject.resize(known, OfCells::default());
            state.by_subject[at].left += 1;
        }
        Times {
            threads: rayon::current_num_threads().max(1) as u32,
            total,
            state: Mutex::new(state),
        }
    }

    /// Records that a cell of the subject is done.
    pub(super) fn done(&self, subject: usize, took: Duration) -> Advance {
        let mut state = lock(&self.state);
        state.done += 1;
        let Taken {
            done,
            all,
            by_subject,
        } = &mut *state;
        for of in [&mut *all, &mut by_subject[subject]] {
            of.left = of.left.saturating_sub(1);
            of.done += 1;
            of.took += took;
        }
        let mean = all.mean().unwrap_or_default();
        let left = by_subject
            .iter()
            .map(|of| of.mean().unwrap_or(mean) * of.left);
        Advance {
            done: *done,
            total: self.total,
            left: left.sum::<Duration>() / self.threads,
        }
    }
}
