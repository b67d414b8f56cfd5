// SPDX-License-Identifier: Apache-2.0
//! What a monitor needs from the monitored address space: facts, and a way to apply actions.

use super::action::Action;
use super::filter::PageFilters;
use super::target::TargetId;

/// The result of applying an action to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Bytes the action was applied to (pages visited, not pages whose state changed).
    pub bytes: u64,
    /// Bytes that passed the page filters.
    pub filter_passed_bytes: u64,
    /// Time it took on the world's clock, in ns.
    pub cost_ns: u64,
}

/// The world behind a monitor.
pub trait Space {
    /// The clock, in us.
    fn now_us(&self) -> u64;

    /// Whether addresses are physical. 6.12 starts a physical range as one region, and ranges of
    /// physical memory are only read once.
    fn is_physical(&self) -> bool;

    /// Appends the ranges to monitor in bytes, ascending, disjoint and page-aligned. Called at the
    /// start and, for virtual memory, at every update of the ranges.
    fn ranges(&mut self, target: TargetId, ranges: &mut Vec<(u64, u64)>);

    /// Marks the page of `addr` as not accessed, for the next check.
    fn make_old(&mut self, target: TargetId, addr: u64);

    /// Whether the page of `addr` was accessed since [`Space::make_old`]. False for pages that are
    /// not on an LRU list or cannot be locked.
    fn accessed(&mut self, target: TargetId, addr: u64) -> bool;

    /// Applies an action to `start..end`.
    fn apply(
        &mut self,
        target: TargetId,
        start: u64,
        end: u64,
        action: Action,
        filters: &PageFilters,
    ) -> Applied;

    /// Free memory in 1/1000 of all memory: the metric of the watermarks.
    fn free_mem_permille(&self) -> u64;

    /// Active LRU pages in 1/10000 of active and inactive ones: the metric of
    /// [`super::goal::GoalMetric::ActiveMem`].
    fn active_mem_bp(&self) -> u64;

    /// Total time tasks stalled on memory (PSI some), in us.
    fn mem_psi_us(&self) -> u64;
}
