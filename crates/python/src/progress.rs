// SPDX-License-Identifier: Apache-2.0
//! Reports progress from worker threads to Python.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pyo3::prelude::*;

/// Counts parts of the work.
#[derive(Clone)]
pub struct Counter {
    /// Parts done, all parts, and the parts done in the last report.
    counts: Arc<[AtomicU64; 3]>,
    began: Instant,
}

impl Default for Counter {
    fn default() -> Self {
        Counter {
            counts: Arc::default(),
            began: Instant::now(),
        }
    }
}

impl Counter {
    /// Counts one more part of `total` as done.
    pub fn one_of(&self, total: u64) {
        self.counts[1].store(total, Ordering::Relaxed);
        self.counts[0].fetch_add(1, Ordering::Release);
    }

    /// Calls `advance` with parts done, all parts, and the seconds left, if anything changed.
    pub fn tell(&self, advance: &Bound<'_, PyAny>) -> PyResult<()> {
        let done = self.counts[0].load(Ordering::Acquire);
        if self.counts[2].swap(done, Ordering::Relaxed) == done {
            return Ok(());
        }
        let total = self.counts[1].load(Ordering::Relaxed);
        let left = total.saturating_sub(done) as f64;
        let seconds = self.began.elapsed().as_secs_f64() * left / done as f64;
        advance.call1((done, total, seconds)).map(drop)
    }
}
