// SPDX-License-Identifier: Apache-2.0
//! `agewise report` from the kernel's own access sources (`--source damon`, `lru_gen`). They
//! observe by themselves: agewise only has to prepare each look in time, and to look.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::agent::Targets;
use agewise_host::kernel_source::{KernelSourceError, Unit};
use agewise_host::root::Roots;
use agewise_host::source::{AgesWanted, OpenHistograms};

use super::knows::Knows;
use super::print::{KernelLook, Look};
use super::{Args, Left, later, progress, sort_and_cut, wait};
use agewise_cli::observe::{AgeArgs, ScanInterval, millis};
use agewise_cli::signal::Stop;
use agewise_cli::usage::WrongArgument;

/// Refuses options that only apply to page tables.
fn check(ages: &AgeArgs) -> Result<(), WrongArgument> {
    if ages.exact || ages.cpu_limit.is_some() || ages.scan_interval != ScanInterval::Auto {
        agewise_cli::refuse!(
            "--exact, --cpu-limit and --scan-interval apply to page tables; this source reads none"
        );
    }
    Ok(())
}

/// Distinguishes targets that no such source can have from what this machine lacks.
fn refused(error: KernelSourceError) -> anyhow::Error {
    match error {
        KernelSourceError::NoProcesses { .. } | KernelSourceError::Targets { .. } => {
            WrongArgument(error.to_string()).into()
        }
        error => error.into(),
    }
}

/// Observes through a kernel source; `period` is the time between two looks.
pub fn run(
    args: &Args,
    open: OpenHistograms,
    targets: &Targets,
    duration: Option<Duration>,
    period: Duration,
) -> anyhow::Result<ExitCode> {
    check(&args.ages)?;
    // Install the signal handlers first: from here on there is something to undo.
    let stop = Stop::install()?;
    let wanted = AgesWanted {
        intervals: args.ages.intervals.clone(),
        oldest: args.ages.config(period).oldest,
        window_ms: millis(period),
    };
    let mut source = open(&Roots::default(), targets, &wanted).map_err(refused)?;
    let knows = match source.unit() {
        Unit::Processes => Knows::Processes,
        Unit::Cgroups => Knows::Cgroups,
    };
    let mut printer = args.printer();
    let began = Instant::now();
    let bar = progress(duration.filter(|_| args.follow.is_none()));
    let mut next_look = began + period;
    loop {
        for lead_ms in source.lead_times_ms().to_vec() {
            let at = next_look.checked_sub(Duration::from_millis(lead_ms));
            if stop.requested().is_none() {
                wait(None, &stop, &bar, began, at.unwrap_or(began).max(began));
            }
            if stop.requested().is_none() {
                source.prepare()?;
            }
        }
        wait(None, &stop, &bar, began, next_look);
        let mut reports = source.look()?;
        let left = Left::of(&reports);
        let now = Instant::now();
        let ended = duration.is_some_and(|duration| now >= began + duration)
            || stop.requested().is_some()
            || left != Left::Something;
        if ended {
            bar.finish_and_clear();
        }
        let cut = sort_and_cut(&mut reports, args.sort, args.top);
        let (cpu_ns, caveats) = (source.cpu_ns(), source.caveats());
        let look = Look::Kernel(KernelLook {
            source: source.name(),
            knows,
            caveats: &caveats,
            cpu_ms: cpu_ns as f64 / 1e6,
            core_percent: cpu_ns as f64 / began.elapsed().as_nanos().max(1) as f64 * 100.0,
        });
        let written = printer.print(&reports, &look, cut);
        let signal = stop.requested().filter(|_| args.follow.is_none());
        if let Some(status) = left.status(written.map_err(Into::into), signal, ended)? {
            return Ok(status);
        }
        let next = later(next_look, period, now);
        next_look = duration.map_or(next, |duration| next.min(began + duration));
    }
}
