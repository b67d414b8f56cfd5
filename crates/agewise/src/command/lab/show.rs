// SPDX-License-Identifier: Apache-2.0
//! `agewise lab show`.

use agewise_policy::table::PAGE_BYTES;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_cli::output;
use agewise_cli::units;
use agewise_lab::study::again::{groups, is_same_curve, is_same_run};
use agewise_lab::study::description::{CurveCell, Described, Description, Origin, RunCell};
use clap::ValueEnum;
use serde::Serialize;

use super::results;

/// Print what was run to produce a result.
///
/// Every row that `lab run` and `lab curve` write with --format json, csv or parquet says what was
/// run: the workload or trace with its SHA-256, policy, agent, memory, swap, settings, seeds, other
/// options, version and build. This command prints it once, with the profile of a policy of your
/// own.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A file with the output of `lab run` or `lab curve`.
    #[arg(value_name = "RESULT")]
    pub result: PathBuf,
    /// text: for people; json: one object per line and policy.
    #[arg(long, default_value = "text")]
    pub format: Format,
}

/// Output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// A cell with the name of its experiment.
#[derive(Serialize)]
struct Cell<'a, C: Serialize> {
    experiment: &'static str,
    #[serde(flatten)]
    cell: &'a Described<C>,
}

/// Reads the result and prints its description.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let description = results::read(&args.result)?.description;
    let mut out = io::stdout().lock();
    match (&description, args.format) {
        (Description::Run { cells }, Format::Text) => {
            for group in groups(cells, is_same_run) {
                print_run(&mut out, group)?;
            }
        }
        (Description::Curve { cells }, Format::Text) => {
            for group in groups(cells, is_same_curve) {
                print_curve(&mut out, group)?;
            }
        }
        (Description::Run { cells }, Format::Json) => print_json(&mut out, "run", cells)?,
        (Description::Curve { cells }, Format::Json) => print_json(&mut out, "curve", cells)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn print_json<C: Serialize>(
    out: &mut impl Write,
    experiment: &'static str,
    cells: &[Described<C>],
) -> io::Result<()> {
    for cell in cells {
        output::json_line(out, &Cell { experiment, cell })?;
    }
    Ok(())
}

/// Prints a line unless the value is empty.
fn line(out: &mut impl Write, name: &str, value: &str) -> io::Result<()> {
    match value {
        "" => Ok(()),
        value => writeln!(out, "  {name:9} {}", output::message(value)),
    }
}

fn policies<'a, C>(of: &'a [Described<C>], name: impl Fn(&'a C) -> &'a str) -> String {
    let names: Vec<&str> = of.iter().map(|of| name(&of.cell)).collect();
    names.join(", ")
}

/// Prints which files describe policies and what is in them, each once.
fn print_profiles<'a, C>(
    out: &mut impl Write,
    of: &'a [Described<C>],
    file: impl Fn(&'a C) -> (&'a str, &'a Option<String>, &'a Option<String>),
) -> io::Result<()> {
    let mut known = Vec::new();
    for (policy, sha256, text) in of.iter().map(|of| file(&of.cell)) {
        if let (Some(sha256), false) = (sha256, known.contains(&policy)) {
            line(out, "profile", &format!("{policy}, SHA-256 {sha256}"))?;
            for row in text.iter().flat_map(|text| text.lines()) {
                writeln!(out, "            {}", output::message(row))?;
            }
            known.push(policy);
        }
    }
    Ok(())
}

fn print_origin(out: &mut impl Write, origin: &Origin) -> io::Result<()> {
    line(out, "options", &origin.options)?;
    line(out, "source", &origin.source)?;
    line(out, "sha256", &origin.source_sha256)?;
    let made_by = format!("agewise {}, build {}", origin.version, origin.build);
    line(out, "made by", &made_by)
}

fn print_run(out: &mut impl Write, group: &[Described<RunCell>]) -> io::Result<()> {
    let Some(Described { cell, origin }) = group.first() else {
        return Ok(());
    };
    writeln!(out, "run of {}", output::message(&cell.workload))?;
    line(out, "policies", &policies(group, |cell| &cell.policy))?;
    print_profiles(out, group, |cell| {
        (cell.lru(), &cell.policy_sha256, &cell.policy_profile)
    })?;
    let pages = cell.memory_bytes / PAGE_BYTES;
    let memory = units::bytes_text(cell.memory_bytes);
    line(out, "memory", &format!("{memory} ({pages} pages)"))?;
    line(out, "swap", &cell.swap)?;
    line(out, "settings", &cell.settings)?;
    line(out, "damon", cell.damon.as_deref().unwrap_or_default())?;
    line(out, "seeds", &cell.seeds)?;
    print_origin(out, origin)
}

fn print_curve(out: &mut impl Write, group: &[Described<CurveCell>]) -> io::Result<()> {
    let Some(Described { cell, origin }) = group.first() else {
        return Ok(());
    };
    writeln!(out, "curves of {}", output::message(&cell.trace))?;
    line(out, "policies", &policies(group, |cell| &cell.policy))?;
    print_profiles(out, group, |cell| {
        (&cell.policy, &cell.policy_sha256, &cell.policy_profile)
    })?;
    let sizes: Vec<String> = cell.sizes_pages.iter().map(u64::to_string).collect();
    line(out, "pages", &sizes.join(", "))?;
    if let (Some(rate), Some(samples)) = (cell.sampling_rate, cell.samples) {
        line(out, "samples", &format!("{samples} of {rate} of the pages"))?;
    }
    print_origin(out, origin)
}
