// SPDX-License-Identifier: Apache-2.0
//! Misses counted by other simulators, and the deviations of ours.
//!
//! A reference is a CSV with the columns `trace_name`, `cache_size`, `policy` and `misses`, and
//! optionally `note`. LRU, FIFO and OPT are fully defined and must agree exactly; the other
//! policies are less precisely described and have a tolerance.

use std::path::Path;

use rayon::prelude::*;

use agewise_trace::yardstick::PolicySpec;

use crate::yardstick::by_name;
use agewise_trace::curve::StackDistances;
use agewise_trace::{DenseTrace, Manifest, TraceError};

/// One row of a reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceRow {
    pub trace: String,
    /// Size of the pool in pages.
    pub cache_size: usize,
    /// The policy, by its name in the reference.
    pub policy: String,
    /// Misses counted.
    pub misses: u64,
    pub note: String,
}

/// Whether a row is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Deviations beyond the tolerance are failures.
    Judged,
    /// The reference itself calls the row degenerate: a part of its policy had no pages.
    Degenerate,
    /// For information: another simulator's variant, or a policy without a fixed definition.
    Informational,
}

/// A row compared with our count.
#[derive(Debug, Clone)]
pub struct Verdict {
    pub row: ReferenceRow,
    /// Our misses; None if we have no such policy.
    pub misses: Option<u64>,
    /// `(misses - reference) / reference`.
    pub deviation: Option<f64>,
    /// Accepted deviation; None if none is defined.
    pub tolerance: Option<f64>,
    /// Whether the row is judged.
    pub standing: Standing,
}

impl Verdict {
    /// Whether the deviation is within the tolerance; None if either is missing.
    #[must_use]
    pub fn within(&self) -> Option<bool> {
        let (misses, tolerance) = (self.misses?, self.tolerance?);
        let off = misses.abs_diff(self.row.misses) as f64;
        Some(off <= tolerance * self.row.misses as f64)
    }

    /// Whether the row counts as a failure.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.standing == Standing::Judged && self.within() != Some(true)
    }
}

/// Accepted deviation, relative to the reference's misses.
fn tolerance(spec: &PolicySpec) -> Option<f64> {
    match spec.name {
        "lru" | "fifo" | "opt" => Some(0.0),
        "clock" | "s3fifo" => Some(0.003),
        "arc" => Some(0.005),
        "sieve" => Some(0.01),
        "lirs" => Some(0.03),
        "2q" => Some(0.04),
        _ => None,
    }
}

/// The policy meant by a reference: one of our names, or another simulator's `family.Name
/// (parameters)`.
fn policy_of(name: &str) -> Option<&'static PolicySpec> {
    by_name(name).or_else(|| {
        let (_, rest) = name.split_once(':')?;
        let last = rest.rsplit('.').next()?;
        by_name(last.split('(').next()?.trim())
    })
}

fn standing(row: &ReferenceRow, spec: Option<&PolicySpec>) -> Standing {
    if row.note.to_uppercase().contains("DEGENERATE") {
        Standing::Degenerate
    } else if row.policy.contains(':') || spec.is_none_or(|spec| tolerance(spec).is_none()) {
        Standing::Informational
    } else {
        Standing::Judged
    }
}

/// Reads a reference.
///
/// # Errors
/// [`TraceError::Table`] with the line, if it cannot be read, lacks a column or has an invalid
/// number.
pub fn read_reference(path: &Path) -> Result<Vec<ReferenceRow>, TraceError> {
    let bad = |error: csv::Error| TraceError::table(path, error.to_string());
    let mut reader = csv::Reader::from_path(path).map_err(bad)?;
    let headers = reader.headers().map_err(bad)?.clone();
    let column = |name: &str| headers.iter().position(|header| header.trim() == name);
    let needed = |name: &str| {
        column(name).ok_or_else(|| TraceError::table(path, format!("no column \"{name}\"")))
    };
    let (trace_at, size_at) = (needed("trace_name")?, needed("cache_size")?);
    let (policy_at, misses_at) = (needed("policy")?, needed("misses")?);
    let note_at = column("note");
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(bad)?;
        let line = record.position().map_or(0, csv::Position::line);
        let text = |at: usize| record.get(at).unwrap_or_default().trim();
        let not_a_number = |at: usize| {
            TraceError::table(
                path,
                format!("line {line}: \"{}\" is not a number", text(at)),
            )
        };
        rows.push(ReferenceRow {
            trace: text(trace_at).to_string(),
            cache_size: text(size_at).parse().map_err(|_| not_a_number(size_at))?,
            policy: text(policy_at).to_string(),
            misses: text(misses_at)
                .parse()
                .map_err(|_| not_a_number(misses_at))?,
            note: note_at.map_or("", text).to_string(),
        });
    }
    Ok(rows)
}

/// Counts the misses of all rows in parallel, and compares them. The order of the rows is kept.
/// Calls `done` with the number of rows each time some are finished.
///
/// # Errors
/// [`TraceError::Table`] for a trace missing in the manifest, and errors of reading the traces.
pub fn verify(
    rows: &[ReferenceRow],
    manifest: &Manifest,
    done: &(dyn Fn(usize) + Sync),
) -> Result<Vec<Verdict>, TraceError> {
    let mut traces: Vec<&str> = Vec::new();
    for row in rows {
        if !traces.contains(&row.trace.as_str()) {
            traces.push(&row.trace);
        }
    }
    let counted: Vec<Vec<(usize, Option<u64>)>> = traces
        .par_iter()
        .map(|name| {
            let source = manifest.source(name).ok_or_else(|| {
                TraceError::table(Path::new(name), "the manifest has no trace of this name")
            })?;
            let wanted: Vec<usize> = (0..rows.len())
                .filter(|&at| rows[at].trace == *name)
                .collect();
            Ok(count(&DenseTrace::read(&source)?, rows, &wanted, done))
        })
        .collect::<Result<_, TraceError>>()?;
    let mut misses = vec![None; rows.len()];
    for (at, count) in counted.into_iter().flatten() {
        misses[at] = count;
    }
    Ok(rows
        .iter()
        .zip(misses)
        .map(|(row, misses)| judge(row.clone(), misses))
        .collect())
}

/// Misses of the rows `wanted`, which are all of one trace.
fn count(
    trace: &DenseTrace,
    rows: &[ReferenceRow],
    wanted: &[usize],
    done: &(dyn Fn(usize) + Sync),
) -> Vec<(usize, Option<u64>)> {
    let spec_of = |at: &usize| policy_of(&rows[*at].policy);
    let (stack, others): (Vec<usize>, Vec<usize>) = wanted
        .iter()
        .partition(|at| spec_of(at).is_some_and(PolicySpec::is_stack));
    let all_sizes = || {
        if stack.is_empty() {
            return Vec::new();
        }
        let sizes: Vec<usize> = stack.iter().map(|&at| rows[at].cache_size).collect();
        let misses = StackDistances::of(trace).misses(&sizes);
        done(stack.len());
        stack
            .iter()
            .copied()
            .zip(misses.into_iter().map(Some))
            .collect()
    };
    let one_by_one = || -> Vec<(usize, Option<u64>)> {
        others
            .par_iter()
            .with_max_len(1)
            .map(|&at| {
                let misses = spec_of(&at).map(|spec| spec.misses(trace, rows[at].cache_size));
                done(1);
                (at, misses)
            })
            .collect()
    };
    let (mut counted, rest) = rayon::join(all_sizes, one_by_one);
    counted.extend(rest);
    counted
}

fn judge(row: ReferenceRow, misses: Option<u64>) -> Verdict {
    let spec = policy_of(&row.policy);
    let deviation =
        misses.map(|misses| (misses as f64 - row.misses as f64) / row.misses.max(1) as f64);
    Verdict {
        standing: standing(&row, spec),
        tolerance: spec.and_then(tolerance),
        misses,
        deviation,
        row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(policy: &str, misses: u64, note: &str) -> ReferenceRow {
        ReferenceRow {
            trace: "t".into(),
            cache_size: 2,
            policy: policy.into(),
            misses,
            note: note.into(),
        }
    }

    #[test]
    fn exact_policies_have_no_tolerance() {
        assert!(!judge(row("lru", 100, ""), Some(100)).failed());
        assert!(judge(row("lru", 100, ""), Some(101)).failed());
        assert!(judge(row("belady", 100, ""), Some(99)).failed());
        assert!(!judge(row("arc", 1000, ""), Some(1005)).failed());
        assert!(judge(row("arc", 1000, ""), Some(994)).failed());
        assert!(!judge(row("arc", 1000, "DEGENERATE: small"), Some(1)).failed());
        assert_eq!(
            judge(row("arc", 1000, "DEGENERATE"), Some(1)).within(),
            Some(false)
        );
    }

    #[test]
    fn other_simulators_are_for_information() {
        let verdict = judge(row("caffeine:sketch.WindowTinyLfu (1%)", 100, ""), Some(90));
        assert_eq!(verdict.standing, Standing::Informational);
        assert_eq!(policy_of(&verdict.row.policy).unwrap().name, "wtinylfu");
        assert_eq!(policy_of("caffeine:two-queue.TwoQueue").unwrap().name, "2q");
        assert_eq!(policy_of("caffeine:opt.Clairvoyant").unwrap().name, "opt");
        let unknown = judge(row("caffeine:adaptive.Car", 100, ""), None);
        assert!(unknown.within().is_none() && !unknown.failed());
    }

    #[test]
    fn a_small_reference_end_to_end() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("t.trace"), "1\n2\n3\n4\n1\n2\n5\n1\n2\n3\n4\n5\n").unwrap();
        std::fs::write(at("m.csv"), "file,trace_name,format\nt.trace,t,lirs\n").unwrap();
        std::fs::write(
            at("r.csv"),
            "trace_name,cache_size,policy,misses\nt,3,fifo,9\nt,4,lru,8\nt,3,lru,10\nt,3,opt,8\n",
        )
        .unwrap();
        let rows = read_reference(&at("r.csv")).unwrap();
        let manifest = Manifest::read(&at("m.csv"), directory.path()).unwrap();
        let verdicts = verify(&rows, &manifest, &|_| ()).unwrap();
        let misses: Vec<_> = verdicts
            .iter()
            .map(|verdict| verdict.misses.unwrap())
            .collect();
        assert_eq!(misses, [9, 8, 10, 7]);
        let failed: Vec<_> = verdicts.iter().map(Verdict::failed).collect();
        assert_eq!(failed, [false, false, false, true]);
    }
}
