// SPDX-License-Identifier: Apache-2.0
//! `agewise lab rerun`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use agewise_cli::output;
use agewise_cli::progress::Progress;
use agewise_lab::study::again::{
    Base, curve_request, groups, is_same_curve, is_same_run, run_request,
};
use agewise_lab::study::description::{Described, Description, Origin};
use agewise_lab::study::result::{Form, ResultFile};
use agewise_lab::study::table::Table;
use agewise_trace::{ReadLimits, Reading};
use anyhow::Context;

use super::results::{BUILD, write};
use crate::command::trace::input::trace_memory_default;

/// Repeat the run behind a result, and compare byte for byte.
///
/// The workload or trace must be the same file, as identified by its SHA-256. If another version or
/// build of agewise produced the result, this is reported, and everything else is compared.
///
/// Exit status 0 if the bytes are the same, 1 if they differ; the first difference is printed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with the output of `lab run` or `lab curve`, as json, csv or parquet.
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// Where workloads and traces are, if not where the result says.
    #[arg(long, value_name = "DIRECTORY")]
    pub from: Option<PathBuf>,
}

/// Runs and compares.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let before = ResultFile::read(&args.result)?;
    let base = Base {
        directory: args.from.clone(),
        reading: Reading {
            limits: ReadLimits {
                memory_max_bytes: trace_memory_default(),
                ..ReadLimits::default()
            },
            ..Reading::default()
        },
        build: BUILD.to_owned(),
    };
    for origin in before.description.origins() {
        base.check_file(origin)?;
    }
    if let Some(origin) = before.description.origins().first() {
        say_who(origin);
    }
    let bytes = match &before.description {
        Description::Run { cells } => run_again(&before, cells, &base),
        Description::Curve { cells } => count_again(&before, cells, &base),
    };
    let bytes = bytes.with_context(|| {
        format!(
            "cannot run {} again (files are looked for where the result says, or with --from)",
            args.result.display()
        )
    })?;
    let mut out = io::stdout().lock();
    if bytes == before.bytes {
        writeln!(out, "the same {} bytes", bytes.len())?;
        return Ok(ExitCode::SUCCESS);
    }
    let after = ResultFile::parse(&args.result, bytes)?;
    writeln!(out, "{}", output::message(&difference(&before, &after)))?;
    Ok(ExitCode::FAILURE)
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
    base: &Base,
) -> anyhow::Result<Vec<Described<C>>> {
    let pair = |(ours, theirs): (&Described<C>, &Described<C>)| {
        base.check_hash(&theirs.origin, &ours.origin.source_sha256)?;
        Ok(Described {
            cell: ours.cell.clone(),
            origin: theirs.origin.clone(),
        })
    };
    ours.iter().zip(theirs).map(pair).collect()
}

fn run_again(
    before: &ResultFile,
    cells: &[Described<agewise_lab::study::description::RunCell>],
    base: &Base,
) -> anyhow::Result<Vec<u8>> {
    let (mut table, mut ran) = (Table::default(), Vec::new());
    for group in groups(cells, is_same_run) {
        let request = run_request(group, base)?;
        let progress = Progress::new("runs");
        let mut outcome = request.run(&Arc::default(), |total| progress.advance(total))?;
        progress.finish();
        outcome.cells = of_before(&outcome.cells, group, base)?;
        table.append(match before.form {
            Form::Parquet => outcome.run_table(),
            Form::Json | Form::Csv => outcome.summary_table(),
        });
        ran.extend(outcome.cells);
    }
    rendered(before.form, &table, &Description::Run { cells: ran })
}

fn count_again(
    before: &ResultFile,
    cells: &[Described<agewise_lab::study::description::CurveCell>],
    base: &Base,
) -> anyhow::Result<Vec<u8>> {
    let (mut table, mut ran) = (Table::default(), Vec::new());
    for group in groups(cells, is_same_curve) {
        let mut outcome = curve_request(group, base)?.run(&Arc::default())?;
        outcome.cells = of_before(&outcome.cells, group, base)?;
        table.append(outcome.table());
        ran.extend(outcome.cells);
    }
    rendered(before.form, &table, &Description::Curve { cells: ran })
}

fn rendered(form: Form, table: &Table, description: &Description) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write(&mut bytes, form, table, description, true)?;
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
    let fields = was
        .iter()
        .filter(|(key, value)| is.get(*key) != Some(value));
    let fields: Vec<String> = fields
        .map(|(key, value)| {
            let is = is
                .get(key)
                .map_or("nothing".to_owned(), ToString::to_string);
            format!("{key} was {value}, is {is}")
        })
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
