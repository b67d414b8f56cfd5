// SPDX-License-Identifier: Apache-2.0
//! Changes with their 95 % confidence intervals, from pairs.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// The two values of one seed, in the figure's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Value without the document's proposal.
    pub before: f64,
    /// Value with it.
    pub after: f64,
}

/// A change and its confidence interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// Ratio of the means less 1, or difference of the means. None if the mean before is 0 or there
    /// are no pairs.
    pub mean: Option<f64>,
    /// 95 % confidence interval. None for a single pair, or if the values before may well be
    /// 0.
    pub interval: Option<(f64, f64)>,
}

/// Means of both values, with variances and covariance of the means.
struct Moments {
    before: f64,
    after: f64,
    before_variance: f64,
    after_variance: f64,
    covariance: f64,
    /// Square of the 97.5 % quantile of Student's t.
    t2: f64,
}

impl Moments {
    fn of(pairs: &[Pair]) -> Option<Moments> {
        let n = pairs.len() as f64;
        if pairs.is_empty() {
            return None;
        }
        let sum = |value: &dyn Fn(&Pair) -> f64| pairs.iter().map(value).sum::<f64>();
        let (before, after) = (sum(&|pair| pair.before) / n, sum(&|pair| pair.after) / n);
        let of_mean = |value: &dyn Fn(&Pair) -> f64| sum(value) / (n * (n - 1.0));
        let t = if pairs.len() > 1 {
            let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
            t.inverse_cdf(0.975)
        } else {
            f64::NAN
        };
        Some(Moments {
            before,
            after,
            before_variance: of_mean(&|pair| (pair.before - before).powi(2)),
            after_variance: of_mean(&|pair| (pair.after - after).powi(2)),
            covariance: of_mean(&|pair| (pair.before - before) * (pair.after - after)),
            t2: t * t,
        })
    }
}

impl Change {
    /// Ratio of the means less 1, with Fieller's interval for pairs.
    pub fn of_ratios(pairs: &[Pair]) -> Change {
        let Some(moments) = Moments::of(pairs) else {
            return Change::default();
        };
        let Moments { before, after, .. } = moments;
        if before == 0.0 {
            // If all values are 0 there is no change; otherwise a mean of 0 before has no ratio.
            let nothing = pairs
                .iter()
                .all(|pair| pair.before == 0.0 && pair.after == 0.0);
            return Change {
                mean: nothing.then_some(0.0),
                interval: (nothing && pairs.len() > 1).then_some((0.0, 0.0)),
            };
        }
        Change {
            mean: Some(after / before - 1.0),
            interval: if pairs.len() > 1 {
                fieller(&moments)
            } else {
                None
            },
        }
    }

    /// Difference of the means, with Student's interval for pairs.
    pub fn of_differences(pairs: &[Pair]) -> Change {
        let Some(moments) = Moments::of(pairs) else {
            return Change::default();
        };
        let mean = moments.after - moments.before;
        let variance =
            (moments.before_variance + moments.after_variance - 2.0 * moments.covariance).max(0.0);
        let margin = (moments.t2 * variance).sqrt();
        Change {
            mean: Some(mean),
            interval: (pairs.len() > 1).then_some((mean - margin, mean + margin)),
        }
    }

    /// Whether the interval exists and excludes 0.
    pub fn is_significant(&self) -> bool {
        self.interval
            .is_some_and(|(low, high)| low > 0.0 || high < 0.0)
    }
}

/// The ratios `r` that satisfy `(after - r before)^2 <= t^2 var(after - r before)`, a quadratic
/// inequality.
fn fieller(moments: &Moments) -> Option<(f64, f64)> {
    let Moments {
        before, after, t2, ..
    } = *moments;
    let a = before * before - t2 * moments.before_variance;
    let b = before * after - t2 * moments.covariance;
    let c = after * after - t2 * moments.after_variance;
    if a <= 0.0 {
        return None;
    }
    // Rounding may make it negative if nothing varies.
    let root = (b * b - a * c).max(0.0).sqrt();
    Some(((b - root) / a - 1.0, (b + root) / a - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(values: &[(f64, f64)]) -> Vec<Pair> {
        let pair = |&(before, after)| Pair { before, after };
        values.iter().map(pair).collect()
    }

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6
    }

    #[test]
    fn differences_are_students() {
        // Differences -1, 0, 1, 4: mean 1, s = 2.1602, t(3) = 3.1824: margin 3.4374.
        let change =
            Change::of_differences(&pairs(&[(1.0, 0.0), (2.0, 2.0), (3.0, 4.0), (1.0, 5.0)]));
        assert_eq!(change.mean, Some(1.0));
        let (low, high) = change.interval.unwrap();
        assert!((low + 2.437_4).abs() < 1e-3 && (high - 4.437_4).abs() < 1e-3);
        assert!(!change.is_significant());
    }

    /// At the ends of the interval the paired t-test of `after - r before` just rejects.
    #[test]
    fn ratios_are_those_the_paired_test_does_not_reject() {
        let sample = [
            (10.0, 8.1),
            (11.0, 8.9),
            (9.5, 7.2),
            (12.0, 9.9),
            (10.5, 8.2),
        ];
        let change = Change::of_ratios(&pairs(&sample));
        let t = 2.776_445_1;
        let (low, high) = change.interval.unwrap();
        for end in [low, high] {
            let ratio = end + 1.0;
            let rest: Vec<(f64, f64)> = sample
                .iter()
                .map(|&(before, after)| (0.0, after - ratio * before))
                .collect();
            let rest = Change::of_differences(&pairs(&rest));
            let (mean, (low, _)) = (rest.mean.unwrap(), rest.interval.unwrap());
            assert!(close(mean.abs() / ((mean - low) / t), t), "{end}");
        }
        assert!(low < change.mean.unwrap() && change.mean.unwrap() < high);
        assert!(change.is_significant());
    }

    #[test]
    fn what_is_always_the_same_is_certain() {
        let change = Change::of_ratios(&pairs(&[(10.0, 9.0); 4]));
        let (low, high) = change.interval.unwrap();
        assert!(close(low, -0.1) && close(high, -0.1));
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(Change::of_ratios(&[]), Change::default());
        let one = Change::of_ratios(&pairs(&[(2.0, 1.0)]));
        assert_eq!((one.mean, one.interval), (Some(-0.5), None));
        // There is no ratio to 0, nor to values that may well be 0.
        assert_eq!(Change::of_ratios(&pairs(&[(0.0, 1.0); 3])).mean, None);
        let unsteady = pairs(&[(100.0, 1.0), (-99.0, 1.0), (1.0, 1.0)]);
        assert_eq!(Change::of_ratios(&unsteady).interval, None);
        let nothing = Change::of_ratios(&pairs(&[(0.0, 0.0); 3]));
        assert_eq!(
            (nothing.mean, nothing.interval),
            (Some(0.0), Some((0.0, 0.0)))
        );
    }
}
