// SPDX-License-Identifier: Apache-2.0
//! LRU: evicts the page that was accessed longest ago.
//!
//! The trace itself is the queue. Its accesses leave it in order; a page is resident as long as its
//! last access is in it, and is evicted when that leaves. A list would touch the links of three
//! more pages at every access, which are rarely in a cache.

use super::{Counts, PolicySpec, Simulation};
use crate::DenseTrace;

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "lru",
    aliases: &[],
    summary: "least recently used",
    simulation: Simulation::Stack(misses),
};

fn misses(trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
    let accesses = trace.accesses();
    // Where each page was accessed last, from 1; 0 before its first access.
    let mut last = vec![0; trace.page_count()];
    let (mut resident, mut misses) = (0, 0);
    // Accesses that no longer count.
    let mut left = 0;
    for (at, &page) in accesses.iter().enumerate() {
        if std::mem::replace(&mut last[page as usize], at as u32 + 1) > left {
            continue;
        }
        misses += u64::from(counts(at));
        if resident < capacity {
            resident += 1;
            continue;
        }
        loop {
            let oldest = accesses[left as usize];
            left += 1;
            if last[oldest as usize] == left {
                break;
            }
        }
    }
    misses
}
