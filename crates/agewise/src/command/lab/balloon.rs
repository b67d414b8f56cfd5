// SPDX-License-Identifier: Apache-2.0
//! `agewise lab balloon`.

use agewise_policy::table::PAGE_BYTES;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;

use agewise_lab::experiment::balloon::{Host, Outcome, Sharing, run_host};
use agewise_lab::workload::library;
use agewise_policy::units::size_bytes;
use serde::Serialize;

use agewise_cli::output;

/// Divide the memory of a host among guests according to the working-set reports they send.
///
/// Each guest is a simulated machine with a balloon. The host reads the guests' working-set
/// reports. The same guests run once with fixed equal shares, and once with shares that follow the
/// reports;
/// the table compares what came back after eviction.
///
/// Example: agewise lab balloon --guests kv,desktop,scan --memory 96M --seeds 3
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Workloads of the guests, by name (see `agewise lab list`). Default: three made for this
    /// purpose.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub guests: Vec<String>,
    /// Memory of all guests together, in bytes or with K, M, G.
    #[arg(long, value_name = "SIZE", default_value = "48M")]
    pub memory: String,
    /// Simulated seconds.
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// text: for people; json: one object per line, a guest of a run each; csv: the same fields.
    #[arg(long, default_value = "text")]
    pub format: output::Format,
}

/// One guest of one run.
#[derive(Serialize)]
struct Row<'a> {
    seed: u64,
    sharing: &'static str,
    guest: &'a str,
    refaults: u64,
    stalled_ms: f64,
    memory_bytes: u64,
}

fn rows<'a>(seed: u64, sharing: &'static str, outcome: &'a Outcome) -> Vec<Row<'a>> {
    let row = |guest: &'a agewise_lab::experiment::balloon::Guest| Row {
        seed,
        sharing,
        guest: &guest.name,
        refaults: guest.refaults,
        stalled_ms: guest.stalled_ns as f64 / 1e6,
        memory_bytes: guest.allowance_pages * PAGE_BYTES,
    };
    outcome.guests.iter().map(row).collect()
}

/// Runs and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let bytes = match size_bytes(&args.memory) {
        Ok(bytes) => bytes,
        Err(error) => agewise_cli::refuse!("--memory `{}` {error}", args.memory),
    };
    let mut host = Host {
        memory_pages: bytes / PAGE_BYTES,
        duration_ms: args.seconds * 1000,
        ..Host::example()?
    };
    if !args.guests.is_empty() {
        let find = |name: &String| Ok(Arc::new(library::find(name.trim())?));
        host.guests = args
            .guests
            .iter()
            .map(find)
            .collect::<anyhow::Result<_>>()?;
    }
    let mut out = io::stdout().lock();
    let mut totals = [0u64; 2];
    let mut is_first = true;
    for seed in 1..=args.seeds {
        for (total, (name, sharing)) in totals
            .iter_mut()
            .zip([("equal", Sharing::Equal), ("reports", Sharing::Reports)])
        {
            host.seed = seed;
            host.sharing = sharing;
            let outcome = run_host(&host)?;
            *total += outcome.total_refaults();
            for row in rows(seed, name, &outcome) {
                print(&mut out, args.format, &row, is_first)?;
                is_first = false;
            }
        }
    }
    if args.format == output::Format::Text {
        let [equal, reports] = totals.map(|total| total as f64 / args.seeds as f64);
        writeln!(out, "\nrefaults of all guests, mean of the seeds")?;
        writeln!(
            out,
            "equal shares {equal:>14.0}\nby reports   {reports:>14.0}"
        )?;
        if equal > 0.0 {
            writeln!(
                out,
                "change       {:>13.1} %",
                (reports / equal - 1.0) * 100.0
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print(
    out: &mut impl Write,
    format: output::Format,
    row: &Row<'_>,
    is_first: bool,
) -> anyhow::Result<()> {
    match format {
        output::Format::Json => output::json_line(out, row)?,
        output::Format::Csv => {
            let mut builder = csv::WriterBuilder::new();
            let mut writer = builder.has_headers(is_first).from_writer(out);
            writer.serialize(row)?;
            writer.flush()?;
        }
        output::Format::Text => writeln!(
            out,
            "seed {} {:8} {:12} {:>9} refaults {:>9.1} ms stalled {:>6} KiB in the end",
            row.seed,
            row.sharing,
            row.guest,
            row.refaults,
            row.stalled_ms,
            row.memory_bytes / 1024
        )?,
    }
    Ok(())
}
