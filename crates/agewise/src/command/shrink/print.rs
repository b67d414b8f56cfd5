// SPDX-License-Identifier: Apache-2.0
//! What `agewise shrink` prints: a record for each step planned, each step made, and the verdict.

use std::io::Write;

use agewise_cli::output::{self, Format};
use agewise_cli::units;
use agewise_policy::whatif::plan::{Planned, Steps};
use agewise_policy::whatif::shrink::{Outcome, Verdict};
use serde::Serialize;

/// The columns of CSV: the fields of all records.
pub(super) const COLUMNS: &str = "record,limit_bytes,predicted_faults_per_second,\
    predicted_faults_low,predicted_faults_high,predicted_wait_ratio,predicted_wait_high,\
    faults_per_second,wait_ratio,held,kept,verdict,usage_before_bytes,saved_bytes,reason";

/// A step as printed; measured figures are null in a plan.
#[derive(Debug, Serialize)]
pub(super) struct Record {
    record: &'static str,
    limit_bytes: u64,
    predicted_faults_per_second: f64,
    predicted_faults_low: f64,
    predicted_faults_high: f64,
    predicted_wait_ratio: f64,
    /// Null if nothing observed bounds it.
    predicted_wait_high: f64,
    faults_per_second: Option<f64>,
    wait_ratio: Option<f64>,
    /// Whether it stayed within what is allowed, so that the next step could follow.
    held: Option<bool>,
}

impl Record {
    pub(super) fn new(planned: &Planned, outcome: Option<&Outcome>) -> Self {
        Record {
            record: if outcome.is_some() { "step" } else { "plan" },
            limit_bytes: planned.limit_bytes,
            predicted_faults_per_second: planned.faults_per_second.likely,
            predicted_faults_low: planned.faults_per_second.low,
            predicted_faults_high: planned.faults_per_second.high,
            predicted_wait_ratio: planned.wait_ratio.likely,
            predicted_wait_high: planned.wait_ratio.high,
            faults_per_second: outcome.map(|outcome| outcome.faults_per_second),
            wait_ratio: outcome.map(|outcome| outcome.wait_ratio),
            held: outcome.map(|outcome| outcome.is_kept),
        }
    }

    pub(super) fn print(&self, out: &mut impl Write, format: Format) -> std::io::Result<()> {
        match format {
            Format::Json => output::json_line(out, self)?,
            Format::Csv => output::csv_row(out, COLUMNS, self)?,
            Format::Text => {
                let limit = units::bytes_text(self.limit_bytes);
                let predicted = self.predicted_faults_per_second;
                let wait = self.predicted_wait_ratio * 100.0;
                write!(
                    out,
                    "{:<5}{limit:>12}: {predicted:.1} faults/s, {wait:.3} % waiting",
                    self.record
                )?;
                match (self.faults_per_second, self.wait_ratio, self.held) {
                    (Some(faults), Some(wait), Some(held)) => writeln!(
                        out,
                        " predicted; {faults:.1} faults/s, {:.3} %{}",
                        wait * 100.0,
                        if held { "" } else { ": too much, back" }
                    )?,
                    _ => writeln!(out)?,
                }
            }
        }
        out.flush()
    }
}

/// The outcome as printed.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    pub(super) record: &'static str,
    pub(super) verdict: &'static str,
    pub(super) usage_before_bytes: u64,
    /// The limit that was set last, or with `planned` the one of the last step; none if there is
    /// no limit.
    pub(super) limit_bytes: Option<u64>,
    pub(super) saved_bytes: u64,
    /// Whether the limit is left in place.
    pub(super) kept: bool,
    /// What stopped it, if that was neither its own measurement nor a signal.
    pub(super) reason: Option<String>,
}

/// The name of a verdict in all outputs.
pub(super) fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Underway => "interrupted",
        Verdict::Reached => "reached",
        Verdict::Waiting => "waiting",
        Verdict::Unpredicted => "unpredicted",
    }
}

pub(super) fn print_summary(
    out: &mut impl Write,
    format: Format,
    summary: &Summary,
) -> std::io::Result<()> {
    match format {
        Format::Json => output::json_line(out, summary),
        Format::Csv => output::csv_row(out, COLUMNS, summary),
        Format::Text => writeln!(out, "{}", summary_text(summary)),
    }
}

/// Prints a plan that is not carried out.
pub(super) fn print_plan(
    out: &mut impl Write,
    format: Format,
    steps: &Steps,
    usage_bytes: u64,
) -> std::io::Result<()> {
    for step in steps.expected() {
        Record::new(step, None).print(out, format)?;
    }
    let limit_bytes = steps.to_goal.last().map(|step| step.limit_bytes);
    let summary = Summary {
        record: "verdict",
        verdict: "planned",
        usage_before_bytes: usage_bytes,
        limit_bytes,
        saved_bytes: limit_bytes.map_or(0, |limit| usage_bytes.saturating_sub(limit)),
        kept: false,
        reason: None,
    };
    print_summary(out, format, &summary)
}

fn summary_text(summary: &Summary) -> String {
    let why = match (summary.verdict, summary.limit_bytes, &summary.reason) {
        (_, _, Some(reason)) => return format!("stopped: {}", output::message(reason)),
        ("planned", ..) => "planned",
        ("reached", ..) => "the goal was reached and held",
        ("waiting", None, _) => "waiting exceeded what is allowed at the first step",
        ("waiting", ..) => "waiting exceeded what is allowed; the previous step holds",
        ("unpredicted", None, _) => "there were more faults than predicted at the first step",
        ("unpredicted", ..) => "there were more faults than predicted; the previous step holds",
        _ => "interrupted",
    };
    let Some(limit_bytes) = summary.limit_bytes else {
        return format!("{why}: there is no limit");
    };
    format!(
        "{why}: a limit of {}, {} less; {}",
        units::bytes_text(limit_bytes),
        units::bytes_text(summary.saved_bytes),
        match (summary.verdict, summary.kept) {
            ("planned", _) => "nothing was changed (--dry-run)",
            (_, true) => "it stays",
            (_, false) => "it was removed",
        },
    )
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::Estimate;

    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn csv_has_the_fields_of_json() {
        let summary = Summary {
            record: "verdict",
            verdict: "reached",
            usage_before_bytes: 2000,
            limit_bytes: None,
            saved_bytes: 500,
            kept: false,
            reason: Some("somebody, else".to_owned()),
        };
        let high = Estimate {
            low: 1.0,
            likely: 2.5,
            high: f64::INFINITY,
        };
        let planned = Planned {
            limit_bytes: 1000,
            faults_per_second: high,
            wait_ratio: high,
        };
        let record = Record::new(&planned, None);
        let mut rows = Vec::new();
        record.print(&mut rows, Format::Csv).unwrap();
        print_summary(&mut rows, Format::Csv, &summary).unwrap();
        assert_eq!(
            String::from_utf8(rows).unwrap(),
            "plan,1000,2.5,1,,2.5,,,,,,,,,\n\
             verdict,,,,,,,,,,false,reached,2000,500,\"somebody, else\"\n"
        );
        let mut names = BTreeSet::new();
        for record in [serde_json::to_value(record), serde_json::to_value(summary)] {
            names.extend(record.unwrap().as_object().unwrap().keys().cloned());
        }
        assert_eq!(names, COLUMNS.split(',').map(str::to_owned).collect());
    }

    #[test]
    fn a_verdict_names_no_limit_that_is_not_there() {
        let summary = |verdict, limit_bytes, reason: Option<&str>| Summary {
            record: "verdict",
            verdict,
            usage_before_bytes: 64 << 20,
            limit_bytes,
            saved_bytes: 8 << 20,
            kept: false,
            reason: reason.map(str::to_owned),
        };
        for (of, text) in [
            (
                summary("waiting", Some(56 << 20), None),
                "waiting exceeded what is allowed; the previous step holds: a limit of 56.0 MiB, \
                 8.0 MiB less; it was removed",
            ),
            (
                summary("waiting", None, None),
                "waiting exceeded what is allowed at the first step: there is no limit",
            ),
            (
                summary("interrupted", None, None),
                "interrupted: there is no limit",
            ),
            (
                summary("planned", Some(56 << 20), None),
                "planned: a limit of 56.0 MiB, 8.0 MiB less; nothing was changed (--dry-run)",
            ),
            (summary("stopped", None, Some("theirs")), "stopped: theirs"),
        ] {
            assert_eq!(summary_text(&of), text);
        }
    }
}
