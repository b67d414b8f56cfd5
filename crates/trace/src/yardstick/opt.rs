// SPDX-License-Identifier: Apache-2.0
//! OPT: evicts the page whose next access is farthest in the future. No policy that brings in every
//! page it misses has fewer misses.
//!
//! Source: Belady, "A study of replacement algorithms for a virtual-storage computer", 1966 (MIN,
//! with demand paging). The resident pages are represented by the set of their next access times.
//! An access hits if its own time is in the set, and the victim is the set's largest member. Pages
//! that are never accessed again are only counted: they are evicted first, in any order. Takes 4
//! bytes and one bit per access in addition to the trace.

use super::bit_tree::BitTree;
use super::{Counts, PolicySpec, Simulation};
use crate::{DenseTrace, NEVER};

pub(super) static SPEC: PolicySpec = PolicySpec {
    name: "opt",
    aliases: &["belady", "min", "clairvoyant"],
    summary: "the optimum: farthest next access goes first; every miss is brought in",
    simulation: Simulation::Offline(misses),
};

fn misses(trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
    let next = trace.next_accesses();
    let mut coming_back = BitTree::new(next.len());
    let (mut resident, mut never_back, mut misses) = (0usize, 0usize, 0u64);
    for (now, &next_access) in next.iter().enumerate() {
        if !coming_back.remove(now) {
            misses += u64::from(counts(now));
            if resident < capacity {
                resident += 1;
            } else if never_back > 0 {
                never_back -= 1;
            } else if let Some(farthest) = coming_back.max() {
                coming_back.remove(farthest);
            }
        }
        if next_access == NEVER {
            never_back += 1;
        } else {
            coming_back.insert(next_access as usize);
        }
    }
    misses
}
