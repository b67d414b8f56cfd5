// SPDX-License-Identifier: Apache-2.0
//! `agewise lab verify-kernel`.

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use agewise_lab::reference::mutation::{Caught, mutate};
use agewise_lab::reference::verify::{CellReport, Comparison, Effort, deviation, verify};
use agewise_lab::reference::{Cell, rows};
use anyhow::Context;

use agewise_cli::output::{self, Format};
use agewise_cli::progress::Progress;

/// Compare the simulated machine with counts taken from real kernels.
///
/// Replays every trace of a reference, for each kernel and LRU in it, in a simulated memory cgroup
/// at its limit, and prints simulated beside measured misses, refaults and pages scanned. The hash
/// of each trace must be the one that the guest computed.
///
/// The classic LRU decides on statistics that are up to 2 s old, so each of its runs is replayed at
/// its own measured speed with 20 start phases of the 2 s timer; ranges are compared. The multi-gen
/// LRU is replayed under 12 conditions that a reference does not record (whether the process was
/// scheduled between two agings, a few kernel pages more or less), with min_ttl_ms at the speed of
/// each measured run; the median is compared.
///
/// With --mutate, rules of the multi-gen LRU are switched off or set to another value instead, one
/// at a time. For each, it prints how many of the cells that agree without the change no longer
/// agree with it, and the cell that moved most. The exit status is then 0, whatever is caught.
///
/// Exit status 1 if a cell of a main phase does not agree: multi-gen misses within 10 % of the
/// measured median (or inside the measured range), classic ranges overlapping with 1 % to spare; or
/// if one side kills the program for lack of memory in every run, and the other in none.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The reference: a CSV of row sets with kver, lru_gen_enabled, phase, pattern, npages, hot,
    /// theta, seed, touches, misses, elapsed, pgscan, tracehash and others, in any order. Default:
    /// the one that is part of agewise.
    #[arg(long, value_name = "FILE.csv")]
    pub reference: Option<PathBuf>,
    /// Use the second reference that is part of agewise, with harder cells: swappiness, bits of
    /// lru_gen/enabled, three cgroups below one limit, memory.min and memory.low, writes, also of
    /// files; huge pages; no limit, where kswapd reclaims; min_ttl_ms, where programs are killed;
    /// two CPUs; two nodes, also interleaved. Seven of its 202 cells do not agree
    /// (docs/inside/kernel-reference.md says which): exit status 1.
    #[arg(long, conflicts_with = "reference")]
    pub extended: bool,
    /// Only rows of this kernel.
    #[arg(long, value_name = "VERSION")]
    pub kernel: Option<String>,
    /// text: a table; json: one object per line and cell; csv: the same fields.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Start phases of the statistics timer for each measured run of the classic LRU.
    #[arg(long, value_name = "N", default_value_t = Effort::default().flush_phases,
          value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub flush_phases: u64,
    /// Only the first of those conditions.
    #[arg(long)]
    pub single: bool,
    /// Break rules of the multi-gen LRU: all, or those whose line of a profile begins with this,
    /// such as `without`, `aging` or `tier_gain = [1, 1]`; `enabled` stands for lru_gen/enabled.
    #[arg(long, value_name = "RULE", num_args = 0..=1, default_missing_value = "")]
    pub mutate: Option<String>,
}

/// Verifies the cells and prints the result.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let cells = read_cells(args)?;
    let effort = Effort {
        flush_phases: args.flush_phases,
        perturb: !args.single,
    };
    let progress = Progress::new("runs");
    if let Some(only) = &args.mutate {
        let never = AtomicBool::new(false);
        let caught = mutate(&cells, only, effort, &never, |total| {
            progress.advance(total as u64);
        })?;
        progress.finish();
        if caught.is_empty() {
            agewise_cli::refuse!(
                "no change of a rule begins with `{only}`; --mutate alone tries all"
            );
        }
        print_caught(args.format, &caught)?;
        return Ok(ExitCode::SUCCESS);
    }
    let reports = verify(&cells, effort, |total| progress.advance(total as u64))?;
    progress.finish();
    let mut out = io::stdout().lock();
    let all = || reports.iter().flat_map(|report| &report.comparisons);
    let written = match args.format {
        Format::Text => print_text(&mut out, &reports),
        format => output::rows(&mut out, format, all()),
    };
    let agree = reports.iter().all(CellReport::kills_agree)
        && all()
            .filter(|comparison| comparison.phase == "main")
            .all(|comparison| comparison.agrees(0.10));
    output::status(
        written.map_err(Into::into),
        match agree {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        },
    )
}

fn read_cells(args: &Args) -> anyhow::Result<Vec<Cell>> {
    let (name, mut cells) = match &args.reference {
        None => {
            let text = match args.extended {
                true => rows::EXTENDED,
                false => rows::COMMITTED,
            };
            ("the reference".to_owned(), rows::read(text.as_bytes())?)
        }
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
            let cells = rows::read(file).with_context(|| format!("in {name}"))?;
            (name, cells)
        }
    };
    if let Some(kernel) = &args.kernel {
        cells.retain(|cell| cell.kernel == *kernel);
        if cells.is_empty() {
            agewise_cli::refuse!("{name} has no row of kernel {kernel}");
        }
    }
    Ok(cells)
}

fn print_caught(format: Format, caught: &[Caught]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match format {
        Format::Json | Format::Csv => output::rows(&mut out, format, caught)?,
        Format::Text => {
            writeln!(
                out,
                "{:6} {:38} {:>9} {:>6}  {:20} {:>8} {:>8} {:>8}",
                "kernel",
                "change",
                "caught by",
                "moves",
                "most: pattern",
                "sim",
                "changed",
                "measured"
            )?;
            for row in caught {
                writeln!(
                    out,
                    "{:6} {:38} {:>9} {:>6}  {:20} {:>8} {:>8} {:>8}",
                    row.kernel,
                    row.change,
                    format!("{} of {}", row.caught, row.cells),
                    row.moved,
                    format!("{} {}", row.pattern, row.theta),
                    number(row.misses_sim),
                    number(row.misses_changed),
                    row.misses_median
                )?;
            }
        }
    }
    Ok(())
}

fn number(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn print_text(out: &mut impl Write, reports: &[CellReport]) -> io::Result<()> {
    writeln!(
        out,
        "{:6} {:7} {:4} {:10} {:17} {:5} {:>5} {:6} {:8} {:>8} {:>17} {:>8} {:>17} {:>7} {:>8} \
         {:>8} {:>7} {:>13}",
        "kernel",
        "lru",
        "swap",
        "member",
        "pattern",
        "theta",
        "hot",
        "nomadv",
        "phase",
        "sim",
        "(range)",
        "measured",
        "(range)",
        "off",
        "scan sim",
        "measured",
        "off",
        "refaults a/f"
    )?;
    for report in reports {
        for comparison in &report.comparisons {
            print_row(out, comparison)?;
        }
        let [simulated, of, measured, runs] = report.killed;
        if simulated + measured > 0 {
            writeln!(
                out,
                "{:62} ended early (out of memory, or cut short): simulated {simulated} of {of} \
                 runs, measured {measured} of {runs}",
                ""
            )?;
        }
    }
    summarize(out, reports)
}

fn print_row(out: &mut impl Write, row: &Comparison) -> io::Result<()> {
    let off = |simulated: Option<u64>, measured| {
        simulated.map_or("-".to_owned(), |simulated| {
            format!("{:+.1}%", deviation(simulated, measured) * 100.0)
        })
    };
    // Show the bits of lru_gen/enabled if some of them are off.
    let lru = match row.lru_gen {
        bits if bits & 1 == 0 => "classic".to_owned(),
        7 => "mglru".to_owned(),
        bits => format!("mglru/{bits}"),
    };
    // The cgroup had no limit; the guest's memory was the limit.
    let global = if row.limit_bytes == 0 { " global" } else { "" };
    let protected = match (row.min_bytes, row.low_bytes) {
        (0, 0) => "",
        (0, _) => " low",
        _ => " min",
    };
    let member = format!("{}/{}{protected}{global}", row.member + 1, row.members);
    let writes = if row.writes == 0 { "" } else { " w" };
    let thp = if row.thp == 0 { "" } else { " thp" };
    let [cpus, nodes] = [(row.cpus, "cpu"), (row.nodes, "node")].map(|(count, what)| match count {
        1 => String::new(),
        _ => format!(" {count}{what}"),
    });
    let pattern = format!("{}{writes}{thp}{cpus}{nodes}", row.pattern);
    let simulated_range = format!(
        "{}-{}",
        number(row.misses_sim_min),
        number(row.misses_sim_max)
    );
    writeln!(
        out,
        "{:6} {lru:7} {:<4} {member:10} {pattern:17} {:<5} {:>5} {:6} {:8} {:>8} \
         {simulated_range:>17} {:>8} {:>17} {:>7} {:>8} {:>8} {:>7} {:>13}{}",
        row.kernel,
        row.swappiness,
        row.theta,
        row.hot,
        row.nomadv,
        row.phase,
        number(row.misses_sim),
        row.misses_median,
        format!("{}-{}", row.misses_min, row.misses_max),
        off(row.misses_sim, row.misses_median),
        number(row.scanned_sim),
        row.scanned_median,
        off(row.scanned_sim, row.scanned_median),
        format!("{}/{}", row.refaults_sim[0], row.refaults_sim[1]),
        if row.agrees(0.05) { "" } else { "  *" },
    )
}

fn summarize(out: &mut impl Write, reports: &[CellReport]) -> io::Result<()> {
    let main: Vec<&Comparison> = reports
        .iter()
        .flat_map(|report| &report.comparisons)
        .filter(|comparison| comparison.phase == "main")
        .collect();
    let count = |wanted: &dyn Fn(&Comparison) -> bool| {
        main.iter().filter(|comparison| wanted(comparison)).count()
    };
    let mglru = |c: &Comparison| c.lru_gen & 1 != 0;
    writeln!(out, "\nmain phases; trace hashes all equal")?;
    writeln!(
        out,
        "multi-gen misses within 5 % of the median or inside the range: {} of {}; within 10 %: {}",
        count(&|c| mglru(c) && c.agrees(0.05)),
        count(&mglru),
        count(&|c| mglru(c) && c.agrees(0.10)),
    )?;
    writeln!(
        out,
        "classic ranges overlap, measured widened by 1 %: {} of {}",
        count(&|c| !mglru(c) && c.agrees(0.0)),
        count(&|c| !mglru(c)),
    )?;
    writeln!(
        out,
        "pages scanned within 25 %: {} of {}",
        count(&Comparison::scans_agree),
        main.len(),
    )?;
    let killed = |report: &&CellReport| report.killed[0] + report.killed[2] > 0;
    let killed: Vec<_> = reports.iter().filter(killed).collect();
    writeln!(
        out,
        "killed for lack of memory on both sides or, in some runs, on one: {} of {} cells",
        killed.iter().filter(|report| report.kills_agree()).count(),
        killed.len()
    )
}
