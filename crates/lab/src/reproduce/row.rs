// SPDX-License-Identifier: Apache-2.0
//! Results of the figures, and their summary for a document.

use serde::Serialize;

use super::{Benchmark, Better, Change, Document, Expectation, Figure, Pair, Verdict};

/// Result of one figure. Serializes to the fields of `agewise lab reproduce --format json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Benchmark, with the metric after a `/` if it has several.
    pub benchmark: String,
    /// The document's value before, in the document's unit.
    pub document_before: Option<f64>,
    /// The document's value after.
    pub document_after: Option<f64>,
    /// Our value before: the mean over the seeds.
    pub ours_before: f64,
    /// Our value after.
    pub ours_after: f64,
    /// Our change: a ratio less 1 (-0.02 is 2 % less) or, by difference, in our unit. None without
    /// pairs.
    pub change: Option<f64>,
    /// Lower end of the 95 % interval; None without an interval.
    pub ci_low: Option<f64>,
    /// Upper end of the 95 % interval.
    pub ci_high: Option<f64>,
    /// The verdict on the document's claim.
    pub verdict: Verdict,
    /// Why a claim is not reproduced, if an experiment has shown it.
    pub cause: Option<&'static str>,
    /// The document's change, computed from its values, or the middle of its interval.
    pub document_change: Option<f64>,
    /// Lower end of the document's 95 % interval, if it gives one.
    pub document_low: Option<f64>,
    /// Upper end of the document's 95 % interval.
    pub document_high: Option<f64>,
    /// The change as printed in the document, if it is different.
    pub document_printed: Option<&'static str>,
    /// Whether the document's change may be noise.
    pub document_within_noise: bool,
    /// Name of the measure.
    pub metric: &'static str,
    /// Our unit.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// Whether `change` is a difference in `unit` instead of a ratio: chosen so, or because a value
    /// before is 0.
    pub by_difference: bool,
    /// The variant used for "after".
    pub variant: &'static str,
    /// Settings of every machine that were given, as `key=value` separated by blanks.
    pub settings: String,
    /// Number of seeds, from 1.
    pub seeds: u64,
    /// Values of each seed as `[before, after]`.
    pub raw: Vec<[f64; 2]>,
}

/// Number of a document's claims that were reproduced: the last line of `--format json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// `summary`, which distinguishes this line from rows.
    pub record: &'static str,
    pub document: &'static str,
    /// Figures with a statement in the document.
    pub claims: u64,
    /// Claims that are reproduced.
    pub reproduced: u64,
    /// Right direction, other size.
    pub same_sign: u64,
    /// Other direction.
    pub opposite: u64,
    /// No response.
    pub insensitive: u64,
    /// Too few seeds to decide.
    pub underpowered: u64,
    /// Our own figures, which are not claims.
    pub own: u64,
}

impl Summary {
    /// Counts the rows of a document.
    pub fn of(document: &Document, rows: &[Row]) -> Summary {
        let count = |verdict| rows.iter().filter(|row| row.verdict == verdict).count() as u64;
        let own = count(Verdict::Own);
        Summary {
            record: "summary",
            document: document.name,
            claims: rows.len() as u64 - own,
            reproduced: count(Verdict::Reproduced),
            same_sign: count(Verdict::SameSign),
            opposite: count(Verdict::Opposite),
            insensitive: count(Verdict::Insensitive),
            underpowered: count(Verdict::Underpowered),
            own,
        }
    }
}

/// The rows of a benchmark, from the pairs of each seed.
pub(super) fn rows(
    document: &Document,
    benchmark: &Benchmark,
    samples: &[Vec<Pair>],
    variant: &'static str,
    settings: &str,
) -> Vec<Row> {
    let several = benchmark.figures.len() > 1;
    let row = |(index, figure): (usize, &Figure)| {
        let pairs: Vec<Pair> = samples.iter().map(|pairs| pairs[index]).collect();
        let name = if several {
            format!("{}/{}", benchmark.name, figure.metric)
        } else {
            benchmark.name.clone()
        };
        let mut row = row(name, figure, &pairs, variant);
        settings.clone_into(&mut row.settings);
        if !matches!(row.verdict, Verdict::Own | Verdict::Reproduced) {
            row.cause = cause(document, &row.benchmark);
        }
        row
    };
    benchmark.figures.iter().enumerate().map(row).collect()
}

fn row(name: String, figure: &Figure, pairs: &[Pair], variant: &'static str) -> Row {
    let mean =
        |value: fn(&Pair) -> f64| pairs.iter().map(value).sum::<f64>() / pairs.len().max(1) as f64;
    let (ours_before, ours_after) = (mean(|pair| pair.before), mean(|pair| pair.after));
    let mut figure = figure.clone();
    // There is no ratio to 0.
    let no_ratio = ours_before == 0.0 || figure.document_before == Some(0.0);
    let is_forced = no_ratio && !figure.by_difference;
    figure.by_difference |= no_ratio;
    let change = if figure.by_difference {
        Change::of_differences(pairs)
    } else {
        Change::of_ratios(pairs)
    };
    let document_ends = match figure.expectation {
        Expectation::Within(low, high) => Some((low, high)),
        _ => None,
    };
    Row {
        benchmark: name,
        document_before: figure.document_before,
        document_after: figure.document_after,
        ours_before,
        ours_after,
        change: change.mean,
        ci_low: change.interval.map(|(low, _)| low),
        ci_high: change.interval.map(|(_, high)| high),
        verdict: Verdict::of(&figure, pairs, &change, is_forced),
        cause: None,
        document_change: figure.document_change(),
        document_low: document_ends.map(|(low, _)| low),
        document_high: document_ends.map(|(_, high)| high),
        document_printed: figure.printed,
        document_within_noise: figure.within_noise,
        metric: figure.metric,
        unit: figure.unit,
        better: figure.better,
        by_difference: figure.by_difference,
        variant,
        settings: String::new(),
        seeds: pairs.len() as u64,
        raw: pairs.iter().map(|pair| [pair.before, pair.after]).collect(),
    }
}

/// The cause listed in the document for a row.
fn cause(document: &Document, name: &str) -> Option<&'static str> {
    let fits = |known: &str| {
        name.strip_prefix(known)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let of_row = document.causes.iter().filter(|(known, _)| fits(known));
    of_row
        .max_by_key(|(known, _)| known.len())
        .map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_zero_before_does_not_judge_percents_in_units() {
        let figure = Figure::lower("stalls", "1", Expectation::NO_CHANGE);
        let pair = |after| Pair { before: 0.0, after };
        let row = row("of".to_owned(), &figure, &[1.0, 1.0, 1.1].map(pair), "v");
        assert_eq!(row.verdict, Verdict::Underpowered);
    }
}
