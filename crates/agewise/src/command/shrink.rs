// SPDX-License-Identifier: Apache-2.0
//! `agewise shrink`.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use agewise_cli::output::{self, Format};
use agewise_cli::signal::Stop;
use agewise_cli::whatif::{Costs, Plan, Watching, costs, facts, machine_waited_us, watch};
use agewise_cli::{observe, units};
use agewise_host::agent::Agent;
use agewise_host::cgroup::{Cgroup, Hierarchy, name};
use agewise_host::root::ProcRoot;
use agewise_host::swap;
use agewise_host::throttle::{Ledger, Throttle, state_directory, untouchable};
use agewise_policy::whatif::Bound;
use agewise_policy::whatif::shrink::{Act, Goal, Outcome, Planned, Shrink, Steps, Terms};
use agewise_policy::whatif::shrink::{Refusal, Verdict, plan};
use anyhow::{Context, bail};
use serde::Serialize;

use super::whatif::{Memory, memory};

/// Take memory from a cgroup, as far as that does no harm.
///
/// Watches the cgroup as `agewise whatif` does, estimates the cost of the goal from the curve of
/// the kernel's LRU, and refuses if the curve exceeds --max-wait. Then it lowers a limit in steps
/// of a thirty-second: memory.high (v2, after memory.reclaim), or memory.limit_in_bytes (v1, where
/// the kernel kills if it cannot reclaim). Each step is held for some seconds and compared with the
/// prediction. If waiting exceeds --max-wait over two seconds, the limit goes back to the previous
/// step at once.
///
/// The limit is removed when the command ends, however it ends, unless --keep is given and a step
/// succeeded. Every change is recorded before it is made: `agewise daemon --undo` undoes what a
/// killed shrink left. While a daemon acts on this machine, shrink refuses to run.
///
/// With `auto`, the estimated cost of a page may be too high. Below the goal, shrink therefore
/// continues step by step, as long as the measurement at one step predicts that the next stays
/// within --max-wait.
///
/// Waiting is the kernel's own count if it keeps one (v2, memory.pressure), otherwise faults times
/// what one costs here, capped at what the whole machine waited (/proc/pressure/memory). Cgroups
/// that hold init, this session or agewise itself are left alone.
///
/// Exit status: 0 the goal was reached (or planned); 1 refused, or it had to step back; 2 a wrong
/// argument.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The memory cgroup, with all cgroups below it.
    #[arg(long, value_name = "PATH")]
    #[arg(value_parser = observe::cgroup_path())]
    cgroup: String,

    /// The goal: a share of what it has (60%), bytes (512M), or `auto`: the least memory whose
    /// waiting is likely to stay within --max-wait, and less if that turns out to do no harm.
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = to)]
    to: To,

    /// Share of the time that waiting for memory may take.
    #[arg(long, value_name = "SHARE", default_value = "0.2%", value_parser = units::share)]
    max_wait: f64,

    #[command(flatten)]
    watching: Watching,

    /// Leave the limit in place at the end.
    #[arg(long)]
    keep: bool,

    /// Print the plan and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Output format: a record for each step planned, each step made, and the verdict.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Auto,
    Memory(Memory),
}

fn to(text: &str) -> Result<To, String> {
    match text {
        "auto" => Ok(To::Auto),
        _ => memory(text).map(To::Memory),
    }
}

/// The header of CSV: the fields of JSON. Those that a record does not have are empty.
const CSV_HEADER: &str = "record,limit_bytes,predicted_faults_per_second,predicted_faults_low,\
    predicted_faults_high,predicted_wait_ratio,faults_per_second,wait_ratio,kept,verdict,\
    usage_before_bytes,saved_bytes";

fn field(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// Time between two readings of the counters.
const STEP: Duration = Duration::from_millis(500);

/// A step as printed; measured figures are null in a plan.
#[derive(Debug, Serialize)]
struct Record {
    record: &'static str,
    limit_bytes: u64,
    predicted_faults_per_second: f64,
    predicted_faults_low: f64,
    predicted_faults_high: f64,
    predicted_wait_ratio: f64,
    faults_per_second: Option<f64>,
    wait_ratio: Option<f64>,
    kept: Option<bool>,
}

impl Record {
    fn new(planned: &Planned, outcome: Option<&Outcome>) -> Self {
        Record {
            record: if outcome.is_some() { "step" } else { "plan" },
            limit_bytes: planned.limit_bytes,
            predicted_faults_per_second: planned.faults_per_second.likely,
            predicted_faults_low: planned.faults_per_second.low,
            predicted_faults_high: planned.faults_per_second.high,
            predicted_wait_ratio: planned.wait_ratio.likely,
            faults_per_second: outcome.map(|outcome| outcome.faults_per_second),
            wait_ratio: outcome.map(|outcome| outcome.wait_ratio),
            kept: outcome.map(|outcome| outcome.is_kept),
        }
    }

    fn print(&self, out: &mut impl Write, format: Format) -> std::io::Result<()> {
        match format {
            Format::Json => output::json_line(out, self)?,
            Format::Csv => writeln!(
                out,
                "{},{},{},{},{},{},{},{},{},,,",
                self.record,
                self.limit_bytes,
                self.predicted_faults_per_second,
                self.predicted_faults_low,
                self.predicted_faults_high,
                self.predicted_wait_ratio,
                field(self.faults_per_second),
                field(self.wait_ratio),
                field(self.kept),
            )?,
            Format::Text => {
                let limit = units::bytes_text(self.limit_bytes);
                let told = self.predicted_faults_per_second;
                let wait = self.predicted_wait_ratio * 100.0;
                write!(
                    out,
                    "{:<5}{limit:>12}: {told:.1} faults/s, {wait:.3} % waiting",
                    self.record
                )?;
                match (self.faults_per_second, self.wait_ratio, self.kept) {
                    (Some(faults), Some(wait), Some(kept)) => writeln!(
                        out,
                        " predicted; {faults:.1} faults/s, {:.3} %{}",
                        wait * 100.0,
                        if kept { "" } else { ": too much, back" }
                    )?,
                    _ => writeln!(out)?,
                }
            }
        }
        out.flush()
    }
}

/// The outcome as printed.
#[derive(Debug, Serialize)]
struct Summary {
    record: &'static str,
    verdict: &'static str,
    usage_before_bytes: u64,
    limit_bytes: Option<u64>,
    saved_bytes: u64,
    kept: bool,
}

/// The state that the functions below share.
struct Scene<'a> {
    args: &'a Args,
    cgroup: Cgroup,
    stop: Stop,
    usage_bytes: u64,
}

/// Plans the steps and shrinks.
///
/// # Errors
/// The cgroup cannot be watched or limited, or the curve predicts too much waiting.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let watching = Plan {
        spares_lists: true,
        ..args.watching.plan(None, true)?
    };
    let proc = ProcRoot::default();
    let hierarchy = Hierarchy::discover(&proc)?;
    let cgroup = observe::open_cgroup(&hierarchy, &args.cgroup)?;
    if let Some(why) = untouchable(&proc, &cgroup)? {
        let name = name::shown(&cgroup.name()).terminal().to_string();
        bail!("cgroup {name} is left alone: {}", why.reason());
    }
    // Open it first, so that an error does not come after a minute of watching.
    let throttle = match args.dry_run {
        true => None,
        false => Some(Throttle::new(proc, ledger()?)),
    };
    let stop = Stop::install()?;
    let costs = costs();
    let targets = observe::listed(&[], std::slice::from_ref(&args.cgroup))?;
    let found = watch(targets, watching, &stop)?;
    if let Some(signal) = stop.requested() {
        return Ok(ExitCode::from(Stop::exit_code(signal)));
    }
    let usage_bytes = cgroup
        .usage_bytes()?
        .context("this cgroup has no count of its memory")?;
    let scene = Scene {
        args,
        cgroup,
        stop,
        usage_bytes,
    };
    let terms = terms(&scene, &costs, found.curves.full_bytes);
    let mut steps = plan(&found.curves, &terms).map_err(refused)?;
    check_swap(&mut steps, usage_bytes)?;
    let mut out = std::io::stdout().lock();
    print_head(&mut out, &scene, &costs)?;
    if let Some(step) = steps
        .to_goal
        .last()
        .filter(|step| step.wait_ratio.high > args.max_wait)
    {
        let high = step.wait_ratio.high * 100.0;
        agewise_cli::note!(
            "the goal may do harm: waiting could reach {high:.2} %; each step is verified"
        );
    }
    let Some(mut throttle) = throttle else {
        for step in &steps.to_goal {
            Record::new(step, None).print(&mut out, args.format)?;
        }
        return Ok(ExitCode::SUCCESS);
    };
    go_down(&scene, &mut throttle, Shrink::new(steps, terms), &mut out)
}

fn print_head(out: &mut impl Write, scene: &Scene<'_>, costs: &Costs) -> std::io::Result<()> {
    match scene.args.format {
        Format::Text => writeln!(
            out,
            "{} has {}; prices: {}",
            name::shown(&scene.cgroup.name()).terminal(),
            units::bytes_text(scene.usage_bytes),
            costs.text()
        ),
        Format::Csv => writeln!(out, "{CSV_HEADER}"),
        Format::Json => Ok(()),
    }
}

/// Opens this machine's ledger, after undoing what a killed program left behind.
fn ledger() -> anyhow::Result<Ledger> {
    let dir =
        state_directory().context("there is no directory for the ledger: set STATE_DIRECTORY")?;
    let (ledger, undone) = Ledger::open(&dir)?;
    if undone.count > 0 {
        agewise_cli::note!("{} of what a killed program left was undone", undone.count);
    }
    if let Some(failure) = undone.failures.first() {
        bail!("what a killed program left cannot be undone: {failure}");
    }
    ledger.claim()?;
    Ok(ledger)
}

fn terms(scene: &Scene<'_>, costs: &Costs, full_bytes: u64) -> Terms {
    Terms {
        goal: match scene.args.to {
            To::Auto => Goal::Auto(Bound::Likely),
            To::Memory(memory) => Goal::Bytes(memory.bytes(scene.usage_bytes)),
        },
        wait_max: scene.args.max_wait,
        prices: costs.prices,
        beyond_bytes: scene.usage_bytes.saturating_sub(full_bytes),
        usage_bytes: scene.usage_bytes,
    }
}

fn refused(refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::Hurts {
            limit_bytes,
            wait_ratio,
            wait_max,
        } => anyhow::anyhow!(
            "refused: {} would cost {:.2} % of the time in waiting, {:.2} % is allowed; `agewise \
             whatif` shows the curve, --max-wait allows more",
            units::bytes_text(limit_bytes),
            wait_ratio * 100.0,
            wait_max * 100.0
        ),
        Refusal::Smaller {
            limit_bytes,
            usage_bytes,
        } => anyhow::anyhow!(
            "it has {}, which is not more than {}: give a smaller size",
            units::bytes_text(usage_bytes),
            units::bytes_text(limit_bytes)
        ),
        Refusal::Nothing { .. } => anyhow::anyhow!("{refusal}; --max-wait allows more"),
    }
}

/// Checks that swap has room for what leaves on the way to the goal; drops further steps without
/// room.
fn check_swap(steps: &mut Steps, usage_bytes: u64) -> anyhow::Result<()> {
    let free = swap::free_bytes(&ProcRoot::default())?;
    let leaves = |step: &Planned| usage_bytes.saturating_sub(step.limit_bytes);
    steps.further.retain(|step| leaves(step) <= free);
    let leaves = steps.to_goal.last().map_or(0, leaves);
    if free < leaves {
        bail!(
            "{} would have to leave, and swap has {} free: add swap, such as zram",
            units::bytes_text(leaves),
            units::bytes_text(free)
        );
    }
    Ok(())
}

fn go_down(
    scene: &Scene<'_>,
    throttle: &mut Throttle,
    mut shrink: Shrink,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (mut limited, mut printed) = (None, 0);
    let verdict = loop {
        if scene.cgroup.procs(true)?.is_empty() {
            bail!("the last process has left the cgroup: no limit stays");
        }
        match shrink.next(facts(&scene.cgroup, Agent::now_ms(), machine_waited_us())?) {
            Act::Limit(bytes) => {
                throttle.limit(&scene.cgroup, bytes)?;
                limited = Some(bytes);
            }
            Act::Unlimit => {
                throttle.unlimit(&scene.cgroup)?;
                limited = None;
            }
            Act::Wait => {}
            Act::Done => break shrink.verdict(),
        }
        for outcome in &shrink.outcomes()[printed..] {
            Record::new(&outcome.planned, Some(outcome)).print(out, scene.args.format)?;
        }
        printed = shrink.outcomes().len();
        if shrink.verdict() == Verdict::Underway && scene.stop.wait(STEP) {
            break Verdict::Underway;
        }
    };
    for outcome in &shrink.outcomes()[printed..] {
        Record::new(&outcome.planned, Some(outcome)).print(out, scene.args.format)?;
    }
    let usage = scene.cgroup.usage_bytes()?.unwrap_or(0);
    let is_kept = scene.args.keep && limited.is_some() && verdict != Verdict::Underway;
    match is_kept {
        true => throttle.keep_limit(&scene.cgroup)?,
        false => throttle.unlimit(&scene.cgroup)?,
    }
    let summary = Summary {
        record: "verdict",
        verdict: verdict_name(verdict),
        usage_before_bytes: scene.usage_bytes,
        limit_bytes: limited,
        saved_bytes: scene.usage_bytes.saturating_sub(usage),
        kept: is_kept,
    };
    print_summary(out, scene.args.format, &summary)?;
    Ok(match (verdict, scene.stop.requested()) {
        (Verdict::Underway, Some(signal)) => ExitCode::from(Stop::exit_code(signal)),
        (Verdict::Reached, _) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Underway => "interrupted",
        Verdict::Reached => "reached",
        Verdict::Waiting => "waiting",
        Verdict::Unpredicted => "unpredicted",
    }
}

fn print_summary(out: &mut impl Write, format: Format, summary: &Summary) -> std::io::Result<()> {
    match format {
        Format::Json => output::json_line(out, summary),
        Format::Csv => writeln!(
            out,
            "{},{},,,,,,,{},{},{},{}",
            summary.record,
            field(summary.limit_bytes),
            summary.kept,
            summary.verdict,
            summary.usage_before_bytes,
            summary.saved_bytes
        ),
        Format::Text => {
            let why = match summary.verdict {
                "reached" => "the goal was reached and held",
                "waiting" => "waiting exceeded what is allowed; the previous step holds",
                "unpredicted" => "there were more faults than predicted; the previous step holds",
                _ => "interrupted",
            };
            let saved = units::bytes_text(summary.saved_bytes);
            let limit = match summary.limit_bytes {
                Some(bytes) => format!("a limit of {}", units::bytes_text(bytes)),
                None => "no limit".to_owned(),
            };
            let rest = if summary.kept {
                "it stays"
            } else {
                "it was removed"
            };
            writeln!(out, "{why}: {limit}, {saved} less; {rest}")
        }
    }
}

#[cfg(test)]
mod tests {
    use agewise_policy::whatif::Estimate;

    use super::*;

    #[test]
    fn csv_has_the_fields_of_json() {
        let columns: Vec<&str> = CSV_HEADER.split(',').collect();
        let summary = Summary {
            record: "verdict",
            verdict: "reached",
            usage_before_bytes: 2000,
            limit_bytes: None,
            saved_bytes: 500,
            kept: false,
        };
        let high = Estimate {
            low: 1.0,
            likely: 2.0,
            high: 3.0,
        };
        let planned = Planned {
            limit_bytes: 1000,
            faults_per_second: high,
            wait_ratio: high,
        };
        let record = Record::new(&planned, None);
        let [mut step, mut end] = [Vec::new(), Vec::new()];
        record.print(&mut step, Format::Csv).unwrap();
        print_summary(&mut end, Format::Csv, &summary).unwrap();
        let fields = [
            (step, serde_json::to_value(&record).unwrap()),
            (end, serde_json::to_value(&summary).unwrap()),
        ];
        for (line, json) in fields {
            let line = String::from_utf8(line).unwrap();
            let row: Vec<&str> = line.trim_end().split(',').collect();
            assert_eq!(row.len(), columns.len(), "{line}");
            for (name, value) in json.as_object().unwrap() {
                let at = columns.iter().position(|column| column == name);
                let text = match value {
                    serde_json::Value::Null => String::new(),
                    serde_json::Value::String(text) => text.clone(),
                    serde_json::Value::Number(number) => number.as_f64().unwrap().to_string(),
                    other => other.to_string(),
                };
                assert_eq!(row[at.expect(name)], text, "{name} of {line}");
            }
        }
    }

    #[test]
    fn goals_make_sense_or_are_refused() {
        assert_eq!(to("auto"), Ok(To::Auto));
        assert_eq!(to("60%"), Ok(To::Memory(Memory::Percent(60.0))));
        assert!(to("none").is_err());
    }
}
