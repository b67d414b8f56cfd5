// SPDX-License-Identifier: Apache-2.0
//! Means with 95 % confidence intervals, and tests for the difference of two means: Welch's and the
//! paired one.

use serde::Serialize;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Summary of repetitions of one measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of repetitions.
    pub n: usize,
    pub mean: f64,
    /// Half the width of the 95 % confidence interval of the mean; None for a single repetition.
    pub ci95: Option<f64>,
    /// Sample variance.
    #[serde(skip)]
    pub variance: f64,
}

impl Summary {
    /// Summarizes a sample; None if it is empty.
    pub fn of(values: &[f64]) -> Option<Summary> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let (variance, ci95) = if n == 1 {
            (0.0, None)
        } else {
            let variance = squares / (n as f64 - 1.0);
            let t = StudentsT::new(0.0, 1.0, n as f64 - 1.0).ok();
            let ci95 = t.map(|t| t.inverse_cdf(0.975) * (variance / n as f64).sqrt());
            (variance, ci95)
        };
        Some(Summary {
            n,
            mean,
            ci95,
            variance,
        })
    }

    /// Restores a summary from the size, the mean and half the 95 % interval, if it has one.
    pub fn from_interval(n: usize, mean: f64, ci95: Option<f64>) -> Summary {
        let t = StudentsT::new(0.0, 1.0, n as f64 - 1.0).ok();
        let deviation = match (ci95, t) {
            (Some(ci95), Some(t)) => ci95 / t.inverse_cdf(0.975),
            _ => 0.0,
        };
        Summary {
            n,
            mean,
            ci95,
            variance: deviation.powi(2) * n as f64,
        }
    }

    /// p-value of the difference of two samples (Welch's t-test, two-sided). None if one has no
    /// interval or fewer than two values; 1 or 0 if neither varies.
    pub fn welch(&self, other: &Summary) -> Option<f64> {
        let is_sample = |of: &Summary| of.n > 1 && of.ci95.is_some();
        if !is_sample(self) || !is_sample(other) {
            return None;
        }
        let of_mean = |summary: &Summary| summary.variance / summary.n as f64;
        let (a, b) = (of_mean(self), of_mean(other));
        let difference = (self.mean - other.mean).abs();
        if a + b == 0.0 {
            return Some(if difference == 0.0 { 1.0 } else { 0.0 });
        }
        let freedom = (a + b).powi(2)
            / (a.powi(2) / (self.n as f64 - 1.0) + b.powi(2) / (other.n as f64 - 1.0));
        let t = StudentsT::new(0.0, 1.0, freedom).ok()?;
        Some(2.0 * (1.0 - t.cdf(difference / (a + b).sqrt())))
    }
}

/// Differences that vary by less than this part of the values are equal but for rounding.
const ROUNDING: f64 = 1e-12;

/// p-value of the difference of two samples whose values are pairs (paired t-test, two-sided). None
/// for fewer than two pairs, or if a variance exceeds what a number can hold.
///
/// Equal differences have no t. If the values do not vary either, no seed matters and the
/// difference is certain. Otherwise a few may be equal by chance: the sign test decides.
pub fn paired(pairs: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let pairs: Vec<(f64, f64)> = pairs.collect();
    let differences: Vec<f64> = pairs.iter().map(|(a, b)| b - a).collect();
    let of = Summary::of(&differences).filter(|of| of.n > 1 && of.variance.is_finite())?;
    let values = pairs.iter().flat_map(|(a, b)| [a.abs(), b.abs()]);
    let rounding = values.fold(0.0, f64::max) * ROUNDING;
    if differences
        .iter()
        .all(|of| (of - differences[0]).abs() <= rounding)
    {
        let is_constant = pairs.iter().all(|pair| *pair == pairs[0]);
        return Some(match of.mean.abs() <= rounding {
            true => 1.0,
            false if is_constant => 0.0,
            false => 2.0 * 0.5f64.powi(i32::try_from(of.n).unwrap_or(i32::MAX)),
        });
    }
    let t = StudentsT::new(0.0, 1.0, of.n as f64 - 1.0).ok()?;
    Some(2.0 * t.sf(of.mean.abs() / (of.variance / of.n as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_textbook_sample() {
        let summary = Summary::of(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).unwrap();
        assert!((summary.mean - 5.0).abs() < 1e-12);
        // s = 2.138, t(7, 0.975) = 2.3646: 2.138 / sqrt(8) * 2.3646 = 1.7874.
        assert!((summary.ci95.unwrap() - 1.7874).abs() < 1e-3);
        let again = Summary::from_interval(8, summary.mean, summary.ci95);
        assert!((again.variance - summary.variance).abs() < 1e-9);
        assert_eq!(Summary::from_interval(1, 3.0, None).variance, 0.0);
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[3.0]).unwrap().ci95, None);
    }

    #[test]
    fn welch_against_a_worked_example() {
        // Means 3 and 6, variances 2.5 and 10, n = 5: t = 1.8974, 5.88 degrees of freedom.
        let one = Summary::of(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        let two = Summary::of(&[2.0, 4.0, 6.0, 8.0, 10.0]).unwrap();
        let p = one.welch(&two).unwrap();
        assert!((p - 0.107).abs() < 0.001, "{p}");
        assert!((one.welch(&one).unwrap() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn pairs_tell_apart_what_samples_cannot() {
        // Differences 1, 2, 1, 2, 1: mean 1.4, s 0.5477, t = 5.715 with 4 degrees of freedom.
        let before = [10.0, 20.0, 30.0, 40.0, 50.0];
        let after = [11.0, 22.0, 31.0, 42.0, 51.0];
        let pairs = || before.into_iter().zip(after);
        let p = paired(pairs()).unwrap();
        assert!((p - 0.00464).abs() < 0.0001, "{p}");
        let [a, b] = [before, after].map(|values| Summary::of(&values).unwrap());
        assert!(a.welch(&b).unwrap() > 0.8);
        assert_eq!(paired(pairs().take(1)), None);
        assert_eq!(paired([(0.0, f64::MAX), (f64::MAX, 0.0)].into_iter()), None);
        assert_eq!(paired([(-f64::MAX, f64::MAX); 2].into_iter()), None);
        assert_eq!(paired(pairs().map(|(a, _)| (a, a))), Some(1.0));
    }

    /// All of n signs are equal with a probability of 2 / 2^n.
    #[test]
    fn equal_differences_of_a_few_pairs_are_no_certainty() {
        let rises = |n: usize, by: f64| paired((0..n).map(|at| (at as f64, at as f64 + by)));
        assert_eq!(rises(2, 1.0), Some(0.5));
        assert_eq!(rises(5, -7.0), Some(0.0625));
        assert_eq!(
            paired([(0.1, 0.2), (0.2, 0.3), (0.7, 0.8)].into_iter()),
            Some(0.25)
        );
        assert_eq!(
            paired([(3.0, 4.0); 2].into_iter()),
            Some(0.0),
            "no seed matters"
        );
    }

    #[test]
    fn constant_samples_differ_or_do_not() {
        let (one, two) = (
            Summary::of(&[1.0; 3]).unwrap(),
            Summary::of(&[2.0; 3]).unwrap(),
        );
        assert_eq!(one.welch(&two), Some(0.0));
        assert_eq!(one.welch(&one), Some(1.0));
        assert_eq!(one.welch(&Summary::of(&[1.0]).unwrap()), None);
        let of_orders = Summary::from_interval(3, 2.0, None);
        assert_eq!(of_orders.welch(&one), None);
    }
}
