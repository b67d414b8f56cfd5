// SPDX-License-Identifier: Apache-2.0
//! What a measured change says about the document's. All documents are judged here and nowhere
//! else.

use std::fmt;

use serde::{Serialize, Serializer};

use super::{Change, Figure, Pair};

/// The change to expect from a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expectation {
    /// The change that follows from its values.
    Figures,
    /// A change stated without values: a ratio less 1, or a difference.
    Change(f64),
    /// A change stated as a 95 % interval, from the lower end: ratios less 1.
    Within(f64, f64),
    /// No change within this margin: a ratio less 1, or a difference.
    Unchanged(f64),
    /// The document has no such figure: the row is our own and not judged.
    Own,
}

impl Expectation {
    /// No significant change: ours must be shown to be within 3 % of none.
    pub const NO_CHANGE: Expectation = Expectation::Unchanged(0.03);
}

/// Accepted factor between our change and the document's: other machines, other sizes.
const FACTOR: f64 = 2.0;

/// A ratio closer to 1 than this is no change, however certain it is.
const NOTHING: f64 = 1e-4;

/// A ratio closer to 1 than this is too small to have a direction, unless the document's change is
/// as small.
const LITTLE: f64 = 1e-3;

/// Relation of our figure to the document's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The interval excludes 0, the change has the document's direction, and its size agrees: the
    /// intervals overlap, or one is at most twice the other. If the document expects no change: the
    /// whole interval is within that margin.
    Reproduced,
    /// The interval excludes 0 and the change has the document's direction but another size, of 0.1
    /// % or more.
    SameSign,
    /// The interval excludes 0 and the change has the other direction, by 0.1 % or more or by the
    /// document's size; or there is a change beyond the margin where the document expects none.
    Opposite,
    /// The emulation does not respond: both values are 0, the change is next to nothing, or the
    /// interval contains 0 although it is narrow enough to have shown half the claim.
    Insensitive,
    /// The interval contains 0 and is too wide to have shown half the claim, or there is no
    /// interval.
    Underpowered,
    /// The document has no such figure: only ours, never counted.
    Own,
}

impl Verdict {
    /// Judges the change computed from `pairs`; `is_forced` if it is a difference only because
    /// there is no ratio to 0.
    pub fn of(figure: &Figure, pairs: &[Pair], change: &Change, is_forced: bool) -> Verdict {
        if figure.expectation == Expectation::Own {
            return Verdict::Own;
        }
        if pairs
            .iter()
            .all(|pair| pair.before == 0.0 && pair.after == 0.0)
        {
            return Verdict::Insensitive;
        }
        let (Some(mean), Some(interval)) = (change.mean, change.interval) else {
            return Verdict::Underpowered;
        };
        if let Expectation::Unchanged(margin) = figure.expectation {
            return match is_forced {
                true => Verdict::Underpowered,
                false => of_no_change(mean, interval, margin),
            };
        }
        let Some(claim) = figure.document_change() else {
            return Verdict::Own;
        };
        if is_forced && figure.states_ratio() {
            return match change.is_significant() {
                true if mean * claim > 0.0 => Verdict::SameSign,
                true => Verdict::Opposite,
                false => Verdict::Underpowered,
            };
        }
        let (low, high) = interval;
        if !change.is_significant() {
            let too_wide = (high - low) / 2.0 > claim.abs() / 2.0;
            return if too_wide {
                Verdict::Underpowered
            } else {
                Verdict::Insensitive
            };
        }
        let is_ratio = !figure.by_difference;
        if is_ratio && mean.abs() < NOTHING {
            return Verdict::Insensitive;
        }
        let same_way = mean * claim > 0.0;
        let of_its_size = match same_way {
            true => has_size(figure, claim, mean, interval),
            false => has_size(figure, claim, -mean, (-high, -low)),
        };
        match (same_way, of_its_size) {
            (true, true) => Verdict::Reproduced,
            (_, false) if is_ratio && mean.abs() < LITTLE => Verdict::Insensitive,
            (true, false) => Verdict::SameSign,
            (false, _) => Verdict::Opposite,
        }
    }
}

fn of_no_change(mean: f64, (low, high): (f64, f64), margin: f64) -> Verdict {
    if low >= -margin && high <= margin {
        Verdict::Reproduced
    } else if mean.abs() > margin && (low > 0.0 || high < 0.0) {
        Verdict::Opposite
    } else {
        Verdict::Underpowered
    }
}

impl Figure {
    /// Whether its claim is in percent, which has no size in units.
    fn states_ratio(&self) -> bool {
        matches!(
            self.expectation,
            Expectation::Within(..) | Expectation::Change(_)
        )
    }
}

/// Whether a change in the claimed direction also has the claimed size.
fn has_size(figure: &Figure, claim: f64, mean: f64, (low, high): (f64, f64)) -> bool {
    let (claim_low, claim_high) = match figure.expectation {
        Expectation::Within(low, high) => (low, high),
        _ => (claim, claim),
    };
    if figure.by_difference && figure.states_ratio() {
        return false;
    }
    let overlap = low <= claim_high && high >= claim_low;
    overlap || (1.0 / FACTOR..=FACTOR).contains(&(mean / claim))
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Reproduced => "reproduced",
            Verdict::SameSign => "same sign",
            Verdict::Opposite => "opposite",
            Verdict::Insensitive => "insensitive",
            Verdict::Underpowered => "underpowered",
            Verdict::Own => "own",
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
        let pair = Pair {
            before: 1.0,
            after: 1.0 + mean,
        };
        Verdict::of(figure, &[pair], &change, false)
    }

    #[test]
    fn size_and_sign_are_judged_once_it_is_certain() {
        // The document has 10 % less.
        let figure = Figure::lower("time", "s", Expectation::Figures).document(100.0, 90.0);
        for (mean, low, high, expected) in [
            (-0.06, -0.07, -0.05, Verdict::Reproduced),
            (-0.19, -0.21, -0.17, Verdict::Reproduced),
            (-0.04, -0.11, -0.01, Verdict::Reproduced),
            (-0.04, -0.05, -0.03, Verdict::SameSign),
            (-0.54, -0.55, -0.53, Verdict::SameSign),
            (-0.0005, -0.0006, -0.0004, Verdict::Insensitive),
            (0.0005, 0.0004, 0.0006, Verdict::Insensitive),
            (0.002, 0.001, 0.003, Verdict::Opposite),
            (0.000_01, 0.000_009, 0.000_011, Verdict::Insensitive),
            (-0.1, -0.21, 0.01, Verdict::Underpowered),
            (-0.01, -0.03, 0.01, Verdict::Insensitive),
            (0.1, 0.05, 0.15, Verdict::Opposite),
        ] {
            assert_eq!(verdict(&figure, mean, low, high), expected, "{mean}");
        }
        let nothing = Change::default();
        let pair = [Pair {
            before: 1.0,
            after: 2.0,
        }];
        let unknown = Verdict::of(&figure, &pair, &nothing, false);
        assert_eq!(unknown, Verdict::Underpowered);
    }

    #[test]
    fn less_than_a_thousandth_has_a_direction_only_beside_a_claim_as_small() {
        // The document has 0.05 % less.
        let figure = Figure::lower("time", "s", Expectation::Figures).document(100.0, 99.95);
        for (mean, low, high, expected) in [
            (-0.0004, -0.0005, -0.0003, Verdict::Reproduced),
            (0.0004, 0.0003, 0.0005, Verdict::Opposite),
            (-0.0002, -0.0003, -0.0001, Verdict::Insensitive),
            (0.0002, 0.0001, 0.0003, Verdict::Insensitive),
        ] {
            assert_eq!(verdict(&figure, mean, low, high), expected, "{mean}");
        }
    }

    #[test]
    fn intervals_of_documents_need_only_overlap() {
        let figure = Figure::higher("rate", "1/s", Expectation::Within(0.005, 0.026));
        assert_eq!(verdict(&figure, 0.002, 0.001, 0.006), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.002, 0.001, 0.003), Verdict::SameSign);
        assert_eq!(verdict(&figure, 0.03, 0.029, 0.031), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.04, 0.039, 0.041), Verdict::SameSign);
        // A claim in percent has no size if only a difference can be computed.
        let figure = figure.by_difference();
        assert_eq!(verdict(&figure, 0.01, 0.009, 0.011), Verdict::SameSign);
    }

    /// Where our value before is 0 there is only a difference, in units.
    #[test]
    fn percents_are_not_judged_in_units() {
        let changed = |expectation, mean: f64| {
            let figure = Figure::lower("time", "s", expectation).by_difference();
            let change = Change {
                mean: Some(mean),
                interval: Some((mean - 0.05, mean + 0.05)),
            };
            let pair = Pair {
                before: 0.0,
                after: mean,
            };
            Verdict::of(&figure, &[pair], &change, true)
        };
        for (expectation, mean, expected) in [
            (Expectation::NO_CHANGE, 1.0, Verdict::Underpowered),
            (Expectation::NO_CHANGE, 0.01, Verdict::Underpowered),
            (Expectation::Change(0.5), 0.04, Verdict::Underpowered),
            (Expectation::Change(0.5), 1.0, Verdict::SameSign),
            (Expectation::Within(-0.2, -0.1), 1.0, Verdict::Opposite),
        ] {
            assert_eq!(changed(expectation, mean), expected, "{expectation:?}");
        }
    }

    #[test]
    fn what_the_document_has_no_figure_of_is_ours() {
        let own = Figure::lower("writes", "pages", Expectation::Own);
        assert_eq!(verdict(&own, -0.01, -0.02, -0.005), Verdict::Own);
        let stated = Figure::higher("rate", "1/s", Expectation::Change(0.04));
        assert_eq!(verdict(&stated, 0.03, 0.02, 0.035), Verdict::Reproduced);
        assert_eq!(verdict(&stated, 0.3, 0.2, 0.35), Verdict::SameSign);
    }

    #[test]
    fn no_change_must_be_shown_too() {
        let figure = Figure::lower("mean", "ms", Expectation::Unchanged(0.02));
        assert_eq!(verdict(&figure, 0.001, -0.01, 0.012), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.01, 0.005, 0.015), Verdict::Reproduced);
        assert_eq!(verdict(&figure, 0.01, -0.03, 0.05), Verdict::Underpowered);
        assert_eq!(verdict(&figure, 0.04, 0.03, 0.05), Verdict::Opposite);
        let nothing = Pair {
            before: 0.0,
            after: 0.0,
        };
        let change = Change {
            mean: Some(0.0),
            interval: Some((0.0, 0.0)),
        };
        assert_eq!(
            Verdict::of(&figure, &[nothing], &change, false),
            Verdict::Insensitive
        );
    }
}
