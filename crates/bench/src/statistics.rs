// SPDX-License-Identifier: Apache-2.0
//! Medians, and the change shown by paired measurements.

use agewise_policy::statistics::Change as Interval;
use serde::Serialize;

/// The median; 0 if there are no values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        count if count % 2 == 1 => sorted[count / 2],
        count => (sorted[count / 2 - 1] + sorted[count / 2]) / 2.0,
    }
}

/// A relative change with its 95 % confidence interval; -0.02 is 2 % less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Geometric mean of the ratios, minus 1.
    pub change_ratio: f64,
    /// Lower end of the interval.
    pub change_low_ratio: f64,
    /// Upper end of the interval.
    pub change_high_ratio: f64,
}

impl Change {
    /// The change over `(without, with)` pairs, by Student's t on the logarithms of their ratios.
    /// `None` for fewer than three pairs or if a value is not positive.
    pub fn of_pairs(pairs: &[(f64, f64)]) -> Option<Self> {
        if pairs.len() < 3 || pairs.iter().any(|&(a, b)| a <= 0.0 || b <= 0.0) {
            return None;
        }
        let logs = pairs.iter().map(|(without, with)| (with / without).ln());
        let Interval { mean, half } = Interval::mean_of(logs);
        Some(Self {
            change_ratio: mean.exp() - 1.0,
            change_low_ratio: (mean - half).exp() - 1.0,
            change_high_ratio: (mean + half).exp() - 1.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
    }

    #[test]
    fn a_change_that_is_always_the_same_is_certain() {
        let change = Change::of_pairs(&[(100.0, 98.0); 5]).expect("pairs");
        assert!((change.change_ratio + 0.02).abs() < 1e-12);
        assert!((change.change_high_ratio - change.change_low_ratio).abs() < 1e-12);
    }

    #[test]
    fn the_interval_is_students() {
        // Logs -1, 0, 1 times 0.01: standard error 0.01/sqrt(3), t(2) at 97.5 % is 4.3027.
        let pairs = [(1.0, (-0.01f64).exp()), (1.0, 1.0), (1.0, 0.01f64.exp())];
        let change = Change::of_pairs(&pairs).expect("pairs");
        let margin = 4.302_65 * 0.01 / 3f64.sqrt();
        assert!(change.change_ratio.abs() < 1e-12);
        let high_ratio = margin.exp() - 1.0;
        assert!((change.change_high_ratio / high_ratio - 1.0).abs() < 0.01);
    }

    #[test]
    fn too_little_says_nothing() {
        assert_eq!(Change::of_pairs(&[(1.0, 1.0); 2]), None);
        assert_eq!(Change::of_pairs(&[(1.0, 0.0); 9]), None);
    }
}
