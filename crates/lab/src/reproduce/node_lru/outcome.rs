// SPDX-License-Identifier: Apache-2.0
//! Results of one run, in the terms of the document's tables.

use std::error::Error;
use std::sync::Arc;

use agewise_kernel::folio::FolioType;
use agewise_kernel::ids::MemcgId;

use crate::experiment::machine_run::{Lap, Plan, Run};
use crate::machine::Policy;
use crate::reproduce::{Case, Measured, Pair};
use crate::workload::random::XorShift64Star;
use crate::workload::spec::{AdviceSpec, AreaSpec, PhaseSpec, ProcessSpec, Workload};

/// Runs a workload before and after, with the same measures.
pub fn compare(
    case: &Case,
    workload: Workload,
    measure: impl Fn(&Outcome) -> Vec<f64>,
) -> Measured {
    let workload = Arc::new(vary(workload, case.seed));
    let of = |policy: &str| -> Result<Vec<f64>, Box<dyn Error + Send + Sync>> {
        let outcome = Outcome::of(&workload, policy, case)?;
        Ok(measure(&outcome))
    };
    let before = of("classic+zone+fair:6.12")?;
    let after = of(&format!("classic+{}:6.12", case.variant))?;
    let pairs = before.into_iter().zip(after);
    Ok(pairs
        .map(|(before, after)| Pair { before, after })
        .collect())
}

/// Varies the start, as no two runs on a real machine start alike: processes start up to a tenth of
/// a second later, and another process of random size takes up to 1 % of the memory.
fn vary(mut workload: Workload, seed: u64) -> Workload {
    let mut random = XorShift64Star::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    for process in &mut workload.process {
        process.start_ms += u64::from(random.below(100));
    }
    workload.process.push(ProcessSpec {
        name: "others".to_owned(),
        count: 1,
        threads: 1,
        repeat: 1,
        forks: 0,
        start_ms: 0,
        cgroup: None,
        highest_zone: None,
        area: vec![AreaSpec {
            name: "heap".to_owned(),
            size: Some(format!("{}K", 4 * (256 + random.below(1024)))),
            file: None,
            own: false,
            mmap: false,
            huge: false,
            locked: true,
            advice: AdviceSpec::Normal,
        }],
        phase: vec![PhaseSpec {
            populate: vec!["heap".to_owned()],
            repeat: 1,
            ..PhaseSpec::default()
        }],
    });
    workload
}

/// A finished run.
pub struct Outcome {
    run: Run,
    /// Simulated time, in s.
    pub elapsed_s: f64,
}

impl Outcome {
    /// Runs a workload to its end under a policy.
    pub fn of(
        workload: &Arc<Workload>,
        policy: &str,
        case: &Case,
    ) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
        let mut run = Run::new(&Plan {
            settings: case.settings.to_vec(),
            ..Plan::of(workload.clone(), Policy::parse(policy)?, case.seed)
        })?;
        run.run_until(u64::MAX)?;
        let elapsed_s = run.end_ns() as f64 / 1e9;
        Ok(Outcome { run, elapsed_s })
    }

    /// Laps of a kind of process through a phase.
    fn laps(&self, process: usize, phase: usize) -> impl Iterator<Item = &Lap> {
        let laps = self.run.laps().iter();
        laps.filter(move |lap| (lap.process, lap.phase) == (process, phase))
    }

    /// Durations of the laps through a phase, in ms, sorted.
    pub fn durations_ms(&self, process: usize, phase: usize) -> Vec<f64> {
        let mut durations: Vec<f64> = self
            .laps(process, phase)
            .map(|lap| (lap.end_ns - lap.start_ns) as f64 / 1e6)
            .collect();
        durations.sort_by(f64::total_cmp);
        durations
    }

    /// Time from the first start of a phase to its last end in any process, in s.
    pub fn phase_s(&self, process: usize, phase: usize) -> f64 {
        let start_ns = self.laps(process, phase).map(|lap| lap.start_ns).min();
        let end_ns = self.laps(process, phase).map(|lap| lap.end_ns).max();
        (end_ns.unwrap_or(0) - start_ns.unwrap_or(0)) as f64 / 1e9
    }

    /// Rate of all processes of a kind together, in `amount` per second: the sum of their rates in
    /// a phase, each over its own time.
    pub fn rate(&self, process: usize, phase: usize, amount: f64) -> f64 {
        self.laps(process, phase)
            .map(|lap| amount * 1e9 / (lap.end_ns - lap.start_ns).max(1) as f64)
            .sum()
    }

    /// CPU time in the kernel, in s: faults, copies, choice of zones, direct and background
    /// reclaim.
    pub fn system_s(&self) -> f64 {
        let machine = &self.run.machine;
        let cost = machine.config().cost;
        let counters = machine.counters();
        let [policy_ns, ..] = machine.cpu_ns();
        let faults = counters.pgfault + counters.pgpgin;
        let copies = self.run.accesses();
        let front = faults * cost.fault_ns + copies * cost.file_io_ns + machine.allocator_ns();
        (front + policy_ns) as f64 / 1e9
    }

    /// The counters of the document's tables.
    pub fn vm(&self) -> VmStats {
        let machine = &self.run.machine;
        let events = machine.memcg_events(MemcgId::ROOT);
        let counters = machine.counters();
        let zones = machine.zones();
        let allocated = |name: &str| {
            let zone = zones.iter().find(|zone| zone.zone == name);
            zone.map_or(0, |zone| zone.allocated) as f64
        };
        VmStats {
            swap_ins: counters.pswpin as f64,
            swap_outs: counters.pswpout as f64,
            dma_allocs: allocated("DMA"),
            dma32_allocs: allocated("DMA32"),
            normal_allocs: allocated("Normal"),
            stalls: counters.allocstall as f64,
            direct_scanned: events.pgscan_direct as f64,
            kswapd_scanned: events.pgscan_kswapd as f64,
            direct_reclaimed: events.pgsteal_direct as f64,
            kswapd_reclaimed: events.pgsteal_kswapd as f64,
            reclaim_writes: counters.vmscan_write.iter().sum::<u64>() as f64,
            immediate: events.pgrotated as f64,
            slab_calls: counters.slab_calls as f64,
            system_s: self.system_s(),
            elapsed_s: self.elapsed_s,
        }
    }

    /// Standard deviation over zones of the mean residency of file pages, in percent of their mean;
    /// and the percentage of evictions out of order.
    pub fn aging(&self) -> [f64; 2] {
        let machine = &self.run.machine;
        let spread = machine.residency_spread(FolioType::File);
        [
            100.0 * spread.unwrap_or(0.0),
            100.0 * machine.residency().inversion_share(),
        ]
    }
}

/// Counters of `/proc/vmstat`, and values derived from them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VmStats {
    /// Pages read from swap.
    pub swap_ins: f64,
    /// Pages written to swap.
    pub swap_outs: f64,
    /// Pages allocated from DMA.
    pub dma_allocs: f64,
    /// Pages allocated from DMA32.
    pub dma32_allocs: f64,
    /// Pages allocated from NORMAL.
    pub normal_allocs: f64,
    /// Allocations that entered direct reclaim.
    pub stalls: f64,
    /// Pages scanned by direct reclaim.
    pub direct_scanned: f64,
    /// Pages scanned by kswapd.
    pub kswapd_scanned: f64,
    /// Pages reclaimed by direct reclaim.
    pub direct_reclaimed: f64,
    /// Pages reclaimed by kswapd.
    pub kswapd_reclaimed: f64,
    /// Pages written by reclaim itself.
    pub reclaim_writes: f64,
    /// Pages rotated for immediate reclaim.
    pub immediate: f64,
    /// Calls of the shrinkers.
    pub slab_calls: f64,
    /// CPU time in the kernel, in s.
    pub system_s: f64,
    /// Duration, in s.
    pub elapsed_s: f64,
}

impl VmStats {
    /// Pages scanned by kswapd per second.
    pub fn kswapd_velocity(&self) -> f64 {
        self.kswapd_scanned / self.elapsed_s
    }

    /// Pages scanned by direct reclaim per second.
    pub fn direct_velocity(&self) -> f64 {
        self.direct_scanned / self.elapsed_s
    }

    /// Percentage of the pages scanned by kswapd that were reclaimed, rounded down.
    pub fn kswapd_efficiency(&self) -> f64 {
        efficiency(self.kswapd_reclaimed, self.kswapd_scanned)
    }

    /// Percentage of the pages scanned by direct reclaim that were reclaimed, rounded down.
    pub fn direct_efficiency(&self) -> f64 {
        efficiency(self.direct_reclaimed, self.direct_scanned)
    }

    /// Percentage of all pages that came from DMA32.
    pub fn dma32_percent(&self) -> f64 {
        let all = self.dma_allocs + self.dma32_allocs + self.normal_allocs;
        100.0 * self.dma32_allocs / all.max(1.0)
    }

    /// Percentage of all pages scanned that direct reclaim scanned.
    pub fn percentage_direct(&self) -> f64 {
        100.0 * self.direct_scanned / (self.direct_scanned + self.kswapd_scanned).max(1.0)
    }
}

/// Percentage of scanned pages that were reclaimed, rounded down; 100 if none were scanned.
fn efficiency(reclaimed: f64, scanned: f64) -> f64 {
    if scanned == 0.0 {
        100.0
    } else {
        (100.0 * reclaimed / scanned).floor()
    }
}

/// The `percent`-th percentile of sorted values: the smallest value such that this share of them is
/// not greater.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = (sorted.len() as f64 * percent / 100.0).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or(0.0)
}

/// Mean of the lowest `percent` of sorted values (`BestX%Mean`).
pub fn best_mean(sorted: &[f64], percent: f64) -> f64 {
    let count = (sorted.len() as f64 * percent / 100.0).round().max(1.0) as usize;
    let best = &sorted[..count.min(sorted.len())];
    best.iter().sum::<f64>() / best.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_those_of_the_document() {
        // tiobench before: kswapd scanned 93331163 pages at 13729.855 per second, direct reclaim
        // 17463 at 2.569.
        let vm = VmStats {
            kswapd_scanned: 93_331_163.0,
            kswapd_reclaimed: 93_328_173.0,
            direct_scanned: 17_463.0,
            direct_reclaimed: 17_463.0,
            elapsed_s: 6797.68,
            ..VmStats::default()
        };
        assert!((vm.kswapd_velocity() - 13_729.855).abs() < 0.1);
        assert!((vm.direct_velocity() - 2.569).abs() < 0.001);
        assert_eq!(
            (vm.kswapd_efficiency(), vm.direct_efficiency()),
            (99.0, 100.0)
        );
        assert_eq!(vm.percentage_direct().floor(), 0.0);
        assert_eq!(VmStats::default().kswapd_efficiency(), 100.0);
        // stutter before.
        assert_eq!(efficiency(41_571_035.0, 42_454_910.0), 97.0);
        assert_eq!(efficiency(1167.0, 1374.0), 84.0);
    }

    #[test]
    fn percentiles_and_means() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 100.0);
        assert_eq!(percentile(&values, 99.0), 198.0);
        assert_eq!(percentile(&values, 100.0), 200.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
        assert_eq!(best_mean(&values, 1.0), 1.5);
        assert_eq!(best_mean(&values, 100.0), 100.5);
    }
}
