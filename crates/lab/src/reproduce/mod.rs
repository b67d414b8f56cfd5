// SPDX-License-Identifier: Apache-2.0
//! The benchmarks of the documents that agewise is based on, run again in the lab and judged.
//!
//! A document is one file here and one line in [`DOCUMENTS`]: a `pub(super) static` [`Document`]
//! with a function that makes its [`Benchmark`]s. A benchmark is a function from a [`Case`] (a seed
//! and a variant) to one [`Pair`] of raw values for each of its [`Figure`]s: before and after the
//! document's proposal. A figure states what the document measured, what it claims and which
//! direction is better. A document only has to provide this function: seeds, threads, intervals,
//! verdicts and printing are handled here.
//!
//! ```
//! # use agewise_lab::reproduce::{Benchmark, Choice, Document, Expectation, Figure, Pair, Variant};
//! static DOCUMENT: Document = Document {
//!     name: "example",
//!     summary: "what the document proposes",
//!     remark: "what is to be known about its figures",
//!     variants: &[Variant { name: "whole", summary: "all of it" }],
//!     causes: &[],
//!     benchmarks: || {
//!         vec![Benchmark {
//!             name: "copy".into(),
//!             summary: "how it is emulated".into(),
//!             figures: vec![Figure::lower("time", "s", Expectation::Figures).document(2.0, 1.0)],
//!             measure: Box::new(|case| {
//!                 let before = 2.0 + (case.seed % 3) as f64 / 10.0;
//!                 Ok(vec![Pair { before, after: before / 2.0 }])
//!             }),
//!         }]
//!     },
//! };
//! let rows = agewise_lab::reproduce::reproduce(&DOCUMENT, &Choice::seeds(5), |_| ()).unwrap();
//! assert_eq!(rows[0].verdict.to_string(), "reproduced");
//! ```
//!
//! # Interval
//! Both values of a seed come from the same workload, so they are compared in pairs. The change is
//! the ratio of the means less 1; its 95 % interval contains every ratio `r` for which the paired
//! t-test of `after - r * before` does not reject (Fieller). It contains 0 exactly if the paired
//! t-test of the differences is not significant. Figures that may be 0 before are compared by
//! difference instead ([`Figure::by_difference`]).
//!
//! # Verdict
//! See [`Verdict`].

mod damon_lru_sort;
mod emulate;
mod family;
mod figure;
mod interval;
mod mglru;
mod node_lru;
mod refault_distance;
mod row;
mod skewed_loop;
mod verdict;
mod workingset_report;

use std::error::Error;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use rayon::prelude::*;
use thiserror::Error;

pub use figure::{Better, Figure};
pub use interval::{Change, Pair};
pub use row::{Row, Summary};
pub use verdict::{Expectation, Verdict};

use crate::experiment::matrix::SEEDS_MAX;
use crate::experiment::settings::{self, SettingError};
use agewise_trace::suggest::nearest;

pub static DOCUMENTS: &[&Document] = &[
    &damon_lru_sort::DOCUMENT,
    &mglru::DOCUMENT,
    &node_lru::DOCUMENT,
    &refault_distance::DOCUMENT,
    &workingset_report::DOCUMENT,
];

/// A document and its benchmarks.
#[derive(Debug)]
pub struct Document {
    /// Name on the command line.
    pub name: &'static str,
    /// The proposal, in one line.
    pub summary: &'static str,
    /// Notes on its figures, printed before the table.
    pub remark: &'static str,
    /// Variants of "after": the proposal first, then the proposal without one of its parts.
    pub variants: &'static [Variant],
    /// Makes its benchmarks.
    pub benchmarks: fn() -> Vec<Benchmark>,
    /// Causes of rows that are not reproduced, as found by experiments: the name of a row, or the
    /// start of names up to a `/`, and a sentence. The longest match applies.
    pub causes: &'static [(&'static str, &'static str)],
}

/// Something to compare with "before".
#[derive(Debug)]
pub struct Variant {
    /// Name on the command line.
    pub name: &'static str,
    /// Description.
    pub summary: &'static str,
}

/// The part of a document to reproduce.
#[derive(Clone, Copy, Debug)]
pub struct Choice<'a> {
    /// Only this benchmark, or the benchmarks whose names start with it and a slash.
    pub benchmark: Option<&'a str>,
    /// The variant; by default the first.
    pub variant: Option<&'a str>,
    /// Number of seeds, 1 to [`SEEDS_MAX`].
    pub seeds: u64,
    /// Settings of every machine as `key=value`, applied after the document's own.
    pub settings: &'a [String],
}

impl Choice<'_> {
    /// Everything in a document, with this number of seeds.
    pub const fn seeds(seeds: u64) -> Choice<'static> {
        Choice {
            benchmark: None,
            variant: None,
            seeds,
            settings: &[],
        }
    }
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Seed of the workload, the same before and after.
    pub seed: u64,
    /// The variant of the document used for "after".
    pub variant: &'static str,
    /// Settings of the machine, applied after the benchmark's own.
    pub settings: &'a [String],
}

/// Result of a measurement: a pair for each figure, in order.
pub type Measured = Result<Vec<Pair>, Box<dyn Error + Send + Sync>>;

/// An emulated benchmark of a document.
pub struct Benchmark {
    /// Name; the part after a `/` distinguishes settings of one benchmark.
    pub name: String,
    /// How it is emulated, in one or two lines.
    pub summary: String,
    /// The measured figures.
    pub figures: Vec<Figure>,
    /// Measures one case; it must be deterministic.
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
    /// Whether a name selects it: its own name, or a part of it that ends before a `/`.
    fn is_chosen(&self, name: &str) -> bool {
        self.name == name
            || self
                .name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('/'))
    }
}

/// An error that prevents reproduction.
#[derive(Debug, Error)]
pub enum ReproduceError {
    #[error("unknown {kind} `{name}`; {hint}")]
    Unknown {
        kind: &'static str,
        name: String,
        /// The most similar name, or which names there are.
        hint: String,
    },
    /// There is no such number of seeds.
    #[error("seeds: from 1 to {SEEDS_MAX}")]
    Seeds,
    #[error("stopped")]
    Stopped,
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error("benchmark {benchmark}, seed {seed}")]
    Failed {
        benchmark: String,
        seed: u64,
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    #[error("benchmark {benchmark} gave {given} values for {expected} figures")]
    Figures {
        benchmark: String,
        given: usize,
        expected: usize,
    },
}

fn unknown<'a>(
    kind: &'static str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> ReproduceError {
    // Of benchmarks there can be a hundred: their first parts select them, too.
    let mut parts: Vec<&str> = known
        .clone()
        .filter_map(|name| name.split('/').next())
        .collect();
    parts.dedup();
    let near = nearest(name, known).or_else(|| nearest(name, parts.iter().copied()));
    ReproduceError::Unknown {
        kind,
        name: name.to_owned(),
        hint: match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("one of {}", parts.join(", ")),
        },
    }
}

/// Finds a document by name.
///
/// # Errors
/// Fails if there is none, and lists those that exist.
pub fn find(name: &str) -> Result<&'static Document, ReproduceError> {
    let found = DOCUMENTS.iter().find(|document| document.name == name);
    found.copied().ok_or_else(|| {
        let names = DOCUMENTS.iter().map(|document| document.name);
        unknown("document", name, names)
    })
}

/// Runs a document's benchmarks, or the chosen ones, with all seeds, in parallel; the result does
/// not depend on the order. Calls `done` after each measurement with their total number.
///
/// # Errors
/// [`ReproduceError`]: unknown names, or the first measurement, in order, that failed.
pub fn reproduce(
    document: &Document,
    choice: &Choice,
    done: impl Fn(u64) + Sync,
) -> Result<Vec<Row>, ReproduceError> {
    reproduce_unless_stopped(document, choice, &AtomicBool::new(false), done)
}

/// Like [`reproduce`]; once `stop` is set, no further measurement starts.
///
/// # Errors
/// Those of [`reproduce`]; [`ReproduceError::Stopped`] if it was stopped.
pub fn reproduce_unless_stopped(
    document: &Document,
    choice: &Choice,
    stop: &AtomicBool,
    done: impl Fn(u64) + Sync,
) -> Result<Vec<Row>, ReproduceError> {
    let Choice {
        seeds, settings, ..
    } = *choice;
    settings::check(settings)?;
    let variant = choose_variant(document, choice.variant)?;
    let mut benchmarks = (document.benchmarks)();
    if let Some(name) = choice.benchmark {
        let names: Vec<String> = benchmarks.iter().map(|one| one.name.clone()).collect();
        benchmarks.retain(|one| one.is_chosen(name));
        if benchmarks.is_empty() {
            return Err(unknown("benchmark", name, names.iter().map(String::as_str)));
        }
    }
    if !(1..=SEEDS_MAX).contains(&seeds) {
        return Err(ReproduceError::Seeds);
    }
    let jobs: Vec<(&Benchmark, u64)> = benchmarks
        .iter()
        .flat_map(|benchmark| (1..=seeds).map(move |seed| (benchmark, seed)))
        .collect();
    let total = jobs.len() as u64;
    let measured: Vec<Result<Vec<Pair>, ReproduceError>> = jobs
        .par_iter()
        .map(|&(benchmark, seed)| {
            if stop.load(Ordering::Relaxed) {
                return Err(ReproduceError::Stopped);
            }
            let pairs = measure(
                benchmark,
                &Case {
                    seed,
                    variant,
                    settings,
                },
            );
            done(total);
            pairs
        })
        .collect();
    let measured = measured.into_iter().collect::<Result<Vec<_>, _>>()?;
    let of_benchmarks = measured.chunks(seeds as usize);
    let settings = settings.join(" ");
    Ok(benchmarks
        .iter()
        .zip(of_benchmarks)
        .flat_map(|(benchmark, samples)| {
            row::rows(document, benchmark, samples, variant, &settings)
        })
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

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
        causes: &[("work", "an example")],
        benchmarks: || {
            let figures = vec![
                Figure::lower("time", "s", Expectation::Figures).document(10.0, 6.0),
                Figure::higher("kept", "pages", Expectation::Own),
            ];
            vec![
                Benchmark {
                    name: "work/one".into(),
                    summary: "".into(),
                    figures: figures.clone(),
                    measure: Box::new(noisy),
                },
                Benchmark {
                    name: "broken".into(),
                    summary: "".into(),
                    figures,
                    measure: Box::new(|_| Ok(Vec::new())),
                },
            ]
        },
    };

    #[test]
    fn every_figure_is_a_row_with_its_raw_values() {
        let choice = Choice {
            benchmark: Some("work"),
            ..Choice::seeds(5)
        };
        let rows = reproduce(&EXAMPLE, &choice, |_| ()).unwrap();
        let names: Vec<&str> = rows.iter().map(|row| row.benchmark.as_str()).collect();
        assert_eq!(names, ["work/one/time", "work/one/kept"]);
        assert_eq!(rows[0].raw.len(), 5);
        assert!((rows[0].change.unwrap() + 0.5).abs() < 1e-12);
        assert_eq!(rows[0].verdict, Verdict::Reproduced);
        assert_eq!(rows[1].change, Some(3.0));
        assert!(rows[1].by_difference, "nothing before has no ratio");
        assert_eq!((rows[1].verdict, rows[1].cause), (Verdict::Own, None));
        assert_eq!(rows[0].settings, "");
        let nothing = Choice {
            variant: Some("nothing"),
            settings: &["hit_ns=7".to_owned(), "fault_ns=9".to_owned()],
            ..choice
        };
        let rows = reproduce(&EXAMPLE, &nothing, |_| ()).unwrap();
        assert_eq!(rows[0].settings, "hit_ns=7 fault_ns=9");
        assert_eq!(rows[0].verdict, Verdict::Insensitive);
        assert_eq!(rows[0].cause, Some("an example"));
        let summary = Summary::of(&EXAMPLE, &rows);
        assert_eq!(
            (summary.claims, summary.insensitive, summary.own),
            (1, 1, 1)
        );
    }

    #[test]
    fn no_measurement_begins_once_stopped() {
        let choice = Choice {
            benchmark: Some("work"),
            ..Choice::seeds(1000)
        };
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let result = reproduce_unless_stopped(&EXAMPLE, &choice, &stop, |_| {
            stop.store(true, Ordering::Relaxed);
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert!(matches!(result, Err(ReproduceError::Stopped)));
        let threads = rayon::current_num_threads();
        assert!((1..=threads).contains(&done.into_inner()));
    }

    #[test]
    fn mistakes_are_told() {
        let error = |benchmark, variant, seeds| {
            let choice = Choice {
                benchmark,
                variant,
                ..Choice::seeds(seeds)
            };
            let result = reproduce(&EXAMPLE, &choice, |_| ());
            result.unwrap_err().to_string()
        };
        assert!(error(Some("wrok/one"), None, 2).contains("did you mean `work/one`"));
        assert!(error(Some("wor"), None, 2).contains("did you mean `work`"));
        assert!(error(Some("pft"), None, 2).ends_with("one of work, broken"));
        assert!(error(Some("work"), Some("halb"), 2).contains("did you mean `half`"));
        for seeds in [0, SEEDS_MAX + 1] {
            assert!(error(Some("work"), None, seeds).contains("from 1 to 100000"));
        }
        assert!(error(None, None, 1).contains("0 values for 2 figures"));
        assert!(
            find("no such")
                .unwrap_err()
                .to_string()
                .contains("unknown document")
        );
    }
}
