// SPDX-License-Identifier: Apache-2.0
//! Event counters of the whole machine.

/// Counters of the machine that belong to no lruvec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Faults of any kind.
    pub pgfault: u64,
    /// Faults that read from a device.
    pub pgmajfault: u64,
    /// Pages read from swap.
    pub pswpin: u64,
    /// Pages written to swap.
    pub pswpout: u64,
    /// Pages read from files.
    pub pgpgin: u64,
    /// Pages written to files.
    pub pgpgout: u64,
    /// Allocations that entered direct reclaim.
    pub allocstall: u64,
    /// Tasks killed for lack of memory.
    pub oom_kill: u64,
    /// Pages written by reclaim itself, anon and file (`nr_vmscan_write`).
    pub vmscan_write: [u64; 2],
    /// Accesses to pages of the slow node.
    pub slow_accesses: u64,
    /// Pages that DAMON moved to another node.
    pub migrated: u64,
    /// Calls of the shrinkers of a cgroup.
    pub slab_calls: u64,
    /// Tree nodes the shrinkers looked at (`slabs_scanned`).
    pub slabs_scanned: u64,
}
