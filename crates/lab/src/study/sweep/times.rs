// SPDX-License-Identifier: Apache-2.0
//! How far a sweep is, and how long the rest of it takes.

use std::sync::Mutex;
use std::time::Duration;

use super::lock;

/// How far a sweep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance {
    /// Cells done, those found done included.
    pub done: usize,
    /// Cells there are.
    pub total: usize,
    /// How long the rest takes, from what cells of the same workloads and traces took so far; of
    /// those that have not been run yet, from all.
    pub left: Duration,
}

/// How long cells take, of those of each workload or trace and of all.
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
    /// Of missing cells, by their subjects, given how many were found.
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

    /// A cell of the subject is done.
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
