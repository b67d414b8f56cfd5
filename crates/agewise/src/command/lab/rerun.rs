// SPDX-License-Identifier: Apache-2.0
//! `agewise lab rerun`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agewise_cli::output;
use agewise_cli::progress::Progress;
use agewise_cli::units;
use agewise_lab::study::again::{curve_request, groups, is_same_curve, is_same_run, run_request};
use agewise_lab::study::base::Base;
use agewise_lab::study::description::{
    CurveCell, Described, Description, Origin, PROFILE, RunCell,
};
use agewise_lab::study::result::{Form, ResultFile};
use agewise_lab::study::table::Table;
use anyhow::Context;
use serde_json::Value;

use super::results::{self, BUILD, write};
use crate::command::trace::input::trace_memory_default;

/// Repeat the run behind a result, and compare byte for byte.
///
/// The workload or trace must be the same file, as identified by its SHA-256. It is looked for
/// where the result says, beside the result, and with --from. So are the profiles of policies, if
/// the result does not have their text, as in csv and in results of earlier versions. If another
/// version or build of agewise produced the result, this is reported, and everything else is
/// compared.
///
/// Exit status 0 if the bytes are the same, 1 if they differ; the first difference is printed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with the output of `lab run` or `lab curve`, as json, csv or parquet.
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// A workload, trace, manifest or profile that has moved, or a directory of such files. A
    /// profile may have another name. Can be given several times.
    #[arg(long, value_name = "FILE|DIRECTORY")]
    pub from: Vec<PathBuf>,
    /// Memory for holding a trace. Default: a quarter of this machine's memory.
    #[arg(long, value_name = "SIZE", value_parser = units::positive_size)]
    pub trace_memory: Option<u64>,
}

/// Runs and compares.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.result.is_dir() {
        agewise_cli::refuse!(
            "{} is a directory: name one of the files of a sweep",
            args.result.display()
        );
    }
    let mut base = Base::of(&args.result);
    base.places.extend(args.from.iter().cloned());
    base.limits.memory_max_bytes = args.trace_memory.unwrap_or_else(trace_memory_default);
    base.build = BUILD.to_owned();
    let before = results::read_in(&args.result, &base)?;
    if let Some(origin) = before.description.origins().first() {
        say_who(origin);
    }
    let bytes = match &before.description {
        Description::Run { cells } => run_again(&before, cells, &base),
        Description::Curve { cells } => count_again(&before, cells, &base),
    };
    let bytes = bytes.with_context(|| {
        format!(
            "cannot run {} again (files are looked for where the result says, beside the result, \
             and with --from)",
            args.result.display()
        )
    })?;
    let mut out = io::stdout().lock();
    if bytes == before.bytes {
        writeln!(out, "the same {} bytes", bytes.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    let after = ResultFile::parse(&args.result, bytes)?;
    let written = writeln!(out, "{}", output::message(&difference(&before, &after)));
    output::status(written.map_err(Into::into), ExitCode::FAILURE)
}

/// Reports which build made a result, if it was not this one.
fn say_who(origin: &Origin) {
    let version = env!("CARGO_PKG_VERSION");
    if (origin.version.as_str(), origin.build.as_str()) != (version, BUILD) {
        agewise_cli::note!(
            "the result is from agewise {}, build {}; this is {version}, build {BUILD}: \
             everything else is compared",
            origin.version,
            origin.build
        );
    }
}

/// Relabels our cells with the build that made the result, so that only real differences remain.
fn of_before<C: Clone>(
    ours: &[Described<C>],
    theirs: &[Described<C>],
    relabel: impl Fn(&mut C, &C),
) -> anyhow::Result<Vec<Described<C>>> {
    let pair = |(ours, theirs): (&Described<C>, &Described<C>)| {
        Base::check_hash(&theirs.origin, &ours.origin.source_sha256)?;
        let mut cell = ours.cell.clone();
        relabel(&mut cell, &theirs.cell);
        Ok(Described {
            cell,
            origin: theirs.origin.clone(),
        })
    };
    ours.iter().zip(theirs).map(pair).collect()
}

fn run_again(
    before: &ResultFile,
    cells: &[Described<RunCell>],
    base: &Base,
) -> anyhow::Result<Vec<u8>> {
    let (mut table, mut ran) = (Table::default(), Vec::new());
    let groups = groups(cells, is_same_run);
    // All of them before the first runs: a file that is missing is then known at once.
    let requests = groups.iter().map(|group| run_request(group, base));
    let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
    for (group, request) in groups.into_iter().zip(requests) {
        let progress = Progress::new("runs");
        let mut outcome = request.run(&Arc::default(), |total| progress.advance(total))?;
        progress.finish();
        outcome.cells = of_before(&outcome.cells, group, |ours, theirs| {
            // Of an earlier version.
            if theirs.policy_profile.is_none() {
                ours.policy_profile = None;
            }
        })?;
        table.append(match before.form {
            Form::Parquet => outcome.run_table(),
            Form::Json | Form::Csv => outcome.summary_table(),
        });
        ran.extend(outcome.cells);
    }
    rendered(before, table, &Description::Run { cells: ran })
}

fn count_again(
    before: &ResultFile,
    cells: &[Described<CurveCell>],
    base: &Base,
) -> anyhow::Result<Vec<u8>> {
    let (mut table, mut ran) = (Table::default(), Vec::new());
    let groups = groups(cells, is_same_curve);
    let requests = groups.iter().map(|group| curve_request(group, base));
    let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
    for (group, request) in groups.into_iter().zip(requests) {
        let mut outcome = request.run(&Arc::default())?;
        outcome.cells = of_before(&outcome.cells, group, |ours, theirs| {
            if theirs.policy_profile.is_none() {
                ours.policy_profile = None;
            }
        })?;
        table.append(outcome.table());
        ran.extend(outcome.cells);
    }
    rendered(before, table, &Description::Curve { cells: ran })
}

fn rendered(
    before: &ResultFile,
    mut table: Table,
    description: &Description,
) -> anyhow::Result<Vec<u8>> {
    // Of an earlier version.
    if !before.rows.iter().any(|row| row.contains_key(PROFILE.name)) {
        table.remove(PROFILE.name);
    }
    let mut bytes = Vec::new();
    write(&mut bytes, before.form, &table, description, true)?;
    Ok(bytes)
}

/// Describes the first difference between two results.
fn difference(before: &ResultFile, after: &ResultFile) -> String {
    if before.rows.len() != after.rows.len() {
        return format!(
            "the result has {} rows, run again it has {}",
            before.rows.len(),
            after.rows.len()
        );
    }
    let differ = |(before, after): &(&_, &_)| before != after;
    let mut pairs = before.rows.iter().zip(&after.rows);
    let count = pairs.clone().filter(differ).count();
    let Some(at) = pairs.position(|pair| differ(&pair)) else {
        return "all rows have the same values, written differently".to_owned();
    };
    let (was, is) = (&before.rows[at], &after.rows[at]);
    let name = |key: &str| was.get(key).and_then(|value| value.as_str()).unwrap_or("");
    let new = is.keys().filter(|key| !was.contains_key(*key));
    let keys = was.keys().chain(new);
    let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), ToString::to_string);
    let fields: Vec<String> = keys
        .map(|key| (key, was.get(key), is.get(key)))
        .filter(|(_, was, is)| was != is)
        .map(|(key, was, is)| format!("{key} was {}, is {}", text(was), text(is)))
        .collect();
    format!(
        "{count} of {} rows differ; the first is row {} ({} {} {}): {}",
        before.rows.len(),
        at + 1,
        [name("workload"), name("trace")].concat(),
        name("policy"),
        name("measure"),
        fields.join("; ")
    )
}
