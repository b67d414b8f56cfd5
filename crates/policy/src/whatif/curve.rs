// SPDX-License-Identifier: Apache-2.0
//! The result: faults per second by memory size, with error bounds.

use serde::Serialize;

/// Memory sizes on every curve, percent of the peak resident size.
pub const PERCENTS: [u16; 34] = [
    10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 49, 52, 55, 58, 61, 64, 67, 70, 73, 76, 79,
    82, 85, 88, 91, 94, 97, 100, 125, 150, 200,
];

/// The number of sizes.
pub const SIZES: usize = PERCENTS.len();

/// Who decides which page leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decider {
    /// The LRU of the running kernel.
    Kernel,
    /// Exact LRU: the page that was used longest ago.
    Lru,
}

impl Decider {
    /// All of them, in the order in which they are stored.
    pub const ALL: [Decider; 2] = [Decider::Kernel, Decider::Lru];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Decider::Kernel => "kernel",
            Decider::Lru => "lru",
        }
    }
}

/// The name of agewise's own order in reports.
const REUSE: &str = "reuse";
/// The names in reports of all curves there can be.
pub const POLICIES: [&str; 3] = [Decider::Kernel.name(), Decider::Lru.name(), REUSE];

/// A figure and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Lower bound.
    pub low: f64,
    /// Most likely value.
    pub likely: f64,
    /// Upper bound; infinite if the observations set none.
    pub high: f64,
}

impl Estimate {
    fn map2(self, other: Estimate, of: impl Fn(f64, f64) -> f64) -> Estimate {
        Estimate {
            low: of(self.low, other.low),
            likely: of(self.likely, other.likely),
            high: of(self.high, other.high),
        }
    }

    /// The sum of two estimates.
    pub fn plus(self, other: Estimate) -> Estimate {
        self.map2(other, |a, b| a + b)
    }

    /// A value without error.
    pub const fn exact(value: f64) -> Estimate {
        Estimate {
            low: value,
            likely: value,
            high: value,
        }
    }

    /// The product of two estimates that are not negative.
    pub fn times(self, factor: Estimate) -> Estimate {
        // Infinitely many faults that cost nothing take no time.
        let product = |a, b| if b == 0.0 { 0.0 } else { a * b };
        self.map2(factor, product)
    }

    fn between(self, other: Estimate, share: f64) -> Estimate {
        self.map2(other, |a, b| mean(a, b, share))
    }
}

/// Which value of an interval counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The likely value: for supervised use, where each step is verified.
    Likely,
    /// The upper bound, which allows for everything that was not seen: for unsupervised use.
    High,
}

impl Bound {
    /// This value of an estimate.
    #[must_use]
    pub fn of(self, estimate: &Estimate) -> f64 {
        match self {
            Bound::Likely => estimate.likely,
            Bound::High => estimate.high,
        }
    }
}

/// How long a task waits for a page that comes back, ns. At a limit this includes the eviction of
/// another page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// From swap.
    pub anon_ns: Estimate,
    /// From the device of its file.
    pub file_ns: Estimate,
}

impl Prices {
    /// Prices that are given, not measured.
    pub const fn exact(anon_ns: f64, file_ns: f64) -> Self {
        Prices {
            anon_ns: Estimate::exact(anon_ns),
            file_ns: Estimate::exact(file_ns),
        }
    }
}

/// The behaviour of memory of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Faults per second, of anonymous pages and of file pages. First uses do not count: no amount
    /// of memory avoids them.
    pub faults: [Estimate; 2],
}

impl Point {
    /// Faults per second of both kinds.
    pub fn faults_per_second(&self) -> Estimate {
        self.faults[0].plus(self.faults[1])
    }

    /// How long tasks wait for these faults at these prices, as a ratio to the time observed. Above
    /// 1 if several wait at once, or if one would no longer get as much done in that time.
    pub fn wait_ratio(&self, prices: Prices) -> Estimate {
        let anon = self.faults[0].times(prices.anon_ns);
        let both = anon.plus(self.faults[1].times(prices.file_ns));
        both.times(Estimate::exact(1e-9))
    }

    pub(super) fn between(&self, other: &Point, share: f64) -> Point {
        Point {
            faults: std::array::from_fn(|at| self.faults[at].between(other.faults[at], share)),
        }
    }
}

/// Faults per second by memory size, under one decider.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// By [`PERCENTS`].
    pub points: [Point; SIZES],
}

/// The curves of one period of observation.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// The peak resident size, which 100 percent refers to, bytes.
    pub full_bytes: u64,
    /// Length of the observation, ms.
    pub observed_ms: u64,
    /// Faults per second of pages that existed before the observation began and had not been used
    /// since. Whether a memory would have kept them is unknown, so the intervals include them.
    pub unknown_per_second: f64,
    /// Pages per second that actually came back from swap or were read again.
    pub seen_per_second: f64,
    /// Pages used per second, each counted once between two looks.
    pub uses_per_second: f64,
    /// Resident memory that has not been used at all since the observation began, bytes: nobody
    /// knows when it will be used again.
    pub unused_bytes: u64,
    /// Memory charged in addition that looks at processes cannot see and limits do not affect:
    /// kernel memory, bytes. The caller provides it; otherwise 0.
    pub beyond_bytes: u64,
    /// By [`Decider::ALL`].
    pub curves: [Curve; Decider::ALL.len()],
    /// The curve of agewise's own order ([`crate::reuse`]), if that was simulated.
    pub reuse: Option<Box<Curve>>,
}

impl Curve {
    /// The point at a size, percent of the peak resident size. Below the first size nothing is
    /// known except that it is worse: same values as there, without an upper bound.
    pub fn at(&self, percent: f64) -> Point {
        let Some(next) = PERCENTS.iter().position(|of| f64::from(*of) >= percent) else {
            return self.points[SIZES - 1];
        };
        if next == 0 {
            let mut point = self.points[0];
            if percent < f64::from(PERCENTS[0]) {
                point
                    .faults
                    .iter_mut()
                    .for_each(|faults| faults.high = f64::INFINITY);
            }
            return point;
        }
        let (low, high) = (f64::from(PERCENTS[next - 1]), f64::from(PERCENTS[next]));
        let share = (percent - low) / (high - low);
        self.points[next - 1].between(&self.points[next], share)
    }
}

impl Curves {
    /// Curves of anonymous memory only, with the same `faults` per second at a percentage for every
    /// decider.
    pub fn of_anon(full_bytes: u64, observed_ms: u64, faults: impl Fn(u16) -> Estimate) -> Curves {
        let point = |percent| Point {
            faults: [faults(percent), Estimate::default()],
        };
        Curves {
            full_bytes,
            observed_ms,
            unknown_per_second: 0.0,
            seen_per_second: 0.0,
            uses_per_second: 0.0,
            unused_bytes: 0,
            beyond_bytes: 0,
            curves: std::array::from_fn(|_| Curve {
                points: PERCENTS.map(point),
            }),
            reuse: None,
        }
    }

    /// Raises the upper bounds of all sizes below 100 percent by this many pages in the time
    /// observed, by type: what is used for the first time may be used again. Larger memories hold
    /// all that came.
    pub(super) fn allow(&mut self, pages: [f64; 2]) {
        let rates = pages.map(|pages| pages * 1000.0 / self.observed_ms.max(1) as f64);
        let curves = self.curves.iter_mut().chain(self.reuse.as_deref_mut());
        for curve in curves {
            let points = curve.points.iter_mut().zip(PERCENTS);
            for (point, _) in points.take_while(|(_, percent)| *percent < 100) {
                for (faults, rate) in point.faults.iter_mut().zip(rates) {
                    faults.high += rate;
                }
            }
        }
    }

    /// The curve under one decider.
    pub fn of(&self, decider: Decider) -> &Curve {
        &self.curves[decider as usize]
    }

    /// The curve of one of [`POLICIES`], if it was simulated.
    pub fn named(&self, policy: &str) -> Option<&Curve> {
        let mut deciders = Decider::ALL.into_iter();
        match deciders.find(|decider| decider.name() == policy) {
            Some(decider) => Some(self.of(decider)),
            None if policy == REUSE => self.reuse.as_deref(),
            None => None,
        }
    }

    /// The point at a size in bytes.
    pub fn at(&self, decider: Decider, memory_bytes: u64) -> Point {
        self.of(decider).at(self.percent_of(memory_bytes))
    }

    /// A size in bytes, as percent of the peak resident size.
    pub fn percent_of(&self, memory_bytes: u64) -> f64 {
        memory_bytes as f64 * 100.0 / self.full_bytes.max(1) as f64
    }

    /// The least memory with which waiting stays within `wait_max` by that bound, bytes, down to
    /// the first of [`PERCENTS`]; `None` if not even all of it is enough.
    pub fn least_bytes(
        &self,
        decider: Decider,
        prices: Prices,
        wait_max: f64,
        bound: Bound,
    ) -> Option<u64> {
        let points = self.of(decider).points.iter().zip(PERCENTS).rev();
        points
            .take_while(|(point, _)| bound.of(&point.wait_ratio(prices)) <= wait_max)
            .last()
            .map(|(_, percent)| self.bytes_at(percent))
    }

    /// A size in bytes, rounded up: a byte less may wait longer.
    pub fn bytes_at(&self, percent: u16) -> u64 {
        let bytes = (u128::from(self.full_bytes) * u128::from(percent)).div_ceil(100);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Merges both, weighted by the length of their observations.
    #[must_use]
    pub fn merged(&self, other: &Curves) -> Curves {
        let (a, b) = (self.observed_ms as f64, other.observed_ms as f64);
        let share = if a + b > 0.0 { b / (a + b) } else { 0.0 };
        let full_bytes = self.full_bytes.max(other.full_bytes);
        let merged = |mine: &Curve, others: &Curve| Curve {
            points: std::array::from_fn(|size| {
                let bytes = full_bytes as f64 * f64::from(PERCENTS[size]) / 100.0;
                let percent = |curves: &Curves| bytes * 100.0 / curves.full_bytes.max(1) as f64;
                let other = others.at(percent(other));
                mine.at(percent(self)).between(&other, share)
            }),
        };
        Curves {
            full_bytes,
            observed_ms: self.observed_ms.saturating_add(other.observed_ms),
            unknown_per_second: mean(self.unknown_per_second, other.unknown_per_second, share),
            seen_per_second: mean(self.seen_per_second, other.seen_per_second, share),
            uses_per_second: mean(self.uses_per_second, other.uses_per_second, share),
            unused_bytes: self.unused_bytes.min(other.unused_bytes),
            beyond_bytes: self.beyond_bytes.max(other.beyond_bytes),
            curves: Decider::ALL.map(|decider| merged(self.of(decider), other.of(decider))),
            reuse: self
                .reuse
                .as_deref()
                .zip(other.reuse.as_deref())
                .map(|(mine, others)| Box::new(merged(mine, others))),
        }
    }
}

/// Interpolates from `a` to `b`. If one end is unbounded, so is everything in between.
fn mean(a: f64, b: f64, share: f64) -> f64 {
    match share {
        0.0 => a,
        1.0 => b,
        _ if a.is_infinite() || b.is_infinite() => f64::INFINITY,
        _ => a + (b - a) * share,
    }
}
