// SPDX-License-Identifier: Apache-2.0
//! `agewise lab damon`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_lab::experiment::machine_run::Run;
use agewise_lab::heatmap::{self, Summary, Window};
use agewise_lab::study::setup::parse_policy;
use anyhow::Context;
use serde::Serialize;

use super::inspect::parse_time_ns;
use super::results::output_file;
use super::setup::Setup;
use agewise_cli::output::{self, Format};

/// Compare what DAMON reports as hot with the truth: the simulator knows every access.
///
/// Runs a workload with a monitor and compares, at the end of each aggregation, the heat of every
/// page (the share of looks before which it was accessed) with that of its region. The error is the
/// earth mover's distance of the two: how far heat has to be moved, on average, to its true place,
/// as a share of the monitored range; 0 is perfect. `distance_blind` is the distance for a monitor
/// that gives all of the range the same heat.
///
/// Without --damon it monitors physical memory and takes no action. To monitor the processes:
/// --damon scheme:space=virtual
///
/// Example: agewise lab damon kv --damon scheme:sample_interval=1000:aggr_interval=20000 --plot kv.svg
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A workload of `agewise lab list`, a TOML file that describes one, or a trace.
    #[arg(value_name = "WORKLOAD|TRACE")]
    pub subject: String,
    /// What to simulate on.
    #[command(flatten)]
    pub setup: Setup,
    /// The policy.
    #[arg(long, value_name = "POLICY", default_value = "mglru:7.2")]
    pub policy: String,
    /// The seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
    /// Stop after this much simulated time: a number with ns, us, ms or s. Default: the end of the
    /// workload.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// Draw both heats over time and addresses; the file name extension selects the format: .svg or
    /// .html.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// text: a summary and a sketch; json: one object per aggregation (`record` is window) and a
    /// total (summary); csv: the aggregations.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "lowercase")]
enum Record<'a> {
    Window(&'a Window),
    Summary {
        #[serde(flatten)]
        heat: Summary,
        workload: &'a str,
        policy: &'a str,
        damon: &'a str,
        samples: u64,
        kdamond_cpu_percent: f64,
        nr_tried: u64,
        sz_tried: u64,
        nr_applied: u64,
        sz_applied: u64,
        qt_exceeds: u64,
    },
}

/// Runs and prints.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let draw: Option<fn(&str, &[Window]) -> String> = match &args.plot {
        None => None,
        Some(path) => match path.extension().and_then(|ending| ending.to_str()) {
            Some("svg") => Some(heatmap::svg),
            Some("html") => Some(heatmap::html),
            _ => agewise_cli::refuse!(
                "--plot {}: the name must end in .svg or .html",
                path.display()
            ),
        },
    };
    let file = output_file(args.plot.as_deref())?;
    let stop_ns = args.until.as_deref().map(parse_time_ns).transpose()?;
    let policy = parse_policy(&args.policy)?;
    let mut plan = args.setup.plan(&args.subject, policy, args.seed)?;
    let use_text = plan
        .damon
        .get_or_insert_with(|| "scheme".to_owned())
        .clone();
    let mut run = Run::new(&plan)?;
    run.record_heat();
    run.run_until(stop_ns.unwrap_or(u64::MAX))?;
    let windows = run.heat();
    let summary = heatmap::summarize(windows).with_context(|| {
        format!(
            "no aggregation ended in {:.1} ms: the watermarks keep it asleep (wmarks_high=1000:\
             wmarks_mid=1001:wmarks_low=0 lets it run always), or it needs a shorter aggr_interval",
            run.end_ns() as f64 / 1e6
        )
    })?;
    if let (Some(draw), Some(file)) = (draw, file) {
        let title = format!(
            "{} under {} with {use_text}: distance {:.4}",
            plan.subject.name(),
            args.policy,
            summary.distance
        );
        file.write(draw(&title, windows).as_bytes())?;
    }
    let (mut samples, mut cpu_percent, mut stats) = (0, 0.0, [0; 5]);
    if let Some(kdamond) = run.machine.damon() {
        samples = kdamond.samples();
        cpu_percent = kdamond.cpu_ns() as f64 * 100.0 / run.end_ns().max(1) as f64;
        for scheme in kdamond.monitor().schemes() {
            let of = &scheme.stats;
            let values = [
                of.nr_tried,
                of.sz_tried,
                of.nr_applied,
                of.sz_applied,
                of.qt_exceeds,
            ];
            for (sum, value) in stats.iter_mut().zip(values) {
                *sum += value;
            }
        }
    }
    let all = Record::Summary {
        heat: summary,
        workload: plan.subject.name(),
        policy: &args.policy,
        damon: &use_text,
        samples,
        kdamond_cpu_percent: cpu_percent,
        nr_tried: stats[0],
        sz_tried: stats[1],
        nr_applied: stats[2],
        sz_applied: stats[3],
        qt_exceeds: stats[4],
    };
    let mut out = io::stdout().lock();
    match args.format {
        Format::Json => {
            output::rows(&mut out, args.format, windows.iter().map(Record::Window))?;
            output::json_line(&mut out, &all)?;
        }
        Format::Csv => output::rows(&mut out, args.format, windows)?,
        Format::Text => {
            writeln!(
                out,
                "{} under {} with {use_text}, seed {}\n",
                plan.subject.name(),
                args.policy,
                args.seed
            )?;
            write!(out, "{}", heatmap::text(windows, 38, 16))?;
            writeln!(
                out,
                "\n{} aggregations to {:.1} ms, {:.0} regions on average, {samples} samples\n\
                 mean heat {:.4}, by the monitor {:.4}\n\
                 distance {:.4} of the range; a monitor that knows nothing: {:.4}\n\
                 kdamond used {cpu_percent:.3} % of a CPU\n\
                 tried {} regions, {} bytes; done {} regions, {} bytes; quota exceeded {} times",
                summary.windows,
                run.end_ns() as f64 / 1e6,
                summary.regions,
                summary.true_heat,
                summary.seen_heat,
                summary.distance,
                summary.distance_blind,
                stats[0],
                stats[1],
                stats[2],
                stats[3],
                stats[4],
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
