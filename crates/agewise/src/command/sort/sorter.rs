// SPDX-License-Identifier: Apache-2.0
//! Sorts in passes: marks pages that have become cold, and activates pages in use.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use agewise_host::access::{AddressRange, Target, kernel_page_bytes};
use agewise_host::activate::{PAGES_MAX, activate};
use agewise_host::agent::Agent;
use agewise_host::cgroup::{Cgroup, Hierarchy};
use agewise_host::clear::hand::KernelHand;
use agewise_host::clock;
use agewise_host::guest;
use agewise_host::mover::{self, Plan, RunSet, SystemClock, TokenBucket, Wanted};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::vma::VmaTable;
use agewise_policy::generations::{LABEL_OLDEST, idle_for};

use super::{Limits, Sorted};
use agewise_cli::output;
use agewise_cli::signal::Stop;
use anyhow::Context;

/// CPU budget of activation: a burst (enough for some 50000 pages), and a share of one core.
const RAISE_BURST: Duration = Duration::from_millis(30);
const RAISE_CPU_SHARE: f64 = 0.0025;
/// The kernel is taken to have deactivated pages if the active lists shrank by more than one part
/// in this many.
const SHRUNK_PART: u64 = 16;

/// What is known about a process from earlier passes.
#[derive(Debug, Default)]
struct Known {
    /// Marked as cold, and not used since.
    marked: RunSet,
    /// Seen in use once, and not cold since.
    seen: RunSet,
    /// Activated, and not cold since.
    activated: RunSet,
    /// Size of its cgroup's active lists after the last pass.
    active_bytes: Option<u64>,
}

/// Marks cold pages and activates used ones.
pub(super) struct Sorter<'a> {
    limits: Limits,
    stop: &'a Stop,
    hierarchy: Option<Hierarchy>,
    bucket: TokenBucket,
    began: Instant,
    activate_cpu: Duration,
    /// By pid and start time.
    known: HashMap<(u32, u64), Known>,
    /// Why the last pass could not sort a process.
    trouble: Option<String>,
    total: Sorted,
}

impl<'a> Sorter<'a> {
    /// Creates a sorter. Without a hierarchy, pages in use are activated at every pass, since their
    /// deactivation by the kernel cannot be noticed.
    pub fn new(limits: Limits, hierarchy: Option<Hierarchy>, stop: &'a Stop) -> Sorter<'a> {
        Sorter {
            limits,
            stop,
            hierarchy,
            bucket: TokenBucket::new(limits.rate, clock::monotonic_ns()),
            began: Instant::now(),
            activate_cpu: Duration::ZERO,
            known: HashMap::new(),
            trouble: None,
            total: Sorted {
                record: "total",
                dry_run: limits.dry_run,
                ..Sorted::default()
            },
        }
    }

    /// The sum of all passes so far.
    pub fn total(&self) -> Sorted {
        Sorted {
            seconds: self.began.elapsed().as_secs_f64(),
            cpu_ms: clock::process_cpu().as_secs_f64() * 1e3,
            ..self.total
        }
    }

    /// Why the last pass could not sort one of the processes that it counts as failed.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Makes one pass; call it after a look, which failed for `failed` processes.
    pub fn pass(&mut self, agent: &mut Agent, failed: usize) -> Sorted {
        let before = clock::process_cpu();
        let mut pass = Sorted {
            record: "pass",
            dry_run: self.limits.dry_run,
            failed_processes: failed,
            ..Sorted::default()
        };
        self.trouble = (failed > 0).then(|| troubles(agent));
        // The look that failed is counted already, and what it would have seen is not known.
        let looked_at = agent.spaces().filter(|space| space.trouble().is_none());
        let mut pids: Vec<u32> = looked_at.map(|space| space.process().pid()).collect();
        pids.retain(|pid| !mover::own_lineage().contains(pid));
        let mut still = HashMap::new();
        for pid in pids {
            let Some(start_ticks) = agent.space(pid).map(|space| space.process().start_ticks())
            else {
                continue;
            };
            let process = match Process::open_user(&ProcRoot::default(), pid) {
                Ok(process) => process,
                Err(error) if error.is_gone() => continue,
                Err(error) => {
                    self.note_failure(&mut pass, pid, &error.into());
                    continue;
                }
            };
            if process.start_ticks() != start_ticks || process.is_init() {
                continue;
            }
            match mover::check_target(&process, self.limits.guests) {
                Ok(()) => {}
                Err(error) if error.is_gone() => continue,
                Err(error) => {
                    self.note_failure(&mut pass, pid, &error.into());
                    continue;
                }
            }
            let known = self.known.remove(&(pid, start_ticks));
            let mut known = known.unwrap_or_else(|| {
                if let Some(warning) = guest::warning(&ProcRoot::default(), pid) {
                    agewise_cli::note!("{warning}");
                }
                Known::default()
            });
            match self.sort(agent, &process, &mut known, &mut pass) {
                Ok(()) => {
                    pass.processes += 1;
                    still.insert((pid, start_ticks), known);
                }
                // It has ended meanwhile; the others go on.
                Err(_) if !process.is_alive() => {}
                Err(error) => self.note_failure(&mut pass, pid, &error),
            }
        }
        self.known = still;
        pass.seconds = self.began.elapsed().as_secs_f64();
        pass.cpu_ms = (clock::process_cpu() - before).as_secs_f64() * 1e3;
        self.total.add(&pass);
        pass
    }

    fn note_failure(&mut self, pass: &mut Sorted, pid: u32, error: &anyhow::Error) {
        pass.failed_processes += 1;
        let why = || format!("process {pid}: {}", output::chain(error));
        self.trouble.get_or_insert_with(why);
    }

    fn sort(
        &mut self,
        agent: &mut Agent,
        process: &Process,
        known: &mut Known,
        pass: &mut Sorted,
    ) -> anyhow::Result<()> {
        let Some(space) = agent.space(process.pid()) else {
            return Ok(());
        };
        let map = space.map();
        let older_than_ms = u64::try_from(self.limits.older_than.as_millis()).unwrap_or(u64::MAX);
        let since_ms = idle_for(Agent::now_ms(), older_than_ms);
        let labels = map.generations().labels_idle_since(&since_ms);
        let cold = labels.map_or_else(RunSet::default, |(first, last)| {
            mover::labelled(map, first, last)
        });
        // A look opens a new generation when it ends, so pages it saw in use are in the previous
        // one.
        let youngest = map.generations().youngest();
        let young = mover::labelled(map, (youngest - 1).max(LABEL_OLDEST), youngest);
        pass.used_bytes += young.bytes();

        known.marked = known.marked.intersect(&cold);
        let new = cold.subtract(&known.marked);
        if !new.is_empty() {
            let marked = self.mark_cold(agent, process, &new, pass)?;
            known.marked = known.marked.union(&marked);
        }
        if self.limits.activates {
            let cgroup = self.cgroup(process);
            self.activate_used(agent, process, cgroup.as_ref(), known, &young, pass)?;
            known.activated = known.activated.subtract(&cold);
            known.seen = known.seen.union(&young).subtract(&cold);
            // Reading memory.stat also updates the kernel's own counts, with which it decides
            // whether the inactive lists are long enough.
            known.active_bytes = cgroup.as_ref().and_then(active_bytes);
        }
        Ok(())
    }

    /// Marks cold pages, unless a recheck finds them touched; returns the pages that are now
    /// marked.
    fn mark_cold(
        &mut self,
        agent: &mut Agent,
        process: &Process,
        new: &RunSet,
        pass: &mut Sorted,
    ) -> anyhow::Result<RunSet> {
        let plan = self.look(agent, process, new, Wanted::Untouched)?;
        let new = plan.pages();
        pass.asked_bytes += new.bytes();
        if !self.limits.dry_run {
            self.mark(process, &new, pass)?;
        }
        Ok(new)
    }

    /// Activates pages that both this look and an earlier one saw in use. A page used only once
    /// does not deserve to displace another.
    fn activate_used(
        &mut self,
        agent: &mut Agent,
        process: &Process,
        cgroup: Option<&Cgroup>,
        known: &mut Known,
        young: &RunSet,
        pass: &mut Sorted,
    ) -> anyhow::Result<()> {
        let began = clock::thread_cpu_ns();
        let active = cgroup.and_then(active_bytes);
        let took_back = match (active, known.active_bytes) {
            (Some(active), Some(then)) => active < then - then / SHRUNK_PART,
            _ => true,
        };
        if took_back {
            known.seen = known.seen.union(&known.activated);
            known.activated = RunSet::default();
        }
        let due = young.intersect(&known.seen).subtract(&known.activated);
        let left_ns = self.activate_cpu_left_ns();
        if due.is_empty() || left_ns == 0 {
            return Ok(());
        }
        let plan = self.look(agent, process, &due, Wanted::Present)?;
        let mut rest =
            units_of(plan.base(), kernel_page_bytes()).chain(units_of(plan.huge(), HUGE_BYTES));
        let mut activated = Vec::new();
        while self.stop.requested().is_none() && clock::thread_cpu_ns() - began < left_ns {
            let batch: Vec<AddressRange> = rest.by_ref().take(PAGES_MAX).collect();
            if batch.is_empty() {
                break;
            }
            if !self.limits.dry_run {
                // Touching one byte activates a whole huge page.
                let addresses: Vec<u64> = batch.iter().map(|run| run.start).collect();
                match activate(process.pid(), &addresses) {
                    Ok(done) => pass.calls += done.calls,
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                    Err(error) => {
                        agewise_cli::note!(
                            "process {}: cannot activate pages: {error}",
                            process.pid()
                        );
                        self.limits.activates = false;
                        break;
                    }
                }
            }
            pass.raised_bytes += batch.iter().map(|run| run.len()).sum::<u64>();
            activated.extend(batch);
        }
        known.activated = known.activated.union(&RunSet::from_runs(activated));
        self.activate_cpu += Duration::from_nanos(clock::thread_cpu_ns() - began);
        Ok(())
    }

    fn activate_cpu_left_ns(&self) -> u64 {
        let allowed = RAISE_BURST + self.began.elapsed().mul_f64(RAISE_CPU_SHARE);
        u64::try_from(allowed.saturating_sub(self.activate_cpu).as_nanos()).unwrap_or(u64::MAX)
    }

    /// The part of `pages` that is present (and, if asked, untouched) right now and may be moved.
    fn look(
        &self,
        agent: &mut Agent,
        process: &Process,
        pages: &RunSet,
        wanted: Wanted,
    ) -> anyhow::Result<Plan> {
        let target = Target::from(process);
        let mut plan = Plan::of(mover::look(agent.source(), &target, pages.runs(), wanted)?);
        let mut vmas = VmaTable::new();
        vmas.read(process.pid())?;
        vmas.mark_locked(process.pid())?;
        plan.heed(&vmas);
        Ok(plan)
    }

    fn cgroup(&self, process: &Process) -> Option<Cgroup> {
        let hierarchy = self.hierarchy.as_ref()?;
        Cgroup::of_process(hierarchy, process).ok().flatten()
    }

    fn mark(&mut self, process: &Process, new: &RunSet, pass: &mut Sorted) -> anyhow::Result<()> {
        let mut hand = KernelHand::new(process);
        let bucket = Some(&mut self.bucket);
        let (marked, error) =
            mover::mark_cold(&mut hand, new, bucket, &SystemClock, self.stop.flag());
        pass.calls += marked.calls;
        pass.sorted_bytes += marked.marked_bytes;
        pass.refused_bytes += marked.refused_bytes;
        match error {
            Some(error) => Err(error).context("cannot mark pages as cold"),
            None => Ok(()),
        }
    }
}

/// Why processes could not be looked at.
fn troubles(agent: &Agent) -> String {
    let reports = agent.report().into_iter();
    let troubles: Vec<String> = reports.flat_map(|report| report.troubles).collect();
    troubles.join("; ")
}

/// Size of a huge page (a leaf one level up).
const HUGE_BYTES: u64 = agewise_host::access::TABLE_BYTES;

/// The units of `size` bytes in these runs.
fn units_of(runs: &RunSet, size: u64) -> impl Iterator<Item = AddressRange> + '_ {
    runs.runs().iter().flat_map(move |run| {
        let starts = (run.start..run.end).step_by(size as usize);
        starts.map(move |start| AddressRange::new(start, size))
    })
}

/// Size of the active lists of a cgroup and its descendants, in bytes.
fn active_bytes(cgroup: &Cgroup) -> Option<u64> {
    let stat = cgroup.stat().ok()?;
    Some(stat.active_anon_bytes + stat.active_file_bytes)
}
