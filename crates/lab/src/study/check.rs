// SPDX-License-Identifier: Apache-2.0
//! Finds what got worse from one result to another.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use serde::Serialize;

use super::description::{Described, Description, RunCell};
use super::error::StudyError;
use super::measured::{Key, Size, Values, check_contents, measured};
use super::result::{Form, ResultFile};
use crate::experiment::statistics::paired;

/// Limits above which a cell counts as worse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Accepted rise of a measure, relative to the first result.
    pub budget: f64,
    /// Accepted share of false alarms among the cells found worse.
    pub significance: f64,
}

/// One measure of one policy, workload or trace, and memory size, compared between two results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Workload or trace.
    pub workload: String,
    /// Its SHA-256: several may have one name.
    pub source_sha256: String,
    pub policy: String,
    /// `memory.max`; null for a curve.
    pub memory_bytes: Option<u64>,
    /// The size of a curve's pool.
    pub size_pages: Option<u64>,
    /// Swap, settings, DAMON, samples and options, if a result has several of them.
    pub conditions: String,
    pub measure: String,
    /// Samples (seeds) of the first result.
    pub n_before: usize,
    /// Mean of the first result.
    pub before: f64,
    /// Samples of the second result.
    pub n_after: usize,
    /// Mean of the second result.
    pub after: f64,
    /// Relative rise; null if the mean was 0 before.
    pub change: Option<f64>,
    /// The test; null without samples.
    pub test: Option<Test>,
    /// p-value of the difference.
    pub p: Option<f64>,
    /// Whether it rose by more than the budget, and significantly.
    pub worse: bool,
}

impl Comparison {
    /// The memory, for people.
    #[must_use]
    pub fn size(&self) -> Size {
        Size {
            memory_bytes: self.memory_bytes,
            size_pages: self.size_pages,
        }
    }
}

/// How the means of a cell are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Test {
    /// The paired t-test: both results have each run with the same seeds, so the same accesses.
    Paired,
    /// Welch's t-test.
    Welch,
}

impl Test {
    /// The test that two cells allow, and its p-value.
    fn of(a: &Values, b: &Values) -> Option<(Test, f64)> {
        if a.by_seed.len() > 1 && a.by_seed.keys().eq(b.by_seed.keys()) {
            let pairs = a.by_seed.values().copied().zip(b.by_seed.values().copied());
            return Some((Test::Paired, paired(pairs)?));
        }
        Some((Test::Welch, a.summary.welch(&b.summary)?))
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Test::Paired => "paired",
            Test::Welch => "welch",
        }
    }
}

/// Result of comparing two results.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// Cells in both results, in the order of the first.
    pub cells: Vec<Comparison>,
    /// Number of cells in only one result.
    pub unmatched: usize,
    /// Conditions that differ, as text.
    pub notes: Vec<String>,
    /// Whether both ran the same seeds, of which a result has only the means, as json and csv have:
    /// Welch's test compares cells that could be compared in pairs.
    pub lacks_pairs: bool,
}

/// Compares two results.
///
/// # Errors
/// Fails if the results are from different experiments or have no common cells.
/// [`StudyError::Contradiction`] if they use different contents under one name, or one of them has
/// two values for one seed of a cell.
pub fn check(
    before: &ResultFile,
    after: &ResultFile,
    limits: Limits,
) -> Result<Checked, StudyError> {
    let notes = compare_descriptions(&before.description, &after.description)?;
    let by_conditions = has_conditions(&before.description) || has_conditions(&after.description);
    check_contents([before, after])?;
    let first = measured(before, by_conditions)?;
    let second: HashMap<_, _> = measured(after, by_conditions)?.into_iter().collect();
    let both = |(key, a): &(Key, Values)| Some(compare(key, a, second.get(key)?));
    let mut cells: Vec<Comparison> = first.iter().filter_map(both).collect();
    if cells.is_empty() {
        return Err(StudyError::argument(
            "the results have no workload with the same policy and memory in common",
        ));
    }
    judge(&mut cells, limits);
    Ok(Checked {
        unmatched: first.len() + second.len() - 2 * cells.len(),
        lacks_pairs: lacks_pairs([before, after], &cells),
        cells,
        notes,
    })
}

fn lacks_pairs(results: [&ResultFile; 2], cells: &[Comparison]) -> bool {
    let [Description::Run { cells: a }, Description::Run { cells: b }] =
        results.map(|of| &of.description)
    else {
        return false;
    };
    fn seeds(cells: &[Described<RunCell>]) -> impl Iterator<Item = &str> {
        cells.iter().map(|of| of.cell.seeds.as_str())
    }
    results.iter().any(|of| of.form != Form::Parquet)
        && cells.iter().any(|cell| cell.test == Some(Test::Welch))
        && seeds(a).eq(seeds(b))
}

fn compare(key: &Key, a: &Values, b: &Values) -> Comparison {
    let (test, p) = Test::of(a, b).unzip();
    let (a, b) = (&a.summary, &b.summary);
    let Key {
        workload,
        source_sha256,
        policy,
        size,
        conditions,
        measure,
    } = key.clone();
    Comparison {
        workload,
        source_sha256,
        policy,
        memory_bytes: size.memory_bytes,
        size_pages: size.size_pages,
        conditions,
        measure,
        n_before: a.n,
        before: a.mean,
        n_after: b.n,
        after: b.mean,
        change: (a.mean != 0.0).then(|| b.mean / a.mean - 1.0),
        test,
        p,
        worse: false,
    }
}

/// Marks the cells that are worse. Among many cells some differ by chance; the procedure of
/// Benjamini and Hochberg (1995) limits their share of all cells found different.
fn judge(cells: &mut [Comparison], limits: Limits) {
    let mut chances: Vec<f64> = cells.iter().filter_map(|cell| cell.p).collect();
    chances.sort_unstable_by(f64::total_cmp);
    let all = chances.len() as f64;
    let is_found = |(at, p): &(usize, &f64)| **p <= limits.significance * (*at as f64 + 1.0) / all;
    let mut found = chances.iter().enumerate().filter(is_found);
    let largest = found.next_back().map_or(-1.0, |(_, p)| *p);
    for cell in cells {
        let is_beyond = cell.after > cell.before * (1.0 + limits.budget);
        cell.worse = is_beyond && cell.p.is_none_or(|p| p <= largest);
    }
}

/// Whether a result has a workload or trace under several conditions, as a sweep does.
fn has_conditions(description: &Description) -> bool {
    match description {
        Description::Run { cells } => are_several(
            cells,
            |cell| &cell.workload,
            |of| {
                let Described { cell, origin } = of;
                (&cell.swap, &cell.settings, &cell.damon, &origin.options)
            },
        ),
        Description::Curve { cells } => are_several(
            cells,
            |cell| &cell.trace,
            |of| (of.cell.sampling_rate, of.cell.samples, &of.origin.options),
        ),
    }
}

/// Whether some subject has cells with different conditions.
fn are_several<'c, C, V: PartialEq>(
    cells: &'c [Described<C>],
    subject: impl Fn(&'c C) -> &'c str,
    conditions: impl Fn(&'c Described<C>) -> V,
) -> bool {
    let mut known: HashMap<&str, V> = HashMap::new();
    cells.iter().any(|of| match known.entry(subject(&of.cell)) {
        Entry::Occupied(first) => *first.get() != conditions(of),
        Entry::Vacant(first) => {
            first.insert(conditions(of));
            false
        }
    })
}

/// Notes on differences between the conditions of two results.
fn compare_descriptions(a: &Description, b: &Description) -> Result<Vec<String>, StudyError> {
    if std::mem::discriminant(a) != std::mem::discriminant(b) {
        return Err(StudyError::argument(
            "one result is of `lab run`, the other of `lab curve`",
        ));
    }
    let mut notes = changed_policies(a, b);
    let mut note = |what: &str, values: [Vec<String>; 2]| {
        let [mut a, mut b] = values;
        for values in [&mut a, &mut b] {
            values.sort_unstable();
            values.dedup();
        }
        if a != b {
            notes.push(format!("{what}: `{}` and `{}`", a.join("|"), b.join("|")));
        }
    };
    let builds = |of: &Description| {
        let build =
            |origin: &&super::description::Origin| format!("{} {}", origin.version, origin.build);
        of.origins().iter().map(build).collect()
    };
    note("build", [builds(a), builds(b)]);
    let options = |of: &Description| {
        let origins = of.origins();
        origins.iter().map(|of| of.options.clone()).collect()
    };
    note("options", [options(a), options(b)]);
    if let (Description::Run { cells: a }, Description::Run { cells: b }) = (a, b) {
        let both = |value: fn(&RunCell) -> String| {
            [a, b].map(|cells| cells.iter().map(|of| value(&of.cell)).collect())
        };
        note("settings", both(|cell| cell.settings.clone()));
        note("swap", both(|cell| cell.swap.clone()));
        note("damon", both(|cell| cell.damon.clone().unwrap_or_default()));
    }
    if let (Description::Curve { cells: a }, Description::Curve { cells: b }) = (a, b) {
        let sampled = |cells: &Vec<Described<super::description::CurveCell>>| {
            let sampled = cells
                .iter()
                .map(|of| (of.cell.sampling_rate, of.cell.samples));
            let text = |of| match of {
                (Some(rate), Some(samples)) => format!("{samples} samples of {rate}"),
                _ => "exact".to_owned(),
            };
            sampled.map(text).collect()
        };
        note("sampling", [sampled(a), sampled(b)]);
    }
    Ok(notes)
}

/// The policies whose files differ between two results.
fn changed_policies(a: &Description, b: &Description) -> Vec<String> {
    let hashes = |of: &Description| -> Vec<_> {
        let policies = of.policies().into_iter();
        policies
            .map(|of| (of.name.to_owned(), of.sha256.map(str::to_owned)))
            .collect()
    };
    let theirs: HashMap<_, _> = hashes(b).into_iter().collect();
    let mut notes = Vec::new();
    for (policy, ours) in hashes(a) {
        if let (Some(ours), Some(Some(theirs))) = (ours, theirs.get(&policy))
            && ours != *theirs
        {
            notes.push(format!("profile of {policy}: `{ours}` and `{theirs}`"));
        }
    }
    notes.dedup();
    notes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiment::statistics::Summary;

    fn cell(before: f64, after: f64, p: Option<f64>) -> Comparison {
        let values = |mean| Values {
            summary: Summary::from_interval(1, mean, None),
            by_seed: BTreeMap::new(),
        };
        let key = Key {
            workload: "w".to_owned(),
            source_sha256: String::new(),
            policy: "p".to_owned(),
            size: Size {
                memory_bytes: Some(4096),
                size_pages: None,
            },
            conditions: String::new(),
            measure: "major_faults".to_owned(),
        };
        Comparison {
            p,
            ..compare(&key, &values(before), &values(after))
        }
    }

    #[test]
    fn differing_options_and_samples_are_told() {
        let curves = |options: [&str; 2], samples: Option<u64>| {
            let curve = |options: &str| {
                let text = serde_json::json!({
                    "trace": "t", "policy": "lru", "policy_sha256": null, "sizes_pages": [1],
                    "sampling_rate": samples.map(|_| 0.1), "samples": samples,
                    "options": options, "source": "t", "source_sha256": "", "version": "1",
                    "build": "b",
                });
                serde_json::from_value(text).unwrap()
            };
            let cells = options.map(curve).into();
            Description::Curve { cells }
        };
        let notes = |a: &Description, b: &Description| compare_descriptions(a, b).unwrap();
        let (one, other) = (["page_shift=0", ""], ["", "page_shift=0"]);
        // The order of cells is no difference.
        assert!(notes(&curves(one, None), &curves(other, None)).is_empty());
        assert_eq!(
            notes(&curves(one, None), &curves(["", ""], Some(4))),
            [
                "options: `|page_shift=0` and ``",
                "sampling: `exact` and `4 samples of 0.1`"
            ]
        );
    }

    #[test]
    fn chance_and_budget_have_to_be_exceeded() {
        let limits = Limits {
            budget: 0.01,
            significance: 0.05,
        };
        let mut cells = vec![
            cell(100.0, 110.0, Some(1e-6)),
            cell(100.0, 100.5, Some(1e-6)),
            cell(100.0, 110.0, Some(0.04)),
            cell(100.0, 90.0, Some(1e-6)),
            cell(0.0, 1.0, None),
            cell(100.0, 101.0, None),
            cell(100.0, 102.0, Some(0.9)),
        ];
        judge(&mut cells, limits);
        let worse: Vec<bool> = cells.iter().map(|cell| cell.worse).collect();
        assert_eq!(worse, [true, false, true, false, true, false, false]);
        // As the only one among many, the third could be chance.
        let mut many = vec![cell(100.0, 110.0, Some(0.04))];
        many.resize(20, cell(100.0, 110.0, Some(0.5)));
        judge(&mut many, limits);
        assert!(many.iter().all(|cell| !cell.worse));
    }
}
