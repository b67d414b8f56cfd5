// SPDX-License-Identifier: Apache-2.0
//! `agewise lab fuzz`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use agewise_cli::output::{self, Format};
use agewise_cli::progress::Progress;
use agewise_cli::usage::WrongArgument;
use agewise_lab::fuzz::{Case, Failure, draw, play, shrink};
use agewise_lab::machine::Policy;
use agewise_lab::workload::random::XorShift64Star;
use anyhow::{Context, ensure};
use rayon::prelude::*;
use serde::Serialize;

use super::results::output_file;

/// Number of replays allowed to minimise a failing case.
const TRIES: usize = 2000;

/// Seeds run per batch; fixed, so that the result does not depend on the number of CPUs.
const CHUNK: u64 = 64;

/// Build random machines, subject them to random events, and check them after each step
///
/// A case is a machine (policy, frames, nodes or zones, CPUs, swap, settings) and steps: cgroups
/// with limits come and go, processes start, fork, map, touch, read, write and exit, pages are
/// reclaimed, the multi-gen LRU is aged, asked to evict, switched on and off. After each step
/// frames, reverse map, page tables, swap slots, page cache, charges, zones, lists and generations
/// have to agree.
///
/// The first failing case is minimised and written to a file: JSON, with the machine on the first
/// line and one step on each further line. It can be read, changed, kept as a test, and replayed by
/// naming it here.
///
/// Exit status 1 if a case fails.
///
/// Examples:
///   agewise lab fuzz --cases 100000
///   agewise lab fuzz --policy mglru:my.toml
///   agewise lab fuzz failed.case
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Cases to replay, instead of random cases.
    #[arg(value_name = "CASE", conflicts_with_all = ["cases", "steps", "seed", "policy", "out"])]
    pub again: Vec<PathBuf>,
    /// Number of cases.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub cases: u64,
    /// Steps of each, after those that fill the machine.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub steps: usize,
    /// First seed: each further case uses the next one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The policies to draw from. Default: all that come with agewise.
    #[arg(long, value_name = "POLICY", value_delimiter = ',')]
    pub policy: Vec<String>,
    /// File for a failing case. An existing file is not replaced.
    #[arg(long, value_name = "FILE", default_value = "failed.case")]
    pub out: PathBuf,
    /// text, json or csv.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

/// The outcome of a fuzz run.
#[derive(Serialize)]
struct Outcome {
    /// Cases without a failure.
    passed: u64,
    /// The seed of the failing case, if it was generated.
    failed_seed: Option<u64>,
    /// The file with the failing case.
    case: Option<PathBuf>,
    /// The failing step, from 1.
    step: Option<usize>,
    /// The check that failed.
    what: Option<String>,
}

/// Runs the cases and prints the outcome.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let outcome = match args.again.is_empty() {
        true => at_random(args)?,
        false => again(&args.again)?,
    };
    let status = ExitCode::from(u8::from(outcome.what.is_some()));
    output::status(print(&outcome, args.format), status)
}

fn again(paths: &[PathBuf]) -> anyhow::Result<Outcome> {
    let mut passed = 0;
    for path in paths {
        let text = fs::read_to_string(path)
            .with_context(|| format!("cannot read the case {}", path.display()))?;
        let case = Case::parse(&text).with_context(|| path.display().to_string())?;
        if let Err(failure) = play(&case) {
            return Ok(failed(passed, None, path, failure));
        }
        passed += 1;
    }
    Ok(agreed(passed))
}

fn at_random(args: &Args) -> anyhow::Result<Outcome> {
    for name in &args.policy {
        Policy::parse(name).map_err(|error| WrongArgument(error.to_string()))?;
    }
    let policies = match args.policy.is_empty() {
        true => Policy::names(),
        false => args.policy.clone(),
    };
    let drawn = |seed: u64| {
        // The generator cannot leave state 0.
        let mut random = XorShift64Star::new(seed.wrapping_mul(2).wrapping_add(1));
        draw(&policies, args.steps, &mut |n| random.below(n))
    };
    // Panics are reported when the minimised case is replayed.
    std::panic::set_hook(Box::new(|_| {}));
    ensure!(
        !args.out.exists(),
        "{} exists: replay or move it first, or name another file with --out",
        args.out.display()
    );
    let file = output_file(Some(&args.out))?;
    let progress = Progress::new("cases");
    let mut found = None;
    for begin in (0..args.cases).step_by(CHUNK as usize) {
        let seeds = begin..args.cases.min(begin + CHUNK);
        found = seeds.into_par_iter().find_map_first(|number| {
            let seed = args.seed.wrapping_add(number);
            let case = drawn(seed);
            let failure = play(&case).err();
            progress.advance(args.cases);
            failure.map(|failure| (number, seed, case, failure))
        });
        if found.is_some() {
            break;
        }
    }
    progress.finish();
    let Some((passed, seed, case, failure)) = found else {
        return Ok(agreed(args.cases));
    };
    let (case, failure) = shrink(case, failure, TRIES, &play);
    if let Some(file) = file {
        let written = file.write(case.to_string().as_bytes());
        written.with_context(|| format!("seed {seed} fails ({failure})"))?;
    }
    Ok(failed(passed, Some(seed), &args.out, failure))
}

fn agreed(passed: u64) -> Outcome {
    Outcome {
        passed,
        failed_seed: None,
        case: None,
        step: None,
        what: None,
    }
}

fn failed(passed: u64, seed: Option<u64>, path: &Path, failure: Failure) -> Outcome {
    Outcome {
        failed_seed: seed,
        case: Some(path.to_owned()),
        step: Some(failure.step),
        what: Some(failure.what),
        ..agreed(passed)
    }
}

fn print(outcome: &Outcome, format: Format) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Json | Format::Csv => output::rows(&mut out, format, [outcome])?,
        Format::Text => match (&outcome.what, &outcome.case, outcome.step) {
            (Some(what), Some(case), Some(step)) => {
                writeln!(out, "{}: step {step}: {what}", case.display())?;
                writeln!(out, "again: agewise lab fuzz {}", case.display())?;
            }
            _ => writeln!(out, "{} cases, nothing disagreed", outcome.passed)?,
        },
    }
    Ok(())
}
