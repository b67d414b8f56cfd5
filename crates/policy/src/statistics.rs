// SPDX-License-Identifier: Apache-2.0
//! Differences between samples, with confidence intervals.

use serde::{Deserialize, Serialize};

/// A difference of means, absolute or relative, with its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The best estimate.
    pub mean: f64,
    /// Half the width of the interval.
    pub half: f64,
}

impl Change {
    /// The mean of differences, with Student's interval. Needs at least two.
    pub fn mean_of(differences: impl Iterator<Item = f64> + Clone) -> Change {
        let count = differences.clone().count() as f64;
        let mean = differences.clone().sum::<f64>() / count;
        let squares: f64 = differences.map(|value| (value - mean).powi(2)).sum();
        let error = (squares / (count - 1.0) / count).sqrt();
        Change {
            mean,
            half: student(count - 1.0) * error,
        }
    }

    /// Whether the whole interval is below zero.
    pub fn is_less(&self) -> bool {
        self.mean + self.half < 0.0
    }

    /// Whether the whole interval is above zero.
    pub fn is_more(&self) -> bool {
        self.mean - self.half > 0.0
    }
}

/// The 97.5 % quantile of Student's t, from the expansion of Cornish and Fisher: exact for one
/// degree of freedom, accurate to 1 % for 2, and to 0.2 % from 3 on.
pub fn student(freedom: f64) -> f64 {
    const NORMAL: f64 = 1.959_964;
    if freedom <= 1.0 {
        return 12.706_205;
    }
    /// Coefficients of the powers of 1 / freedom.
    const TERMS: [f64; 5] = [NORMAL, 2.372_271, 2.822_499, 2.555_850, 1.589_534];
    let (mut sum, mut power) = (0.0, 1.0);
    for term in TERMS {
        sum += term * power;
        power /= freedom;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_student() {
        let table = [
            (1.0, 12.706),
            (2.0, 4.303),
            (3.0, 3.182),
            (7.0, 2.365),
            (20.0, 2.086),
        ];
        for (freedom, quantile) in table {
            let off = (student(freedom) / quantile - 1.0).abs();
            let most = if freedom < 3.0 { 0.01 } else { 0.002 };
            assert!(off < most, "{freedom}: {off}");
        }
        assert!((student(1e9) - 1.96).abs() < 0.001);
    }

    /// Student's own comparison of two drugs, given to the same patients.
    #[test]
    fn the_interval_of_differences_is_that_of_student() {
        let differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4];
        let change = Change::mean_of(differences.into_iter());
        assert!((change.mean - 1.58).abs() < 1e-9);
        assert!((change.half - 0.879_886).abs() < 2e-3, "{change:?}");
        assert!(change.is_more() && !change.is_less());
    }

    #[test]
    fn what_never_varies_is_certain() {
        let change = Change::mean_of([1.0; 4].into_iter());
        assert_eq!((change.mean, change.half), (1.0, 0.0));
        assert!(change.is_more());
    }
}
