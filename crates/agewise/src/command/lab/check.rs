// SPDX-License-Identifier: Apache-2.0
//! `agewise lab check`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_cli::output::{self, Format};
use agewise_cli::units;
use agewise_lab::study::check::{Checked, Comparison, Limits, check};

use super::results;
use super::run::short;

/// Report what got worse from one result to another.
///
/// Compares the cells (workload or trace, policy, memory, measure) that both results have, over the
/// measures where more is worse: faults, refaults, pages scanned, I/O, stalls, CPU time, latencies,
/// time, miss ratio. A cell is worse if its mean rose by more than the budget and, where there are
/// samples (seeds, or samples of the pages), a test distinguishes the means: the paired t-test if
/// both results are parquet, which has each run, and have the same seeds, or else Welch's. Where
/// all seeds differ by the same amount, which the t-test cannot judge, the sign test does. Of all
/// cells found so, at most the share --significance is expected to be chance (Benjamini-Hochberg).
/// Without samples the budget alone decides: the lab is deterministic.
///
/// Exit status 1 when a cell is worse, 0 when none is.
///
/// Example: agewise lab check before.json after.json --budget 1%
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The result to compare with: output of `lab run` or `lab curve` as json, csv or parquet.
    #[arg(value_name = "BEFORE")]
    pub before: PathBuf,
    /// The result to judge.
    #[arg(value_name = "AFTER")]
    pub after: PathBuf,
    /// By how much a measure may rise.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = units::ratio)]
    pub budget: f64,
    /// Share of false alarms.
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = units::share)]
    pub significance: f64,
    /// text: what is worse; json and csv: every cell compared.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// Compares and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let before = results::read(&args.before)?;
    let after = results::read(&args.after)?;
    let limits = Limits {
        budget: args.budget,
        significance: args.significance,
    };
    let checked = check(&before, &after, limits)?;
    let mut out = io::stdout().lock();
    let written = match args.format {
        Format::Text => print(&mut out, &checked, args.budget),
        format => {
            // They have no place in the rows.
            for remark in remarks(&checked) {
                agewise_cli::note!("{remark}");
            }
            output::rows(&mut out, format, &checked.cells)
        }
    };
    let is_worse = checked.cells.iter().any(|cell| cell.worse);
    output::status(
        written.map_err(Into::into),
        match is_worse {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        },
    )
}

/// What differs between the results besides the measures.
fn remarks(checked: &Checked) -> impl Iterator<Item = String> {
    let notes = checked.notes.iter();
    let differing = notes.map(|note| format!("differs: {}", output::message(note)));
    let unmatched = checked.unmatched;
    let in_one = (unmatched > 0).then(|| format!("{unmatched} cells are in only one result"));
    let no_pairs = checked.lacks_pairs.then(|| {
        "the seeds are the same, but json and csv have only their means: Welch's test, which finds \
         less; with --format parquet each seed is compared with itself"
            .to_owned()
    });
    differing.chain(in_one).chain(no_pairs)
}

/// The name and the hash of what a cell ran.
fn source(cell: &Comparison) -> (&str, &str) {
    (&cell.workload, &cell.source_sha256)
}

fn print(out: &mut impl Write, checked: &Checked, budget: f64) -> io::Result<()> {
    for remark in remarks(checked) {
        writeln!(out, "{remark}")?;
    }
    let worse = checked.cells.iter().filter(|cell| cell.worse);
    let sources: HashSet<(&str, &str)> = checked.cells.iter().map(source).collect();
    let is_several = |name: &str| sources.iter().filter(|of| of.0 == name).count() > 1;
    for cell in worse.clone() {
        let change = match cell.change {
            Some(change) => format!("{:+.2} %", change * 100.0),
            None => "from 0".to_owned(),
        };
        let chance = match (cell.test, cell.p) {
            (Some(test), Some(p)) => format!("{} p {p:.2e}", test.name()),
            _ => "counted".to_owned(),
        };
        let (name, sha256) = source(cell);
        let mut workload = output::message(name);
        if is_several(name) {
            workload += &format!(" ({:.12})", output::message(sha256));
        }
        writeln!(
            out,
            "worse: {workload} {} {} {}{}: {} to {} ({change}, {chance})",
            output::message(&cell.policy),
            cell.size(),
            match cell.conditions.as_str() {
                "" => String::new(),
                conditions => format!("{} ", output::message(conditions)),
            },
            cell.measure,
            short(cell.before),
            short(cell.after),
        )?;
    }
    writeln!(
        out,
        "{} of {} cells are worse by more than {} %",
        worse.count(),
        checked.cells.len(),
        short(budget * 100.0)
    )
}
