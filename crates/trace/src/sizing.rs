// SPDX-License-Identifier: Apache-2.0
//! How much memory a program needs: from the reuse distances of a trace to a recommended limit.
//!
//! For every size the stack distances give the exact number of refaults of an LRU memory. First
//! touches are left out, since no amount of memory avoids them. If a trace records accesses only by
//! interval, the order inside an interval is unknown; the smallest and largest distances over all
//! orders give bounds for every figure.

use crate::curve::StackDistances;

/// Cost of a refault on a backing device. The values are the defaults of the simulated devices: the
/// latency of one 4 KiB read with an empty queue.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostModel {
    /// Its name.
    pub name: &'static str,
    /// Time a task waits for one page, in us.
    pub refault_us: f64,
}

/// The known backing devices.
pub const COST_MODELS: [CostModel; 5] = [
    CostModel {
        name: "pmem",
        refault_us: 2.5,
    },
    CostModel {
        name: "zram",
        refault_us: 6.0,
    },
    CostModel {
        name: "nvme",
        refault_us: 80.0,
    },
    CostModel {
        name: "ssd",
        refault_us: 150.0,
    },
    CostModel {
        name: "hdd",
        refault_us: 8_000.0,
    },
];

/// Looks up a device by name.
#[must_use]
pub fn cost_model(name: &str) -> Option<CostModel> {
    COST_MODELS.into_iter().find(|model| model.name == name)
}

/// The reuse in a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Reuse {
    /// Size of a page in bytes.
    pub page_bytes: u64,
    /// Time span of the trace in s; 0 if it has no time.
    pub seconds: f64,
    /// Distances for the order of accesses in the trace.
    pub distances: StackDistances,
    /// Smallest and largest distances, if the order inside intervals is unknown.
    pub bounds: Option<(StackDistances, StackDistances)>,
}

/// A point of the curve: the cost with a memory of this size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizePoint {
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Refaults per second, or per thousand accesses for a trace without time.
    pub faults: f64,
    /// Lower bound, given what is known about the order.
    pub faults_low: f64,
    /// Upper bound.
    pub faults_high: f64,
    /// Share of time a task waits for them, 0 to 1 or more; for a trace without time, us per
    /// access.
    pub wait: f64,
    /// Upper bound.
    pub wait_high: f64,
}

/// The answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Need {
    /// In ascending order of size.
    pub points: Vec<SizePoint>,
    /// Total bytes touched.
    pub footprint_bytes: u64,
    /// Where the curve bends most: less memory costs much more, and more memory saves little.
    pub knee_bytes: u64,
    /// The least memory with which, as with more, waiting stays within the target even at its upper
    /// bound; the whole footprint if nothing less does.
    pub recommended_bytes: u64,
    /// Share of accesses that were first touches. Pages touched less often than the length of the
    /// trace look like this: the higher the share, the less the trace shows.
    pub first_touch_share: f64,
    /// Width of the bounds at the recommended size, relative to the maximum number of refaults.
    pub order_uncertainty: f64,
}

/// Computes curve, knee and recommendation. `target_wait` is the share of time (or us per access,
/// for a trace without time) that waiting may take. At least 2 `points` are spread over the
/// footprint.
#[must_use]
pub fn need(reuse: &Reuse, cost: CostModel, target_wait: f64, points: usize) -> Need {
    let distances = &reuse.distances;
    let footprint = distances.counts().len().max(1);
    let sizes = spread(footprint, points.max(2));
    let refaults = |distances: &StackDistances| -> Vec<f64> {
        let misses = distances.misses(&sizes);
        misses
            .into_iter()
            .map(|misses| per_unit(distances, reuse.seconds, misses))
            .collect()
    };
    let middle = refaults(distances);
    let (least, most) = match &reuse.bounds {
        Some((least, most)) => (refaults(least), refaults(most)),
        None => (middle.clone(), middle.clone()),
    };
    // A share of 1 is waiting all the time; without time, refaults are per thousand accesses.
    let wait_of = |refaults: f64| {
        if reuse.seconds > 0.0 {
            refaults * cost.refault_us / 1e6
        } else {
            refaults * cost.refault_us / 1e3
        }
    };
    let points: Vec<SizePoint> = (0..sizes.len())
        .map(|at| SizePoint {
            memory_bytes: (sizes[at] as u64).saturating_mul(reuse.page_bytes),
            faults: middle[at],
            faults_low: least[at],
            faults_high: most[at],
            wait: wait_of(middle[at]),
            wait_high: wait_of(most[at]),
        })
        .collect();
    let footprint_bytes = (footprint as u64).saturating_mul(reuse.page_bytes);
    let first_touch_share = distances.cold() as f64 / distances.accesses().max(1) as f64;
    Need::of(points, footprint_bytes, target_wait, first_touch_share)
}

impl Need {
    /// Computes knee and recommendation for a curve with at least one point.
    #[must_use]
    pub fn of(
        points: Vec<SizePoint>,
        footprint_bytes: u64,
        target_wait: f64,
        first_touch_share: f64,
    ) -> Need {
        // With an order that is not LRU, waiting may grow with memory.
        let exceeding = points
            .iter()
            .rposition(|point| point.wait_high > target_wait);
        let at = exceeding.map_or(0, |at| (at + 1).min(points.len() - 1));
        let most = points.iter().map(|point| point.faults_high);
        let worst = most.filter(|most| most.is_finite()).fold(0.0, f64::max);
        let width = points[at].faults_high - points[at].faults_low;
        Need {
            footprint_bytes,
            knee_bytes: points[knee(&points)].memory_bytes,
            recommended_bytes: points[at].memory_bytes,
            first_touch_share,
            order_uncertainty: (width / worst.max(f64::MIN_POSITIVE)).min(1.0),
            points,
        }
    }
}

/// Refaults, which are misses of pages seen before, per second or per thousand accesses.
fn per_unit(distances: &StackDistances, seconds: f64, misses: u64) -> f64 {
    let refaults = misses.saturating_sub(distances.cold()) as f64;
    if seconds > 0.0 {
        refaults / seconds
    } else {
        refaults * 1000.0 / distances.accesses().max(1) as f64
    }
}

/// Evenly spread sizes from one step to the whole footprint.
fn spread(footprint: usize, points: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = (1..=points)
        .map(|step| ((footprint as u128 * step as u128).div_ceil(points as u128)) as usize)
        .collect();
    sizes.dedup();
    sizes
}

/// The point farthest below the chord from the first to the last point (both axes scaled to 1).
fn knee(points: &[SizePoint]) -> usize {
    let (first, last) = (points[0], points[points.len() - 1]);
    let width = (last.memory_bytes - first.memory_bytes) as f64;
    let height = first.faults - last.faults;
    if width <= 0.0 || height <= 0.0 {
        return 0;
    }
    let depth = |point: &SizePoint| {
        let along = (point.memory_bytes - first.memory_bytes) as f64 / width;
        let down = (first.faults - point.faults) / height;
        down - along
    };
    let deepest = points
        .iter()
        .enumerate()
        .max_by(|(_, a), (_, b)| depth(a).total_cmp(&depth(b)));
    deepest.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DenseTrace;
    use crate::curve::IntervalDistances;

    const PAGE_BYTES: u64 = 4096;

    /// 1000 rounds over 10 hot pages; each round is followed by the next one of 90 cold pages.
    fn hot_and_cold(seconds: f64) -> Reuse {
        let mut pages = Vec::new();
        for round in 0..1000u64 {
            pages.extend(0..10);
            pages.push(10 + round % 90);
        }
        exact(&pages, seconds)
    }

    fn exact(pages: &[u64], seconds: f64) -> Reuse {
        let distances = StackDistances::of(&DenseTrace::from_pages(pages));
        Reuse {
            page_bytes: PAGE_BYTES,
            seconds,
            distances,
            bounds: None,
        }
    }

    fn zram() -> CostModel {
        cost_model("zram").unwrap()
    }

    #[test]
    fn the_knee_is_where_the_hot_pages_fit() {
        let need = need(&hot_and_cold(10.0), zram(), 0.000_7, 50);
        assert_eq!(need.footprint_bytes, 100 * PAGE_BYTES);
        // The hot pages and one cold page between two rounds: 11 pages, in steps of 2.
        assert_eq!(need.knee_bytes, 12 * PAGE_BYTES);
        // 910 repeated cold accesses in 10 s are 91/s, at 6 us each 0.055 % of the time.
        let at_knee = need
            .points
            .iter()
            .find(|p| p.memory_bytes == need.knee_bytes)
            .unwrap();
        assert!((at_knee.faults - 91.0).abs() < 1e-9);
        assert!((at_knee.wait - 91.0 * 6e-6).abs() < 1e-12);
        assert_eq!(
            need.recommended_bytes,
            12 * PAGE_BYTES,
            "0.07 % is met there"
        );
        assert!((need.first_touch_share - 100.0 / 11_000.0).abs() < 1e-12);
        assert_eq!(need.order_uncertainty, 0.0);
    }

    #[test]
    fn larger_pages_are_more_memory() {
        let small = hot_and_cold(10.0);
        let large = Reuse {
            page_bytes: 16 * PAGE_BYTES,
            ..small.clone()
        };
        let (small, large) = (
            need(&small, zram(), 0.01, 50),
            need(&large, zram(), 0.01, 50),
        );
        assert_eq!(large.footprint_bytes, 16 * small.footprint_bytes);
        assert_eq!(large.recommended_bytes, 16 * small.recommended_bytes);
        assert_eq!(
            large.points[0].memory_bytes,
            16 * small.points[0].memory_bytes
        );
    }

    #[test]
    fn a_size_is_not_enough_if_a_larger_one_is_not() {
        let point = |(size, wait_high): (u64, f64)| SizePoint {
            memory_bytes: size * PAGE_BYTES,
            faults: 0.0,
            faults_low: 0.0,
            faults_high: 0.0,
            wait: 0.0,
            wait_high,
        };
        let recommended = |waits: [f64; 4]| {
            let points = (1..).zip(waits).map(point).collect();
            Need::of(points, 4 * PAGE_BYTES, 0.1, 0.0).recommended_bytes / PAGE_BYTES
        };
        assert_eq!(recommended([0.3, 0.1, 0.2, 0.0]), 4);
        assert_eq!(recommended([0.3, 0.2, 0.1, 0.0]), 3);
        assert_eq!(recommended([0.1, 0.1, 0.1, 0.1]), 1);
        assert_eq!(recommended([0.1, 0.1, 0.1, 0.2]), 4, "none is enough");
    }

    #[test]
    fn a_target_of_nothing_asks_for_everything_that_is_reused() {
        let need = need(&hot_and_cold(10.0), zram(), 0.0, 50);
        assert_eq!(need.recommended_bytes, 100 * PAGE_BYTES);
    }

    #[test]
    fn unknown_order_widens_the_bounds_and_the_recommendation_keeps_to_the_upper() {
        let mut intervals = IntervalDistances::new();
        let mut pages = Vec::new();
        for round in 0..1000u32 {
            // Ten hot pages, and ten of a hundred others in rotation.
            let of_round: Vec<u32> = (0..10)
                .chain((0..10).map(|n| 10 + (round * 10 + n) % 100))
                .collect();
            intervals.interval(&of_round);
            pages.extend(of_round.iter().map(|&page| u64::from(page)));
        }
        let known = exact(&pages, 1000.0);
        let unknown = Reuse {
            bounds: Some(intervals.bounds()),
            ..known.clone()
        };
        let (known, unknown) = (
            need(&known, zram(), 1e-5, 110),
            need(&unknown, zram(), 1e-5, 110),
        );
        for (a, b) in known.points.iter().zip(&unknown.points) {
            assert!(b.faults_low <= a.faults && a.faults <= b.faults_high);
        }
        assert!(unknown.recommended_bytes >= known.recommended_bytes);
        assert!(unknown.order_uncertainty >= 0.0);
    }

    #[test]
    fn without_time_rates_are_a_thousand_accesses() {
        let need = need(&hot_and_cold(0.0), zram(), 1.0, 50);
        let at_knee = need
            .points
            .iter()
            .find(|p| p.memory_bytes == need.knee_bytes)
            .unwrap();
        assert!((at_knee.faults - 910.0 * 1000.0 / 11_000.0).abs() < 1e-9);
    }

    #[test]
    fn degenerate_traces_have_an_answer() {
        for pages in [vec![1], vec![1, 1, 1], vec![1, 2, 3]] {
            let need = need(&exact(&pages, 1.0), zram(), 0.01, 32);
            assert!(need.recommended_bytes >= PAGE_BYTES);
            assert!(need.points.iter().all(|point| point.faults.is_finite()));
        }
    }
}
