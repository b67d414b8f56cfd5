// SPDX-License-Identifier: Apache-2.0
//! paralleldd: several dd processes read large files.

use super::outcome::compare;
use super::tiobench::dma32_percent;
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
    Benchmark {
        name: "paralleldd/vmstat".into(),
        summary: "counters of the run with 16 readers (document: of all runs)".into(),
        figures: vec![
            Figure::lower("system time", "s", Expectation::Figures).document(8332.31, 8216.01),
            Figure::lower("DMA32 allocs", "%", Expectation::Figures)
                .document(
                    100.0 * 31_568_814.0 / 78_108_736.0,
                    100.0 * 28_598_887.0 / 78_113_331.0,
                )
                .by_difference(),
            Figure::lower("swap ins", "pages", Expectation::Figures)
                .document(26.0, 0.0)
                .by_difference(),
            Figure::lower("swap outs", "pages", Expectation::Figures)
                .document(2920.0, 482.0)
                .by_difference(),
            Figure::lower("allocation stalls", "", Expectation::Unchanged(0.0))
                .document(0.0, 0.0)
                .by_difference(),
            Figure::lower("kswapd pages scanned", "pages", Expectation::NO_CHANGE)
                .document(40_886_878.0, 40_849_710.0),
            Figure::lower("kswapd velocity", "pages/s", Expectation::NO_CHANGE)
                .document(11_295.342, 11_563.344),
            Figure::lower("kswapd efficiency", "%", Expectation::Unchanged(1.0))
                .document(99.0, 99.0)
                .by_difference(),
            Figure::lower("calls of the shrinkers", "", Expectation::Own),
        ],
        measure: Box::new(|case| {
            compare(case, workload(16)?, |outcome| {
                let vm = outcome.vm();
                vec![
                    outcome.system_s(),
                    dma32_percent(&vm),
                    vm.swap_ins,
                    vm.swap_outs,
                    vm.stalls,
                    vm.kswapd_scanned,
                    vm.kswapd_velocity(),
                    vm.kswapd_efficiency(),
                    vm.slab_calls,
                ]
            })
        }),
    }
}
