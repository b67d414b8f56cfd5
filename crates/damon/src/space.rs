// SPDX-License-Identifier: Apache-2.0
//! What a monitor needs from the monitored address space: facts, and a way to carry out actions.

use super::action::Action;
use super::filter::PageFilters;
use super::target::TargetId;

/// The result of applying an action to a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Bytes the action was carried out on (pages touched, not pages whose state changed).
    pub bytes: u64,
    /// Bytes that passed the page filters.
    pub filter_passed_bytes: u64,
    /// Time it took, in ns of the world's clock.
    pub cost_ns: u64,
}

/// The world behind a monitor.
pub trait Space {
    /// The clock, in us.
    fn now_us(&self) -> u64;

    /// Whether addresses are physical. 6.12 starts a physical range as one region, and the ranges of
    /// physical memory are read once.
    fn is_physical(&self) -> bool;

    /// Appends the ranges to watch in bytes, ascending, disjoint and aligned to pages. Called at
    /// the start and, for virtual memory, at every update of the ranges.
    fn ranges(&mut self, target: TargetId, ranges: &mut Vec<(u64, u64)>);

    /// Marks the page of `addr` as not accessed, so that the next look can tell.
    fn make_old(&mut self, target: TargetId, addr: u64);

    /// Whether the page of `addr` was accessed since [`Space::make_old`]. Pages on no LRU list and
    /// pages that cannot be locked read as not accessed.
    fn accessed(&mut self, target: TargetId, addr: u64) -> bool;

    /// Carries out an action on `start..end`.
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
