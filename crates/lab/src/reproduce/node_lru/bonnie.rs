// SPDX-License-Identifier: Apache-2.0
//! bonnie++ on twice the memory. v7 says "no interesting performance difference" and gives no
//! figures; v5 gives large ones, which its author says may be luck. Creating and deleting files is
//! left out: the lab has no directories.

use super::counter::*;
use super::outcome::compare;
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;

/// Phases of the workload, with the figures of v5 in K/s (seeks: per second).
const PHASES: [(&str, f64, f64); 6] = [
    ("SeqOut Char", 53_306.32, 79_027.86),
    ("SeqOut Block", 87_796.15, 87_881.69),
    ("SeqOut Rewrite", 35_996.31, 36_355.59),
    ("SeqIn Char", 38_789.17, 76_356.20),
    ("SeqIn Block", 105_315.39, 105_514.07),
    ("Random seeks", 329.80, 334.36),
];

pub(super) fn benchmarks() -> Vec<Benchmark> {
    let speeds = Benchmark {
        name: "bonnie".into(),
        summary: "a file of twice the memory written, rewritten, read, and read at random".into(),
        figures: PHASES
            .iter()
            .map(|&(phase, before, after)| {
                let unit = if phase == "Random seeks" {
                    "1/s"
                } else {
                    "K/s"
                };
                Figure::higher(phase, unit, Expectation::NO_CHANGE)
                    .document(before, after)
                    .within_noise()
            })
            .collect(),
        measure: Box::new(|case| {
            let workload = library::find("bonnie")?;
            let touches: Vec<u64> = workload.process[0]
                .phase
                .iter()
                .map(|p| p.touches)
                .collect();
            compare(case, workload, |outcome| {
                let amounts = touches
                    .iter()
                    .enumerate()
                    .map(|(phase, &pages)| match phase {
                        // Each page is read and written.
                        2 => pages as f64 * 2.0,
                        5 => pages as f64,
                        _ => pages as f64 * 4.0,
                    });
                amounts
                    .enumerate()
                    .map(|(phase, amount)| outcome.rate(0, phase, amount))
                    .collect()
            })
        }),
    };
    let counters = table(
        "bonnie/vmstat",
        "counters of the same run (document: v5)",
        || library::find("bonnie"),
        vec![
            changes(SWAP_OUTS, 873.0, 0.0),
            changes(SWAP_INS, 14.0, 0.0),
            changes(STALLS, 3584.0, 0.0),
            changes(DIRECT_SCANNED, 736_769.0, 0.0),
            stays(KSWAPD_SCANNED, 77_818_637.0, 78_836_064.0),
            stays_within(1.0, KSWAPD_EFFICIENCY, 99.0, 99.0),
        ],
    );
    vec![speeds, counters]
}
