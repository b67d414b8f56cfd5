// SPDX-License-Identifier: Apache-2.0
//! Refault distance (Kairui Song, 2023): the six benchmarks of the document and of the cover letter
//! of its third version at a thousandth of their size, and the loop over more than memory that the
//! document describes.
//!
//! Sizes in bytes are a thousandth, with 4 KiB pages; the numbers of jobs and threads are
//! unchanged. What the document leaves open is chosen here and stated in the workload's
//! description.

use std::sync::Arc;

use super::emulate::{Values, pairs};
use super::family::Family;
use super::{Benchmark, Case, Document, Expectation, Figure, Measured, Variant, skewed_loop};
use crate::experiment::machine_run::Plan;
use crate::machine::Policy;
use crate::workload::spec::Workload;

pub(super) static DOCUMENT: Document = Document {
    name: "refault-distance",
    summary: "refaults are judged only by evictions: classic+rd and mglru+rd",
    remark: "The document's percentages are not what its figures say: four of five are ten times \
             too large (fio, fio2, memcached, kernel build), only mysql's is right. Changes here \
             are computed from the figures. It gives averages of six runs and no variance, for \
             changes of 0.1 to 0.5 %. Figures are of the classic LRU; tpcc, from the cover letter, \
             is of the multi-gen LRU, and its `5x` is 4.4x by its own counts. Rows of \
             mainline-6.14 are not the document's: they show what mainline did about the same \
             report, on the LRU of its time, and have no figure in it.",
    variants: &[
        Variant {
            name: "rd",
            summary: "the rule of the document",
        },
        Variant {
            name: "rd-holes",
            summary: "distances are shortened by the share of evicted pages that came back",
        },
        Variant {
            name: "rd-active",
            summary: "a long active list does not throttle",
        },
        Variant {
            name: "rd-eviction",
            summary: "activations age too, as in the mainline test",
        },
    ],
    benchmarks,
    causes: &[],
};

/// A thousandth of the 2 s between flushes of the cgroups' statistics, like all times here: runs of
/// minutes last a fraction of a second, in which the classic LRU would otherwise never see its
/// lists.
const STAT_FLUSH_US: u64 = 2000;

/// A benchmark that is a workload.
struct Emulated {
    name: &'static str,
    summary: &'static str,
    /// The workload in TOML.
    workload: &'static str,
    /// The measure that the document reports.
    metric: Metric,
    /// The document's values with the classic LRU and with the multi-gen LRU.
    classic: Option<(f64, f64)>,
    multi_gen: Option<(f64, f64)>,
    printed: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    /// Accesses per second of simulated time.
    Rate,
    /// Simulated time until all processes have ended.
    Time,
}

static EMULATED: &[Emulated] = &[
    Emulated {
        name: "fio",
        summary: "12 jobs read files of 262 pages each at random, in 2900 pages",
        workload: include_str!("../../workloads/refault-fio.toml"),
        metric: Metric::Rate,
        classic: Some((5_125_500.0, 5_137_500.0)),
        multi_gen: None,
        printed: Some("+2.3 %"),
    },
    Emulated {
        name: "fio2",
        summary: "10 jobs read files of 393 pages each by zipf 1.2, in 2900 pages",
        workload: include_str!("../../workloads/refault-fio2.toml"),
        metric: Metric::Rate,
        classic: Some((7_291_160.0, 7_300_670.0)),
        multi_gen: None,
        printed: Some("+1.3 %"),
    },
    Emulated {
        name: "memcached",
        summary: "12 threads overwrite 4096 pages in sequence beside a hash table, in 1024 pages",
        workload: include_str!("../../workloads/refault-memcached.toml"),
        metric: Metric::Rate,
        classic: Some((57_600.926, 57_878.422)),
        multi_gen: None,
        printed: Some("+4.8 %"),
    },
    Emulated {
        name: "mysql",
        summary: "12 threads read B-trees (2 % inner pages) in a pool of 3072 pages, in 2560 pages",
        workload: include_str!("../../workloads/refault-mysql.toml"),
        metric: Metric::Rate,
        classic: Some((6280.08, 6312.06)),
        multi_gen: None,
        printed: Some("+0.5 %"),
    },
    Emulated {
        name: "kernel-build",
        summary: "12 at a time of 480 compilers, 25 to 150 pages each and 400 of headers, in 768 \
                  pages",
        workload: include_str!("../../workloads/refault-kernel-build.toml"),
        metric: Metric::Time,
        classic: Some((1_817.134_99, 1_813.662_31)),
        multi_gen: None,
        printed: Some("+2.0 %"),
    },
    Emulated {
        name: "tpcc",
        summary: "range scans over tables of three times the memory, a twentieth of them hot",
        workload: include_str!("../../workloads/refault-tpcc.toml"),
        metric: Metric::Rate,
        classic: None,
        multi_gen: Some((577.0, 2542.0)),
        printed: Some("5x"),
    },
];

fn benchmarks() -> Vec<Benchmark> {
    let mut benchmarks = Vec::new();
    for emulated in EMULATED {
        benchmarks.extend(Family::ALL.map(|family| benchmark(emulated, family)));
    }
    benchmarks.extend(skewed_loop::benchmarks());
    benchmarks
}

fn benchmark(emulated: &'static Emulated, family: Family) -> Benchmark {
    let document = match family {
        Family::Classic => emulated.classic,
        Family::MultiGen | Family::MultiGenThen => emulated.multi_gen,
        Family::Mainline => None,
    };
    let expectation = match document {
        Some(_) => Expectation::Figures,
        None => Expectation::Own,
    };
    let mut figure = match emulated.metric {
        Metric::Rate => Figure::higher("rate", "accesses/s", expectation),
        Metric::Time => Figure::lower("time", "ms", expectation),
    };
    if let Some((before, after)) = document {
        figure = figure.document(before, after);
        if let Some(printed) = emulated.printed {
            figure = figure.printed(printed);
        }
        if family == Family::Classic {
            figure = figure.within_noise();
        }
    }
    let refaults = Figure::lower("refaults", "per 1000 accesses", Expectation::Own);
    Benchmark {
        name: format!("{}/{}", emulated.name, family.name()),
        summary: emulated.summary.into(),
        figures: vec![figure, refaults],
        measure: Box::new(move |case| measure(emulated, family, case)),
    }
}

fn measure(emulated: &Emulated, family: Family, case: &Case) -> Measured {
    let workload = Arc::new(Workload::parse(emulated.name, emulated.workload)?);
    let settings = [&[format!("stat_flush_us={STAT_FLUSH_US}")], case.settings].concat();
    let values = |policy: &str| -> Result<[f64; 2], Box<dyn std::error::Error + Send + Sync>> {
        let plan = Plan {
            settings: settings.clone(),
            ..Plan::of(workload.clone(), Policy::parse(policy)?, case.seed)
        };
        let values = Values::of(&plan, None)?;
        let (accesses, time_ms) = (values.measure("accesses"), values.time_ms());
        let refaults = values.measure("refaults_anon") + values.measure("refaults_file");
        let measured = match emulated.metric {
            Metric::Rate => accesses * 1e3 / time_ms.max(1e-9),
            Metric::Time => time_ms,
        };
        Ok([measured, refaults * 1e3 / accesses.max(1.0)])
    };
    let [before, after] = family.policies(case.variant);
    Ok(pairs(values(&before)?, values(&after)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_can_be_read() {
        for emulated in EMULATED {
            let workload = Workload::parse(emulated.name, emulated.workload).unwrap();
            assert!(!workload.process.is_empty(), "{}", emulated.name);
        }
    }

    /// Except for mysql, the document prints ten times the change that its values show.
    #[test]
    fn changes_are_those_of_the_figures() {
        for (name, percent) in [
            ("fio", 0.234),
            ("fio2", 0.130),
            ("memcached", 0.482),
            ("mysql", 0.509),
            ("kernel-build", -0.191),
        ] {
            let emulated = EMULATED.iter().find(|one| one.name == name).unwrap();
            let benchmark = benchmark(emulated, Family::Classic);
            let change = benchmark.figures[0].document_change().unwrap();
            assert!((change * 100.0 - percent).abs() < 0.001, "{name}: {change}");
            assert!(benchmark.figures[0].within_noise);
        }
    }
}
