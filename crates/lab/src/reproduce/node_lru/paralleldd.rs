// SPDX-License-Identifier: Apache-2.0
//! paralleldd: several dd processes read large files.

use super::counter::*;
use super::outcome::compare;
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;
use crate::workload::spec::Workload;

/// Number of readers, and seconds before and after.
const READERS: [(u32, f64, f64); 6] = [
    (1, 181.57, 179.63),
    (3, 188.29, 183.68),
    (5, 188.02, 181.73),
    (7, 186.07, 184.11),
    (12, 188.16, 183.51),
    (16, 189.03, 181.27),
];

/// Pages of all files together: three times the memory.
const FILE_PAGES: u64 = 393_216;

/// Index of the kind of process of a dd.
const DD: usize = 1;

fn workload(readers: u32) -> Result<Workload, library::LibraryError> {
    let mut workload = library::find("paralleldd")?;
    let pages = FILE_PAGES / u64::from(readers);
    workload.file[0].size = format!("{}K", pages * 4);
    workload.process[DD].count = readers;
    workload.process[DD].phase[0].touches = pages;
    Ok(workload)
}

pub(super) fn benchmarks() -> Vec<Benchmark> {
    let mut all: Vec<Benchmark> = READERS
        .iter()
        .map(|&(readers, before, after)| Benchmark {
            name: format!("paralleldd/{readers}"),
            summary: "files of three times the memory read by this many processes, on flash".into(),
            figures: vec![
                Figure::lower("elapsed", "s", Expectation::Figures)
                    .document(before, after)
                    .within_noise(),
            ],
            measure: Box::new(move |case| {
                compare(case, workload(readers)?, |outcome| {
                    vec![outcome.phase_s(DD, 0)]
                })
            }),
        })
        .collect();
    all.push(counters());
    all
}

fn counters() -> Benchmark {
    let system_time = Figure::lower("system time", "s", Expectation::Figures);
    table(
        "paralleldd/vmstat",
        "counters of the run with 16 readers (document: of all runs)",
        || workload(16),
        vec![
            (system_time.document(8332.31, 8216.01), |vm| vm.system_s),
            changes(
                DMA32_ALLOCS,
                100.0 * 31_568_814.0 / 78_108_736.0,
                100.0 * 28_598_887.0 / 78_113_331.0,
            ),
            changes(SWAP_INS, 26.0, 0.0),
            changes(SWAP_OUTS, 2920.0, 482.0),
            stays_within(0.0, STALLS, 0.0, 0.0),
            stays(KSWAPD_SCANNED, 40_886_878.0, 40_849_710.0),
            stays(KSWAPD_VELOCITY, 11_295.342, 11_563.344),
            stays_within(1.0, KSWAPD_EFFICIENCY, 99.0, 99.0),
            own(SLAB_CALLS),
        ],
    )
}
