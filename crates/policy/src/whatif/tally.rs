// SPDX-License-Identifier: Apache-2.0
//! Faults counted by memory size, and the curves that follow from them.

use super::curve::{Curve, Curves, Decider, Estimate, PERCENTS, Point, SIZES};
use super::periods::{PERIODS, Periods};
use super::stack::Distance;
use crate::generations::PageType;
use crate::statistics::student;

/// The pages of the sample are divided into this many groups, which are compared with one another.
const GROUPS: usize = 8;
/// 0.975 quantile of the normal distribution.
const Z_95: f64 = 1.96;
/// "Rule of three": what was never seen happened fewer than three times, with 95 % probability.
pub(super) const NEVER_SEEN: f64 = 3.0;
/// If in more than this percentage of looks more pages were used than a size holds, nothing is
/// known about that size: a page may have left and come back any number of times within a look.
const COARSE_PERCENT: u64 = 5;

/// How many times as many faults there are at most as the simulation can explain, by type. The
/// kernel evicts a large folio of a file as a whole, and reads its neighbours with a page: up to
/// twice as many were measured.
const UNSIMULATED: [f64; 2] = [1.0, 2.0];

/// A number for each size.
pub(super) type BySize = [f64; SIZES];

/// Faults of one decider, in pages that the sample represents.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    by_type: [BySize; 2],
    by_group: [BySize; GROUPS],
    by_period: [BySize; PERIODS],
    /// The current period.
    period: usize,
}

impl Faults {
    const NONE: Faults = Faults {
        by_type: [[0.0; SIZES]; 2],
        by_group: [[0.0; SIZES]; GROUPS],
        by_period: [[0.0; SIZES]; PERIODS],
        period: 0,
    };

    /// Records that a memory of this size did not hold a page.
    pub fn miss(&mut self, size: usize, page_type: PageType, rank: u64, scale: &Scale) {
        self.by_type[page_type as usize][size] += scale.weight;
        self.by_group[group(rank)][size] += scale.weight;
        self.by_period[self.period][size] += scale.weight;
    }

    fn counts(&mut self) -> impl Iterator<Item = &mut BySize> {
        let parts = self.by_group.iter_mut().chain(&mut self.by_period);
        self.by_type.iter_mut().chain(parts)
    }

    /// Makes one period of each two.
    fn merge_periods(&mut self) {
        for period in 0..PERIODS {
            let pair = self.by_period.get(2 * period..2 * period + 2);
            let sum = |size| pair.map_or(0.0, |of| of[0][size] + of[1][size]);
            self.by_period[period] = std::array::from_fn(sum);
        }
    }
}

/// The counts since a point in time.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    began_ms: u64,
    periods: Periods,
    looks: u64,
    lru: Box<Faults>,
    pub kernel: Box<Faults>,
    pub reuse: Option<Box<Faults>>,
    /// Faults of LRU with the best and the worst order within looks.
    least: Box<[BySize; 2]>,
    most: Box<[BySize; 2]>,
    /// Number of looks that were too long for each size.
    coarse: [u64; SIZES],
    pub unknown_pages: f64,
    pub seen_pages: f64,
    used_pages: f64,
    /// Time during which uses went unnoticed, ms.
    pub blind_ms: f64,
}

/// How the sample represents all memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scale {
    /// How many pages each page of the sample represents.
    pub weight: f64,
    /// 100 percent in pages of the sample.
    pub full: f64,
    /// Share of the pages that are in the sample.
    pub share: f64,
}

impl Scale {
    /// How many pages of the sample a memory of the size with this index holds.
    pub fn capacity(&self, size: usize) -> u32 {
        (self.full * f64::from(PERCENTS[size]) / 100.0)
            .round()
            .max(1.0) as u32
    }
}

impl Tally {
    /// `has_reuse` says whether agewise's own order is simulated.
    pub fn new(now_ms: u64, has_reuse: bool) -> Self {
        Tally {
            began_ms: now_ms,
            periods: Periods::new(now_ms),
            looks: 0,
            lru: Box::new(Faults::NONE),
            kernel: Box::new(Faults::NONE),
            reuse: has_reuse.then(|| Box::new(Faults::NONE)),
            least: Box::new([[0.0; SIZES]; 2]),
            most: Box::new([[0.0; SIZES]; 2]),
            coarse: [0; SIZES],
            unknown_pages: 0.0,
            seen_pages: 0.0,
            used_pages: 0.0,
            blind_ms: 0.0,
        }
    }

    /// How long it has counted, ms.
    pub fn observed_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.began_ms)
    }

    fn faults(&mut self) -> impl Iterator<Item = &mut Faults> {
        let always = [&mut self.lru, &mut self.kernel].into_iter();
        always.chain(&mut self.reuse).map(|of| &mut **of)
    }

    /// Records a look in which this many pages of the sample were used.
    pub fn look(&mut self, now_ms: u64, used: usize, scale: &Scale) {
        if self.periods.enter(now_ms) {
            self.faults().for_each(Faults::merge_periods);
        }
        let period = self.periods.current();
        self.faults().for_each(|of| of.period = period);
        self.looks += 1;
        self.used_pages += used as f64 * scale.weight;
        for (size, coarse) in self.coarse.iter_mut().enumerate() {
            *coarse += u64::from(used as u64 > u64::from(scale.capacity(size)));
        }
    }

    /// Records a use of a page at this distance; `rank` is its place in the order of the sample.
    pub fn lru(&mut self, distance: Distance, page_type: PageType, rank: u64, scale: &Scale) {
        let misses = |distance: u32| {
            (0..SIZES)
                .find(|size| scale.capacity(*size) > distance)
                .unwrap_or(SIZES)
        };
        let of = page_type as usize;
        let add = |to: &mut BySize, sizes: usize| {
            to[..sizes]
                .iter_mut()
                .for_each(|misses| *misses += scale.weight);
        };
        add(&mut self.least[of], misses(distance.least));
        add(&mut self.most[of], misses(distance.most));
        let likely = misses(distance.likely);
        add(&mut self.lru.by_type[of], likely);
        add(&mut self.lru.by_group[group(rank)], likely);
        let period = self.lru.period;
        add(&mut self.lru.by_period[period], likely);
    }

    /// Makes 100 percent this many times as much from now on: existing counts move to where they
    /// belong. `filled` as for [`curves`](Self::curves).
    pub fn stretch(&mut self, factor: f64, filled: &[usize]) {
        let simulated = [&mut self.kernel].into_iter().chain(&mut self.reuse);
        for faults in simulated {
            faults.counts().for_each(|counts| fill(counts, filled));
        }
        for faults in self.faults() {
            faults.counts().for_each(|counts| stretch(counts, factor));
        }
        let bounds = self.least.iter_mut().chain(self.most.iter_mut());
        bounds.for_each(|counts| stretch(counts, factor));
    }

    /// The curves. `filled` are the sizes at which memories were simulated, ascending, including
    /// the first and the last.
    pub fn curves(&self, now_ms: u64, scale: &Scale, full_bytes: u64, filled: &[usize]) -> Curves {
        let observed_ms = self.observed_ms(now_ms);
        let seconds = (observed_ms as f64 / 1000.0).max(1e-3);
        let curve = |faults: &Faults| Curve {
            points: std::array::from_fn(|size| self.point(size, faults, scale, seconds)),
        };
        let simulated = |faults: &Faults| {
            let mut faults = faults.clone();
            faults.counts().for_each(|counts| fill(counts, filled));
            curve(&faults)
        };
        Curves {
            full_bytes,
            observed_ms,
            unknown_per_second: self.unknown_pages / seconds,
            seen_per_second: self.seen_pages / seconds,
            uses_per_second: self.used_pages / seconds,
            unused_bytes: 0,
            beyond_bytes: 0,
            curves: Decider::ALL.map(|decider| match decider {
                Decider::Kernel => simulated(&self.kernel),
                Decider::Lru => curve(&self.lru),
            }),
            reuse: self.reuse.as_ref().map(|of| Box::new(simulated(of))),
        }
    }

    fn point(&self, size: usize, faults: &Faults, scale: &Scale, seconds: f64) -> Point {
        let unsampled = (1.0 - scale.share).max(0.0);
        // The size of the memory that the sample represents is itself estimated from the sample.
        let part = f64::from(PERCENTS[size]) / 100.0;
        let variance = (part * (1.0 - part)).max(0.0) / scale.full.max(1.0) * unsampled;
        let off = Z_95 * variance.sqrt() * 100.0;
        let percent = f64::from(PERCENTS[size]);
        let by_group: Vec<f64> = faults.by_group.iter().map(|group| group[size]).collect();
        let by_period = |period: usize| faults.by_period[period][size];
        let unsteady = self.periods.half_width(by_period) * seconds;
        let half = unsteady.hypot(half_width(&by_group) * unsampled.sqrt());
        let never = NEVER_SEEN * scale.weight * unsampled;
        let is_coarse = self.coarse[size] * 100 > self.looks * COARSE_PERCENT || self.looks == 0;
        let total: f64 = faults.by_type.iter().map(|of| of[size]).sum();
        // Uses may have been most frequent while nobody looked.
        let noticed = (1.0 - self.blind_ms / 1000.0 / seconds).max(0.01);
        let of_type = |of: usize| {
            let (counts, lru) = (&faults.by_type[of], &self.lru.by_type[of]);
            // The effect of the order is assumed to be about the same for the other decider as for
            // LRU.
            let low = |at: f64| value(counts, at) - (value(lru, at) - value(&self.least[of], at));
            let high = |at: f64| value(counts, at) + value(&self.most[of], at) - value(lru, at);
            let likely = counts[size].max(0.0);
            let half = half * if total > 0.0 { likely / total } else { 0.0 };
            // The contents of lists and models depend on an unknown history: where a simulated
            // memory and LRU differ, either may be right.
            let high = (high(percent - off) / noticed + half.max(never)).max(lru[size]);
            let high = high.max(likely) * UNSIMULATED[of];
            let low = (low(percent + off) - half).min(lru[size]);
            Estimate {
                low: low.max(0.0).min(likely) / seconds,
                likely: likely / seconds,
                high: match is_coarse {
                    true => f64::INFINITY,
                    false => high / seconds,
                },
            }
        };
        Point {
            faults: [of_type(0), of_type(1)],
        }
    }
}

fn group(rank: u64) -> usize {
    // The upper bits decide which pages are in the sample, so they cannot be used here.
    rank as usize % GROUPS
}

/// Half the width of the 95 % interval of a sum, from its parts in equal groups.
fn half_width(by_group: &[f64]) -> f64 {
    let count = by_group.len() as f64;
    let mean = by_group.iter().sum::<f64>() / count;
    let squares: f64 = by_group.iter().map(|of| (of - mean).powi(2)).sum();
    student(count - 1.0) * (squares / (count - 1.0) * count).sqrt()
}

/// The value at a percentage, interpolated between the sizes; constant beyond the ends.
fn value(counts: &BySize, percent: f64) -> f64 {
    let Some(next) = PERCENTS.iter().position(|of| f64::from(*of) >= percent) else {
        return counts[SIZES - 1];
    };
    if next == 0 {
        return counts[0];
    }
    let (low, high) = (f64::from(PERCENTS[next - 1]), f64::from(PERCENTS[next]));
    counts[next - 1] + (counts[next] - counts[next - 1]) * (percent - low) / (high - low)
}

fn stretch(counts: &mut BySize, factor: f64) {
    let before = *counts;
    for (count, percent) in counts.iter_mut().zip(PERCENTS) {
        *count = value(&before, f64::from(percent) * factor);
    }
}

/// Interpolates linearly between the sizes that were counted.
fn fill(counts: &mut BySize, filled: &[usize]) {
    for pair in filled.windows(2) {
        let [from, to] = [pair[0], pair[1]];
        let (low, high) = (f64::from(PERCENTS[from]), f64::from(PERCENTS[to]));
        for size in from + 1..to {
            let share = (f64::from(PERCENTS[size]) - low) / (high - low);
            counts[size] = counts[from] + (counts[to] - counts[from]) * share;
        }
    }
}

/// Indices of the sizes at which memories are simulated: one in `every`, the first, 100 percent and
/// the last.
pub(super) fn simulated(every: usize) -> Vec<usize> {
    let full = PERCENTS.iter().position(|percent| *percent == 100);
    (0..SIZES)
        .filter(|size| size % every.max(1) == 0 || Some(*size) == full || size + 1 == SIZES)
        .collect()
}
