// SPDX-License-Identifier: Apache-2.0
//! `agewise sort`: what is cold goes to the end of the kernel's lists that reclaim takes first.

use std::collections::HashMap;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use agewise_host::agent::Agent;
use agewise_host::clear::Means;
use agewise_host::clear::hand::{ClearHand, KernelHand, MAX_RANGES};
use agewise_host::clock;
use agewise_host::eye::AddressRange;
use agewise_host::pageout::{RunSet, TokenBucket};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use anyhow::{anyhow, bail};
use serde::Serialize;

use super::observe;
use super::reclaim::{config, timing};
use crate::lean;
use crate::output::{self, Format};
use crate::signal::Stop;
use crate::units::{self, bytes_text, duration_text};

/// Sort memory by age for the kernel's own reclaim.
///
/// Watches the target, and marks pages that were not touched for --older-than as cold
/// (process_madvise(MADV_COLD)): they move to the inactive list, or to the oldest generation of the
/// multi-gen LRU, so that reclaim, when it comes, takes these first and not what is in use. Nothing
/// is written, nothing leaves memory; a page that is touched again counts as young again. Works page
/// by page, on a stock kernel.
///
/// Runs until interrupted, until the target has ended, or for --duration; each page is marked once
/// for each time it grows cold. mlocked memory, and memory that other programs map too, is left
/// alone by the kernel. agewise itself and the processes it came from are never touched.
///
/// Accessed bits are cleared by clear_refs here, since clearing them by MADV_COLD, as other commands
/// may, would put hot pages at the end of the list too.
///
/// Exit status: 0 done, interrupted, or the target has ended; 1 an error; 2 a wrong argument.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("of").required(true).args(["pid", "cgroup"]))]
pub struct Args {
    /// A process.
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// A memory cgroup with all cgroups below it: its path below the hierarchy, or its directory.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,

    /// What not being touched for so long makes cold.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = units::positive_duration)]
    older_than: Duration,

    /// Time between two looks, 100ms or more; a quarter of --older-than, at most 10s, unless given.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    interval: Option<Duration>,

    /// Mark at most so much a second, on average.
    #[arg(long, value_name = "RATE", default_value = "1G/s", value_parser = units::byte_rate)]
    rate: u64,

    /// Stop after this time.
    #[arg(long, value_name = "DURATION", value_parser = units::positive_duration)]
    duration: Option<Duration>,

    /// Do everything but mark.
    #[arg(long)]
    dry_run: bool,

    /// How to print: a line (json: an object) for each pass that marked something, and the sum.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// What a pass, or all of them, did.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sorted {
    /// "pass" or "total".
    record: &'static str,
    seconds: f64,
    processes: usize,
    /// Found cold and not marked before.
    asked_bytes: u64,
    /// Marked.
    sorted_bytes: u64,
    /// Refused by the kernel: locked or unmapped meanwhile.
    refused_bytes: u64,
    /// Calls of process_madvise.
    calls: u64,
    /// CPU time of everything agewise did, ms.
    cpu_ms: f64,
    dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// Targets that are not there or may not be touched, missing privileges, times that make no sense.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let interval = timing::interval(args.older_than, args.interval).map_err(|why| anyhow!(why))?;
    let own = lean::ourselves_and_ancestors(&ProcRoot::default());
    if let Some(pid) = args.pid
        && own.contains(&pid)
    {
        bail!("process {pid} is agewise itself or one it came from: it is left alone");
    }
    let pids: Vec<u32> = args.pid.into_iter().collect();
    let cgroups: Vec<String> = args.cgroup.clone().into_iter().collect();
    let mut config = config(args.older_than, interval)?;
    config.clear.means = Means::Refs;
    let (mut agent, note) = observe::open_agent(observe::listed(&pids, &cgroups)?, config)?;
    if let Some(note) = note {
        eprintln!("agewise: {note}");
    }
    let stop = Stop::install()?;
    let mut sorter = Sorter::new(args, own);
    let began = Instant::now();
    let mut next = began;
    loop {
        let tick = agent.tick()?;
        if agent.is_finished() {
            break;
        }
        if tick.processes == 0 && tick.failed > 0 {
            let troubles: Vec<String> = agent
                .report()
                .into_iter()
                .flat_map(|report| report.troubles)
                .collect();
            bail!("nothing could be looked at: {}", troubles.join("; "));
        }
        let pass = sorter.pass(&mut agent, &stop);
        if pass.asked_bytes > 0 {
            print(
                args,
                &Sorted {
                    seconds: began.elapsed().as_secs_f64(),
                    ..pass
                },
            )?;
        }
        next = (next + interval).max(Instant::now());
        let end = args.duration.map(|duration| began + duration);
        if end.is_some_and(|end| next >= end) || stop.wait_until(next) {
            break;
        }
    }
    let total = Sorted {
        record: "total",
        seconds: began.elapsed().as_secs_f64(),
        cpu_ms: lean::own_cpu().as_secs_f64() * 1e3,
        ..sorter.total
    };
    print(args, &total)?;
    Ok(ExitCode::SUCCESS)
}

/// Marks what has grown cold since the pass before.
struct Sorter<'a> {
    args: &'a Args,
    own: Vec<u32>,
    bucket: TokenBucket,
    /// What is marked and has not been touched since, by pid and start time.
    marked: HashMap<(u32, u64), RunSet>,
    total: Sorted,
}

impl Sorter<'_> {
    fn new(args: &Args, own: Vec<u32>) -> Sorter<'_> {
        Sorter {
            args,
            own,
            bucket: TokenBucket::new(args.rate, clock::monotonic_ns()),
            marked: HashMap::new(),
            total: Sorted {
                dry_run: args.dry_run,
                ..Sorted::default()
            },
        }
    }

    fn pass(&mut self, agent: &mut Agent, stop: &Stop) -> Sorted {
        let before = lean::own_cpu();
        let mut pass = Sorted {
            record: "pass",
            dry_run: self.args.dry_run,
            ..Sorted::default()
        };
        let mut pids: Vec<u32> = agent.spaces().map(|space| space.process().pid()).collect();
        pids.retain(|pid| !self.own.contains(pid));
        let mut still = HashMap::new();
        for pid in pids {
            // One of many may have ended meanwhile; the others go on.
            let Ok(Some(cold)) = lean::find_cold(agent, pid, self.args.older_than) else {
                continue;
            };
            let Ok(process) = lean::open_target(pid) else {
                continue;
            };
            if process.start_ticks() != cold.start_ticks || process.is_init() {
                continue;
            }
            pass.processes += 1;
            let all = cold.plan.base().union(cold.plan.huge());
            let key = (pid, cold.start_ticks);
            let new = match self.marked.get(&key) {
                Some(marked) => all.subtract(marked),
                None => all.clone(),
            };
            pass.asked_bytes += new.bytes();
            if !self.args.dry_run {
                self.mark(&process, &new, &mut pass, stop);
            }
            still.insert(key, all);
        }
        self.marked = still;
        pass.cpu_ms = (lean::own_cpu() - before).as_secs_f64() * 1e3;
        for (sum, part) in [
            (&mut self.total.asked_bytes, pass.asked_bytes),
            (&mut self.total.sorted_bytes, pass.sorted_bytes),
            (&mut self.total.refused_bytes, pass.refused_bytes),
            (&mut self.total.calls, pass.calls),
        ] {
            *sum += part;
        }
        self.total.processes = self.total.processes.max(pass.processes);
        pass
    }

    fn mark(&mut self, process: &Process, new: &RunSet, pass: &mut Sorted, stop: &Stop) {
        let ranges: Vec<AddressRange> = new
            .runs()
            .iter()
            .map(|run| AddressRange {
                start: run.start,
                end: run.end,
            })
            .collect();
        let mut hand = KernelHand::new(process);
        let mut rest = ranges.as_slice();
        while !rest.is_empty() && stop.requested().is_none() {
            let wait_ns = self.bucket.wait_ns(clock::monotonic_ns());
            if wait_ns > 0 {
                stop.wait(Duration::from_nanos(wait_ns));
                continue;
            }
            let batch = &rest[..rest.len().min(MAX_RANGES)];
            pass.calls += 1;
            let done = match hand.cold(batch) {
                Ok(done) => done,
                // The first range was refused; the others are tried.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM)) => {
                    0
                }
                Err(error) => {
                    if error.raw_os_error() != Some(libc::ESRCH) {
                        eprintln!("agewise: process {}: cannot mark: {error}", process.pid());
                    }
                    return;
                }
            };
            let marked: u64 = batch[..done].iter().map(AddressRange::len).sum();
            self.bucket.take(marked);
            pass.sorted_bytes += marked;
            let refused = usize::from(done < batch.len());
            pass.refused_bytes += batch[done..done + refused]
                .iter()
                .map(AddressRange::len)
                .sum::<u64>();
            rest = &rest[done + refused..];
        }
    }
}

fn print(args: &Args, sorted: &Sorted) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match args.format {
        Format::Json => output::json_line(&mut out, sorted)?,
        Format::Csv => {
            let Sorted {
                record,
                seconds,
                asked_bytes,
                sorted_bytes,
                refused_bytes,
                cpu_ms,
                ..
            } = sorted;
            writeln!(
                out,
                "{record},{seconds:.3},{asked_bytes},{sorted_bytes},{refused_bytes},{cpu_ms:.3}"
            )?;
        }
        Format::Text => {
            let refused = match sorted.refused_bytes {
                0 => String::new(),
                bytes => format!(", {} refused", bytes_text(bytes)),
            };
            writeln!(
                out,
                "{:<5} {:>8}  {} found cold, {} {}{refused}; {:.1} ms CPU",
                sorted.record,
                duration_text(Duration::from_millis((sorted.seconds * 1e3) as u64)),
                bytes_text(sorted.asked_bytes),
                bytes_text(sorted.sorted_bytes),
                if sorted.dry_run {
                    "marked (dry run)"
                } else {
                    "marked"
                },
                sorted.cpu_ms,
            )?;
        }
    }
    Ok(out.flush()?)
}
