// SPDX-License-Identifier: Apache-2.0
//! Working-set reports of the simulated kernel: the engine's reports over the lruvecs of the
//! machine, with their aging thread as an event.

use agewise_kernel::ids::{MemcgId, NodeId};
use agewise_kernel::mglru::age_for_report;
use agewise_policy::generations::PageType;
use agewise_policy::table::PAGE_BYTES;
use agewise_policy::workingset::report::{File, Lruvecs, ReportError, Reports, Tick};
use agewise_policy::workingset::{Histogram, OldestPages, Slice};

use super::Machine;
use super::events::Event;

/// The reports of a machine, and the notifications their pollers have received.
#[derive(Clone, Debug)]
pub(super) struct WorkingSets {
    reports: Reports<MemcgId>,
    /// When the aging thread runs next.
    due_ns: u64,
}

impl WorkingSets {
    pub fn new(nodes: u32) -> Self {
        WorkingSets {
            reports: none(0..nodes),
            due_ns: u64::MAX,
        }
    }
}

fn none(nodes: std::ops::Range<u32>) -> Reports<MemcgId> {
    Reports::new(
        nodes,
        Some(MemcgId::ROOT),
        Tick::default(),
        OldestPages::AtLeast,
    )
}

impl Machine {
    /// Runs `work` on the reports and the machine; a write may change when the aging thread runs
    /// next.
    pub fn with_reports<T>(
        &mut self,
        work: impl FnOnce(&mut Reports<MemcgId>, &mut Machine) -> T,
    ) -> T {
        let mut reports = std::mem::replace(&mut self.working_sets.reports, none(0..0));
        let result = work(&mut reports, self);
        if let Some(at_ms) = reports.next_aging_ms() {
            let at_ns = at_ms.saturating_mul(1_000_000).max(self.sys.now_ns);
            if at_ns < self.working_sets.due_ns {
                self.working_sets.due_ns = at_ns;
                self.sys.events.push(at_ns, Event::Aging);
            }
        }
        self.working_sets.reports = reports;
        result
    }

    pub(super) fn read_report(&mut self, file: &File<MemcgId>) -> Result<String, ReportError> {
        self.with_reports(|reports, machine| reports.read(file, machine))
    }

    pub(super) fn write_report(
        &mut self,
        file: &File<MemcgId>,
        text: &[u8],
    ) -> Result<(), ReportError> {
        self.with_reports(|reports, machine| reports.write(file, text, machine))
    }

    /// Runs the aging thread, which was to wake at `at_ns`.
    pub(super) fn age_reports(&mut self, at_ns: u64) {
        if at_ns < self.working_sets.due_ns {
            return; // It was rescheduled since.
        }
        self.working_sets.due_ns = u64::MAX;
        self.with_reports(|reports, machine| reports.age(machine));
    }

    /// Reports that kswapd reached a priority on a node: receivers get a fresh report. Nobody waits
    /// for notices here.
    pub(super) fn note_pressure(&mut self, node: NodeId, priority: u32) {
        self.with_reports(|reports, machine| reports.pressure(None, node.0, priority, machine));
    }
}

impl Lruvecs for Machine {
    type Group = MemcgId;

    fn now_ms(&self) -> u64 {
        self.sys.now_ns / 1_000_000
    }

    /// Removed cgroups count as long as they have pages, which belong to the parent.
    fn subtree(&self, root: Option<&MemcgId>) -> Vec<MemcgId> {
        let root = root.copied().unwrap_or(MemcgId::ROOT);
        if !self.sys.memcgs[root].online {
            return Vec::new();
        }
        self.lru.tree_order(root)
    }

    fn youngest_birth_ms(&self, group: &MemcgId, node: u32) -> Option<u64> {
        let lruvec = self.lru.memcgs[group.index()].lruvecs.get(node as usize)?;
        let state = &self.lru.lruvecs[lruvec.index()].mglru;
        Some(state.birth_ns(state.max_seq) / 1_000_000)
    }

    fn age(&mut self, group: &MemcgId, node: u32) {
        if !self.lru.mode.is_multi_gen() {
            return; // There are no generations: everything counts as never seen.
        }
        let begun = self.begin_work();
        let lruvec = self.lru.lruvec_id(*group, NodeId(node));
        age_for_report(&mut self.lru, &mut self.sys, lruvec);
        self.pay_for_work(&begun);
    }

    fn add_ages(&self, group: &MemcgId, node: u32, oldest: OldestPages, into: &mut Histogram) {
        let lruvec = self.lru.lruvec_id(*group, NodeId(node));
        let state = &self.lru.lruvecs[lruvec.index()].mglru;
        for (page_type, folio_type) in PageType::ALL
            .into_iter()
            .zip(agewise_kernel::folio::FolioType::ALL)
        {
            let slices = (state.min_seq[folio_type.index()]..=state.max_seq)
                .rev()
                .map(|seq| Slice {
                    birth_ms: state.birth_ns(seq) / 1_000_000,
                    pages: state.pages_of(seq, folio_type),
                    drained_pages: 0,
                });
            into.add_generations(page_type, slices, self.now_ms(), oldest);
        }
    }

    fn unit_bytes(&self) -> u64 {
        PAGE_BYTES
    }
}
