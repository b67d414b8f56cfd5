// SPDX-License-Identifier: Apache-2.0
//! Policies compared on a trace alone, as in `agewise lab curve`.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use agewise_trace::curve::{
    Curve, Point, Samples, SamplingPlan, SizeSpec, exact, read_samples, sampled, spread_sizes,
};
use agewise_trace::page_trace::Order;
use agewise_trace::yardstick::{Counts, Yardstick};
use agewise_trace::{AccessStream, DenseTrace, Format, Reading, short_name};

use super::description::{CurveCell, Described, Origin, PROFILE};
use super::error::StudyError;
use super::options;
use super::setup::{Setup, hashable, hashed_beside};
use super::table::{Column, Kind, Table, Value};
use crate::proactive::Sight;
use crate::workload::library;

/// Smallest useful sample, in pages.
const SAMPLE_PAGES_MIN: usize = 100;

/// Limit on a size larger than the trace, in pages (128 GiB): the kernel's LRUs run on a machine
/// that has it.
const SIZE_BEYOND_MAX: u64 = 1 << 25;

/// The curves to compute.
#[derive(Clone, Debug)]
pub struct CurveRequest {
    pub trace: String,
    /// How to read it.
    pub reading: Reading,
    pub policies: Vec<Arc<dyn Yardstick>>,
    /// Pool sizes; if empty, they are spread over the footprint.
    pub sizes: Vec<SizeSpec>,
    /// Number of sizes if they are spread.
    pub points: u16,
    /// Sampling for estimates; None to count exactly.
    pub sampling: Option<SamplingPlan>,
    /// The commit of this build, or `unknown`.
    pub build: String,
}

/// A trace read for curves. Any request with the same reading and sampling can run on it.
#[derive(Debug)]
pub struct CurveTrace {
    pages: Pages,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: String,
    /// The format, if it was given or a manifest names it.
    format: Option<&'static Format>,
    notes: Vec<String>,
    decoded_in: Duration,
}

#[derive(Debug)]
enum Pages {
    All(DenseTrace),
    Samples(Samples),
}

impl Pages {
    /// Number of different pages; an estimate if sampled.
    fn footprint(&self) -> u64 {
        match self {
            Pages::All(dense) => dense.page_count() as u64,
            Pages::Samples(samples) => samples.footprint_pages(),
        }
    }
}

/// Result of a request.
#[derive(Clone, Debug)]
pub struct CurveOutcome {
    /// The curves, one per policy.
    pub curves: Vec<Curve>,
    /// Description of each curve.
    pub cells: Vec<Described<CurveCell>>,
    /// Remarks for the user.
    pub notes: Vec<String>,
    /// Time spent reading.
    pub decoded_in: Duration,
    /// Time spent counting.
    pub counted_in: Duration,
}

/// Called after each run of a policy at one size, with the number of runs. Stack policies need one
/// pass for all sizes, and have no runs.
pub type Done = Arc<dyn Fn(u64) + Send + Sync>;

/// A policy that is not run any more once `stop` is set, and reports each of its runs.
struct Watched {
    policy: Arc<dyn Yardstick>,
    stop: Arc<AtomicBool>,
    done: Done,
    runs: u64,
}

impl fmt::Debug for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)
    }
}

impl Yardstick for Watched {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn misses(&self, trace: &DenseTrace, capacity: usize) -> u64 {
        if self.stop.load(Ordering::Relaxed) {
            return 0;
        }
        let misses = self.policy.misses(trace, capacity);
        (self.done)(self.runs);
        misses
    }

    fn misses_among(&self, trace: &DenseTrace, capacity: usize, counts: Counts<'_>) -> u64 {
        self.policy.misses_among(trace, capacity, counts)
    }

    fn is_stack(&self) -> bool {
        self.policy.is_stack()
    }

    fn capacity_min(&self) -> usize {
        self.policy.capacity_min()
    }

    fn source_sha256(&self) -> Option<&str> {
        self.policy.source_sha256()
    }
}

/// Refuses a policy that is given twice: its columns would be the same.
///
/// # Errors
/// [`StudyError::Argument`].
pub fn require_different(policies: &[Arc<dyn Yardstick>]) -> Result<(), StudyError> {
    let key = |policy: &Arc<dyn Yardstick>| {
        let sha256 = policy.source_sha256().map(str::to_owned);
        (policy.name().to_owned(), sha256)
    };
    for (at, policy) in policies.iter().enumerate() {
        if policies[..at].iter().any(|other| key(other) == key(policy)) {
            let name = policy.name();
            return Err(StudyError::Argument(format!(
                "the policy {name} is given twice: its columns would be the same"
            )));
        }
    }
    Ok(())
}

impl CurveRequest {
    /// Default number of spread sizes.
    pub const POINTS: u16 = 32;
    /// Default number of samples.
    pub const SAMPLES: usize = 8;

    /// Counts or estimates the curves. Once `stop` is set, sizes in progress are completed and no
    /// others start.
    ///
    /// # Errors
    /// Fails if the trace cannot be read; [`StudyError::Stopped`] if it was stopped.
    pub fn run(&self, stop: &Arc<AtomicBool>) -> Result<CurveOutcome, StudyError> {
        self.run_on(&self.read(&self.trace)?, stop)
    }

    /// Reads the trace from `place`: its own path, or another path of the same file.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub fn read(&self, place: &str) -> Result<CurveTrace, StudyError> {
        let is_named = self.reading.manifest.is_some() || Path::new(place).exists();
        if !is_named && library::find(place).is_ok() {
            return Err(StudyError::Argument(format!(
                "{place} is a workload, and curves are of traces: `agewise lab run {place}` runs it"
            )));
        }
        let source = hashable(&self.reading, place)?;
        let started = Instant::now();
        let mut stream = source.open()?;
        let mut notes: Vec<String> = self.unknown_order(&stream).into_iter().collect();
        let (pages, sha256) = match self.sampling {
            None => {
                let read = || DenseTrace::from_stream(&source.path, &mut stream);
                let (dense, sha256) = hashed_beside(&source.path, read);
                (Pages::All(dense?), sha256?)
            }
            Some(plan) => {
                let read = || read_samples(&mut stream, plan);
                let (samples, sha256) = hashed_beside(&source.path, read);
                let samples = samples?;
                if samples.footprint_pages() == 0 {
                    return Err(StudyError::Argument(format!(
                        "{}: no page is in a sample, so nothing can be estimated; raise --rate, or \
                         count without --sampled",
                        self.trace
                    )));
                }
                let fewest = samples.smallest_sample_pages();
                if fewest < SAMPLE_PAGES_MIN {
                    notes.push(format!(
                        "{}: a sample has only {fewest} pages; raise --rate, or count without \
                         --sampled",
                        self.trace
                    ));
                }
                (Pages::Samples(samples), sha256?)
            }
        };
        notes.extend(stream.note().map(str::to_owned));
        Ok(CurveTrace {
            pages,
            sha256,
            format: source.format,
            notes,
            decoded_in: started.elapsed(),
        })
    }

    /// A note on a trace that does not record the order of its accesses.
    fn unknown_order(&self, stream: &AccessStream) -> Option<String> {
        let header = stream.page_trace_header()?;
        (header.order == Order::Interval).then(|| {
            format!(
                "{}: the order inside an interval is not known; pages are counted by rising \
                 address. `agewise lab run` also replays other orders, `agewise size` gives bounds",
                self.trace
            )
        })
    }

    /// Like [`CurveRequest::run`], on a trace that this request has read.
    ///
    /// # Errors
    /// [`StudyError::Stopped`] if it was stopped.
    pub fn run_on(
        &self,
        trace: &CurveTrace,
        stop: &Arc<AtomicBool>,
    ) -> Result<CurveOutcome, StudyError> {
        self.run_on_showing(trace, stop, Arc::new(|_| ()))
    }

    /// Like [`CurveRequest::run_on`], and calls `done` after each run.
    ///
    /// # Errors
    /// As [`CurveRequest::run_on`].
    pub fn run_on_showing(
        &self,
        trace: &CurveTrace,
        stop: &Arc<AtomicBool>,
        done: Done,
    ) -> Result<CurveOutcome, StudyError> {
        let sizes = self.sizes(trace.pages.footprint())?;
        let runs = self.runs(sizes.len());
        let policies: Vec<Watched> = self
            .policies
            .iter()
            .map(|policy| Watched {
                policy: Arc::clone(policy),
                stop: Arc::clone(stop),
                done: Arc::clone(&done),
                runs,
            })
            .collect();
        let name = short_name(&self.trace);
        let started = Instant::now();
        let curves = match &trace.pages {
            Pages::All(dense) => exact(name, dense, &policies, &sizes),
            Pages::Samples(samples) => sampled(name, samples, &policies, &sizes),
        };
        if stop.load(Ordering::Relaxed) {
            return Err(StudyError::Stopped);
        }
        if let Some(why) = self.policies.iter().find_map(|policy| policy.failure()) {
            return Err(StudyError::Argument(why));
        }
        let mut notes = trace.notes.clone();
        notes.extend(self.left_out(&curves, sizes.len()));
        let cells = self.describe(&curves, trace);
        let drawn = curves.into_iter().zip(cells);
        let (curves, cells): (Vec<_>, Vec<_>) =
            drawn.filter(|(curve, _)| !curve.points.is_empty()).unzip();
        if curves.is_empty() && !self.policies.is_empty() {
            return Err(StudyError::Argument(notes.join("; ")));
        }
        Ok(CurveOutcome {
            cells,
            curves,
            notes,
            decoded_in: trace.decoded_in,
            counted_in: started.elapsed(),
        })
    }

    /// Runs of the policies at so many sizes; fewer where a policy cannot have all of them.
    fn runs(&self, sizes: usize) -> u64 {
        let (samples, is_exact) = match self.sampling {
            Some(plan) => (plan.samples, false),
            None => (1, true),
        };
        let is_run = |policy: &&Arc<dyn Yardstick>| !policy.is_stack() || (is_exact && sizes == 1);
        let policies = self.policies.iter().filter(is_run).count();
        policies.saturating_mul(sizes).saturating_mul(samples) as u64
    }

    /// A note on policies that cannot have all of `sizes` sizes.
    fn left_out(&self, curves: &[Curve], sizes: usize) -> Option<String> {
        let short = curves.iter().zip(&self.policies);
        let short = short.filter(|(curve, _)| curve.points.len() < sizes);
        let (names, fewest): (Vec<&str>, Vec<usize>) = short
            .map(|(curve, policy)| (curve.policy.as_str(), policy.capacity_min()))
            .unzip();
        let fewest = *fewest.iter().max()?;
        let why = match self.sampling {
            // The size of a sample is rounded.
            Some(plan) => {
                let pages = ((fewest as f64 - 0.5) / plan.rate).ceil();
                format!("{pages} pages, which are {fewest} of a sample")
            }
            None => format!("{fewest} pages"),
        };
        let names = names.join(", ");
        Some(format!(
            "{}: without sizes of {names} below {why}: no memory cgroup is that small",
            self.trace
        ))
    }

    fn sizes(&self, footprint_pages: u64) -> Result<Vec<usize>, StudyError> {
        if self.sizes.is_empty() {
            return Ok(spread_sizes(footprint_pages, usize::from(self.points)));
        }
        let sizes = self.sizes.iter().map(|size| size.pages(footprint_pages));
        let mut sizes: Vec<usize> = sizes.collect();
        sizes.sort_unstable();
        sizes.dedup();
        let most = footprint_pages.max(SIZE_BEYOND_MAX);
        match sizes.last() {
            Some(&largest) if largest as u64 > most => Err(StudyError::Argument(format!(
                "{}: a size of {largest} pages, but at most {most} can be counted: the trace has \
                 {footprint_pages} pages, and more memory than that changes nothing",
                self.trace
            ))),
            _ => Ok(sizes),
        }
    }

    fn describe(&self, curves: &[Curve], trace: &CurveTrace) -> Vec<Described<CurveCell>> {
        let setup = Setup {
            reading: Reading {
                // The manifest may say another one by the time this is run again.
                format: trace.format,
                ..self.reading.clone()
            },
            ..Setup::default()
        };
        let origin = Origin {
            options: options::to_text(&setup, Sight::default()),
            source: self.trace.clone(),
            source_sha256: trace.sha256.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            build: self.build.clone(),
        };
        let described = |(curve, policy): (&Curve, &Arc<dyn Yardstick>)| Described {
            cell: CurveCell {
                trace: curve.trace.clone(),
                policy: curve.policy.clone(),
                policy_sha256: policy.source_sha256().map(str::to_owned),
                policy_profile: policy.source_text().map(str::to_owned),
                sizes_pages: curve.points.iter().map(|of| of.size_pages as u64).collect(),
                sampling_rate: curve.sampling_rate,
                samples: self.sampling.map(|plan| plan.samples as u64),
            },
            origin: origin.clone(),
        };
        curves.iter().zip(&self.policies).map(described).collect()
    }
}

impl CurveOutcome {
    /// A table with one row per point.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut columns = vec![
            Column::new("trace", Kind::Text),
            Column::new("policy", Kind::Text),
            Column::new("size_pages", Kind::Count),
            Column::new("footprint_pages", Kind::Count),
            Column::new("accesses", Kind::Count),
            Column::new("misses", Kind::Count),
            // None of a trace without accesses.
            Column::optional("miss_ratio", Kind::Number),
            // Half the width of the 95 % confidence interval of the miss ratio; 0 if counted
            // exactly.
            Column::optional("miss_ratio_error", Kind::Number),
            Column::optional("sampling_rate", Kind::Number),
            Column::optional("samples", Kind::Count),
            Column::optional("policy_sha256", Kind::Text),
        ];
        columns.extend(Origin::COLUMNS);
        columns.push(PROFILE);
        let mut rows = Vec::new();
        for (curve, of) in self.curves.iter().zip(&self.cells) {
            let (trace, policy) = (Value::from(&curve.trace), Value::from(&curve.policy));
            let origin = of.origin.values();
            let row = |point: &Point| {
                let (miss_ratio, miss_ratio_error) = curve.ratio(point).unzip();
                let mut row = vec![
                    trace.clone(),
                    policy.clone(),
                    (point.size_pages as u64).into(),
                    curve.footprint_pages.into(),
                    curve.accesses.into(),
                    (point.misses.round() as u64).into(),
                    miss_ratio.into(),
                    miss_ratio_error.into(),
                    curve.sampling_rate.into(),
                    of.cell.samples.into(),
                    of.cell.policy_sha256.as_ref().into(),
                ];
                row.extend(origin.iter().cloned());
                row.push(of.cell.policy_profile.as_ref().into());
                row
            };
            rows.extend(curve.points.iter().map(row));
        }
        Table { columns, rows }
    }
}

#[cfg(test)]
#[path = "curve_tests.rs"]
mod tests;
