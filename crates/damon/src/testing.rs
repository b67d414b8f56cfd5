// SPDX-License-Identifier: Apache-2.0
//! Spaces for the tests of this crate.

use super::action::Action;
use super::filter::PageFilters;
use super::monitor::Monitor;
use super::space::{Applied, Space};
use super::target::TargetId;

/// A space in which only the clock matters.
pub struct Still {
    now_us: u64,
}

impl Still {
    pub fn at(now_us: u64) -> Still {
        Still { now_us }
    }
}

impl Space for Still {
    fn now_us(&self) -> u64 {
        self.now_us
    }
    fn is_physical(&self) -> bool {
        true
    }
    fn ranges(&mut self, _target: TargetId, _ranges: &mut Vec<(u64, u64)>) {}
    fn make_old(&mut self, _target: TargetId, _addr: u64) {}
    fn accessed(&mut self, _target: TargetId, _addr: u64) -> bool {
        false
    }
    fn apply(&mut self, _: TargetId, _: u64, _: u64, _: Action, _: &PageFilters) -> Applied {
        Applied::default()
    }
    fn free_mem_permille(&self) -> u64 {
        0
    }
    fn active_mem_bp(&self) -> u64 {
        0
    }
    fn mem_psi_us(&self) -> u64 {
        0
    }
}

/// An address space whose pages `hot` are accessed in every interval, and no others.
pub struct HotRange {
    pub now_us: u64,
    pub pages: u64,
    pub hot: std::ops::Range<u64>,
    pub free_permille: u64,
    pub looks: u64,
    /// What was applied: action, first page, pages.
    pub applied: Vec<(Action, u64, u64)>,
    pub cost_ns_per_page: u64,
}

impl HotRange {
    pub fn new(pages: u64, hot: std::ops::Range<u64>) -> HotRange {
        HotRange {
            now_us: 0,
            pages,
            hot,
            free_permille: 100,
            looks: 0,
            applied: Vec::new(),
            cost_ns_per_page: 0,
        }
    }
}

impl Space for HotRange {
    fn now_us(&self) -> u64 {
        self.now_us
    }
    fn is_physical(&self) -> bool {
        true
    }
    fn ranges(&mut self, _target: TargetId, ranges: &mut Vec<(u64, u64)>) {
        ranges.push((0, self.pages * 4096));
    }
    fn make_old(&mut self, _target: TargetId, addr: u64) {
        assert!(addr < self.pages * 4096);
    }
    fn accessed(&mut self, _target: TargetId, addr: u64) -> bool {
        self.looks += 1;
        self.hot.contains(&(addr / 4096))
    }
    fn apply(
        &mut self,
        _target: TargetId,
        start: u64,
        end: u64,
        action: Action,
        _filters: &PageFilters,
    ) -> Applied {
        let pages = (end - start) / 4096;
        self.applied.push((action, start / 4096, pages));
        Applied {
            bytes: end - start,
            filter_passed_bytes: end - start,
            cost_ns: pages * self.cost_ns_per_page,
        }
    }
    fn free_mem_permille(&self) -> u64 {
        self.free_permille
    }
    fn active_mem_bp(&self) -> u64 {
        5_000
    }
    fn mem_psi_us(&self) -> u64 {
        0
    }
}

/// Takes this many samples.
pub fn run(monitor: &mut Monitor, space: &mut HotRange, samples: u64) {
    for _ in 0..samples {
        monitor.prepare(space);
        space.now_us += monitor.attrs().sample_us;
        monitor.check(space);
    }
}
