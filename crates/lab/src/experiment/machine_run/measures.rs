// SPDX-License-Identifier: Apache-2.0
//! The measures of a run.

use agewise_kernel::ids::MemcgId;

use super::{Plan, Run, RunError};
use crate::machine::zone::ZONE_NAMES;

/// Names and meanings of the measures, in the order in which they are reported.
pub const MEASURES: &[(&str, &str)] = &[
    ("accesses", "touches, reads and writes of pages"),
    (
        "major_faults",
        "faults that read from a device, or pages read (also ahead) if these are more",
    ),
    ("minor_faults", "faults that did not"),
    (
        "refaults_anon",
        "anonymous pages that came back after eviction",
    ),
    ("refaults_file", "file pages that came back after eviction"),
    ("scanned", "pages isolated for reclaim"),
    ("stolen", "pages reclaimed"),
    ("scan_per_steal", "pages isolated for each one reclaimed"),
    (
        "refilled",
        "pages sorted (multi-gen) or deactivated (classic)",
    ),
    ("agings", "generations opened"),
    ("pte_checks", "leaf entries examined"),
    ("rmap_visits", "mappings visited through the reverse map"),
    ("swap_in", "pages read from swap"),
    ("swap_out", "pages written to swap"),
    ("file_in", "pages read from files"),
    ("file_out", "pages written to files"),
    ("direct_reclaims", "allocations that did direct reclaim"),
    ("oom_kills", "processes killed for lack of memory"),
    (
        "stall_some_ms",
        "time in which a process stalled for memory (PSI some)",
    ),
    ("stall_full_ms", "time in which all of them did (PSI full)"),
    ("policy_cpu_ms", "CPU time of the policies"),
    ("background_cpu_ms", "CPU time of kswapd and the flusher"),
    ("lock_wait_ms", "time waited for the LRU lock"),
    ("p50_ns", "median duration of an access, to within 0.8 %"),
    ("p99_ns", "99th percentile of it"),
    ("p999_ns", "99.9th percentile of it"),
    ("time_ms", "simulated time until the last process ended"),
    (
        "resident_mean_kib",
        "resident memory and page cache, mean over time",
    ),
    ("resident_peak_kib", "its peak"),
    (
        "agent_cpu_ms",
        "CPU time of the agent that reclaims (--proactive)",
    ),
    ("agent_out", "pages it moved out"),
    ("agent_backed_off", "decisions it held back after refaults"),
    (
        "agent_misplaced",
        "bins by which its histogram misplaces a page (earth mover's distance)",
    ),
];

/// Names and meanings of measures, the names behind that of a zone.
macro_rules! named {
    ($zone:literal: $($name:literal => $meaning:literal),+) => {
        [$((concat!("zone_", $zone, "_", $name), $meaning)),+]
    };
}

/// Names and meanings of the measures of one zone over all nodes, in the order they are reported.
macro_rules! of_zone {
    ($zone:literal) => {
        named!($zone:
            "free" => "free pages of the zone at the end",
            "inactive_anon" => "its pages on that list at the end",
            "active_anon" => "its pages on that list at the end",
            "inactive_file" => "its pages on that list at the end",
            "active_file" => "its pages on that list at the end",
            "allocated" => "pages allocated from the zone",
            "skipped" => "pages skipped by isolation because of the zone",
            "evicted_anon" => "anonymous pages evicted from it (kept where zones are set)",
            "evicted_file" => "file pages evicted from it (kept where zones are set)",
            "residency_anon_ms" => "how long these had stayed, mean",
            "residency_file_ms" => "how long these had stayed, mean")
    };
}

/// Names and meanings of the measures of each zone, in the order of [`ZONE_NAMES`]; reported if a
/// machine has several zones.
pub const ZONE_MEASURES: [[(&str, &str); 11]; 4] = [
    of_zone!("dma"),
    of_zone!("dma32"),
    of_zone!("normal"),
    of_zone!("movable"),
];

/// Names and meanings of the measures of a machine with slow memory.
pub const TIER_MEASURES: [(&str, &str); 3] = [
    ("slow_accesses", "accesses to pages in slow memory"),
    ("demoted", "pages that reclaim moved to slow memory"),
    ("migrated", "pages that DAMON moved to another node"),
];

/// Values of the measures in the order of [`MEASURES`], followed by those of zones if there are
/// several, by those of slow memory if there is any, and by those of DAMON.
pub type Measured = Vec<f64>;

impl Plan {
    /// Names and meanings of the measures of a run.
    ///
    /// # Errors
    /// The same as those of the run itself.
    pub fn measures(&self) -> Result<Vec<(&'static str, &'static str)>, RunError> {
        let of_damon = self.damon()?.map(|damon| damon.measures());
        let config = self.machine_config()?;
        let zones = told_apart(&config.zone_pages());
        let of_tiers = TIER_MEASURES.into_iter().filter(|_| config.slow_pages > 0);
        let of_zones = zones.into_iter().flat_map(|zone| ZONE_MEASURES[zone]);
        Ok(MEASURES
            .iter()
            .copied()
            .chain(of_zones)
            .chain(of_tiers)
            .chain(of_damon.unwrap_or_default())
            .collect())
    }
}

/// Indices of the zones with memory; empty if there is only one.
fn told_apart(nodes: &[[u32; 4]]) -> Vec<usize> {
    let has_pages = |zone: &usize| nodes.iter().any(|node| node[*zone] > 0);
    let zones: Vec<usize> = (0..ZONE_NAMES.len()).filter(has_pages).collect();
    if zones.len() > 1 { zones } else { Vec::new() }
}

/// Memory in use over time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    since_ns: u64,
    page_ns: u128,
    peak_pages: u64,
}

impl Usage {
    pub(super) fn sample(&mut self, now_ns: u64, pages: u64) {
        let passed_ns = now_ns.saturating_sub(self.since_ns);
        self.page_ns += u128::from(pages) * u128::from(passed_ns);
        self.since_ns = self.since_ns.max(now_ns);
        self.peak_pages = self.peak_pages.max(pages);
    }

    pub(super) fn mean_pages(&self) -> f64 {
        self.page_ns as f64 / self.since_ns.max(1) as f64
    }
}

impl Run {
    /// The values of the measures so far.
    pub fn measures(&self) -> Measured {
        let events = self.machine.memcg_events(MemcgId::ROOT);
        let counters = self.machine.counters();
        let work = self.machine.work();
        let pressure = self.machine.pressure(self.memcg);
        let [policy_ns, background_ns, lock_wait_ns] = self.machine.cpu_ns();
        let (mut major, mut minor) = (0, 0);
        for &process in &self.processes {
            let stats = self.machine.process_stats(process);
            major += stats.major_faults;
            minor += stats.minor_faults;
        }
        // So that reads through a descriptor count too, which are no faults. Nobody may have waited
        // for pages that were read ahead.
        let major = major.max(counters.pgpgin + counters.pswpin);
        let count = |value: u64| value as f64;
        let ms = |ns: u64| ns as f64 / 1e6;
        let agent = self.agent.as_ref().map(|agent| *agent.stats());
        let agent = agent.unwrap_or_default();
        let mut values = vec![
            count(self.accesses),
            count(major),
            count(minor),
            count(events.workingset_refault[0]),
            count(events.workingset_refault[1]),
            count(events.scanned()),
            count(events.stolen()),
            count(events.scanned()) / count(events.stolen().max(1)),
            count(events.pgrefill),
            count(work.agings),
            count(work.pte_checks),
            count(work.rmap_visits),
            count(counters.pswpin),
            count(counters.pswpout),
            count(counters.pgpgin),
            count(counters.pgpgout),
            count(counters.allocstall),
            count(counters.oom_kill),
            ms(pressure.some_ns),
            ms(pressure.full_ns),
            ms(policy_ns),
            ms(background_ns),
            ms(lock_wait_ns),
            count(self.latency.quantile(0.5)),
            count(self.latency.quantile(0.99)),
            count(self.latency.quantile(0.999)),
            ms(self.end_ns),
            self.usage.mean_pages() * 4.0,
            count(self.usage.peak_pages * 4),
            ms(agent.cpu_ns),
            count(agent.left_pages[0] + agent.left_pages[1]),
            count(agent.backed_off),
            match self.agent {
                Some(_) => agent.misplaced_bins / count(agent.compared),
                None => 0.0,
            },
        ];
        let zones = told_apart(&self.machine.config().zone_pages());
        values.extend(zones.into_iter().flat_map(|zone| self.of_zone(zone)));
        if self.machine.config().slow_pages > 0 {
            let of_tiers = [counters.slow_accesses, events.demoted(), counters.migrated];
            values.extend(of_tiers.map(count));
        }
        if let Some(damon) = &self.damon {
            values.extend(damon.measured(self.machine.damon(), self.end_ns));
        }
        values
    }

    /// The values of one zone's [`ZONE_MEASURES`].
    fn of_zone(&self, zone: usize) -> [f64; 11] {
        let mut values = [0.0; 11];
        let mut residency_ns = [0.0; 2];
        let mut evicted = [0.0; 2];
        let zones = self.machine.zones();
        for of_node in zones.iter().filter(|info| info.zone == ZONE_NAMES[zone]) {
            values[0] += of_node.free as f64;
            for (value, pages) in values[1..5].iter_mut().zip(of_node.lists) {
                *value += pages as f64;
            }
            values[5] += of_node.allocated as f64;
            values[6] += of_node.skipped as f64;
            // Recorded by zone, not by node, so all nodes have the same values.
            evicted = of_node.evicted.map(|pages| pages as f64);
            residency_ns = of_node.residency_mean_ns;
        }
        values[7..9].copy_from_slice(&evicted);
        values[9..].copy_from_slice(&residency_ns.map(|ns| ns / 1e6));
        values
    }
}
