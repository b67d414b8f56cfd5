// SPDX-License-Identifier: Apache-2.0
//! Compares the predictions of `agewise_policy::whatif` for a trace with exact results. It is shown
//! the trace as it would see a machine: page by page, scan by scan.

use agewise_policy::PageType;
use agewise_policy::table::PAGE_BYTES;
use agewise_policy::whatif::{
    Curves, Decider, Fact, Kernel, PAGES_MAX, PERCENTS, Params, WhatIf, page_hash,
};
use agewise_trace::curve::StackDistances;
use agewise_trace::page_trace::Order;
use agewise_trace::{DenseTrace, Intervals, TraceError, TraceSource};
use serde::Serialize;

/// Number of sizes compared: 10 to 100 percent.
pub const COMPARED: usize = 31;
/// A trace without intervals is divided into scans of this many accesses per page.
const LOOK_PART: usize = 64;

/// A trace is divided into this many parts, each of which predicts the next.
const PARTS: usize = 8;
/// Fewest scans of a part that predicts anything.
const PART_MIN: usize = 8;

/// Smallest useful sample, in pages.
const SAMPLE_MIN: usize = 100;

/// The prediction for a trace, compared with the exact result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Beside {
    /// Name of the file.
    pub trace: String,
    /// Number of different pages.
    pub pages: usize,
    /// Number of pages that were simulated.
    pub sampled_pages: usize,
    /// Number of scans.
    pub looks: usize,
    /// Uses, counting each page once per scan.
    pub uses: usize,
    /// Mean absolute error of the miss ratio.
    pub error: f64,
    /// Share of the sizes for which the exact result lies within the predicted interval.
    pub within: f64,
    /// Each eighth of the scans predicts an interval for the next one: the share of these intervals
    /// that contain the exact result; null for a trace of fewer than 64 scans.
    pub ahead_within: Option<f64>,
    /// A remark of the reader, such as that the file was truncated; not part of the record.
    #[serde(skip)]
    pub note: Option<String>,
}

impl Beside {
    /// Shows a trace scan by scan to the simulation of this percentage of its pages, within limits.
    ///
    /// # Errors
    /// Fails if the trace cannot be read.
    pub fn of(source: &TraceSource, percent: f64) -> Result<Beside, TraceError> {
        let looks = Looks::read(source)?;
        let sampled_pages = (looks.pages() as f64 * percent / 100.0) as usize;
        let most = looks.pages().max(1);
        let sampled_pages = sampled_pages.clamp(SAMPLE_MIN, PAGES_MAX).min(most);
        let predicted = looks.predicted(sampled_pages, Kernel::Classic, Decider::Lru.name());
        let (error, within) = looks.compare(&looks.lru_misses(), &predicted);
        let name = source.path.file_name().unwrap_or(source.path.as_os_str());
        Ok(Beside {
            trace: name.to_string_lossy().into_owned(),
            pages: looks.pages(),
            sampled_pages,
            looks: looks.len(),
            uses: looks.uses(),
            error,
            within,
            ahead_within: looks.ahead_within(sampled_pages),
            note: looks.note,
        })
    }
}

/// A trace as scans: the pages of each scan, without duplicates, in the order of the trace.
#[derive(Debug)]
pub struct Looks {
    looks: Vec<Vec<u32>>,
    pages: usize,
    note: Option<String>,
}

impl Looks {
    /// Reads a trace.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub fn read(source: &TraceSource) -> Result<Self, TraceError> {
        let mut stream = source.open()?;
        let by_interval = stream
            .page_trace_header()
            .is_some_and(|header| header.order == Order::Interval);
        let mut intervals = Intervals::default();
        let trace = DenseTrace::from_stream_with(&source.path, &mut stream, |access| {
            if by_interval {
                intervals.add(access);
            }
        })?;
        let pages = trace.page_count();
        let looks = match by_interval {
            true => trace.parts(intervals.starts()),
            false => {
                let length = (pages / LOOK_PART).max(1);
                let starts = (0..trace.accesses().len()).step_by(length);
                trace.parts(&starts.collect::<Vec<_>>())
            }
        };
        Ok(Looks {
            looks,
            pages,
            note: stream.note().map(str::to_owned),
        })
    }

    /// Number of different pages.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Number of scans.
    pub fn len(&self) -> usize {
        self.looks.len()
    }

    /// Whether there are no scans.
    pub fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    /// Uses, counting each page once per scan.
    pub fn uses(&self) -> usize {
        self.looks.iter().map(Vec::len).sum()
    }

    /// The uses in the order they are shown.
    pub fn in_order(&self) -> DenseTrace {
        in_order(&self.looks)
    }

    /// The sizes compared, in pages.
    pub fn capacities(&self) -> Vec<usize> {
        capacities(self.pages)
    }

    /// Misses of an exact LRU by size, without first uses.
    pub fn lru_misses(&self) -> Vec<f64> {
        repeated_misses(&StackDistances::of(&self.in_order()), &self.capacities())
    }

    /// The prediction with this many pages simulated: for each size, the lower bound, likely value
    /// and upper bound of the misses of pages seen before.
    ///
    /// # Panics
    /// If `policy` is not one of [`POLICIES`](agewise_policy::whatif::POLICIES).
    pub fn predicted(&self, pages: usize, kernel: Kernel, policy: &str) -> Vec<[f64; 3]> {
        let mut what_if = WhatIf::new(params(pages, kernel, policy));
        // The lists of the others depend on how memory grew.
        if policy == Decider::Lru.name() {
            what_if.expect(self.pages as u64);
        }
        let mut shown = Shown::new(&mut what_if, self.pages);
        self.looks
            .iter()
            .for_each(|used| shown.scan(&mut what_if, used));
        misses(&what_if.curves(), policy, self.len())
    }

    /// The share of the predictions from one part of the trace, with this many pages simulated,
    /// that hold for LRU in the next. `None` if the trace has too few scans for that.
    pub fn ahead_within(&self, pages: usize) -> Option<f64> {
        let length = self.len() / PARTS;
        if length < PART_MIN {
            return None;
        }
        let lru = Decider::Lru.name();
        let mut what_if = WhatIf::new(params(pages, Kernel::Classic, lru));
        let mut shown = Shown::new(&mut what_if, self.pages);
        let mut before = StackDistances::of(&in_order(&self.looks[..length]));
        let (mut within, mut all) = (0, 0);
        for part in 0..PARTS - 1 {
            what_if.count_anew();
            let (begin, end) = (part * length, (part + 1) * length);
            for used in &self.looks[begin..end] {
                shown.scan(&mut what_if, used);
            }
            let curves = what_if.curves();
            let sizes = capacities((curves.full_bytes / PAGE_BYTES) as usize);
            let after = StackDistances::of(&in_order(&self.looks[..end + length]));
            let truth = repeated_misses(&after, &sizes);
            let truth = truth.iter().zip(repeated_misses(&before, &sizes));
            let predicted = misses(&curves, lru, length);
            within += truth
                .zip(predicted)
                .filter(|((after, before), predicted)| holds(predicted, **after - before))
                .count();
            all += sizes.len();
            before = after;
        }
        Some(within as f64 / all as f64)
    }

    /// Mean absolute error of the miss ratio, and the share of the sizes for which the exact result
    /// lies within the predicted interval.
    pub fn compare(&self, truth: &[f64], predicted: &[[f64; 3]]) -> (f64, f64) {
        let pairs = || truth.iter().zip(predicted);
        let errors: f64 = pairs()
            .map(|(truth, predicted)| (truth - predicted[1]).abs())
            .sum();
        let within = pairs()
            .filter(|(truth, predicted)| holds(predicted, **truth))
            .count() as f64;
        let sizes = truth.len().max(1) as f64;
        (errors / self.uses().max(1) as f64 / sizes, within / sizes)
    }
}

/// The scans of a trace, as a machine sees them.
struct Shown {
    at: u64,
    /// The last scan in which each page was used; 0 for none.
    used_in: Vec<u64>,
    /// Pages used so far, and those of them that are in the sample, with their hashes.
    known: u64,
    sampled: Vec<(u32, u64)>,
}

impl Shown {
    /// The first scan sees nothing, so that every first use counts as one.
    fn new(what_if: &mut WhatIf, pages: usize) -> Self {
        what_if.look(0).finish(0, true);
        Shown {
            at: 0,
            used_in: vec![0; pages],
            known: 0,
            sampled: Vec::new(),
        }
    }

    /// Shows the next scan.
    fn scan(&mut self, what_if: &mut WhatIf, used: &[u32]) {
        self.at += 1;
        for page in used {
            if std::mem::replace(&mut self.used_in[*page as usize], self.at) == 0 {
                self.known += 1;
                let hash = page_hash(1, u64::from(*page));
                self.sampled.push((*page, hash));
            }
        }
        let mut look = what_if.look(self.at * 1000);
        self.sampled.retain(|(page, hash)| {
            let is_taken = look.filter().takes(*hash, 0);
            if is_taken {
                let is_used = self.used_in[*page as usize] == self.at;
                let fact = if is_used { Fact::Used } else { Fact::Idle };
                look.page(*hash, 0, PageType::Anon, fact);
            }
            is_taken
        });
        look.finish(self.known, true);
    }
}

fn params(pages: usize, kernel: Kernel, policy: &str) -> Params {
    Params {
        pages,
        kernel,
        every: 1,
        reuse: policy == "reuse",
    }
}

fn in_order(looks: &[Vec<u32>]) -> DenseTrace {
    let pages: Vec<u64> = looks.concat().into_iter().map(u64::from).collect();
    DenseTrace::from_pages(&pages)
}

/// The sizes compared, in pages, rounded as in `policy::whatif`.
fn capacities(full: usize) -> Vec<usize> {
    let pages = |percent: &u16| ((full * usize::from(*percent) + 50) / 100).max(1);
    PERCENTS[..COMPARED].iter().map(pages).collect()
}

/// Misses by size, without first uses.
fn repeated_misses(exact: &StackDistances, sizes: &[usize]) -> Vec<f64> {
    let misses = exact.misses(sizes);
    let repeated = misses.iter().map(|of| (of - exact.cold()) as f64);
    repeated.collect()
}

/// The lower bound, likely value and upper bound of the misses in this many scans, by size.
fn misses(curves: &Curves, policy: &str, scans: usize) -> Vec<[f64; 3]> {
    let curve = curves.named(policy).expect("a policy that was simulated");
    let points = curve.points[..COMPARED].iter();
    points
        .map(|point| {
            let faults = point.faults_per_second();
            [faults.low, faults.likely, faults.high].map(|rate| rate * scans as f64)
        })
        .collect()
}

/// Whether the truth lies within a predicted interval.
fn holds(predicted: &[f64; 3], truth: f64) -> bool {
    predicted[0] <= truth + 1.0 && truth <= predicted[2] + 1.0
}
