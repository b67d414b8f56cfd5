// SPDX-License-Identifier: Apache-2.0
//! tiobench: threads that write and read files which together exceed the memory. It would gain from
//! keeping old pages while new ones leave, so it must not change.

use super::counter::*;
use super::outcome::compare;
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;
use crate::workload::spec::Workload;
use agewise_policy::table::PAGE_BYTES;

/// Phases of the workload. Random writes come last: the lab's read-ahead ends at the first page
/// that is in memory, so the pages they leave behind would slow down the reads.
const PHASES: [&str; 4] = ["SeqWrite", "SeqRead", "RandRead", "RandWrite"];

/// Threads, with MB/s before and after for each phase.
const THREADS: [(u32, [(f64, f64); 4]); 5] = [
    (
        1,
        [(78.12, 79.78), (80.63, 83.09), (0.90, 0.94), (1.18, 1.15)],
    ),
    (
        2,
        [(72.74, 73.23), (71.91, 72.44), (0.96, 0.97), (1.05, 0.99)],
    ),
    (
        4,
        [(79.40, 78.32), (75.20, 74.32), (1.43, 1.41), (1.00, 0.96)],
    ),
    (
        8,
        [(73.18, 71.40), (65.30, 65.21), (1.67, 1.72), (0.91, 0.92)],
    ),
    (
        16,
        [(75.82, 75.24), (62.62, 62.12), (1.77, 1.86), (0.92, 0.92)],
    ),
];

/// Random reads or writes of all threads together.
const RANDOM_TOUCHES: u64 = 4000;

/// Pages of all files together: twice the memory.
const FILE_PAGES: u64 = 262_144;

/// Pages of all files together if they barely exceed the memory: 1.25 times as much.
const FEWER_PAGES: u64 = 163_840;

/// Threads of the runs with fewer pages.
const JUST_ABOVE_THREADS: [u32; 3] = [2, 4, 8];

fn workload(threads: u32, file_pages: u64) -> Result<Workload, library::LibraryError> {
    let mut workload = library::find("tiobench")?;
    let pages = file_pages / u64::from(threads);
    workload.file[0].size = format!("{}K", pages * 4);
    workload.process[0].count = threads;
    for (index, phase) in workload.process[0].phase.iter_mut().enumerate() {
        phase.touches = if index < 2 {
            pages
        } else {
            RANDOM_TOUCHES / u64::from(threads)
        };
    }
    Ok(workload)
}

pub(super) fn benchmarks() -> Vec<Benchmark> {
    let mut all: Vec<Benchmark> = THREADS
        .iter()
        .map(|(threads, values)| Benchmark {
            name: format!("tiobench/{threads}"),
            summary: "files of twice the memory written and read in order, then at random".into(),
            figures: PHASES
                .iter()
                .zip(values)
                .map(|(phase, &(before, after))| {
                    Figure::higher(phase, "MB/s", Expectation::NO_CHANGE)
                        .document(before, after)
                        .within_noise()
                })
                .collect(),
            measure: Box::new(|case| {
                let workload = workload(*threads, FILE_PAGES)?;
                let touches: Vec<u64> = workload.process[0]
                    .phase
                    .iter()
                    .map(|p| p.touches)
                    .collect();
                compare(case, workload, |outcome| {
                    let pages = touches.iter().map(|&pages| pages * u64::from(*threads));
                    let mb = pages.map(|pages| pages as f64 * PAGE_BYTES as f64 / 1e6);
                    mb.enumerate()
                        .map(|(phase, mb)| mb / outcome.phase_s(0, phase))
                        .collect()
                })
            }),
        })
        .collect();
    all.extend(
        JUST_ABOVE_THREADS
            .iter()
            .map(|&threads| just_above(threads)),
    );
    all.push(counters());
    all
}

/// A second read of files that nearly fit, which depends on what is still in memory.
fn just_above(threads: u32) -> Benchmark {
    Benchmark {
        name: format!("tiobench/just-above-{threads}"),
        summary: "files of 1.25 times the memory read in order after writing: what keeps old pages"
            .into(),
        figures: vec![Figure::higher("SeqRead", "MB/s", Expectation::Own)],
        measure: Box::new(move |case| {
            let mut workload = workload(threads, FEWER_PAGES)?;
            workload.process[0].phase.truncate(2);
            compare(case, workload, |outcome| {
                vec![FEWER_PAGES as f64 * PAGE_BYTES as f64 / 1e6 / outcome.phase_s(0, 1)]
            })
        }),
    }
}

fn counters() -> Benchmark {
    table(
        "tiobench/vmstat",
        "counters of the run with 16 threads",
        || workload(16, FILE_PAGES),
        vec![
            changes(
                DMA32_ALLOCS,
                100.0 * 46_174_282.0 / 124_123_626.0,
                100.0 * 44_219_717.0 / 124_077_741.0,
            ),
            within_noise(changes(STALLS, 38.0, 76.0)),
            stays(KSWAPD_SCANNED, 93_331_163.0, 93_302_388.0),
            stays(KSWAPD_VELOCITY, 13_729.855, 13_755.612),
            stays_within(1.0, KSWAPD_EFFICIENCY, 99.0, 99.0),
            stays_within(1.0, PERCENTAGE_DIRECT, 0.0, 0.0),
            stays_within(0.0, RECLAIM_WRITES, 0.0, 0.0),
            stays_within(0.0, SWAP_OUTS, 0.0, 0.0),
        ],
    )
}
