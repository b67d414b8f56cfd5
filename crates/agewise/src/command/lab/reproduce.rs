// SPDX-License-Identifier: Apache-2.0
//! `agewise lab reproduce`.

use std::io::{self, Write};
use std::process::ExitCode;

use agewise_lab::experiment::matrix::SEEDS_MAX;
use agewise_lab::reproduce::{self, Better, Choice, DOCUMENTS, Document, Row, Summary, Verdict};
use serde::Serialize;

use agewise_cli::output::{self, Format};
use agewise_cli::progress::Progress;

use super::set::{self, Given};

/// Repeat the benchmarks of a source document in the lab, and judge its claims.
///
/// Each benchmark is emulated at a fraction of its size, before and after the document's proposal,
/// with the same seeds; changes are computed from raw values, the document's too. Without a NAME,
/// documents, their variants and benchmarks are listed.
///
/// Verdicts: `reproduced`, our 95 % interval excludes 0, the change has the document's direction,
/// and its size overlaps the document's or is within a factor of two of it (where the document
/// finds no significant change: our whole interval lies within 3 % of none); `same sign`, the same
/// direction with a different size; `opposite`, the other direction; `insensitive`, nothing
/// responds; `underpowered`, the interval is too wide to have shown half of what the document says;
/// `own`, the document has no figure and the row is not a claim. The summary counts claims.
///
/// The interval is Fieller's for the ratio of paired means, or Student's for paired differences: it
/// contains 0 exactly if the paired t-test finds no difference. Where a value before is 0, changes
/// are differences.
///
/// Exit status: 0 whatever the verdicts are; 1 an error; 2 a wrong argument.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The document; see the list.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=SEEDS_MAX))]
    seeds: u64,
    /// Only this benchmark, or those whose name begins with it and a slash.
    #[arg(long, value_name = "BENCHMARK")]
    benchmark: Option<String>,
    /// What to compare: the document's proposal by default, or a variant without one of its parts.
    #[arg(long, value_name = "VARIANT")]
    variant: Option<String>,
    /// A setting of every machine, after the document's own; @FILE: one from each line of a file.
    /// Can be given several times.
    #[arg(long, value_name = "KEY=VALUE", value_parser = set::parse)]
    set: Vec<Given>,
    /// List the claims that were not reproduced, each with the cause if an experiment showed it.
    #[arg(long)]
    why: bool,
    /// text: for people; json: one object per line, raw values included; csv: the same without
    /// these.
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Reproduces the document and prints the result.
///
/// # Errors
/// A name is unknown, or a benchmark cannot run.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let Some(name) = &args.name else {
        list(&mut out, args.format)?;
        return Ok(ExitCode::SUCCESS);
    };
    let document = reproduce::find(name)?;
    let progress = Progress::new("measurements");
    let settings = Given::all(&args.set);
    let choice = Choice {
        benchmark: args.benchmark.as_deref(),
        variant: args.variant.as_deref(),
        seeds: args.seeds,
        settings: &settings,
    };
    let rows = reproduce::reproduce(document, &choice, |total| progress.advance(total));
    progress.finish();
    let rows = rows?;
    match args.format {
        Format::Json => {
            for row in &rows {
                output::json_line(&mut out, row)?;
            }
            output::json_line(&mut out, &Summary::of(document, &rows))?;
        }
        Format::Csv => print_csv(&mut out, &rows)?,
        Format::Text => {
            print_text(&mut out, document, &rows)?;
            print_summary(&mut out, document, &rows, args.why)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// An entry of the list.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    document: &'a str,
    kind: &'static str,
    name: &'a str,
    description: &'a str,
}

fn list(out: &mut impl Write, format: Format) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(Vec::new());
    for document in DOCUMENTS {
        let benchmarks = (document.benchmarks)();
        let variants = document.variants.iter();
        let entries = [("document", document.name, document.summary)]
            .into_iter()
            .chain(variants.map(|variant| ("variant", variant.name, variant.summary)))
            .chain(
                benchmarks
                    .iter()
                    .map(|one| ("benchmark", one.name.as_str(), one.summary.as_str())),
            );
        for (kind, name, description) in entries {
            let entry = Entry {
                document: document.name,
                kind,
                name,
                description,
            };
            match format {
                Format::Json => output::json_line(out, &entry)?,
                Format::Csv => csv.serialize(&entry)?,
                Format::Text if kind == "document" => writeln!(out, "{name}: {description}")?,
                Format::Text => writeln!(out, "  {kind:<9}  {name:<24}  {description}")?,
            }
        }
    }
    out.write_all(&csv.into_inner()?)?;
    Ok(())
}

/// CSV fields in order: all fields of a row except the raw values.
const COLUMNS: &str = "benchmark,document_before,document_after,ours_before,ours_after,change,\
    ci_low,ci_high,verdict,cause,document_change,document_low,document_high,document_printed,\
    document_within_noise,metric,unit,better,by_difference,variant,seeds,settings";

fn print_csv(out: &mut impl Write, rows: &[Row]) -> anyhow::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    writer.write_record(COLUMNS.split(','))?;
    for row in rows {
        let fields = serde_json::to_value(row)?;
        writer.write_record(COLUMNS.split(',').map(|name| match &fields[name] {
            serde_json::Value::Null => String::new(),
            serde_json::Value::String(text) => text.clone(),
            other => other.to_string(),
        }))?;
    }
    Ok(writer.flush()?)
}

/// Formats a number with four significant digits.
fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
    format!("{value:.digits$}")
}

fn change(row: &Row, value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if row.by_difference => number(value),
        Some(value) => format!("{:+.2} %", value * 100.0),
    }
}

fn values(before: Option<f64>, after: Option<f64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) => format!("{} -> {}", number(before), number(after)),
        _ => "-".to_owned(),
    }
}

fn print_summary(
    out: &mut impl Write,
    document: &Document,
    rows: &[Row],
    why: bool,
) -> io::Result<()> {
    let summary = Summary::of(document, rows);
    writeln!(
        out,
        "\n{} of {} claims reproduced; {} same sign, {} opposite, {} insensitive, {} underpowered; \
         {} rows are our own",
        summary.reproduced,
        summary.claims,
        summary.same_sign,
        summary.opposite,
        summary.insensitive,
        summary.underpowered,
        summary.own
    )?;
    let is_missed = |row: &&Row| !matches!(row.verdict, Verdict::Own | Verdict::Reproduced);
    for row in rows.iter().filter(is_missed).filter(|_| why) {
        let cause = row.cause.unwrap_or("not examined");
        writeln!(out, "  {} ({}): {cause}", row.benchmark, row.verdict)?;
    }
    Ok(())
}

/// The document's change: its interval, if any, and the printed value if it differs.
fn document_change(row: &Row) -> String {
    let theirs = match (row.document_low, row.document_high) {
        (Some(low), Some(high)) => {
            format!("{:+.2} .. {:+.2} %", low * 100.0, high * 100.0)
        }
        _ => change(row, row.document_change),
    };
    match row.document_printed {
        Some(printed) => format!("{theirs} (printed {printed})"),
        None => theirs,
    }
}

fn print_text(out: &mut impl Write, document: &Document, rows: &[Row]) -> io::Result<()> {
    let seeds = rows.first().map_or(0, |row| row.seeds);
    let variant = rows.first().map_or("", |row| row.variant);
    let settings = match rows.first().map_or("", |row| &row.settings) {
        "" => String::new(),
        settings => format!(", set {settings}"),
    };
    writeln!(
        out,
        "agewise {}, {} ({variant}){settings}, seeds 1 to {seeds}\n{}\n\n{}\n",
        env!("CARGO_PKG_VERSION"),
        document.name,
        document.summary,
        document.remark
    )?;
    let header = [
        "benchmark",
        "document",
        "its change",
        "ours",
        "our change",
        "95 % interval",
        "verdict",
    ];
    let mut table = vec![header.map(str::to_owned).to_vec()];
    for row in rows {
        let interval = match (row.ci_low, row.ci_high) {
            (Some(low), Some(high)) => {
                format!("{} .. {}", change(row, Some(low)), change(row, Some(high)))
            }
            _ => "-".to_owned(),
        };
        let better = match row.better {
            Better::Higher => "more is better",
            Better::Lower => "less is better",
        };
        let ours = values(Some(row.ours_before), Some(row.ours_after));
        table.push(vec![
            row.benchmark.clone(),
            values(row.document_before, row.document_after),
            document_change(row),
            format!("{ours} {} ({better})", row.unit),
            change(row, row.change),
            interval,
            row.verdict.to_string(),
        ]);
    }
    let widths: Vec<usize> = (0..header.len())
        .map(|column| {
            let cells = table.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        })
        .collect();
    for row in &table {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    print_noise(out, rows)
}

fn print_noise(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    let mut noise = rows
        .iter()
        .filter(|row| row.document_within_noise)
        .peekable();
    if noise.peek().is_some() {
        writeln!(
            out,
            "\nThe document gives no variance: nothing shows that changes as small as these are \
             more than noise:"
        )?;
    }
    for row in noise {
        let theirs = change(row, row.document_change);
        writeln!(out, "  {}: {theirs}", row.benchmark)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_that_count() {
        assert_eq!(number(5_125_500.0), "5125500");
        assert_eq!(number(1_817.134_99), "1817");
        assert_eq!(number(0.012_345), "0.01235");
        assert_eq!(number(0.0), "0");
    }
}
