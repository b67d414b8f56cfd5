// SPDX-License-Identifier: Apache-2.0
//! `agewise lab run`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use agewise_lab::experiment::machine_run::{MEASURES, Plan};
use agewise_lab::experiment::matrix::{MeasureSummary, PolicyResult, run_all, summarize};
use agewise_lab::machine::Policy;
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::workload::library;
use agewise_lab::workload::size::parse_size_bytes;
use agewise_lab::workload::spec::Workload;
use agewise_lab::workload::suggest::nearest;
use anyhow::{Context, anyhow};
use clap::ValueEnum;

use crate::output;
use crate::progress::Progress;

/// What to simulate: shared by `run` and `inspect`.
#[derive(Debug, clap::Args)]
pub struct Setup {
    /// A workload of `agewise lab list`, or a TOML file that describes one.
    #[arg(value_name = "WORKLOAD")]
    pub workload: String,
    /// memory.max of the workload's cgroup, in bytes or with K, M, G; the workload's own unless given.
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<String>,
    /// Swap device: zram, pmem, nvme, ssd, hdd or none; the workload's own unless given.
    #[arg(long, value_name = "DEVICE")]
    pub swap: Option<String>,
    /// A setting of the machine; `agewise lab list` describes them. Can be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub settings: Vec<String>,
}

/// Run a workload on simulated memory under several policies, side by side.
///
/// Each policy sees the same processes with the same seeds. The table has a column a policy: means
/// over the seeds with their 95 % intervals, and `*` (p < 0.05), `**` (0.01) or `***` (0.001) where
/// Welch's test tells a mean from that of the first policy. The same build, workload and seeds print
/// the same bytes, whatever the number of CPUs.
///
/// Example: agewise lab run kv --policy classic,mglru:7.2,mglru:6.12 --memory 24M --swap nvme
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to simulate.
    #[command(flatten)]
    pub setup: Setup,
    /// Policies, the one to compare with first: classic, mglru:7.2, mglru:6.12, mglru:v6.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          default_values = ["classic", "mglru:7.2", "mglru:6.12", "mglru:v6"])]
    pub policy: Vec<String>,
    /// Seeds 1 to N.
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub seeds: u64,
    /// table: for people; json: one object a line, policy and measure; csv: the same fields; parquet:
    /// every run, one column a measure, on standard output.
    #[arg(long, default_value = "table")]
    pub format: Format,
}

/// The form of the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Table,
    /// One JSON object a line.
    Json,
    /// Comma-separated values.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// A policy by name, with the nearest name where there is none.
pub fn parse_policy(text: &str) -> anyhow::Result<Policy> {
    Policy::parse(text).map_err(|error| {
        let names = Policy::names();
        match nearest(text, names.iter().map(String::as_str)) {
            Some(near) => anyhow!("{error}; did you mean `{near}`?"),
            None => anyhow!(error),
        }
    })
}

fn parse_swap(text: &str) -> anyhow::Result<Option<DeviceKind>> {
    if text == "none" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| {
        let names = DeviceKind::ALL.map(DeviceKind::name);
        match nearest(text, names.into_iter().chain(["none"])) {
            Some(near) => anyhow!("{error}; did you mean `{near}`?"),
            None => anyhow!("{error}; one of {}, none", names.join(", ")),
        }
    })
}

impl Setup {
    /// The plan for a policy and a seed.
    pub fn plan(&self, policy: Policy, seed: u64) -> anyhow::Result<Plan> {
        let memory_pages = match &self.memory {
            None => None,
            Some(size) => {
                let bytes =
                    parse_size_bytes(size).map_err(|error| anyhow!("--memory `{size}` {error}"))?;
                Some(bytes / 4096)
            }
        };
        Ok(Plan {
            workload: Arc::new(self.load()?),
            memory_pages,
            swap: self.swap.as_deref().map(parse_swap).transpose()?,
            settings: self.settings.clone(),
            policy,
            seed,
        })
    }

    fn load(&self) -> anyhow::Result<Workload> {
        let path = Path::new(&self.workload);
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            let stem = path.file_stem().map(PathBuf::from).unwrap_or_default();
            return Ok(Workload::parse(&stem.to_string_lossy(), &text)?);
        }
        library::find(&self.workload)
            .context("`agewise lab list` names all; a file must end in .toml")
    }
}

/// Runs and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let policies = args
        .policy
        .iter()
        .map(|name| parse_policy(name.trim()))
        .collect::<anyhow::Result<Vec<Policy>>>()?;
    let first = *policies.first().context("no policy given")?;
    let plan = args.setup.plan(first, 1)?;
    let progress = Progress::new("runs");
    let total = args.seeds * policies.len() as u64;
    let results = run_all(&plan, &policies, args.seeds, || progress.advance(total))?;
    progress.finish();
    let name = &plan.workload.name;
    let summaries = summarize(name, &results);
    let mut out = io::stdout().lock();
    match args.format {
        Format::Table => {
            writeln!(
                out,
                "agewise {}, workload {name}, seeds 1 to {}",
                env!("CARGO_PKG_VERSION"),
                args.seeds
            )?;
            writeln!(out, "{}\n", plan.workload.description)?;
            print_table(&mut out, &results, &summaries)?;
        }
        Format::Json => {
            for summary in &summaries {
                output::json_line(&mut out, summary)?;
            }
        }
        Format::Csv => {
            let mut writer = csv::Writer::from_writer(&mut out);
            for summary in &summaries {
                writer.serialize(summary)?;
            }
            writer.flush()?;
        }
        Format::Parquet => {
            let mut file = Vec::new();
            super::parquet::write(&mut file, name, &results)?;
            out.write_all(&file)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A number with as many digits as a reader needs.
fn short(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude >= 1000.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.3}")
    }
}

fn cell(summary: &MeasureSummary) -> String {
    let spread = match summary.ci95 {
        Some(ci95) if ci95 > 0.0 => format!(" ± {}", short(ci95)),
        _ => String::new(),
    };
    let mark = match summary.p {
        Some(p) if p < 0.001 => " ***",
        Some(p) if p < 0.01 => " **",
        Some(p) if p < 0.05 => " *",
        _ => "",
    };
    format!("{}{spread}{mark}", short(summary.mean))
}

fn print_table(
    out: &mut impl Write,
    results: &[PolicyResult],
    summaries: &[MeasureSummary],
) -> io::Result<()> {
    const WIDTH: usize = 24;
    write!(out, "{:18}", "")?;
    for result in results {
        write!(out, " {:>WIDTH$}", result.policy)?;
    }
    writeln!(out)?;
    for (measure, _) in MEASURES {
        write!(out, "{measure:18}")?;
        for summary in summaries
            .iter()
            .filter(|summary| summary.measure == *measure)
        {
            write!(out, " {:>WIDTH$}", cell(summary))?;
        }
        writeln!(out)?;
    }
    writeln!(
        out,
        "\nmean ± half of the 95 % interval; *, **, ***: differs from {} with p < 0.05, 0.01, 0.001",
        results.first().map_or("", |result| &result.policy)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_nearest() {
        let error = parse_policy("mglru:7.3").unwrap_err().to_string();
        assert!(error.contains("did you mean `mglru:7.2`"), "{error}");
        let error = parse_swap("nmve").unwrap_err().to_string();
        assert!(error.contains("did you mean `nvme`"), "{error}");
        assert_eq!(parse_swap("none").unwrap(), None);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(123_456.7), "123457");
        assert_eq!(short(12.34), "12.3");
        assert_eq!(short(0.1234), "0.123");
        assert_eq!(short(5.0), "5");
    }
}
