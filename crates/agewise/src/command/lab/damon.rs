// SPDX-License-Identifier: Apache-2.0
//! `agewise lab damon`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use agewise_lab::experiment::machine_run::{Plan, Run};
use agewise_lab::heatmap::{self, Summary, Window};
use agewise_lab::machine::device::DeviceKind;
use agewise_lab::proactive::Sight;
use agewise_lab::study::StudyError;
use agewise_lab::study::description::Origin;
use agewise_lab::study::setup::Named;
use anyhow::Context;
use serde::Serialize;

use super::inspect::time_ns;
use super::results::{BUILD, output_file};
use super::setup::OneRun;
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
/// Example: agewise lab damon kv --damon scheme:sample_interval=1000:aggr_interval=20000
/// --plot kv.svg
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to run.
    #[command(flatten)]
    pub run: OneRun,
    /// Stop after this much simulated time: a number with its unit, ns to d. Default: the end of
    /// the workload.
    #[arg(long, value_name = "TIME", value_parser = time_ns)]
    pub until: Option<u64>,
    /// Draw both heats over time and addresses; the file name extension selects the format: .svg or
    /// .html.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// text: a summary and a sketch; json: one object per aggregation (`record` is window) and a
    /// total (summary); csv: the aggregations. Every row says what was run, as those of `lab run`.
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
}

#[derive(Serialize)]
#[serde(tag = "record", rename_all = "lowercase")]
enum Record<'a> {
    Window {
        #[serde(flatten)]
        window: &'a Window,
        #[serde(flatten)]
        ran: &'a Ran<'a>,
    },
    Summary {
        #[serde(flatten)]
        heat: Summary,
        #[serde(flatten)]
        cost: Cost,
        #[serde(flatten)]
        ran: &'a Ran<'a>,
    },
}

/// What was run.
#[derive(Serialize)]
struct Ran<'a> {
    workload: &'a str,
    policy: String,
    policy_sha256: Option<&'a str>,
    memory_bytes: u64,
    swap: &'a str,
    settings: String,
    damon: &'a str,
    seed: u64,
    until_ns: Option<u64>,
    #[serde(flatten)]
    origin: Origin,
}

/// The columns of csv.
const COLUMNS: &str = "at_ms,regions,bytes,true_heat,seen_heat,distance,workload,policy,\
                       policy_sha256,memory_bytes,swap,settings,damon,seed,until_ns,options,source,\
                       source_sha256,version,build";

/// What the monitor did and used.
#[derive(Default, Serialize)]
struct Cost {
    samples: u64,
    kdamond_cpu_percent: f64,
    nr_tried: u64,
    sz_tried: u64,
    nr_applied: u64,
    sz_applied: u64,
    qt_exceeds: u64,
}

impl Cost {
    fn of(run: &Run) -> Cost {
        let Some(kdamond) = run.machine.damon() else {
            return Cost::default();
        };
        let mut cost = Cost {
            samples: kdamond.samples(),
            kdamond_cpu_percent: kdamond.cpu_ns() as f64 * 100.0 / run.end_ns().max(1) as f64,
            ..Cost::default()
        };
        for scheme in kdamond.monitor().schemes() {
            cost.nr_tried += scheme.stats.nr_tried;
            cost.sz_tried += scheme.stats.sz_tried;
            cost.nr_applied += scheme.stats.nr_applied;
            cost.sz_applied += scheme.stats.sz_applied;
            cost.qt_exceeds += scheme.stats.qt_exceeds;
        }
        cost
    }
}

impl Args {
    /// What every row says of the run.
    fn ran<'a>(&self, plan: &'a Plan, named: &'a Named) -> Result<Ran<'a>, StudyError> {
        let subject = &named.subject;
        let memory_pages = match plan.memory_pages {
            Some(pages) => pages,
            None => subject.memory_pages()?,
        };
        let setup = self.run.setup.study();
        Ok(Ran {
            workload: subject.name(),
            policy: plan.policy.name(),
            policy_sha256: plan.policy.kernel.sha256,
            memory_bytes: memory_pages * 4096,
            swap: plan
                .swap
                .unwrap_or_else(|| subject.swap())
                .map_or("none", DeviceKind::name),
            settings: setup.settings_text(),
            damon: plan.damon.as_deref().unwrap_or_default(),
            seed: self.run.seed,
            until_ns: self.until,
            origin: setup.origin(&self.run.subject, named, Sight::default(), BUILD),
        })
    }
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
    let (mut plan, named) = args.run.plan()?;
    let use_text = plan
        .damon
        .get_or_insert_with(|| "scheme".to_owned())
        .clone();
    let mut run = Run::new(&plan)?;
    run.record_heat();
    run.run_until(args.until.unwrap_or(u64::MAX))?;
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
            args.run.policy,
            summary.distance
        );
        file.write(draw(&title, windows).as_bytes())?;
    }
    let cost = Cost::of(&run);
    let ran = args.ran(&plan, &named)?;
    let window = |window| Record::Window { window, ran: &ran };
    let mut out = io::stdout().lock();
    match args.format {
        Format::Json => {
            output::rows(&mut out, args.format, windows.iter().map(window))?;
            let (heat, ran) = (summary, &ran);
            output::json_line(&mut out, &Record::Summary { heat, cost, ran })?;
        }
        Format::Csv => output::csv(&mut out, COLUMNS, windows.iter().map(window))?,
        Format::Text => {
            writeln!(
                out,
                "{} under {} with {use_text}, seed {}\n",
                plan.subject.name(),
                args.run.policy,
                args.run.seed
            )?;
            write!(out, "{}", heatmap::text(windows, 38, 16))?;
            print(&mut out, &summary, &cost, run.end_ns())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the summary.
fn print(out: &mut impl Write, heat: &Summary, cost: &Cost, end_ns: u64) -> io::Result<()> {
    writeln!(
        out,
        "\n{} aggregations to {:.1} ms, {:.0} regions on average, {} samples\n\
         mean heat {:.4}, by the monitor {:.4}\n\
         distance {:.4} of the range; a monitor that knows nothing: {:.4}\n\
         kdamond used {:.3} % of a CPU\n\
         tried {} regions, {} bytes; done {} regions, {} bytes; quota exceeded {} times",
        heat.windows,
        end_ns as f64 / 1e6,
        heat.regions,
        cost.samples,
        heat.true_heat,
        heat.seen_heat,
        heat.distance,
        heat.distance_blind,
        cost.kdamond_cpu_percent,
        cost.nr_tried,
        cost.sz_tried,
        cost.nr_applied,
        cost.sz_applied,
        cost.qt_exceeds,
    )
}
