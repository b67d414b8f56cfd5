// SPDX-License-Identifier: Apache-2.0
//! `agewise shrink`.

mod print;

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use agewise_cli::counters::Counters;
use agewise_cli::output::{self, Format};
use agewise_cli::prices::Costs;
use agewise_cli::signal::Stop;
use agewise_cli::usage::TargetsGone;
use agewise_cli::whatif::{Plan, Watching, watch};
use agewise_cli::{observe, units};
use agewise_host::agent::Agent;
use agewise_host::cgroup::{Cgroup, Hierarchy, name};
use agewise_host::root::ProcRoot;
use agewise_host::swap;
use agewise_host::throttle::{Ledger, Throttle, state_directory, untouchable};
use agewise_policy::whatif::Bound;
use agewise_policy::whatif::plan::{Goal, Planned, Refusal, Steps, Terms, plan};
use agewise_policy::whatif::shrink::{Act, Shrink, Verdict};
use anyhow::{Context, bail};

use super::whatif::{Memory, memory};
use print::{COLUMNS, Record, Summary, print_plan, print_summary, verdict_name};

/// Take memory from a cgroup, as far as that does no harm.
///
/// Watches the cgroup as `agewise whatif` does, estimates the cost of the goal from the curve of
/// the kernel's LRU, and refuses if the curve exceeds --max-wait. Then it lowers a limit in steps
/// of a thirty-second: memory.high (v2, after memory.reclaim), or memory.limit_in_bytes (v1, where
/// the kernel kills if it cannot reclaim). Each step is held for some seconds and compared with the
/// prediction. If waiting exceeds --max-wait for some seconds in a row, or clearly over two, the
/// limit goes back to the previous step at once; half of the step is tried later, and then a
/// quarter, because pages in use that leave with others come back. The last limit is held for half
/// a minute.
///
/// The limit is removed when the command ends, unless --keep is given and a step succeeded; a
/// signal always removes it. Every change is recorded before it is made: `agewise daemon --undo`
/// undoes what a killed shrink left. While a daemon acts on this machine, shrink refuses to run.
///
/// With `auto`, the estimated cost of a page may be too high or too low. So shrink goes on, also
/// below what the curve allows, as long as the measurement at one step leads to expect that the
/// next stays within --max-wait, and ends above it if not.
///
/// Waiting is the kernel's own count if it keeps one (memory.pressure: v2, or v1 if the processes
/// are also in a cgroup of the same path in the unified hierarchy), otherwise faults times what one
/// costs here. Cgroups that hold init, this session or agewise itself are left alone.
///
/// Exit status: 0 the goal was reached (or planned); 1 refused, or it had to step back; 2 a wrong
/// argument; 3 the target was gone before anything was limited.
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

    /// Leave the limit in place at the end, unless a signal ends it.
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

/// Time between two readings of the counters.
const STEP: Duration = Duration::from_millis(500);

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
    let targets = observe::listed(&[], std::slice::from_ref(&args.cgroup))?;
    let found = watch(targets, watching, &stop)?;
    if let Some(signal) = stop.requested() {
        agewise_cli::note!("interrupted while watching; nothing was limited");
        return Ok(ExitCode::from(Stop::exit_code(signal)));
    }
    if let Some(gone) = found.gone {
        return Err(TargetsGone(format!("nothing was limited: {gone}")).into());
    }
    let costs = found.costs;
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
    check_swap(&mut steps, &scene)?;
    let mut out = std::io::stdout().lock();
    if let Err(error) = print_head(&mut out, &scene, &costs) {
        let status = match args.dry_run {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
        return output::status(Err(error.into()), status);
    }
    if let Some(step) = steps
        .to_goal
        .last()
        .filter(|step| step.wait_ratio.high > args.max_wait)
    {
        agewise_cli::note!(
            "the goal may do harm: {}; each step is verified",
            match step.wait_ratio.high * 100.0 {
                high if high.is_finite() => format!("waiting could reach {high:.2} %"),
                _ => "nothing observed bounds the waiting".to_owned(),
            }
        );
    }
    let Some(mut throttle) = throttle else {
        print_plan(&mut out, args.format, &steps, usage_bytes)?;
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
        Format::Csv => writeln!(out, "{COLUMNS}"),
        Format::Json => Ok(()),
    }
}

/// Opens this machine's ledger, after undoing what a killed program left behind.
fn ledger() -> anyhow::Result<Ledger> {
    let dir =
        state_directory().context("there is no directory for the ledger: set STATE_DIRECTORY")?;
    let (ledger, undone) = Ledger::open(&dir)?;
    if !undone.done.is_empty() {
        agewise_cli::note!(
            "{} of what a killed agewise left was undone",
            undone.done.len()
        );
    }
    for note in undone.unreadable_notes() {
        agewise_cli::note!("{note}");
    }
    if let Some(failure) = undone.failures.iter().chain(&undone.other_failures).next() {
        bail!("what a killed agewise left cannot be undone: {failure}");
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
        step_bytes_max: u64::MAX,
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

/// Checks that swap has room for what leaves on the way to the goal, and that the cgroup may use
/// it; drops further steps without room.
fn check_swap(steps: &mut Steps, scene: &Scene<'_>) -> anyhow::Result<()> {
    let free = swap::free_bytes(&ProcRoot::default())?;
    let room = scene.cgroup.swap_room_bytes()?.unwrap_or(u64::MAX);
    let leaves = |step: &Planned| scene.usage_bytes.saturating_sub(step.limit_bytes);
    steps.further.retain(|step| leaves(step) <= free.min(room));
    let leaves = steps.to_goal.last().map_or(0, leaves);
    if room < leaves.min(free) {
        bail!(
            "{} would have to leave, and memory.swap.max of this cgroup or one above it lets {} \
             more go to swap: raise it",
            units::bytes_text(leaves),
            units::bytes_text(room)
        );
    }
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
    let mut limited = None;
    let went = step_down(scene, throttle, &mut shrink, &mut limited, out);
    let verdict = *went.as_ref().unwrap_or(&Verdict::Underway);
    let usage_bytes = scene.cgroup.usage_bytes().ok().flatten();
    let is_kept = scene.args.keep && limited.is_some() && verdict != Verdict::Underway;
    let left = match is_kept {
        true => throttle.keep_limit(&scene.cgroup),
        false => throttle.unlimit(&scene.cgroup),
    };
    let reason = went.as_ref().err().map(output::chain);
    let summary = Summary {
        record: "verdict",
        verdict: match reason {
            Some(_) => "stopped",
            None => verdict_name(verdict),
        },
        usage_before_bytes: scene.usage_bytes,
        limit_bytes: limited,
        saved_bytes: usage_bytes.map_or(0, |usage| scene.usage_bytes.saturating_sub(usage)),
        kept: is_kept,
        reason,
    };
    let written = print_summary(out, scene.args.format, &summary);
    let status = status_of(went, scene.stop.requested())?;
    left?;
    output::status(written.map_err(Into::into), status)
}

/// The exit status. One whose records nobody reads any more stops short of the goal.
fn status_of(went: anyhow::Result<Verdict>, signal: Option<i32>) -> anyhow::Result<ExitCode> {
    match (went, signal) {
        (Err(error), _) => output::status(Err(error), ExitCode::FAILURE),
        (Ok(Verdict::Underway), Some(signal)) => Ok(ExitCode::from(Stop::exit_code(signal))),
        (Ok(Verdict::Reached), _) => Ok(ExitCode::SUCCESS),
        (Ok(_), _) => Ok(ExitCode::FAILURE),
    }
}

/// Takes the steps and prints each. `limited` is the limit that is set.
///
/// # Errors
/// The cgroup can be limited no longer.
fn step_down(
    scene: &Scene<'_>,
    throttle: &mut Throttle,
    shrink: &mut Shrink,
    limited: &mut Option<u64>,
    out: &mut impl Write,
) -> anyhow::Result<Verdict> {
    let (mut printed, mut counters) = (0, Counters::new(ProcRoot::default()));
    loop {
        if scene.cgroup.procs(true)?.is_empty() {
            bail!("the last process has left the cgroup: no limit stays");
        }
        throttle.check_limit(&scene.cgroup)?;
        let act = shrink.next(counters.read(&scene.cgroup, Agent::now_ms())?);
        for outcome in &shrink.outcomes()[printed..] {
            Record::new(&outcome.planned, Some(outcome)).print(out, scene.args.format)?;
        }
        printed = shrink.outcomes().len();
        match act {
            Act::Limit(bytes) => {
                throttle.make_room(&scene.cgroup, bytes, u64::MAX)?;
                throttle.limit(&scene.cgroup, bytes)?;
                *limited = Some(bytes);
            }
            Act::Unlimit => {
                throttle.unlimit(&scene.cgroup)?;
                *limited = None;
            }
            Act::Wait => {}
            Act::Done => return Ok(shrink.verdict()),
        }
        if shrink.verdict() == Verdict::Underway && scene.stop.wait(STEP) {
            return Ok(Verdict::Underway);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_make_sense_or_are_refused() {
        assert_eq!(to("auto"), Ok(To::Auto));
        assert_eq!(to("60%"), Ok(To::Memory(Memory::Percent(60.0))));
        assert!(to("none").is_err());
    }

    #[test]
    fn nobody_who_reads_its_records_is_no_success() {
        let fail = |kind| Err(std::io::Error::from(kind).into());
        let left = status_of(fail(std::io::ErrorKind::BrokenPipe), None);
        assert_eq!(left.unwrap(), ExitCode::FAILURE);
        assert!(status_of(fail(std::io::ErrorKind::StorageFull), None).is_err());
        assert_eq!(
            status_of(Ok(Verdict::Reached), None).unwrap(),
            ExitCode::SUCCESS
        );
    }
}
