// SPDX-License-Identifier: Apache-2.0
//! Compares simulated with measured counts, cell by cell.
//!
//! A single run of the kernel does not show everything its counts depend on, so each cell is
//! replayed under several conditions and both sides are ranges:
//!
//! - **Classic LRU**: it decides on statistics flushed every 2 s. Each measured run is replayed at
//!   its own time per miss with [`FLUSH_PHASES`] evenly spaced start phases of that timer.
//! - **Multi-gen LRU**: it does not read those statistics. It is not known whether the process was
//!   scheduled between two agings of one reclaim call (never, at even odds, always), nor how many
//!   of a few kernel pages that vary from boot to boot there were (0 to 3 more). `misses_sim` is
//!   the median of these 12 runs, `misses_sim_min` and `misses_sim_max` their range. None of these
//!   conditions is fitted to a cell. With `min_ttl_ms`, each measured run is replayed at its own
//!   time per miss, since generations younger than that are not evicted.
//!
//! The result does not depend on the order of the runs.

use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use serde::Serialize;

use super::cell::{Cell, Measured, Phase, Run};
use super::replay::{Conditions, HIT_NS, Outcome, ReplayError, Simulated, replay};

/// Number of start phases of the statistics timer tried for each measured run.
pub const FLUSH_PHASES: u64 = 20;

const FLUSH_PERIOD_NS: u64 = 2_000_000_000;

/// One record of the report: a phase of a cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Kernel version.
    pub kernel: String,
    /// Value of `lru_gen/enabled`; 0 is the classic LRU.
    pub lru_gen: u32,
    /// `vm.swappiness`.
    pub swappiness: u32,
    /// Programs that shared the limit, each in its own cgroup.
    pub members: u32,
    /// Index of the program, from 0.
    pub member: u32,
    /// `memory.min` of the first.
    pub min_bytes: u64,
    /// `memory.low` of the first.
    pub low_bytes: u64,
    /// Pattern of the trace.
    pub pattern: String,
    /// Exponent of the pattern's distribution.
    pub theta: f64,
    /// Hot pages of the pattern.
    pub hot: u32,
    /// 1 if mapped files had no `MADV_RANDOM`.
    pub nomadv: u32,
    /// 1 if touches were writes (for `mixed` those of anonymous memory), 0 if reads.
    pub writes: u32,
    /// `memory.max` in bytes; 0 if the only limit was the guest's memory.
    pub limit_bytes: u64,
    /// CPUs of the guest.
    pub cpus: u32,
    /// NUMA nodes of the guest that the program used.
    pub nodes: u32,
    /// Nodes from which it took its pages in turn; 1 if they were local.
    pub interleave: u32,
    /// `lru_gen/min_ttl_ms`.
    pub min_ttl_ms: u32,
    /// 1 if all anonymous memory used huge pages.
    pub thp: u32,
    /// `vm.watermark_boost_factor` of the guest.
    pub watermark_boost_factor: u32,
    pub phase: &'static str,
    /// Median of the simulated misses; None if every run was killed before the phase ended.
    pub misses_sim: Option<u64>,
    /// Fewest simulated misses.
    pub misses_sim_min: Option<u64>,
    /// Most simulated misses.
    pub misses_sim_max: Option<u64>,
    /// Median of the measured misses.
    pub misses_median: u64,
    /// Fewest measured misses.
    pub misses_min: u64,
    /// Most measured misses.
    pub misses_max: u64,
    /// Median of the simulated pages scanned.
    pub scanned_sim: Option<u64>,
    /// Median of the measured pages scanned.
    pub scanned_median: u64,
    /// Median of the simulated refaults, anon and file.
    #[serde(skip)]
    pub refaults_sim: [u64; 2],
    /// Median of the simulated pages sorted or deactivated.
    #[serde(skip)]
    pub refilled_sim: u64,
}

/// A cell with all simulated results.
#[derive(Clone, Debug)]
pub struct CellReport {
    /// The measured cell.
    pub cell: Cell,
    /// One comparison per phase.
    pub comparisons: Vec<Comparison>,
    /// Runs killed for lack of memory: simulated, number of simulated; measured, number of
    /// measured.
    pub killed: [usize; 4],
}

/// How thoroughly a cell is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Start phases of the statistics timer.
    pub flush_phases: u64,
    /// Whether to try all conditions of the multi-gen LRU instead of one.
    pub perturb: bool,
}

impl Default for Effort {
    fn default() -> Self {
        Effort {
            flush_phases: FLUSH_PHASES,
            perturb: true,
        }
    }
}

/// Time per miss in a phase with `misses` misses of all members.
fn miss_ns(measured: &Measured, misses: u64, members: u64) -> Option<u64> {
    let misses = misses.max(1);
    let hits = (measured.touches.saturating_mul(members)).saturating_sub(misses);
    let elapsed_ns = (measured.elapsed_s * 1e9) as u64;
    (elapsed_ns > 0).then(|| elapsed_ns.saturating_sub(hits.saturating_mul(HIT_NS)) / misses)
}

/// Time per miss in each phase of a run.
fn speeds(run: &Run, members: u32) -> [u64; 3] {
    let members = u64::from(members);
    let of = |phase| {
        let measured: &Measured = run.get(&phase)?;
        // Populating faults once per page, however the reference counts misses.
        let misses = match phase {
            Phase::Populate => measured.touches.saturating_mul(members),
            Phase::Warm | Phase::Main => measured.all_misses,
        };
        miss_ns(measured, misses, members)
    };
    let warm_ns = of(Phase::Warm).unwrap_or(100_000);
    // Until it was killed, a run is assumed to have kept its pace.
    let main_ns = of(Phase::Main).unwrap_or(warm_ns);
    [of(Phase::Populate).unwrap_or(50_000), warm_ns, main_ns]
}

/// The conditions under which a cell is replayed.
pub fn conditions(cell: &Cell, effort: Effort) -> Vec<Conditions> {
    if cell.lru_gen & 1 == 0 {
        let phases = effort.flush_phases.max(1);
        return cell
            .runs
            .iter()
            .flat_map(|run| {
                (0..phases).map(|phase| Conditions {
                    miss_ns: speeds(run, cell.members.count),
                    flush_phase_ns: FLUSH_PERIOD_NS * (2 * phase + 1) / (2 * phases),
                    ..Conditions::default()
                })
            })
            .collect();
    }
    let (chances, pages): (&[f64], u64) = match effort.perturb {
        true => (&[0.0, 0.5, 1.0], 4),
        false => (&[0.0], 1),
    };
    let mut all = Vec::new();
    for miss_ns in mglru_speeds(cell) {
        for &reschedule_chance in chances {
            all.extend((0..pages).map(|extra_kernel_pages| Conditions {
                miss_ns,
                reschedule_chance,
                extra_kernel_pages,
                seed: extra_kernel_pages + 1,
                ..Conditions::default()
            }));
        }
    }
    all
}

/// Times per miss to try under the multi-gen LRU: those of the runs if ages decide who is killed.
fn mglru_speeds(cell: &Cell) -> Vec<[u64; 3]> {
    match cell.guest.min_ttl_ms {
        0 => vec![Conditions::default().miss_ns],
        _ => {
            let runs = cell.runs.iter();
            runs.map(|run| speeds(run, cell.members.count)).collect()
        }
    }
}

/// The median; for an even number of values, the lower of the two in the middle.
pub fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    let middle = values.len().checked_sub(1)? / 2;
    values.get(middle).copied()
}

fn compare(cell: &Cell, outcomes: &[Outcome], phase: Phase) -> Option<Comparison> {
    let misses = cell.values(phase, |measured| measured.misses);
    let scanned = cell.values(phase, |measured| measured.scanned);
    let simulated: Vec<Simulated> = outcomes
        .iter()
        .filter_map(|outcome| outcome.get(&phase).copied())
        .collect();
    let all = |of: fn(&Simulated) -> u64| simulated.iter().map(of).collect::<Vec<u64>>();
    Some(Comparison {
        kernel: cell.kernel.clone(),
        lru_gen: cell.lru_gen,
        swappiness: cell.swappiness,
        members: cell.members.count,
        member: cell.members.this,
        min_bytes: cell.members.min_bytes,
        low_bytes: cell.members.low_bytes,
        pattern: cell.trace.pattern.clone(),
        theta: cell.trace.theta,
        hot: cell.trace.hot,
        nomadv: cell.nomadv.into(),
        writes: cell.writes.into(),
        limit_bytes: cell.limit_bytes,
        cpus: cell.guest.cpus,
        nodes: cell.guest.nodes(),
        interleave: cell.guest.interleave,
        min_ttl_ms: cell.guest.min_ttl_ms,
        thp: cell.guest.thp.into(),
        watermark_boost_factor: cell.guest.watermark_boost_factor,
        phase: phase.name(),
        misses_sim: median(all(|s| s.misses)),
        misses_sim_min: all(|s| s.misses).into_iter().min(),
        misses_sim_max: all(|s| s.misses).into_iter().max(),
        misses_min: *misses.iter().min()?,
        misses_max: *misses.iter().max()?,
        misses_median: median(misses)?,
        scanned_sim: median(all(|s| s.scanned)),
        scanned_median: median(scanned)?,
        refaults_sim: [
            median(all(|s| s.refaults[0])).unwrap_or(0),
            median(all(|s| s.refaults[1])).unwrap_or(0),
        ],
        refilled_sim: median(all(|s| s.refilled)).unwrap_or(0),
    })
}

/// Replays all cells in parallel; calls `done` after each run with the total number of runs.
///
/// # Errors
/// Returns the error of the first cell, in order, that cannot be replayed.
pub fn verify(
    cells: &[Cell],
    effort: Effort,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<CellReport>, ReplayError> {
    verify_unless_stopped(cells, effort, &AtomicBool::new(false), done)
}

/// Like [`verify`]; once `stop` is set, no further run starts.
///
/// # Errors
/// Those of [`verify`]; [`ReplayError::Stopped`] if it was stopped.
pub fn verify_unless_stopped(
    cells: &[Cell],
    effort: Effort,
    stop: &AtomicBool,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<CellReport>, ReplayError> {
    let runs: Vec<(usize, Conditions)> = cells
        .iter()
        .enumerate()
        .flat_map(|(index, cell)| {
            let all = conditions(cell, effort);
            all.into_iter().map(move |conditions| (index, conditions))
        })
        .collect();
    let total = runs.len();
    let outcomes: Vec<Result<Outcome, ReplayError>> = runs
        .par_iter()
        .map(|(index, conditions)| {
            if stop.load(Ordering::Relaxed) {
                return Err(ReplayError::Stopped);
            }
            let outcome = replay(&cells[*index], conditions);
            done(total);
            outcome
        })
        .collect();
    let mut by_cell: Vec<Vec<Outcome>> = vec![Vec::new(); cells.len()];
    for ((index, _), outcome) in runs.iter().zip(outcomes) {
        by_cell[*index].push(outcome?);
    }
    let reports = cells.iter().zip(by_cell).map(|(cell, outcomes)| {
        let finished = |outcome: &&Outcome| !outcome.contains_key(&Phase::Main);
        CellReport {
            comparisons: Phase::ALL
                .into_iter()
                .filter_map(|phase| compare(cell, &outcomes, phase))
                .collect(),
            killed: [
                outcomes.iter().filter(finished).count(),
                outcomes.len(),
                cell.runs
                    .iter()
                    .filter(|run| !run.contains_key(&Phase::Main))
                    .count(),
                cell.runs.len(),
            ],
            cell: cell.clone(),
        }
    });
    Ok(reports.collect())
}

impl CellReport {
    /// Whether the simulated program is killed where the kernel's is: they disagree if all runs of
    /// one are killed and none of the other.
    pub fn kills_agree(&self) -> bool {
        let [simulated, of, measured, runs] = self.killed;
        !(simulated == 0 && measured == runs || simulated == of && measured == 0)
    }
}

/// Relative deviation of the simulated median from the measured one.
pub fn deviation(simulated: u64, measured: u64) -> f64 {
    if simulated == measured {
        return 0.0;
    }
    (simulated as f64 - measured as f64) / (measured.max(1) as f64)
}

impl Comparison {
    /// Whether the simulated misses agree. Under the multi-gen LRU, the median must be within
    /// `share` of the measured one or inside the measured range; under the classic LRU, both ranges
    /// must overlap after widening the measured one by 1 %.
    pub fn agrees(&self, share: f64) -> bool {
        let (Some(sim), Some(low), Some(high)) =
            (self.misses_sim, self.misses_sim_min, self.misses_sim_max)
        else {
            return false;
        };
        if self.lru_gen & 1 == 0 {
            return low as f64 <= self.misses_max as f64 * 1.01
                && high as f64 >= self.misses_min as f64 * 0.99;
        }
        deviation(sim, self.misses_median).abs() <= share
            || (self.misses_min..=self.misses_max).contains(&sim)
    }

    /// Whether the pages scanned agree to within a quarter.
    pub fn scans_agree(&self) -> bool {
        self.scanned_sim
            .is_some_and(|sim| deviation(sim, self.scanned_median).abs() <= 0.25)
    }
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;

    #[test]
    fn medians_are_values_that_were_seen() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![5]), Some(5));
        assert_eq!(median(vec![9, 1]), Some(1));
        assert_eq!(median(vec![3, 9, 1]), Some(3));
    }

    #[test]
    fn speeds_leave_the_hits_out() {
        let measured = Measured {
            touches: 1000,
            misses: 10,
            scanned: 0,
            all_misses: 100,
            elapsed_s: 0.1 + 1900.0 * HIT_NS as f64 / 1e9,
        };
        let run = Run::from([(Phase::Warm, measured)]);
        let [populate, warm, main] = speeds(&run, 2);
        assert!((999_990..=1_000_000).contains(&warm), "{warm}");
        assert_eq!((populate, main), (50_000, warm));
        assert_eq!(speeds(&Run::new(), 1), [50_000, 100_000, 100_000]);
    }

    /// What is older than `min_ttl_ms` may be evicted, and in a slow guest that is much.
    #[test]
    fn the_pace_of_a_run_decides_whether_ages_kill_it() {
        let cells = rows::read(rows::EXTENDED.as_bytes()).unwrap();
        let mut aged = cells.into_iter().filter(|cell| cell.guest.min_ttl_ms > 0);
        let mut cell = aged.next().unwrap();
        cell.guest.min_ttl_ms = 1000;
        let effort = Effort {
            flush_phases: 1,
            perturb: false,
        };
        let [fast, slow] = [0.7, 700.0].map(|elapsed_s| {
            let populated = Measured {
                touches: cell.trace.pages.into(),
                misses: 0,
                scanned: 0,
                all_misses: 0,
                elapsed_s,
            };
            cell.runs = vec![Run::from([(Phase::Populate, populated)])];
            replay(&cell, &conditions(&cell, effort)[0]).unwrap()
        });
        assert!(fast.is_empty(), "{fast:?}");
        assert!(slow.contains_key(&Phase::Populate), "{slow:?}");
    }

    /// Checks what `docs/inside/kernel-reference.md` says about these cells.
    #[test]
    fn the_harder_cells_agree_but_for_those_known() {
        let cells = rows::read(rows::EXTENDED.as_bytes()).unwrap();
        let effort = Effort {
            flush_phases: 1,
            perturb: false,
        };
        let reports = verify(&cells, effort, |_| {}).unwrap();
        let all = reports.iter().flat_map(|report| &report.comparisons);
        let main: Vec<&Comparison> = all.filter(|row| row.phase == "main").collect();
        assert_eq!(main.len(), 196);
        let killed: Vec<_> = reports
            .iter()
            .filter(|report| report.cell.guest.min_ttl_ms > 0)
            .collect();
        assert_eq!(killed.len(), 6, "cells with min_ttl_ms");
        assert!(
            killed
                .iter()
                .all(|report| report.killed[0] == report.killed[1])
        );
        assert!(reports.iter().all(CellReport::kills_agree));
        let off = |share: f64| {
            let off = main.iter().filter(|row| !row.agrees(share));
            off.filter(|row| row.lru_gen & 1 != 0)
                .map(|row| (row.kernel.as_str(), row.nodes, row.members, row.member))
                .collect::<Vec<_>>()
        };
        let known = [
            ("6.12", 1, 3, 1),
            ("7.2", 1, 3, 0),
            ("7.2", 1, 3, 1),
            ("7.2", 1, 3, 2),
            ("7.2", 2, 1, 0),
        ];
        let unknown: Vec<_> = off(0.10)
            .into_iter()
            .filter(|cell| !known.contains(cell))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        assert!(off(0.05).len() <= 7, "{:?}", off(0.05));
        // A single start phase of the statistics timer gives no range.
        let classic = main.iter().filter(|row| row.lru_gen & 1 == 0);
        let far: Vec<_> = classic.filter(|row| !row.agrees(0.0)).collect();
        assert!(far.len() <= 8, "{far:?}");
    }
}
