// SPDX-License-Identifier: Apache-2.0
//! The contents of each zone: free pages, watermarks, lists, allocations, residency
//! (`/proc/zoneinfo`).

use std::fmt::Write;

use agewise_kernel::classic::List;
use agewise_kernel::folio::{FolioType, Pfn};
use agewise_kernel::ids::{LruvecId, NodeId};
use agewise_kernel::world::ZoneState;
use serde::Serialize;

use super::Machine;
use super::residency::{Residency, relative_spread};
use super::zone::ZONE_NAMES;

/// One zone and its contents, in pages.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZoneInfo {
    pub node: u32,
    /// Name of the zone.
    pub zone: &'static str,
    /// Managed pages.
    pub managed: u64,
    /// Free pages.
    pub free: u64,
    /// Watermarks: min, low, high.
    pub watermarks: [u64; 3],
    /// Pages that requests leave free beyond the watermark, by their highest zone.
    pub protection: [u64; 4],
    /// Pages on the classic lists: inactive and active anon, inactive and active file.
    pub lists: [u64; 4],
    /// Pages allocated so far.
    pub allocated: u64,
    /// Rest of the batch of the fair policy.
    pub alloc_batch: i64,
    /// Pages that isolation skipped because of their zone.
    pub skipped: u64,
    /// Evicted pages, anon and file.
    pub evicted: [u64; 2],
    /// Mean residency of evicted pages, in ns.
    pub residency_mean_ns: [f64; 2],
    /// Standard deviation of their residency, in ns.
    pub residency_sd_ns: [f64; 2],
}

impl Machine {
    /// All zones with memory, node by node.
    pub fn zones(&self) -> Vec<ZoneInfo> {
        let nodes = self.config.all_nodes();
        (0..nodes)
            .flat_map(|node| (0..4).map(move |zone| (NodeId(node), zone)))
            .filter_map(|(node, zone)| {
                let state = self.sys.frames.zones(node)[zone];
                (state.managed_pages > 0).then(|| self.zone_info(node, zone, &state))
            })
            .collect()
    }

    fn zone_info(&self, node: NodeId, index: usize, state: &ZoneState) -> ZoneInfo {
        let zone = &self.sys.frames.node_zones(node)[index];
        let id = self.sys.list_scope.reclaim_node(node, index);
        let mut lists = [0; 4];
        let mut skipped = 0;
        for lruvec in self.lru.lruvecs.iter().filter(|lruvec| lruvec.node == id) {
            skipped += lruvec.events.pgscan_skip[index];
            for list in List::ALL {
                let up_to = lruvec.classic.size_pages(list, index);
                let below = match index {
                    0 => 0,
                    _ => lruvec.classic.size_pages(list, index - 1),
                };
                lists[list.index()] += up_to - below;
            }
        }
        let stayed = self.sys.residency.zone(index);
        ZoneInfo {
            node: node.0,
            zone: ZONE_NAMES[index],
            managed: state.managed_pages,
            free: state.free_pages,
            watermarks: [state.min_pages, state.low_pages, state.high_pages],
            protection: state.reserve_pages,
            lists,
            allocated: zone.allocated_pages(),
            alloc_batch: zone.batch_pages(),
            skipped,
            evicted: FolioType::ALL.map(|of| stayed[of.index()].count),
            residency_mean_ns: FolioType::ALL.map(|of| stayed[of.index()].mean_ns),
            residency_sd_ns: FolioType::ALL.map(|of| stayed[of.index()].sd_ns()),
        }
    }

    /// Residency of evicted pages. Recorded only if the machine's zones were given.
    pub fn residency(&self) -> &Residency {
        &self.sys.residency
    }

    /// Standard deviation over zones of the mean residency of pages of a type, relative to its
    /// mean: 0 if a page stays equally long whatever zone it came from. A zone that evicts next to
    /// nothing counts with the ages of its pages, which are less than their residency will be.
    /// Zones with less than a hundredth of the memory do not count. None if fewer than two zones
    /// count.
    pub fn residency_spread(&self, of: FolioType) -> Option<f64> {
        let zones = self.zones();
        let all: u64 = zones.iter().map(|zone| zone.managed).sum();
        let means: Vec<f64> = zones
            .iter()
            .filter(|zone| zone.managed * 100 >= all)
            .filter_map(|zone| {
                let evicted = zone.evicted[of.index()];
                if evicted * 10 >= zone.managed {
                    Some(zone.residency_mean_ns[of.index()])
                } else {
                    self.mean_age_ns(zone.zone, of)
                }
            })
            .collect();
        relative_spread(&means)
    }

    /// Mean age of the pages of a type in zones of this name, in ns.
    fn mean_age_ns(&self, zone: &str, of: FolioType) -> Option<f64> {
        let (mut count, mut sum_ns) = (0u64, 0.0);
        for frame in 0..self.sys.frames.len() {
            let pfn = Pfn(frame);
            let folio = &self.lru.folios[pfn];
            let counts = folio.lruvec != LruvecId::NONE
                && folio.folio_type() == of
                && ZONE_NAMES[folio.zone()] == zone;
            if counts && let Some(age_ns) = self.sys.residency.age_ns(pfn, self.sys.now_ns) {
                count += 1;
                sum_ns += age_ns as f64;
            }
        }
        (count > 0).then(|| sum_ns / count as f64)
    }

    /// CPU time of choosing zones for allocations, in ns; included in the time of faults.
    pub fn allocator_ns(&self) -> u64 {
        self.allocator_ns
    }

    /// The lines of `/proc/zoneinfo` that the machine supports.
    pub(super) fn zoneinfo(&self) -> String {
        let mut text = String::new();
        for zone in self.zones() {
            let [min, low, high] = zone.watermarks;
            let protection = zone.protection.map(|pages| pages.to_string()).join(", ");
            let mut line = |text_line: String| {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{text_line}");
            };
            line(format!("Node {}, zone {:>8}", zone.node, zone.zone));
            line(format!("  pages free     {}", zone.free));
            for (name, pages) in [("min", min), ("low", low), ("high", high)] {
                line(format!("        {name:8} {pages}"));
            }
            line(format!("        {:8} {}", "managed", zone.managed));
            line(format!("        protection: ({protection})"));
            let names = [
                "inactive_anon",
                "active_anon",
                "inactive_file",
                "active_file",
            ];
            for (name, pages) in names.iter().zip(zone.lists) {
                line(format!("      nr_zone_{name} {pages}"));
            }
            line(format!("      nr_alloc_batch {}", zone.alloc_batch));
            line(format!("      pgalloc      {}", zone.allocated));
            line(format!("      pgscan_skip  {}", zone.skipped));
        }
        text
    }
}
