// SPDX-License-Identifier: Apache-2.0
//! What a measured change says about the document's.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Better, Change, Figure};

/// What a document leads one to expect of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expectation {
    /// The change its values say.
    Figures,
    /// A change stated without values: a ratio less 1, or a difference.
    Change(f64),
    /// For the better, it does not say by how much.
    Better,
    /// For the worse, it does not say by how much.
    Worse,
    /// None, give or take this much: a ratio less 1, or a difference.
    Unchanged(f64),
}

/// Our size may be so many times the document's, or a part as small: other machines, other sizes.
const FACTOR: f64 = 2.0;

/// How our figure relates to the document's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval does not hold 0, the change goes the way the document says and, where it says by
    /// how much, that lies in the interval or within a factor of two of our change. If the document
    /// expects no change: the whole interval lies within the margin of that.
    Reproduced,
    /// The interval does not hold 0 and the change goes the way the document says, by another size.
    SameSign,
    /// The interval holds 0, or there is none.
    NotSignificant,
    /// The interval does not hold 0 and the change goes the other way; or the document expects none.
    Opposite,
}

impl Verdict {
    /// Judges a change.
    pub fn of(figure: &Figure, change: &Change) -> Verdict {
        if let (Expectation::Unchanged(margin), Some((low, high))) =
            (figure.expectation, change.interval)
            && low >= -margin
            && high <= margin
        {
            return Verdict::Reproduced;
        }
        let significant = change.mean.filter(|_| change.is_significant());
        let (Some(mean), Some((low, high))) = (significant, change.interval) else {
            return Verdict::NotSignificant;
        };
        let sign = |better: bool| {
            if better == (figure.better == Better::Higher) {
                1.0
            } else {
                -1.0
            }
        };
        let (sign, size) = match figure.expectation {
            Expectation::Unchanged(_) => return Verdict::Opposite,
            Expectation::Better => (sign(true), None),
            Expectation::Worse => (sign(false), None),
            Expectation::Figures | Expectation::Change(_) => match figure.document_change() {
                Some(size) => (size, Some(size)),
                None => (sign(true), None),
            },
        };
        if sign * mean <= 0.0 {
            return Verdict::Opposite;
        }
        let fits = size.is_none_or(|size| {
            let factor = mean / size;
            (low..=high).contains(&size) || (1.0 / FACTOR..=FACTOR).contains(&factor)
        });
        if fits {
            Verdict::Reproduced
        } else {
            Verdict::SameSign
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::SameSign => "same sign",
            Verdict::NotSignificant => "not significant",
            Verdict::Opposite => "opposite",
        })
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(figure: &Figure, mean: f64, low: f64, high: f64) -> Verdict {
        let change = Change {
            mean: Some(mean),
            interval: Some((low, high)),
        };
        Verdict::of(figure, &change)
    }

    #[test]
    fn size_and_sign_are_judged_once_it_is_certain() {
        // The document: 10 % fewer.
        let figure = Figure::lower("time", "s", Expectation::Figures).document(100.0, 90.0);
        assert_eq!(verdict(&figure, -0.06, -0.07, -0.05), Verdict::Reproduced);
        assert_eq!(verdict(&figure, -0.19, -0.21, -0.17), Verdict::Reproduced);
        assert_eq!(verdict(&figure, -0.04, -0.11, -0.01), Verdict::Reproduced);
        assert_eq!(verdict(&figure, -0.04, -0.05, -0.03), Verdict::SameSign);
        assert_eq!(verdict(&figure, -0.1, -0.21, 0.01), Verdict::NotSignificant);
        assert_eq!(verdict(&figure, 0.1, 0.05, 0.15), Verdict::Opposite);
        assert_eq!(
            Verdict::of(&figure, &Change::default()),
            Verdict::NotSignificant
        );
    }

    #[test]
    fn a_direction_without_a_size() {
        let better = Figure::lower("writes", "pages", Expectation::Better);
        assert_eq!(verdict(&better, -0.01, -0.02, -0.005), Verdict::Reproduced);
        assert_eq!(verdict(&better, 0.01, 0.005, 0.02), Verdict::Opposite);
        let worse = Figure::higher("rate", "1/s", Expectation::Worse);
        assert_eq!(verdict(&worse, -0.01, -0.02, -0.005), Verdict::Reproduced);
        let stated = Figure::higher("rate", "1/s", Expectation::Change(0.04));
        assert_eq!(verdict(&stated, 0.03, 0.02, 0.035), Verdict::Reproduced);
        assert_eq!(verdict(&stated, 0.3, 0.2, 0.35), Verdict::SameSign);
    }

    #[test]
    fn no_change_must_be_shown_too() {
        let figure = Figure::lower("mean", "ms", Expectation::Unchanged(0.02));
        assert_eq!(verdict(&figure, 0.001, -0.01, 0.012), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.01, 0.005, 0.015), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.01, -0.03, 0.05), Verdict::NotSignificant);
        assert_eq!(verdict(&figure, 0.04, 0.03, 0.05), Verdict::Opposite);
    }
}
