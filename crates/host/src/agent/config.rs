// SPDX-License-Identifier: Apache-2.0
//! Configuration of an agent, the report of a tick, and interfaces for listeners.

use std::collections::HashMap;

use agewise_policy::sample::Bounds;
use agewise_policy::table::PageSet;
use agewise_policy::workingset::{Intervals, OldestPages};

use crate::access::{AddressRange, Batch, LeafRun, TableSight, Target};
use crate::clear::ClearPolicy;

/// Shortest time between scans. Below it, an observer would mostly observe itself.
pub const SCAN_INTERVAL_MIN_MS: u64 = 100;

/// How to observe.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// Bounds of the age bins.
    pub intervals: Intervals,
    /// Time between scans. `None`: as often as the finest bin needs.
    pub scan_interval_ms: Option<u64>,
    /// The bin for pages that were never seen accessed.
    pub oldest: OldestPages,
    /// How accessed bits are cleared. The minimum interval is derived from the scan interval.
    pub clear: ClearPolicy,
    /// Percent of one core that clearing may take for all processes together. `None`: as the policy
    /// says for each process.
    pub clear_percent: Option<f64>,
    /// How much is sampled. `None`: every page, for callers that act on single pages.
    pub sample: Option<Bounds>,
    /// Addresses to look at, ascending and disjoint, the same in every process. `None`: all.
    pub within: Option<Vec<AddressRange>>,
    /// Bounds of the histograms of memory that came back into use ([`Agent::ages`]). `None`: not
    /// recorded.
    pub returned: Option<Intervals>,
}

impl AgentConfig {
    /// Observes at the pace the intervals need.
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

    /// Follows a sample, for callers that only want figures: no accessed bit is left uncleared for
    /// the sake of its cost.
    #[must_use]
    pub fn sampled(self, bounds: Bounds) -> Self {
        AgentConfig {
            clear: ClearPolicy::exact(),
            sample: Some(bounds),
            ..self
        }
    }

    /// The time between scans that this configuration results in.
    pub fn scan_interval_ms(&self) -> u64 {
        let wanted = self
            .scan_interval_ms
            .or(self.intervals.finest_ms())
            .unwrap_or(10_000);
        wanted.max(SCAN_INTERVAL_MIN_MS)
    }
}

/// The counts of a tick, in processes and pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TickReport {
    /// Subjects that still exist.
    pub subjects: usize,
    /// Processes looked at.
    pub processes: usize,
    /// Processes that exited before they were looked at completely.
    pub vanished: usize,
    /// Processes that could not be looked at or cleared.
    pub failed: usize,
    /// Cgroups whose processes cannot be listed.
    pub unseen_cgroups: usize,
    pub present_pages: u64,
    /// Pages seen accessed since the previous tick.
    pub young_pages: u64,
    /// Pages that came back from swap since the previous tick.
    pub refaulted_pages: u64,
    /// Present pages whose accessed bits could not be cleared: they always appear accessed.
    pub uncleared_pages: u64,
    /// Whether there were more cgroups or processes than the limits allow.
    pub truncated: bool,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// The part of it spent reading page tables. What is in none of the parts goes into finding
    /// processes and their mappings.
    pub walk_ns: u64,
    /// The part spent keeping ages.
    pub classify_ns: u64,
    /// The part spent clearing accessed bits.
    pub clear_ns: u64,
}

/// A second observer of a process. It alone clears the accessed bits of anonymous memory, so it
/// must hand the accesses over to the agent, which clears the rest.
pub trait AlsoYoung: Send {
    /// Returns the pages of a process seen accessed since the last call, by page-table index
    /// (address / 2 MiB). `None` if the agent is the only observer.
    fn take(&mut self, target: &Target) -> Option<HashMap<u64, PageSet>>;
}

/// Pages of a table, in what a [`Tap`] is shown.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// Those considered accessed.
    pub young: &'a PageSet,
    /// Those that every subject has already counted in another process, which maps them too.
    pub elsewhere: &'a PageSet,
}

/// Receives what a tick reads, table by table, before it is cleared. Used by recorders, and by
/// benchmarks that know the truth.
pub trait Tap {
    /// The next process is about to be read. All of them together may take half a minute, and
    /// something else may have to be done meanwhile.
    fn next_process(&mut self) {}

    /// One table of a process, and what is known about its pages.
    fn table(&mut self, target: &Target, sight: &TableSight<'_>, judged: Judged<'_>);

    /// Adjacent leaves of one process, either all considered accessed or none.
    fn leaves(&mut self, target: &Target, run: &LeafRun<'_>) {
        let young = match run.is_young() {
            true => PageSet::ALL,
            false => PageSet::NONE,
        };
        let judged = Judged {
            young: &young,
            elsewhere: &PageSet::NONE,
        };
        run.sights()
            .for_each(|sight| self.table(target, &sight, judged));
    }

    /// Everything read together has been shown, and is cleared next.
    fn batch_end(&mut self, target: &Target, batch: &Batch) {
        let _ = (target, batch);
    }
}
