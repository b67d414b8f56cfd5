// SPDX-License-Identifier: Apache-2.0
//! `agewise lab verify-policies`.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_lab::reference::yardsticks::{self, Standing, Verdict};
use agewise_lab::yardstick;
use agewise_trace::Manifest;
use agewise_trace::yardstick::PolicySpec;
use anyhow::Context;
use serde::Serialize;

use agewise_cli::output::{self, Format};

/// Count the misses of every row of a reference table, and report the deviations from it.
///
/// LRU, FIFO and OPT are fully specified and have to agree exactly. The deviations allowed for the
/// others are, in percent of the misses: CLOCK and S3-FIFO 0.3, ARC 0.5, SIEVE 1, LIRS 3, 2Q 4. Not
/// judged are rows that the reference itself marks as degenerate, policies without a tolerance
/// (W-TinyLFU, LFU), and rows of a second simulator ("family:Name"), whose variants differ: they
/// are counted and shown as degenerate or informational.
///
/// Exit status 0 if every judged row is within its tolerance, 1 otherwise.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The directory of the traces.
    #[arg(long, value_name = "DIR")]
    pub traces: PathBuf,

    /// CSV naming the traces: columns file, trace_name, format.
    #[arg(long, value_name = "FILE")]
    pub manifest: PathBuf,

    /// CSV of misses counted elsewhere: columns trace_name, cache_size, policy, misses, note.
    #[arg(long, value_name = "FILE")]
    pub reference: PathBuf,

    /// Only rows of these policies, separated by commas.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = known_policy)]
    pub policy: Vec<&'static PolicySpec>,

    /// Only rows of this trace.
    #[arg(long, value_name = "NAME")]
    pub trace: Vec<String>,

    /// Number of threads. Default: one per processor.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true,
          value_parser = super::jobs())]
    pub jobs: usize,

    /// Text summarises by policy; json and csv have one record per row.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// A row of the output.
#[derive(Debug, Serialize)]
struct Record<'a> {
    trace: &'a str,
    cache_size: usize,
    policy: &'a str,
    misses: Option<u64>,
    reference: u64,
    /// `(misses - reference) / reference`.
    deviation: Option<f64>,
    within: Option<bool>,
    tolerance: Option<f64>,
    standing: &'static str,
    note: &'a str,
}

impl<'a> Record<'a> {
    fn of(verdict: &'a Verdict) -> Self {
        Self {
            trace: &verdict.row.trace,
            cache_size: verdict.row.cache_size,
            policy: &verdict.row.policy,
            misses: verdict.misses,
            reference: verdict.row.misses,
            deviation: verdict.deviation,
            within: verdict.within(),
            tolerance: verdict.tolerance,
            standing: match verdict.standing {
                Standing::Judged => "judged",
                Standing::Degenerate => "degenerate",
                Standing::Informational => "informational",
            },
            note: &verdict.row.note,
        }
    }
}

/// Looks up a policy by name, for `--policy`.
///
/// # Errors
/// Unknown name; the error lists the known ones.
pub fn known_policy(name: &str) -> Result<&'static PolicySpec, String> {
    yardstick::by_name(name).ok_or_else(|| {
        format!(
            "there is no policy '{name}'; there are {}",
            yardstick::names()
        )
    })
}

/// Counts misses, compares them with the reference and prints the result.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.traces.is_dir() {
        agewise_cli::refuse!("--traces {}: not a directory", args.traces.display());
    }
    let manifest = Manifest::read(&args.manifest, &args.traces)?;
    let mut rows = yardsticks::read_reference(&args.reference)?;
    if !args.policy.is_empty() {
        rows.retain(|row| {
            yardstick::by_name(&row.policy)
                .is_some_and(|spec| args.policy.iter().any(|wanted| wanted.name == spec.name))
        });
    }
    if !args.trace.is_empty() {
        rows.retain(|row| args.trace.contains(&row.trace));
    }
    if rows.is_empty() {
        agewise_cli::refuse!(
            "{}: no rows to verify; give other values of --policy and --trace, or neither",
            args.reference.display()
        );
    }

    let progress = indicatif::ProgressBar::new(rows.len() as u64);
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(args.jobs)
        .build()
        .context("cannot start the threads")?;
    let verdicts =
        pool.install(|| yardsticks::verify(&rows, &manifest, &|done| progress.inc(done as u64)));
    progress.finish_and_clear();
    let verdicts = verdicts?;

    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let written = match args.format {
        Format::Text => text(&mut out, &verdicts),
        format => output::rows(&mut out, format, verdicts.iter().map(Record::of)),
    };
    let written = written.and_then(|()| out.flush());
    let failed = verdicts.iter().any(Verdict::failed);
    output::status(
        written.map_err(Into::into),
        match failed {
            true => ExitCode::FAILURE,
            false => ExitCode::SUCCESS,
        },
    )
}

fn text(out: &mut impl Write, verdicts: &[Verdict]) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<40} {:>5} {:>7} {:>10} {:>11} {:>11}",
        "policy", "rows", "within", "tolerance", "worst", "degenerate"
    )?;
    let mut names: Vec<&str> = Vec::new();
    for verdict in verdicts {
        if !names.contains(&verdict.row.policy.as_str()) {
            names.push(&verdict.row.policy);
        }
    }
    for name in names {
        let of_name = || verdicts.iter().filter(|verdict| verdict.row.policy == name);
        let sound = || of_name().filter(|verdict| verdict.standing != Standing::Degenerate);
        let worst = sound()
            .filter_map(|verdict| verdict.deviation)
            .max_by(|a, b| a.abs().total_cmp(&b.abs()));
        let tolerance = of_name().find_map(|verdict| verdict.tolerance);
        let informational = sound().any(|verdict| verdict.standing == Standing::Informational);
        writeln!(
            out,
            "{:<40} {:>5} {:>7} {:>10} {:>11} {:>11}",
            name,
            sound().count(),
            sound()
                .filter(|verdict| verdict.within() == Some(true))
                .count(),
            match tolerance {
                _ if informational => "-".to_string(),
                Some(0.0) => "exact".to_string(),
                Some(share) => format!("{:.1} %", share * 100.0),
                None => "-".to_string(),
            },
            worst.map_or("-".to_string(), |share| format!("{:+.4} %", share * 100.0)),
            of_name().count() - sound().count(),
        )?;
    }
    let failed: Vec<&Verdict> = verdicts.iter().filter(|verdict| verdict.failed()).collect();
    for verdict in &failed {
        writeln!(
            out,
            "beyond: {} {} at {} pages: {} misses, reference {} ({:+.4} %)",
            verdict.row.policy,
            verdict.row.trace,
            verdict.row.cache_size,
            verdict
                .misses
                .map_or("no".to_string(), |misses| misses.to_string()),
            verdict.row.misses,
            verdict.deviation.unwrap_or(f64::NAN) * 100.0
        )?;
    }
    let judged = verdicts
        .iter()
        .filter(|verdict| verdict.standing == Standing::Judged)
        .count();
    writeln!(
        out,
        "{} of {judged} judged rows within tolerance",
        judged - failed.len()
    )
}
