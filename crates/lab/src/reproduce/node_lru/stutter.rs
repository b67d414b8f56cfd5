// SPDX-License-Identifier: Apache-2.0
//! stutter: one process holds much anonymous memory, a second one measures the latency of small
//! mappings, and a third one copies a large file.

use super::counter::*;
use super::outcome::{VmStats, best_mean, compare, percentile};
use crate::reproduce::{Benchmark, Expectation, Figure};
use crate::workload::library;

/// Index of the measuring kind of process.
const PROBE: usize = 1;

/// Percentiles of the latency, in ms, before and after.
const PERCENTILES: [(&str, f64, f64, f64); 9] = [
    ("min", 0.0, 16.8422, 15.9821),
    ("1st quartile", 25.0, 57.8709, 58.0794),
    ("median", 50.0, 58.4335, 59.4286),
    ("3rd quartile", 75.0, 58.6957, 59.6862),
    ("90 %", 90.0, 58.9388, 59.8759),
    ("93 %", 93.0, 59.0505, 59.9333),
    ("95 %", 95.0, 59.1877, 59.9844),
    ("99 %", 99.0, 60.3237, 60.2337),
    ("max", 100.0, 285.6454, 135.6006),
];

/// With the usual dirty limits reclaim meets no dirty page: it scans pages in the order in which
/// the flusher writes them. With these limits the flusher starts so late that reclaim may meet
/// some.
const LATE_FLUSHER: [&str; 2] = ["dirty_background_ratio=60", "dirty_ratio=80"];

pub(super) fn benchmarks() -> Vec<Benchmark> {
    vec![benchmark(), late_flusher()]
}

fn late_flusher() -> Benchmark {
    let reclaimed = Figure::higher("kswapd reclaimed of scanned", "%", Expectation::Figures);
    table(
        "stutter/late-flusher",
        "the same with the flusher starting at 60 % dirty: what brings dirty pages to the end",
        || {
            let mut workload = library::find("stutter")?;
            workload.settings.extend(LATE_FLUSHER.map(str::to_owned));
            Ok(workload)
        },
        vec![
            changes(RECLAIM_WRITES, 696_918.0, 0.0),
            changes(IMMEDIATE, 2940.0, 137.0),
            (reclaimed.document(97.92, 99.998), |vm| {
                100.0 * vm.kswapd_reclaimed / vm.kswapd_scanned.max(1.0)
            }),
        ],
    )
}

/// What the document says of the counters.
fn counters() -> Vec<Row> {
    let efficiency = |metric, before, after| {
        let figure = Figure::higher(metric, "%", Expectation::Figures);
        figure.document(before, after).by_difference()
    };
    vec![
        changes(STALLS, 16.0, 0.0),
        changes(DIRECT_SCANNED, 1374.0, 0.0),
        changes(DIRECT_VELOCITY, 0.478, 0.0),
        (
            efficiency("direct efficiency", 84.0, 100.0),
            VmStats::direct_efficiency,
        ),
        stays(KSWAPD_SCANNED, 42_454_910.0, 41_782_544.0),
        stays(KSWAPD_VELOCITY, 14_774.479, 14_223.796),
        (
            efficiency("kswapd efficiency", 97.0, 99.0),
            VmStats::kswapd_efficiency,
        ),
        changes(RECLAIM_WRITES, 696_918.0, 0.0),
        changes(IMMEDIATE, 2940.0, 137.0),
        within_noise(changes(SWAP_INS, 58.0, 42.0)),
        stays_within(0.0, SWAP_OUTS, 0.0, 0.0),
        own(SLAB_CALLS),
    ]
}

fn benchmark() -> Benchmark {
    let mut figures: Vec<Figure> = PERCENTILES
        .iter()
        .map(|&(name, percent, before, after)| {
            let expected = if percent == 100.0 || percent == 0.0 {
                Expectation::Figures
            } else {
                Expectation::NO_CHANGE
            };
            let figure = Figure::lower(name, "ms", expected).document(before, after);
            if percent == 100.0 {
                figure
            } else {
                figure.within_noise()
            }
        })
        .collect();
    figures.extend([
        Figure::lower("mean", "ms", Expectation::NO_CHANGE).document(57.8366, 58.4884),
        Figure::lower("best 90 % mean", "ms", Expectation::Own),
    ]);
    figures.extend(counters().into_iter().map(|(figure, _)| figure));
    Benchmark {
        name: "stutter".into(),
        summary: "latency of mapping 800 KiB every 100 ms beside a copy of twice the memory".into(),
        figures,
        measure: Box::new(|case| {
            compare(case, library::find("stutter")?, |outcome| {
                let latency = outcome.durations_ms(PROBE, 0);
                let mean = latency.iter().sum::<f64>() / latency.len().max(1) as f64;
                let percents = PERCENTILES.iter().map(|&(_, percent, ..)| percent);
                let mut values: Vec<f64> = percents
                    .map(|percent| percentile(&latency, percent))
                    .collect();
                let vm = outcome.vm();
                values.extend([mean, best_mean(&latency, 90.0)]);
                values.extend(counters().iter().map(|(_, value)| value(&vm)));
                values
            })
        }),
    }
}
