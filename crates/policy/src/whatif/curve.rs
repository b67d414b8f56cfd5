// SPDX-License-Identifier: Apache-2.0
//! The answer: faults per second by memory size, with error bounds.

use serde::Serialize;

/// Sizes of memory on every curve, percent of the peak resident size.
pub const PERCENTS: [u16; 34] = [
    10, 13, 16, 19, 22, 25, 28, 31, 34, 37, 40, 43, 46, 49, 52, 55, 58, 61, 64, 67, 70, 73, 76, 79,
    82, 85, 88, 91, 94, 97, 100, 125, 150, 200,
];

/// How many they are.
pub const SIZES: usize = PERCENTS.len();

/// Who decides what leaves memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Decider {
    /// The LRU of the kernel that runs.
    Kernel,
    /// Exactly the page that was used longest ago.
    Lru,
}

impl Decider {
    /// All of them, in the order in which they are kept.
    pub const ALL: [Decider; 2] = [Decider::Kernel, Decider::Lru];

    /// As reports call it.
    pub const fn name(self) -> &'static str {
        match self {
            Decider::Kernel => "kernel",
            Decider::Lru => "lru",
        }
    }
}

/// As reports call agewise's own order.
const REUSE: &str = "reuse";
/// What there can be a curve of, as reports call it.
pub const POLICIES: [&str; 3] = [Decider::Kernel.name(), Decider::Lru.name(), REUSE];

/// A figure and its possible error, with 95 % probability.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// At least this.
    pub low: f64,
    /// Most likely this.
    pub likely: f64,
    /// At most this; infinite where nothing seen sets a bound.
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

    /// The sum of two.
    pub fn plus(self, other: Estimate) -> Estimate {
        self.map2(other, |a, b| a + b)
    }

    /// What is known exactly.
    pub fn exact(value: f64) -> Estimate {
        Estimate {
            low: value,
            likely: value,
            high: value,
        }
    }

    /// So many times as much.
    pub fn times(self, factor: f64) -> Estimate {
        // Infinitely many faults that cost nothing take no time.
        self.map2(self, |a, _| if factor == 0.0 { 0.0 } else { a * factor })
    }

    fn between(self, other: Estimate, share: f64) -> Estimate {
        self.map2(other, |a, b| mean(a, b, share))
    }
}

/// What of an interval counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The likely value: for supervised use, where each step is verified.
    Likely,
    /// The upper bound, which includes everything that was not seen: for unsupervised use.
    High,
}

impl Bound {
    /// That bound.
    #[must_use]
    pub fn of(self, estimate: &Estimate) -> f64 {
        match self {
            Bound::Likely => estimate.likely,
            Bound::High => estimate.high,
        }
    }
}

/// How long a task waits for a page that comes back, ns; at a limit another has to leave for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// From swap.
    pub anon_ns: f64,
    /// From the device of its file.
    pub file_ns: f64,
}

/// The behaviour of a memory of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Faults per second, of anonymous pages and of pages of files. First uses do not count: no
    /// amount of memory avoids them.
    pub faults: [Estimate; 2],
}

impl Point {
    /// Faults a second of both kinds.
    pub fn faults_per_second(&self) -> Estimate {
        self.faults[0].plus(self.faults[1])
    }

    /// Share of the time that a task waits for them, at these prices; above 1 where several wait.
    pub fn wait_ratio(&self, prices: Prices) -> Estimate {
        let anon = self.faults[0].times(prices.anon_ns / 1e9);
        anon.plus(self.faults[1].times(prices.file_ns / 1e9))
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

/// What was seen in a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Curves {
    /// What 100 percent means: the peak resident size, bytes.
    pub full_bytes: u64,
    /// How long it was observed, ms.
    pub observed_ms: u64,
    /// Faults a second of pages that were there before the observation began and had not been used
    /// since: whether a memory would have held them is not known, so they are in the intervals.
    pub unknown_per_second: f64,
    /// Pages that came back from swap or were read again a second, as it was.
    pub seen_per_second: f64,
    /// Pages used a second, each once from look to look.
    pub uses_per_second: f64,
    /// Resident memory that has not been used at all since the observation began, bytes: nobody
    /// knows when it will be used again.
    pub unused_bytes: u64,
    /// Charged in addition, not visible to looks at processes and not affected by limits: kernel
    /// memory, bytes. The caller provides it; otherwise 0.
    pub beyond_bytes: u64,
    /// By [`Decider::ALL`].
    pub curves: [Curve; Decider::ALL.len()],
    /// What agewise's own order ([`crate::reuse`]) would do, where that was simulated.
    pub reuse: Option<Box<Curve>>,
}

impl Curve {
    /// The point at a size, percent of the peak resident size. Below the first size it is only
    /// known to be worse than there: the same values, without an upper bound.
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
    /// Of anonymous memory, with the same `faults` a second at a percentage for every decider;
    /// nothing else was seen.
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

    /// The least memory whose waiting stays within `wait_max` by that bound, bytes, down to the
    /// first of [`PERCENTS`]; `None` if not even all of it is enough.
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

    /// A size in bytes. Not less than it: a byte less may wait longer.
    pub fn bytes_at(&self, percent: u16) -> u64 {
        let bytes = (u128::from(self.full_bytes) * u128::from(percent)).div_ceil(100);
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Both as one: what happened in both times, weighted by how long each was.
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

/// From `a` to `b` by a share. If either end is unbounded, so is everything between.
fn mean(a: f64, b: f64, share: f64) -> f64 {
    match share {
        0.0 => a,
        1.0 => b,
        _ if a.is_infinite() || b.is_infinite() => f64::INFINITY,
        _ => a + (b - a) * share,
    }
}
