// SPDX-License-Identifier: Apache-2.0
//! Configuration of an agent, the report of a tick, and interfaces for listeners.

use std::collections::HashMap;

use agewise_policy::sample::Bounds;
use agewise_policy::table::PageSet;
use agewise_policy::workingset::{Intervals, OldestPages};

use crate::access::{AddressRange, Batch, LeafRun, TableSight, Target};
use crate::clear::ClearPolicy;

/// Shortest time between scans: below it an observer mostly observes itself.
pub const SCAN_INTERVAL_MIN_MS: u64 = 100;

/// How to observe.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Bounds of the age bins.
    pub intervals: Intervals,
    /// Time between scans; `None`: as often as the finest bin needs, and no more.
    pub scan_interval_ms: Option<u64>,
    /// Where pages go that were never seen accessed.
    pub oldest: OldestPages,
    /// How accessed bits are cleared. Its shortest interval follows from the scan interval.
    pub clear: ClearPolicy,
    /// Share of one core that clearing may take, percent, all processes together. `None`: what the
    /// policy says for each.
    pub clear_percent: Option<f64>,
    /// How much is followed. `None`: every page, for callers that act on single pages.
    pub sample: Option<Bounds>,
    /// Addresses looked at, rising and disjoint, the same in every process. `None`: all.
    pub within: Option<Vec<AddressRange>>,
    /// Bounds of the histograms of what came back into use ([`Agent::ages`]); `None`: not kept.
    pub returned: Option<Intervals>,
}

impl AgentConfig {
    /// Observes at the pace that the intervals need.
    pub fn new(intervals: Intervals) -> Self {
        AgentConfig {
            intervals,
            scan_interval_ms: None,
            oldest: OldestPages::AtLeast,
            clear: ClearPolicy::default(),
            clear_percent: None,
            sample: None,
            within: None,
            returned: None,
        }
    }

    /// Time between scans that this configuration asks for.
    pub fn scan_interval_ms(&self) -> u64 {
        let wanted = self
            .scan_interval_ms
            .or(self.intervals.finest_ms())
            .unwrap_or(10_000);
        wanted.max(SCAN_INTERVAL_MIN_MS)
    }
}

/// What a tick found, in processes and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickReport {
    /// Subjects that still exist.
    pub subjects: usize,
    /// Processes looked at.
    pub processes: usize,
    /// Processes that were gone before they could be looked at to the end.
    pub vanished: usize,
    /// Processes that could not be looked at, or whose bits could not be cleared.
    pub failed: usize,
    /// Cgroups with processes that cannot be listed.
    pub unseen_cgroups: usize,
    /// Present pages.
    pub present_pages: u64,
    /// Pages seen accessed since the tick before.
    pub young_pages: u64,
    /// Pages that came back from swap since the tick before.
    pub refaulted_pages: u64,
    /// Present pages whose accessed bits could not be cleared: they appear to be accessed all the
    /// time.
    pub uncleared_pages: u64,
    /// There are more cgroups or processes than the limits allow.
    pub truncated: bool,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// The part of it that reads page tables,
    pub walk_ns: u64,
    /// keeps ages,
    pub classify_ns: u64,
    /// and clears accessed bits. What is left finds processes and their mappings.
    pub clear_ns: u64,
}

/// A second observer of a process. It alone clears the accessed bits of anonymous memory, so it has
/// to hand the accesses over to the agent, which clears the rest.
pub trait AlsoYoung: Send {
    /// Pages of a process seen accessed since this was asked last, by page-table index (address /
    /// 2 MiB); `None` where the agent is the only observer.
    fn take(&mut self, target: &Target) -> Option<HashMap<u64, PageSet>>;
}

/// Listens to what a tick reads, table by table, before it is cleared: benchmarks that know the
/// truth, recorders.
pub trait Tap {
    /// One table of a process, and which of its pages are taken for accessed.
    fn table(&mut self, target: &Target, sight: &TableSight<'_>, young: &PageSet);

    /// Neighbouring leaves of one process, which are either all taken for accessed or none.
    fn leaves(&mut self, target: &Target, run: &LeafRun<'_>) {
        let young = match run.is_young() {
            true => PageSet::ALL,
            false => PageSet::NONE,
        };
        run.sights()
            .for_each(|sight| self.table(target, &sight, &young));
    }

    /// All that was read together has been shown; it is cleared next.
    fn batch_end(&mut self, target: &Target, batch: &Batch) {
        let _ = (target, batch);
    }
}
