// SPDX-License-Identifier: Apache-2.0
//! The measured values of each cell of a result, each seed once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;

use agewise_policy::units::bytes_text;
use serde::Serialize;
use serde_json::{Map, Value as Json};

use super::description::{Description, ORDER_UNKNOWN};
use super::error::StudyError;
use super::result::{Form, ResultFile};
use crate::experiment::matrix::SEEDS_MAX;
use crate::experiment::statistics::Summary;

/// Measures for which more is worse. The others say what happened, not what it cost.
const COSTS: [&str; 23] = [
    "major_faults",
    "refaults_anon",
    "refaults_file",
    "scanned",
    "scan_per_steal",
    "pte_checks",
    "rmap_visits",
    "swap_in",
    "swap_out",
    "file_in",
    "file_out",
    "direct_reclaims",
    "oom_kills",
    "stall_some_ms",
    "stall_full_ms",
    "policy_cpu_ms",
    "background_cpu_ms",
    "lock_wait_ms",
    "p50_ns",
    "p99_ns",
    "p999_ns",
    "time_ms",
    "miss_ratio",
];

/// The memory of a cell: bytes of a machine, or pages of a curve, whose size is the trace's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Size {
    pub memory_bytes: Option<u64>,
    pub size_pages: Option<u64>,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.memory_bytes, self.size_pages) {
            (Some(bytes), _) => f.write_str(&bytes_text(bytes)),
            (None, pages) => write!(f, "{} pages", pages.unwrap_or_default()),
        }
    }
}

/// One measure of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    /// Workload or trace.
    pub workload: String,
    /// Its SHA-256: several may have one name.
    pub source_sha256: String,
    pub policy: String,
    pub size: Size,
    /// Swap, settings and so on; empty unless they distinguish cells.
    pub conditions: String,
    pub measure: String,
}

impl Key {
    fn of(row: &Map<String, Json>, measure: &str, by_conditions: bool) -> Key {
        let count = |name: &str| row.get(name).and_then(Json::as_u64);
        Key {
            workload: [text(row, "workload"), text(row, "trace")].concat(),
            source_sha256: text(row, "source_sha256").to_owned(),
            policy: text(row, "policy").to_owned(),
            size: Size {
                memory_bytes: count("memory_bytes"),
                size_pages: count("size_pages"),
            },
            conditions: match by_conditions {
                true => conditions(row),
                false => String::new(),
            },
            measure: measure.to_owned(),
        }
    }

    fn words(&self) -> String {
        let size = self.size.to_string();
        let parts = [
            &self.workload,
            &self.policy,
            &size,
            &self.conditions,
            &self.measure,
        ];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.cloned().collect::<Vec<_>>().join(" ")
    }
}

/// The values of one measure of a cell.
#[derive(Clone, Debug)]
pub(super) struct Values {
    pub summary: Summary,
    /// The value of each seed; empty for a result of means, and where seeds are no sample.
    pub by_seed: BTreeMap<u64, f64>,
}

/// The measures of a result, in the order of its rows.
pub(super) type Measured = Vec<(Key, Values)>;

/// The measures of all cells. A seed or point that is there twice, as where cells of a sweep
/// overlap, counts once: counted twice it would seem to be more evidence than it is.
///
/// # Errors
/// [`StudyError::Contradiction`] if it is there with two values.
pub(super) fn measured(result: &ResultFile, by_conditions: bool) -> Result<Measured, StudyError> {
    match (&result.description, result.form) {
        (Description::Run { .. }, Form::Parquet) => of_runs(result, by_conditions),
        _ => of_means(result, by_conditions),
    }
}

/// The measures of a result with a row per run.
fn of_runs(result: &ResultFile, by_conditions: bool) -> Result<Measured, StudyError> {
    let mut order: Vec<Key> = Vec::new();
    let mut samples: HashMap<Key, BTreeMap<u64, (f64, usize)>> = HashMap::new();
    let mut orders: HashSet<Key> = HashSet::new();
    for (at, row) in result.rows.iter().enumerate() {
        let seed = row.get("seed").and_then(Json::as_u64);
        let seed = seed.ok_or_else(|| StudyError::argument("a row has no seed"))?;
        let is_order = row.get(ORDER_UNKNOWN).and_then(Json::as_u64) == Some(1);
        for name in COSTS {
            let Some(value) = row.get(name).and_then(Json::as_f64) else {
                continue;
            };
            let key = Key::of(row, name, by_conditions);
            let seeds = samples.entry(key.clone()).or_default();
            if seeds.is_empty() {
                order.push(key.clone());
            }
            if is_order {
                orders.insert(key.clone());
            }
            let (known, first) = *seeds.entry(seed).or_insert((value, at));
            if known != value {
                return Err(StudyError::Contradiction {
                    what: format!("{} with seed {seed}", key.words()),
                    values: [known, value].map(|value| value.to_string()),
                    files: [first, at].map(|row| result.file_of(row).to_owned()),
                });
            }
        }
    }
    let summary = |key: Key| {
        let seeds = samples.get(&key)?.iter();
        let by_seed: BTreeMap<u64, f64> = seeds.map(|(seed, (value, _))| (*seed, *value)).collect();
        let values: Vec<f64> = by_seed.values().copied().collect();
        let summary = Summary::of(&values)?;
        let values = match orders.contains(&key) {
            false => Values { summary, by_seed },
            true => Values {
                summary: Summary::from_interval(summary.n, summary.mean, None),
                by_seed: BTreeMap::new(),
            },
        };
        Some((key, values))
    };
    Ok(order.into_iter().filter_map(summary).collect())
}

/// The measures of a result with a row per mean, or per point of a curve.
fn of_means(result: &ResultFile, by_conditions: bool) -> Result<Measured, StudyError> {
    let mut measured: Measured = Vec::new();
    let mut known: HashMap<Key, (Summary, usize)> = HashMap::new();
    for (at, row) in result.rows.iter().enumerate() {
        let measure = match &result.description {
            Description::Run { .. } => text(row, "measure"),
            Description::Curve { .. } => "miss_ratio",
        };
        // Of a trace without accesses there is no miss ratio.
        let has_none = row.get(measure) == Some(&Json::Null);
        if !COSTS.contains(&measure) || has_none {
            continue;
        }
        let key = Key::of(row, measure, by_conditions);
        let summary = summary(row).ok_or_else(|| {
            let words = key.words();
            StudyError::Argument(format!("{words} has no mean of 1 to {SEEDS_MAX} values"))
        })?;
        match known.entry(key.clone()) {
            Entry::Vacant(place) => {
                place.insert((summary, at));
                let by_seed = BTreeMap::new();
                measured.push((key, Values { summary, by_seed }));
            }
            Entry::Occupied(place) if place.get().0 == summary => {}
            Entry::Occupied(place) => {
                let (first, first_row) = *place.get();
                let value = |of: Summary| format!("{} (n {})", of.mean, of.n);
                return Err(StudyError::Contradiction {
                    what: key.words(),
                    values: [first, summary].map(value),
                    files: [first_row, at].map(|row| result.file_of(row).to_owned()),
                });
            }
        }
    }
    Ok(measured)
}

/// Checks that names stand for the same contents: a workload or trace that both results name has a
/// hash in common, and no name of a policy has two hashes in one of them. Between results the
/// policy may have changed: this is what they are compared for.
///
/// # Errors
/// [`StudyError::Contradiction`] with the two files.
pub(super) fn check_contents(results: [&ResultFile; 2]) -> Result<(), StudyError> {
    let mut sources: BTreeMap<String, [Contents<'_>; 2]> = BTreeMap::new();
    for (side, result) in results.into_iter().enumerate() {
        let mut policies = HashMap::new();
        for (at, row) in result.rows.iter().enumerate() {
            let file = result.file_of(at);
            let subject = [text(row, "workload"), text(row, "trace")].concat();
            let found = &mut sources.entry(subject).or_default()[side];
            found.entry(text(row, "source_sha256")).or_insert(file);
            let (policy, hash) = (text(row, "policy"), text(row, "policy_sha256"));
            let first = *policies.entry(policy).or_insert((hash, file));
            if first.0 != hash {
                return Err(two_contents(policy, [first, (hash, file)]));
            }
        }
    }
    for (name, [before, after]) in &sources {
        let is_same = before.keys().any(|hash| after.contains_key(hash));
        if let (Some(a), Some(b), false) = (before.iter().next(), after.iter().next(), is_same) {
            return Err(two_contents(
                name,
                [a, b].map(|(hash, file)| (*hash, *file)),
            ));
        }
    }
    Ok(())
}

/// Contents (hashes), each with the first file that has it.
type Contents<'r> = BTreeMap<&'r str, &'r Path>;

fn two_contents(name: &str, found: [(&str, &Path); 2]) -> StudyError {
    StudyError::Contradiction {
        what: format!("the SHA-256 of {name}"),
        values: found.map(|(hash, _)| hash.to_owned()),
        files: found.map(|(_, file)| file.to_owned()),
    }
}

fn text<'r>(row: &'r Map<String, Json>, name: &str) -> &'r str {
    row.get(name).and_then(Json::as_str).unwrap_or_default()
}

fn conditions(row: &Map<String, Json>) -> String {
    let part = |name: &&str| match row.get(*name)? {
        Json::String(text) if text.is_empty() => None,
        Json::String(text) if *name == "swap" => Some(format!("swap={text}")),
        Json::String(text) => Some(text.clone()),
        Json::Number(number) => Some(format!("{name}={number}")),
        _ => None,
    };
    let parts: Vec<String> = [
        "swap",
        "settings",
        "damon",
        "sampling_rate",
        "samples",
        "options",
    ]
    .iter()
    .filter_map(part)
    .collect();
    parts.join(" ")
}

/// Summary of a row of means or of a point of a curve.
fn summary(row: &Map<String, Json>) -> Option<Summary> {
    let number = |name: &str| row.get(name).and_then(Json::as_f64);
    // Quantiles of a distribution with more degrees of freedom take for ever.
    let count = |name: &str| row.get(name)?.as_u64().filter(|n| *n <= SEEDS_MAX);
    let (mean, n, ci95) = match number("mean") {
        Some(mean) => (mean, count("n")?, number("ci95")),
        None => {
            let error = number("miss_ratio_error");
            (number("miss_ratio")?, count("samples").unwrap_or(1), error)
        }
    };
    Some(Summary::from_interval(n as usize, mean, ci95))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::study::check::{Checked, Limits, Test, check};
    use crate::study::description::{Described, Origin, RunCell};
    use crate::study::parquet;
    use crate::study::table::{Column, Kind, Table, Value};

    /// A sweep with one cell per list of seeds and their faults.
    struct Place(tempfile::TempDir);

    impl Place {
        fn with(cells: &[&[(u64, f64)]]) -> Place {
            let place = Place(tempfile::tempdir().unwrap());
            for (number, runs) in cells.iter().enumerate() {
                place.put(number, runs, "1f");
            }
            place
        }

        fn put(&self, number: usize, runs: &[(u64, f64)], source_sha256: &str) {
            let directory = self.0.path().join("workload=w/policy=p");
            fs::create_dir_all(&directory).unwrap();
            let path = directory.join(format!("{number:032x}.parquet"));
            fs::write(path, bytes(runs, source_sha256, 0)).unwrap();
        }

        fn read(&self) -> ResultFile {
            ResultFile::read(self.0.path()).unwrap()
        }
    }

    fn bytes(runs: &[(u64, f64)], source_sha256: &str, order_unknown: u64) -> Vec<u8> {
        let cell = RunCell {
            workload: "w".to_owned(),
            policy: "p".to_owned(),
            policy_sha256: None,
            policy_profile: None,
            agent: None,
            memory_bytes: 1 << 20,
            swap: "none".to_owned(),
            settings: String::new(),
            damon: None,
            seeds: format!("1-{}", runs.len()),
        };
        let origin = Origin {
            options: String::new(),
            source: "w.toml".to_owned(),
            source_sha256: source_sha256.to_owned(),
            version: "1".to_owned(),
            build: "b".to_owned(),
        };
        let mut columns = vec![
            Column::new("workload", Kind::Text),
            Column::new("policy", Kind::Text),
            Column::new("seed", Kind::Count),
            Column::new("major_faults", Kind::Number),
        ];
        columns.extend(RunCell::COLUMNS);
        columns.extend(Origin::COLUMNS);
        columns.push(Column::new(ORDER_UNKNOWN, Kind::Count));
        let row = |(seed, faults): &(u64, f64)| {
            let mut row: Vec<Value> =
                vec!["w".into(), "p".into(), (*seed).into(), (*faults).into()];
            row.extend(cell.values());
            row.extend(origin.values());
            row.push(order_unknown.into());
            row
        };
        let rows = runs.iter().map(row).collect();
        let cells = vec![Described {
            cell: cell.clone(),
            origin: origin.clone(),
        }];
        parquet::bytes(&Table { columns, rows }, &Description::Run { cells }).unwrap()
    }

    fn checked(before: &Place, after: &Place) -> Result<Checked, StudyError> {
        let limits = Limits {
            budget: 0.01,
            significance: 0.05,
        };
        check(&before.read(), &after.read(), limits)
    }

    /// What contradicts, and the numbers of the cells' files.
    fn contradiction(checked: Result<Checked, StudyError>) -> (String, [String; 2]) {
        match checked.unwrap_err() {
            StudyError::Contradiction { what, files, .. } => {
                let number = |file: PathBuf| {
                    let stem = file.file_stem().unwrap().to_string_lossy().into_owned();
                    stem.trim_start_matches('0').to_owned()
                };
                (what, files.map(number))
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn no_mean_is_of_more_values_than_there_can_be_seeds() {
        let row = |n: u64| match serde_json::json!({"mean": 1.0, "n": n, "ci95": 0.5}) {
            Json::Object(row) => summary(&row),
            _ => None,
        };
        assert!(row(SEEDS_MAX).is_some());
        assert_eq!(row(u64::MAX), None);
    }

    #[test]
    fn a_seed_counts_once() {
        let before = Place::with(&[&[(1, 10.0), (2, 14.0)]]);
        let twice = Place::with(&[
            &[(1, 10.0), (2, 14.0)],
            &[(1, 10.0), (2, 14.0), (3, 18.0)],
            &[(1, 10.0), (2, 14.0)],
        ]);
        let cells = checked(&before, &twice).unwrap().cells;
        assert_eq!((cells[0].n_before, cells[0].n_after), (2, 3));
        assert_eq!((cells[0].before, cells[0].after), (12.0, 14.0));
    }

    #[test]
    fn what_contradicts_is_refused_with_both_files() {
        let good = Place::with(&[&[(1, 10.0), (2, 14.0)]]);
        let bad = Place::with(&[&[], &[(1, 10.0), (2, 14.0)], &[(1, 10.0), (2, 15.0)]]);
        let (what, files) = contradiction(checked(&good, &bad));
        assert_eq!(what, "w p 1.0 MiB major_faults with seed 2");
        assert_eq!(files, ["1", "2"]);
        let error = checked(&bad, &good).unwrap_err().to_string();
        assert!(
            error.contains(" is 14 in ") && error.contains(" and 15 in "),
            "{error}"
        );
        // Another workload of the same name in the other result.
        let other = Place::with(&[]);
        other.put(4, &[(1, 10.0)], "2e");
        let (what, files) = contradiction(checked(&good, &other));
        assert_eq!(
            (what.as_str(), files[1].as_str()),
            ("the SHA-256 of w", "4")
        );
        // In the same result they are told apart.
        good.put(3, &[(1, 20.0), (2, 24.0)], "2e");
        let cells = checked(&good, &good).unwrap().cells;
        let means = cells
            .iter()
            .map(|of| (&*of.source_sha256, of.before, of.after));
        assert_eq!(
            means.collect::<Vec<_>>(),
            [("1f", 12.0, 12.0), ("2e", 22.0, 22.0)]
        );
        assert_eq!(checked(&good, &other).unwrap().cells.len(), 1);
    }

    #[test]
    fn seeds_that_are_orders_are_not_tested() {
        let place = tempfile::tempdir().unwrap();
        let result = |name: &str, runs: &[(u64, f64)]| {
            let path = place.path().join(name);
            fs::write(&path, bytes(runs, "1f", 1)).unwrap();
            ResultFile::read(&path).unwrap()
        };
        let before = result("before.parquet", &[(1, 100.0), (2, 200.0), (3, 300.0)]);
        let after = result("after.parquet", &[(1, 103.0), (2, 150.0), (3, 400.0)]);
        let limits = Limits {
            budget: 0.01,
            significance: 0.05,
        };
        let cell = check(&before, &after, limits).unwrap().cells.remove(0);
        assert_eq!((cell.test, cell.p, cell.n_after), (None, None, 3));
        assert!(cell.worse, "by the budget alone: {cell:?}");
    }

    #[test]
    fn the_same_seeds_are_pairs() {
        let before = Place::with(&[&[(1, 100.0), (2, 200.0), (3, 300.0)]]);
        let after = Place::with(&[&[(1, 103.0), (2, 204.0), (3, 305.0)]]);
        let cell = checked(&before, &after).unwrap().cells.remove(0);
        assert_eq!(cell.test, Some(Test::Paired));
        assert!(cell.worse && cell.p.unwrap() < 0.05, "{cell:?}");
        let others = Place::with(&[&[(2, 103.0), (3, 204.0), (4, 305.0)]]);
        let cell = checked(&before, &others).unwrap().cells.remove(0);
        assert_eq!(cell.test, Some(Test::Welch));
        assert!(!cell.worse && cell.p.unwrap() > 0.9, "{cell:?}");
    }
}
