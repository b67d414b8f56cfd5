// SPDX-License-Identifier: Apache-2.0
//! What the machine counts.

/// Counters of the machine that no lruvec keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults of any kind.
    pub pgfault: u64,
    /// Faults that had to read.
    pub pgmajfault: u64,
    /// Pages read from swap.
    pub pswpin: u64,
    /// Pages written to swap.
    pub pswpout: u64,
    /// Pages read from files.
    pub pgpgin: u64,
    /// Pages written to files.
    pub pgpgout: u64,
    /// Allocations that reclaimed themselves.
    pub allocstall: u64,
    /// Tasks killed for lack of memory.
    pub oom_kill: u64,
    /// Shadow nodes dropped by their shrinker.
    pub workingset_nodereclaim: u64,
    /// Time reclaimers slept, in ns.
    pub throttled_ns: u64,
    /// Pages reclaim wrote itself, anon and file (`nr_vmscan_write`).
    pub vmscan_write: [u64; 2],
    /// Times the shrinkers of a cgroup were called.
    pub slab_calls: u64,
    /// Tree nodes they looked at (`slabs_scanned`).
    pub slabs_scanned: u64,
    /// Tree nodes that could not be made: the page was read without being kept.
    pub readahead_refused: u64,
}
