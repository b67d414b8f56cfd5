// SPDX-License-Identifier: Apache-2.0
//! The benchmarks of the documents agewise is built from, run again in the lab and judged.
//!
//! A document is one file here and one line in [`DOCUMENTS`]: a `pub(super) static` [`Document`] with
//! a function that makes its [`Benchmark`]s. A benchmark is a function from a [`Case`] (a seed and a
//! variant) to a [`Pair`] of raw values, before and after what the document proposes, for each of its
//! [`Figure`]s; a figure says what the document measured, what it claims and which way is better. One
//! run may give several figures. The function is all a document has to write: seeds, threads,
//! intervals, verdicts and printing are done here.
//!
//! ```
//! # use agewise_lab::reproduce::{Benchmark, Document, Expectation, Figure, Pair, Variant};
//! static DOCUMENT: Document = Document {
//!     name: "example",
//!     summary: "what the document proposes",
//!     remark: "what is to be known about its figures",
//!     variants: &[Variant { name: "whole", summary: "all of it" }],
//!     benchmarks: || {
//!         vec![Benchmark {
//!             name: "copy".into(),
//!             summary: "how it is emulated",
//!             figures: vec![Figure::lower("time", "s", Expectation::Figures).document(2.0, 1.0)],
//!             measure: Box::new(|case| {
//!                 let before = 2.0 + (case.seed % 3) as f64 / 10.0;
//!                 Ok(vec![Pair { before, after: before / 2.0 }])
//!             }),
//!         }]
//!     },
//! };
//! let rows = agewise_lab::reproduce::reproduce(&DOCUMENT, None, None, 5, |_| ()).unwrap();
//! assert_eq!(rows[0].verdict.to_string(), "reproduced");
//! ```
//!
//! # Interval
//! Both values of a seed come from the same workload, so they are compared in pairs. The change is
//! the ratio of the means less 1; its 95 % interval holds every ratio `r` at which the paired t-test
//! of `after - r * before` does not reject (Fieller). It holds 0 exactly if the paired t-test of the
//! differences is not significant. Figures that may be 0 before are compared by difference instead
//! ([`Figure::by_difference`]).
//!
//! # Verdict
//! See [`Verdict`].

mod damon_lru_sort;
mod interval;
mod node_lru;
mod refault_distance;
mod skewed_loop;
mod verdict;
mod workingset_report;

use std::error::Error;
use std::fmt;

use rayon::prelude::*;
use serde::Serialize;
use thiserror::Error;

pub use interval::{Change, Pair};
pub use verdict::{Expectation, Verdict};

use crate::experiment::statistics::Summary;
use agewise_trace::suggest::nearest;

/// The documents, one line each.
pub static DOCUMENTS: &[&Document] = &[
    &damon_lru_sort::DOCUMENT,
    &node_lru::DOCUMENT,
    &refault_distance::DOCUMENT,
    &workingset_report::DOCUMENT,
];

/// A document and its benchmarks.
#[derive(Debug)]
pub struct Document {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it proposes, in one line.
    pub summary: &'static str,
    /// What is to be known about its figures; printed before the table.
    pub remark: &'static str,
    /// What "after" can be: the proposal first, then it without one of its parts.
    pub variants: &'static [Variant],
    /// Makes its benchmarks.
    pub benchmarks: fn() -> Vec<Benchmark>,
}

/// Something to compare with "before".
#[derive(Debug)]
pub struct Variant {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is.
    pub summary: &'static str,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Seeds the workload, the same before and after.
    pub seed: u64,
    /// Which of the document's variants "after" is.
    pub variant: &'static str,
}

/// What a measurement gives: a pair for each figure, in their order.
pub type Measured = Result<Vec<Pair>, Box<dyn Error + Send + Sync>>;

/// A benchmark of a document, emulated.
pub struct Benchmark {
    /// Its name; what follows a `/` tells settings of one benchmark apart.
    pub name: String,
    /// How it is emulated, in a line or two.
    pub summary: &'static str,
    /// What is measured.
    pub figures: Vec<Figure>,
    /// Measures one case; deterministic.
    pub measure: Box<dyn Fn(&Case) -> Measured + Send + Sync>,
}

impl fmt::Debug for Benchmark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Benchmark")
            .field("name", &self.name)
            .field("figures", &self.figures)
            .finish_non_exhaustive()
    }
}

impl Benchmark {
    /// Whether a name given chooses it: its own, or the part before a `/`.
    fn is_chosen(&self, name: &str) -> bool {
        self.name == name
            || self
                .name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// Something measured, and what the document says about it.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is. Appended to the benchmark's name where a benchmark has several.
    pub metric: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// The document's value before, in its own unit.
    pub document_before: Option<f64>,
    /// The document's value after.
    pub document_after: Option<f64>,
    /// What the document leads one to expect.
    pub expectation: Expectation,
    /// The change as the document prints it, where that is not what its figures say.
    pub printed: Option<&'static str>,
    /// Nothing shows that the document's change is more than noise.
    pub within_noise: bool,
    /// Compared by difference, not by ratio.
    pub by_difference: bool,
}

impl Figure {
    fn new(metric: &'static str, unit: &'static str, better: Better, of: Expectation) -> Figure {
        Figure {
            metric,
            unit,
            better,
            document_before: None,
            document_after: None,
            expectation: of,
            printed: None,
            within_noise: false,
            by_difference: false,
        }
    }

    /// A figure: more is better.
    pub fn higher(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Higher, of)
    }

    /// A figure: less is better.
    pub fn lower(metric: &'static str, unit: &'static str, of: Expectation) -> Figure {
        Figure::new(metric, unit, Better::Lower, of)
    }

    /// With the document's values.
    #[must_use]
    pub fn document(mut self, before: f64, after: f64) -> Figure {
        (self.document_before, self.document_after) = (Some(before), Some(after));
        self
    }

    /// With the change as the document prints it.
    #[must_use]
    pub fn printed(mut self, printed: &'static str) -> Figure {
        self.printed = Some(printed);
        self
    }

    /// The document gives no variance, and a change so small that it may be noise.
    #[must_use]
    pub fn within_noise(mut self) -> Figure {
        self.within_noise = true;
        self
    }

    /// Compared by difference.
    #[must_use]
    pub fn by_difference(mut self) -> Figure {
        self.by_difference = true;
        self
    }

    /// The document's change, from its values: a ratio less 1, or a difference.
    pub fn document_change(&self) -> Option<f64> {
        if let Expectation::Change(change) = self.expectation {
            return Some(change);
        }
        let (before, after) = (self.document_before?, self.document_after?);
        if self.by_difference {
            Some(after - before)
        } else {
            (before != 0.0).then(|| after / before - 1.0)
        }
    }
}

/// What a figure came to. Serializes to the fields of `agewise lab reproduce --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Benchmark, with the metric after a `/` where it has several.
    pub benchmark: String,
    /// The document's value before, in its unit.
    pub document_before: Option<f64>,
    /// The document's value after.
    pub document_after: Option<f64>,
    /// Ours before: mean over the seeds.
    pub ours_before: f64,
    /// Ours after.
    pub ours_after: f64,
    /// Our change: a ratio less 1 (-0.02 is 2 % less) or, by difference, in our unit. None where the
    /// value before is 0.
    pub change: Option<f64>,
    /// Lower end of its 95 % interval; none if it has none.
    pub ci_low: Option<f64>,
    /// Upper end.
    pub ci_high: Option<f64>,
    /// What that means.
    pub verdict: Verdict,
    /// The document's change, computed from its values.
    pub document_change: Option<f64>,
    /// That change as the document prints it, if that is something else.
    pub document_printed: Option<&'static str>,
    /// Nothing shows that the document's change is more than noise.
    pub document_within_noise: bool,
    /// What is measured.
    pub metric: &'static str,
    /// Our unit.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// `change` is a difference in `unit`, not a ratio.
    pub by_difference: bool,
    /// What "after" was.
    pub variant: &'static str,
    /// Seeds, from 1 on.
    pub seeds: u64,
    /// Values of each seed, `[before, after]`.
    pub raw: Vec<[f64; 2]>,
}

/// Nothing could be reproduced.
#[derive(Debug, Error)]
pub enum ReproduceError {
    /// A name that is not there.
    #[error("unknown {kind} `{name}`; one of {known}{}", .nearest.as_ref().map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default())]
    Unknown {
        /// Of what.
        kind: &'static str,
        /// The name.
        name: String,
        /// What there is.
        known: String,
        /// The nearest of them.
        nearest: Option<String>,
    },
    /// No seed.
    #[error("at least one seed is needed")]
    NoSeeds,
    /// A measurement failed.
    #[error("benchmark {benchmark}, seed {seed}")]
    Failed {
        /// Which.
        benchmark: String,
        /// With which seed.
        seed: u64,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A benchmark did not measure what it says it does.
    #[error("benchmark {benchmark} gave {given} values for {expected} figures")]
    Figures {
        /// Which.
        benchmark: String,
        /// Values.
        given: usize,
        /// Figures.
        expected: usize,
    },
}

fn unknown<'a>(
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> ReproduceError {
    ReproduceError::Unknown {
        kind,
        name: name.to_owned(),
        nearest: nearest(name, known.clone()).map(str::to_owned),
        known: known.collect::<Vec<_>>().join(", "),
    }
}

/// The document of a name.
///
/// # Errors
/// When there is none, with those there are.
pub fn find(name: &str) -> Result<&'static Document, ReproduceError> {
    let found = DOCUMENTS.iter().find(|document| document.name == name);
    found.copied().ok_or_else(|| {
        let names = DOCUMENTS.iter().map(|document| document.name);
        unknown("document", name, names)
    })
}

/// Runs a document's benchmarks, or those that `benchmark` chooses, with seeds `1..=seeds`, in
/// parallel; the result does not depend on the order. `done` is called after each measurement with
/// the number there are.
///
/// # Errors
/// [`ReproduceError`]: unknown names, or the first measurement, in order, that failed.
pub fn reproduce(
    document: &Document,
    benchmark: Option<&str>,
    variant: Option<&str>,
    seeds: u64,
    done: impl Fn(u64) + Sync,
) -> Result<Vec<Row>, ReproduceError> {
    let variant = choose_variant(document, variant)?;
    let mut benchmarks = (document.benchmarks)();
    if let Some(name) = benchmark {
        let names: Vec<String> = benchmarks.iter().map(|one| one.name.clone()).collect();
        benchmarks.retain(|one| one.is_chosen(name));
        if benchmarks.is_empty() {
            return Err(unknown("benchmark", name, names.iter().map(String::as_str)));
        }
    }
    if seeds == 0 {
        return Err(ReproduceError::NoSeeds);
    }
    let jobs: Vec<(&Benchmark, u64)> = benchmarks
        .iter()
        .flat_map(|benchmark| (1..=seeds).map(move |seed| (benchmark, seed)))
        .collect();
    let total = jobs.len() as u64;
    let measured: Vec<Result<Vec<Pair>, ReproduceError>> = jobs
        .par_iter()
        .map(|&(benchmark, seed)| {
            let pairs = measure(benchmark, &Case { seed, variant });
            done(total);
            pairs
        })
        .collect();
    let measured = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of_benchmarks = measured.chunks(seeds as usize);
    Ok(benchmarks
        .iter()
        .zip(of_benchmarks)
        .flat_map(|(benchmark, samples)| rows(benchmark, samples, variant))
        .collect())
}

fn choose_variant(
    document: &Document,
    variant: Option<&str>,
) -> Result<&'static str, ReproduceError> {
    let names = document.variants.iter().map(|variant| variant.name);
    match variant {
        None => Ok(names.clone().next().unwrap_or("")),
        Some(name) => names
            .clone()
            .find(|known| *known == name)
            .ok_or_else(|| unknown("variant", name, names)),
    }
}

fn measure(benchmark: &Benchmark, case: &Case) -> Result<Vec<Pair>, ReproduceError> {
    let pairs = (benchmark.measure)(case).map_err(|source| ReproduceError::Failed {
        benchmark: benchmark.name.clone(),
        seed: case.seed,
        source,
    })?;
    if pairs.len() != benchmark.figures.len() {
        return Err(ReproduceError::Figures {
            benchmark: benchmark.name.clone(),
            given: pairs.len(),
            expected: benchmark.figures.len(),
        });
    }
    Ok(pairs)
}

fn rows(benchmark: &Benchmark, samples: &[Vec<Pair>], variant: &'static str) -> Vec<Row> {
    let several = benchmark.figures.len() > 1;
    let row = |(index, figure): (usize, &Figure)| {
        let pairs: Vec<Pair> = samples.iter().map(|pairs| pairs[index]).collect();
        let change = if figure.by_difference {
            Change::of_differences(&pairs)
        } else {
            Change::of_ratios(&pairs)
        };
        let mean = |value: fn(&Pair) -> f64| {
            let values: Vec<f64> = pairs.iter().map(value).collect();
            Summary::of(&values).map_or(0.0, |summary| summary.mean)
        };
        Row {
            benchmark: if several {
                format!("{}/{}", benchmark.name, figure.metric)
            } else {
                benchmark.name.clone()
            },
            document_before: figure.document_before,
            document_after: figure.document_after,
            ours_before: mean(|pair| pair.before),
            ours_after: mean(|pair| pair.after),
            change: change.mean,
            ci_low: change.interval.map(|(low, _)| low),
            ci_high: change.interval.map(|(_, high)| high),
            verdict: Verdict::of(figure, &change),
            document_change: figure.document_change(),
            document_printed: figure.printed,
            document_within_noise: figure.within_noise,
            metric: figure.metric,
            unit: figure.unit,
            better: figure.better,
            by_difference: figure.by_difference,
            variant,
            seeds: pairs.len() as u64,
            raw: pairs.iter().map(|pair| [pair.before, pair.after]).collect(),
        }
    };
    benchmark.figures.iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noisy(case: &Case) -> Measured {
        let before = 100.0 + (case.seed * 7919 % 13) as f64;
        let after = if case.variant == "half" {
            before / 2.0
        } else {
            before
        };
        Ok(vec![
            Pair { before, after },
            Pair {
                before: 0.0,
                after: 3.0,
            },
        ])
    }

    static EXAMPLE: Document = Document {
        name: "example",
        summary: "",
        remark: "",
        variants: &[
            Variant {
                name: "half",
                summary: "",
            },
            Variant {
                name: "nothing",
                summary: "",
            },
        ],
        benchmarks: || {
            let figures = vec![
                Figure::lower("time", "s", Expectation::Figures).document(10.0, 6.0),
                Figure::higher("kept", "pages", Expectation::Better).by_difference(),
            ];
            vec![
                Benchmark {
                    name: "work/one".into(),
                    summary: "",
                    figures: figures.clone(),
                    measure: Box::new(noisy),
                },
                Benchmark {
                    name: "broken".into(),
                    summary: "",
                    figures,
                    measure: Box::new(|_| Ok(Vec::new())),
                },
            ]
        },
    };

    #[test]
    fn every_figure_is_a_row_with_its_raw_values() {
        let rows = reproduce(&EXAMPLE, Some("work"), None, 5, |_| ()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.benchmark.as_str()).collect();
        assert_eq!(names, ["work/one/time", "work/one/kept"]);
        assert_eq!(rows[0].raw.len(), 5);
        assert!((rows[0].change.unwrap() + 0.5).abs() < 1e-12);
        assert_eq!(rows[0].verdict, Verdict::Reproduced);
        assert_eq!(rows[1].change, Some(3.0));
        assert_eq!(rows[1].verdict, Verdict::Reproduced);
        let rows = reproduce(&EXAMPLE, Some("work/one"), Some("nothing"), 5, |_| ()).unwrap();
        assert_eq!(rows[0].verdict, Verdict::NotSignificant);
    }

    #[test]
    fn mistakes_are_told() {
        let error = |benchmark, variant, seeds| {
            let result = reproduce(&EXAMPLE, benchmark, variant, seeds, |_| ());
            result.unwrap_err().to_string()
        };
        assert!(error(Some("wrok/one"), None, 2).contains("did you mean `work/one`"));
        assert!(error(Some("wor"), None, 2).contains("one of work/one, broken"));
        assert!(error(Some("work"), Some("halb"), 2).contains("did you mean `half`"));
        assert!(error(Some("work"), None, 0).contains("seed"));
        assert!(error(None, None, 1).contains("0 values for 2 figures"));
        assert!(
            find("no such")
                .unwrap_err()
                .to_string()
                .contains("unknown document")
        );
    }
}
