// SPDX-License-Identifier: Apache-2.0
//! Finds out which rules of the multi-gen LRU a reference can verify. Rules are switched off or set
//! to another value one at a time, and the cells are replayed.
//!
//! A cell *catches* a mutation if it agreed with the kernel before and no longer does. A rule with
//! a smaller effect on the counts is pinned by a test here, which records the counts; a rule
//! without any effect needs a test elsewhere: `docs/inside/kernel-reference.md` has the table.

use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::cell::Cell;
use super::replay::ReplayError;
use super::verify::{CellReport, Comparison, Effort, verify_unless_stopped};
use crate::machine::kernel::Kernel;
use crate::machine::profile_file::{FIELDS, changed};

/// Values of `lru_gen/enabled` that leave out a part.
const BITS: [u32; 3] = [1, 3, 5];

/// Accepted deviation of misses, as in a verification.
const SHARE: f64 = 0.05;

/// A change that makes the rules wrong.
#[derive(Clone, Copy, Debug)]
enum Wrong {
    /// A line of the profile.
    Rules(&'static Kernel),
    /// Another value of `lru_gen/enabled`.
    Bits(u32),
}

/// One mutation, and the results of the cells replayed with it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caught {
    pub kernel: String,
    /// What was changed, as a line of a profile, or `enabled = N`.
    pub change: String,
    /// Cells that agree without the change.
    pub cells: usize,
    /// Number of these cells that do not agree with the change.
    pub caught: usize,
    /// Number of all cells in which the change alters any count.
    pub moved: usize,
    /// Pattern of the cell with the largest change in misses, caught or not.
    pub pattern: String,
    /// Exponent of that cell's distribution.
    pub theta: f64,
    /// Simulated misses without the change.
    pub misses_sim: Option<u64>,
    /// Simulated misses with the change.
    pub misses_changed: Option<u64>,
    /// Measured misses.
    pub misses_median: u64,
}

/// Mutations of a kernel whose text starts with `only`.
fn mutations(kernel: &str, only: &str) -> Vec<(String, Wrong)> {
    let lines = FIELDS.iter().flat_map(|field| {
        let line = |value| format!("{} = {value}", field.key);
        field.values.iter().map(line)
    });
    let rules = lines.filter_map(|line| {
        // A test shows that the values in the table are valid; the kernel's own values are not
        // mutations.
        let rules = changed(kernel, &line).ok().flatten()?;
        Some((line, Wrong::Rules(rules)))
    });
    let bits = BITS.map(|bits| (format!("enabled = {bits}"), Wrong::Bits(bits)));
    let mut all: Vec<_> = rules.chain(bits).collect();
    all.retain(|(line, _)| line.starts_with(only));
    all
}

/// Replays the multi-gen cells unchanged and with each mutation; `done` is called as in
/// [`verify`](super::verify).
///
/// # Errors
/// Returns the error of the first cell, in order, that cannot be replayed.
pub fn mutate(
    cells: &[Cell],
    only: &str,
    effort: Effort,
    stop: &AtomicBool,
    done: impl Fn(usize) + Sync,
) -> Result<Vec<Caught>, ReplayError> {
    let mut kernels: Vec<&str> = cells.iter().map(|cell| cell.kernel.as_str()).collect();
    kernels.sort_unstable();
    kernels.dedup();
    let (mut all, mut changes) = (Vec::new(), Vec::new());
    for kernel in kernels {
        let is_mine = |cell: &&Cell| cell.kernel == kernel && cell.lru_gen & 1 != 0;
        let mine: Vec<&Cell> = cells.iter().filter(is_mine).collect();
        let intact = all.len();
        all.extend(mine.iter().copied().cloned());
        for (line, wrong) in mutations(kernel, only) {
            changes.push((line, intact, all.len(), mine.len()));
            all.extend(mine.iter().map(|&cell| wrong.of(cell)));
        }
    }
    let reports = verify_unless_stopped(&all, effort, stop, done)?;
    let caught = changes
        .into_iter()
        .filter_map(|(line, at, mutated, count)| {
            let (intact, changed) = (&reports[at..at + count], &reports[mutated..mutated + count]);
            judge(line, intact, changed)
        });
    Ok(caught.collect())
}

impl Wrong {
    fn of(self, cell: &Cell) -> Cell {
        let mut cell = cell.clone();
        match self {
            Wrong::Rules(rules) => cell.rules = Some(rules),
            Wrong::Bits(bits) => cell.lru_gen = bits,
        }
        cell
    }
}

/// Compares the main phases without and with a mutation; None if there is no cell.
fn judge(change: String, intact: &[CellReport], changed: &[CellReport]) -> Option<Caught> {
    let main = |report: &'_ CellReport| {
        let mut phases = report.comparisons.iter();
        phases.find(|phase| phase.phase == "main").cloned()
    };
    let mut pairs: Vec<(Comparison, Comparison)> = intact
        .iter()
        .zip(changed)
        .filter_map(|(intact, changed)| Some((main(intact)?, main(changed)?)))
        .collect();
    let moved = pairs
        .iter()
        .filter(|(intact, changed)| counts(intact) != counts(changed));
    let moved = moved.count();
    pairs.retain(|(intact, _)| intact.agrees(SHARE));
    let by = |(intact, changed): &&(Comparison, Comparison)| {
        let (from, to) = (
            intact.misses_sim.unwrap_or(0),
            changed.misses_sim.unwrap_or(0),
        );
        from.abs_diff(to) * 1_000_000 / intact.misses_median.max(1)
    };
    let caught = pairs
        .iter()
        .filter(|(intact, changed)| is_caught(intact, changed));
    let (caught, (from, to)) = (caught.count(), pairs.iter().max_by_key(by)?);
    Some(Caught {
        kernel: from.kernel.clone(),
        change,
        cells: pairs.len(),
        caught,
        moved,
        pattern: from.pattern.clone(),
        theta: from.theta,
        misses_sim: from.misses_sim,
        misses_changed: to.misses_sim,
        misses_median: from.misses_median,
    })
}

/// Whether the changed cell no longer agrees in its misses, or in pages scanned that agreed before.
fn is_caught(intact: &Comparison, changed: &Comparison) -> bool {
    !changed.agrees(SHARE) || intact.scans_agree() && !changed.scans_agree()
}

fn counts(phase: &Comparison) -> [Option<u64>; 7] {
    let [anon, file] = phase.refaults_sim;
    [
        phase.misses_sim,
        phase.misses_sim_min,
        phase.misses_sim_max,
        phase.scanned_sim,
        Some(phase.refilled_sim),
        Some(anon),
        Some(file),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::verify::verify;
    use super::*;
    use crate::reference::rows;

    static NEVER: AtomicBool = AtomicBool::new(false);

    const SINGLE: Effort = Effort {
        flush_phases: 1,
        perturb: false,
    };

    /// Kernel, pattern, theta, nomadv; misses and pages scanned of one simulated run. These are the
    /// exact counts under the current rules; the kernel's counts are only close to them.
    #[rustfmt::skip]
    const PINNED: [(&str, &str, f64, bool, u64, u64); 19] = [
        ("6.12", "anon-zipf", 0.8, true, 86575, 106195),
        ("6.12", "mmap-zipf", 0.99, true, 21283, 26176),
        ("6.12", "anon-zscan", 0.8, true, 79928, 86415),
        ("7.2", "mmap-zipf", 0.99, true, 21284, 23787),
        ("7.2", "anon-zscan", 0.8, true, 74712, 79686),
        ("6.12", "anon-zipf", 0.8, false, 86575, 106195),
        ("6.12", "anon-zipf", 0.99, false, 41241, 48958),
        ("6.12", "anon-uniform", 0.0, false, 50400, 57698),
        ("6.12", "anon-scan", 0.0, false, 100002, 100000),
        ("6.12", "file-uniform", 0.0, false, 30343, 30336),
        ("6.12", "file-zipf", 0.99, false, 20774, 20800),
        ("6.12", "mixed", 0.8, false, 50000, 49984),
        ("7.2", "anon-zipf", 0.8, false, 86712, 94071),
        ("7.2", "anon-zipf", 0.99, false, 43131, 46674),
        ("7.2", "anon-uniform", 0.0, false, 50378, 55175),
        ("7.2", "anon-scan", 0.0, false, 66361, 80276),
        ("7.2", "file-uniform", 0.0, false, 30299, 30279),
        ("7.2", "file-zipf", 0.99, false, 21606, 21599),
        ("7.2", "mixed", 0.8, false, 50582, 50588),
    ];

    fn multi_gen() -> Vec<Cell> {
        let mut cells = rows::read(rows::COMMITTED.as_bytes()).unwrap();
        cells.retain(|cell| cell.lru_gen & 1 != 0);
        cells
    }

    /// Catches changes of counts that are too small to disagree with the kernel. When rules are
    /// changed on purpose, the new counts go here once a verification agrees.
    #[test]
    fn counts_are_those_of_these_rules() {
        let reports = verify(&multi_gen(), SINGLE, |_| ()).unwrap();
        assert_eq!(reports.len(), PINNED.len());
        for (report, (kernel, pattern, theta, nomadv, misses, scanned)) in
            reports.iter().zip(PINNED)
        {
            let cell = &report.cell;
            assert_eq!(
                (cell.kernel.as_str(), cell.trace.pattern.as_str()),
                (kernel, pattern)
            );
            assert_eq!((cell.trace.theta, cell.nomadv), (theta, nomadv));
            let main = report.comparisons.last().unwrap();
            let counted = (main.misses_sim, main.scanned_sim);
            assert_eq!(
                counted,
                (Some(misses), Some(scanned)),
                "{kernel} {pattern} {theta}"
            );
        }
    }

    /// Parts without any effect in these traces: see `docs/inside/kernel-reference.md`.
    const IDLE: [(&str, &str); 3] = [
        ("6.12", "without = ['protection']"),
        ("6.12", "without = ['refault-window']"),
        ("6.12", "enabled = 3"),
    ];

    #[test]
    fn a_part_left_out_is_seen() {
        let mut cells = multi_gen();
        cells.retain(|cell| {
            let pattern = cell.trace.pattern.as_str();
            matches!(pattern, "anon-scan" | "file-zipf" | "mixed")
                || cell.kernel == "6.12" && cell.trace.theta == 0.99 && pattern == "anon-zipf"
        });
        for only in ["without", "enabled"] {
            for row in mutate(&cells, only, SINGLE, &NEVER, |_| ()).unwrap() {
                let is_idle = IDLE.contains(&(row.kernel.as_str(), row.change.as_str()));
                assert_eq!(row.moved == 0, is_idle, "{row:?}");
            }
        }
    }

    #[test]
    fn what_is_printed_is_what_moved() {
        let mut cells = multi_gen();
        cells.retain(|cell| cell.kernel == "7.2" && cell.trace.pattern == "anon-scan");
        let rows = mutate(&cells, "without = ['fault-mark']", SINGLE, &NEVER, |_| ()).unwrap();
        let [row] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        assert_eq!((row.cells, row.caught, row.moved), (1, 1, 1));
        assert!(row.misses_changed > row.misses_sim, "{row:?}");
        assert!(
            mutate(&cells, "withou7", SINGLE, &NEVER, |_| ())
                .unwrap()
                .is_empty()
        );
    }
}
