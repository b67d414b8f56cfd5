// SPDX-License-Identifier: Apache-2.0
//! How much memory to give: derives a request and a limit, with their possible cost, from curves of
//! many hours and a target for waiting.
//!
//! [`recommend`] uses the worst of the observed periods, and in each the upper bound of waiting. It
//! never recommends less than what is resident unless that bound meets the target in every period,
//! and the observation was long enough.

use super::{Bound, Curves, Decider, Estimate, PERCENTS, Prices};

/// A limit is this far above the most memory ever held, percent: if memory reaches the limit, the
/// kernel kills.
const LIMIT_MARGIN_PERCENT: u64 = 15;

/// What a memory size would have cost in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// The size, without [`Time::beyond_bytes`].
    pub memory_bytes: u64,
    /// Share of the time that tasks would have waited.
    pub wait: Estimate,
}

/// The observations of one period: an hour, a day, a whole run.
#[derive(Clone, Debug, PartialEq)]
pub struct Time {
    /// Length of the observation, ms.
    pub observed_ms: u64,
    /// The most that was resident.
    pub full_bytes: u64,
    /// Memory charged in addition that a limit cannot reclaim.
    pub beyond_bytes: u64,
    /// Resident memory that was not used at all in this period.
    pub unused_bytes: u64,
    /// By ascending size.
    pub costs: Vec<Cost>,
}

impl Time {
    /// From curves, for the kernel's LRU.
    pub fn new(curves: &Curves, prices: Prices) -> Self {
        let points = curves.of(Decider::Kernel).points.iter().zip(PERCENTS);
        Time {
            observed_ms: curves.observed_ms,
            full_bytes: curves.full_bytes,
            beyond_bytes: curves.beyond_bytes,
            unused_bytes: curves.unused_bytes,
            costs: points
                .map(|(point, percent)| Cost {
                    memory_bytes: curves.bytes_at(percent),
                    wait: point.wait_ratio(prices),
                })
                .collect(),
        }
    }

    /// The least memory from which on waiting stays within the target, according to this bound.
    fn least_bytes(&self, wait_max: f64, bound: Bound) -> Option<u64> {
        let rev = self.costs.iter().rev();
        rev.take_while(|cost| bound.of(&cost.wait) <= wait_max)
            .last()
            .map(|cost| cost.memory_bytes)
    }

    /// Waiting with this much memory: that of the next smaller size, since more memory waits no
    /// longer; below the smallest size there is no upper bound.
    fn wait_at(&self, memory_bytes: u64) -> Estimate {
        let smaller = self
            .costs
            .iter()
            .take_while(|cost| cost.memory_bytes <= memory_bytes);
        match (smaller.last(), self.costs.first()) {
            (Some(cost), _) => cost.wait,
            (None, first) => Estimate {
                high: f64::INFINITY,
                ..first.map(|cost| cost.wait).unwrap_or_default()
            },
        }
    }

    fn largest_bytes(&self) -> u64 {
        self.costs
            .last()
            .map_or(self.full_bytes, |cost| cost.memory_bytes)
    }

    fn with_beyond(&self, bytes: u64) -> u64 {
        bytes.saturating_add(self.beyond_bytes)
    }
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// Share of the time that waiting for memory may take.
    pub wait_max: f64,
    /// A shorter history than this is not enough, ms.
    pub history_ms: u64,
}

/// What a request is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The curves: in every period, the upper bound of waiting is within the target.
    Curve,
    /// It needs more than it had: with what is resident it waits too much.
    More,
    /// What is resident: in some period, no smaller size certainly meets the target.
    Unbounded,
    /// What is resident: the history is too short.
    ShortHistory,
}

impl Basis {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Curve => "curve",
            Basis::More => "more",
            Basis::Unbounded => "unbounded",
            Basis::ShortHistory => "short_history",
        }
    }
}

/// How much memory to give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Recommendation {
    /// What it needs.
    pub request_bytes: u64,
    /// The most it should get.
    pub limit_bytes: u64,
    /// What is most likely enough; less is most likely not.
    pub lower_bytes: u64,
    /// What the curves say, even if the history is too short.
    pub curve_bytes: u64,
    /// The most memory that it held.
    pub resident_bytes: u64,
    /// Waiting with the requested memory, in the worst period.
    pub wait: Estimate,
    /// Memory that was not used at all, the minimum over the periods: nobody knows when it will be.
    pub unused_bytes: u64,
    /// Total length of the observations, ms.
    pub observed_ms: u64,
    /// What the request is based on.
    pub basis: Basis,
}

/// Recommends how much memory to give; `None` without observations.
///
/// `recent` are consecutive periods, and `longer` are periods that include these and more. The
/// recommendation must suit both; the time observed is that of the longer.
pub fn recommend(recent: &[Time], longer: &[Time], wanted: Wanted) -> Option<Recommendation> {
    let all = || {
        recent
            .iter()
            .chain(longer)
            .filter(|time| time.full_bytes > 0)
    };
    let most = |of: &dyn Fn(&Time) -> u64| all().map(of).max();
    let resident_bytes = most(&|time| time.with_beyond(time.full_bytes))?;
    let sum = |times: &[Time]| {
        let observed = times.iter().map(|time| time.observed_ms);
        observed.fold(0, u64::saturating_add)
    };
    let observed_ms = sum(recent).max(sum(longer));
    let (mut is_more, mut curve_bytes) = (false, 0);
    for time in all() {
        let needed = need(time, wanted.wait_max);
        let bytes = time.with_beyond(needed);
        if bytes >= curve_bytes {
            (is_more, curve_bytes) = (needed > time.full_bytes, bytes);
        }
    }
    let lower = |time: &Time| {
        let least = time.least_bytes(wanted.wait_max, Bound::Likely);
        time.with_beyond(least.unwrap_or(time.largest_bytes()))
    };
    let lower_bytes = most(&lower)?;
    let is_short = observed_ms < wanted.history_ms;
    let request_bytes = match is_short {
        true => curve_bytes.max(resident_bytes),
        false => curve_bytes,
    };
    let waits = all().map(|time| time.wait_at(request_bytes.saturating_sub(time.beyond_bytes)));
    let wait = waits.fold(Estimate::default(), |worst, wait| Estimate {
        low: worst.low.max(wait.low),
        likely: worst.likely.max(wait.likely),
        high: worst.high.max(wait.high),
    });
    let held = request_bytes.max(resident_bytes);
    let margin = u128::from(held) * u128::from(LIMIT_MARGIN_PERCENT) / 100;
    Some(Recommendation {
        request_bytes,
        limit_bytes: held.saturating_add(u64::try_from(margin).unwrap_or(u64::MAX)),
        lower_bytes: lower_bytes.min(request_bytes),
        curve_bytes,
        resident_bytes,
        wait,
        unused_bytes: all().map(|time| time.unused_bytes).min()?,
        observed_ms,
        basis: if is_more {
            Basis::More
        } else if is_short {
            Basis::ShortHistory
        } else if wait.high > wanted.wait_max {
            Basis::Unbounded
        } else {
            Basis::Curve
        },
    })
}

/// What one period needs, bytes.
fn need(time: &Time, wait_max: f64) -> u64 {
    let certain = time.least_bytes(wait_max, Bound::High);
    // Sizes above what was resident are known only from what came back. To recommend more, the
    // current size must be likely to wait too long.
    let likely = time
        .least_bytes(wait_max, Bound::Likely)
        .unwrap_or(time.largest_bytes());
    let otherwise = likely.max(time.full_bytes);
    certain.map_or(otherwise, |certain| certain.min(otherwise))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_MS: u64 = 86_400_000;

    /// Sizes from 10 to 200 of a full size of 100, each with its least, likely and greatest waiting
    /// in thousandths.
    fn time(waits: &[(u64, [u64; 3])]) -> Time {
        Time {
            observed_ms: DAY_MS,
            full_bytes: 100,
            beyond_bytes: 0,
            unused_bytes: 0,
            costs: waits
                .iter()
                .map(|(memory_bytes, wait)| Cost {
                    memory_bytes: *memory_bytes,
                    wait: Estimate {
                        low: wait[0] as f64 / 1e3,
                        likely: wait[1] as f64 / 1e3,
                        high: wait[2] as f64 / 1e3,
                    },
                })
                .collect(),
        }
    }

    const WANTED: Wanted = Wanted {
        wait_max: 0.002,
        history_ms: DAY_MS,
    };

    #[test]
    fn the_worst_time_decides_by_its_upper_bound() {
        let calm = time(&[(50, [0, 1, 1]), (75, [0, 0, 0]), (100, [0, 0, 0])]);
        let busy = time(&[(50, [5, 9, 20]), (75, [0, 1, 2]), (100, [0, 0, 0])]);
        let said = recommend(&[calm.clone(), busy], &[], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.limit_bytes), (75, 115));
        assert_eq!((said.lower_bytes, said.basis), (75, Basis::Curve));
        assert_eq!(said.wait.high, 0.002);
        let said = recommend(&[calm], &[], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.basis), (50, Basis::Curve));
    }

    #[test]
    fn what_is_not_certain_stays_as_it_is() {
        let endless = [0, 0, u64::MAX];
        let unbounded = time(&[(50, endless), (100, endless), (200, endless)]);
        let said = recommend(std::slice::from_ref(&unbounded), &[], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.basis), (100, Basis::Unbounded));
        // A calm day that needs less does not become certain by one that needs more.
        let larger = Time {
            full_bytes: 200,
            ..time(&[(100, [9, 9, 9]), (150, [0, 0, 0]), (200, [0, 0, 0])])
        };
        let said = recommend(&[unbounded, larger], &[], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.basis), (150, Basis::Unbounded));
        let mut short = time(&[(50, [0, 0, 0]), (100, [0, 0, 0])]);
        short.observed_ms /= 2;
        let said = recommend(&[short.clone()], &[short.clone()], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.basis), (100, Basis::ShortHistory));
        assert_eq!(said.curve_bytes, 50);
        assert_eq!(recommend(&[], &[], WANTED), None);
        short.full_bytes = 0;
        assert_eq!(recommend(&[short], &[], WANTED), None);
    }

    #[test]
    fn what_waits_too_long_gets_more_and_kernel_memory_is_added() {
        let mut starved = time(&[(100, [5, 9, 12]), (150, [0, 1, 2]), (200, [0, 0, 0])]);
        starved.beyond_bytes = 7;
        let said = recommend(&[], &[starved], WANTED).unwrap();
        assert_eq!((said.request_bytes, said.basis), (157, Basis::More));
        assert_eq!(said.resident_bytes, 107);
        assert_eq!(said.wait.high, 0.002);
    }

    fn any_time() -> impl Strategy<Value = Time> {
        let cost = (
            0u64..20,
            0u64..20,
            prop_oneof![4 => 0u64..40, 1 => Just(u64::MAX)],
        );
        (prop::collection::vec(cost, 6), 1u64..4, 0u64..50).prop_map(|(costs, full, beyond)| {
            let sizes = [10, 50, 75, 100, 150, 200];
            let costs = sizes.into_iter().zip(costs);
            let waits: Vec<_> = costs
                .map(|(size, (a, b, c))| (size * full, [a.min(b), a.max(b), a.max(b).max(c)]))
                .collect();
            Time {
                full_bytes: 100 * full,
                beyond_bytes: beyond,
                ..time(&waits)
            }
        })
    }

    proptest! {
        /// Allowing more waiting never requires more memory, whatever the curves look like.
        #[test]
        fn it_is_monotone_in_the_target(
            recent in prop::collection::vec(any_time(), 0..4),
            longer in prop::collection::vec(any_time(), 1..4),
            targets in prop::array::uniform2(0.0f64..0.05),
        ) {
            let of = |wait_max: f64| {
                recommend(&recent, &longer, Wanted { wait_max, ..WANTED }).unwrap()
            };
            let [a, b] = targets.map(of);
            let (strict, lax) = if targets[0] <= targets[1] { (a, b) } else { (b, a) };
            prop_assert!(strict.request_bytes >= lax.request_bytes, "{strict:?} {lax:?}");
            prop_assert!(strict.limit_bytes >= lax.limit_bytes);
            prop_assert!(strict.lower_bytes >= lax.lower_bytes);
        }

        /// Recommends less than what is resident only if the upper bound of every period allows it.
        #[test]
        fn it_never_goes_below_what_the_interval_allows(
            times in prop::collection::vec(any_time(), 1..5),
            wait_max in 0.0f64..0.05,
        ) {
            let said = recommend(&times, &[], Wanted { wait_max, ..WANTED }).unwrap();
            for time in &times {
                let memory = said.request_bytes - time.beyond_bytes;
                let is_certain = time.wait_at(memory).high <= wait_max;
                prop_assert!(is_certain || memory >= time.full_bytes, "{said:?} {time:?}");
                prop_assert!(is_certain || said.basis != Basis::Curve, "{said:?} {time:?}");
            }
            prop_assert!(said.lower_bytes <= said.request_bytes);
            prop_assert!(said.request_bytes <= said.limit_bytes);
            prop_assert!(said.resident_bytes <= said.limit_bytes);
        }

        /// With too short a history, never recommends less than what is resident.
        #[test]
        fn short_histories_take_nothing_away(times in prop::collection::vec(any_time(), 1..5)) {
            let wanted = Wanted { wait_max: 1.0, history_ms: u64::MAX };
            let said = recommend(&times, &[], wanted).unwrap();
            prop_assert!(said.request_bytes >= said.resident_bytes);
            prop_assert!(matches!(said.basis, Basis::ShortHistory | Basis::More));
        }
    }
}
