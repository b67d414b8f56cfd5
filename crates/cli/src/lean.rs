// SPDX-License-Identifier: Apache-2.0
//! Moving cold memory out of a process and looking later what came back: what `reclaim`, `run`, the
//! demonstration and the benchmarks have in common.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use agewise_host::agent::{Agent, AgentConfig};
use agewise_host::eye::{
    AddressRange, EyeError, Leaf, PAGE_BYTES, Resolution, SightSink, TableSight, Target,
};
use agewise_host::pageout::{
    Evicted, Eviction, PageoutError, PageoutLimits, PageoutReport, Plan, ProcessMover, Recheck,
    Run, Step, SystemClock,
};
use agewise_host::process::{Process, ProcessError};
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use agewise_host::vma::VmaTable;
use agewise_policy::generations::PageType;
use agewise_policy::table::PAGES_PER_TABLE;
use agewise_policy::workingset::Intervals;

use crate::observe::millis;

/// Most runs of cold pages looked at in one process at a time: 24 MiB of memory for them. What lies
/// beyond waits for the next time.
const RUNS_MAX: usize = 1 << 20;
/// No wait for the rate is longer, so that an end that was asked for is noticed soon.
const NAP_MAX: Duration = Duration::from_millis(50);

/// How to observe so that memory older than `older_than` is known.
pub fn cold_config(older_than: Duration, interval: Duration) -> anyhow::Result<AgentConfig> {
    let mut bounds_ms = vec![millis(interval), millis(older_than)];
    bounds_ms.dedup();
    let mut config = AgentConfig::new(Intervals::new(bounds_ms)?);
    config.scan_interval_ms = Some(millis(interval));
    Ok(config)
}

/// Ourselves and the processes we came from: never moved out, since whoever waits for our answer
/// would pay for it.
pub fn ourselves_and_ancestors(root: &ProcRoot) -> Vec<u32> {
    let mut line = vec![std::process::id()];
    while let Some(&pid) = line.last() {
        match Process::open_in(root, pid).and_then(|process| process.stat()) {
            // /proc may change while we climb: a circle must end.
            Ok(stat) if stat.ppid > 0 && !line.contains(&stat.ppid) => line.push(stat.ppid),
            _ => break,
        }
    }
    line
}

/// What moving something out did.
#[derive(Debug)]
pub struct Moved {
    /// Asked, left, kept and skipped.
    pub report: PageoutReport,
    /// The pages that left.
    pub evicted: Evicted,
    /// Why it ended early; what was done until then is in the report all the same.
    pub error: Option<PageoutError>,
}

/// Moves `plan` out of `mover` within `limits`. When `cancel` becomes true it ends between two
/// calls; `wait` is slept in where the rate says so.
pub fn move_out(
    mover: &mut ProcessMover<'_>,
    plan: &Plan,
    limits: PageoutLimits,
    recheck: &mut dyn Recheck,
    cancel: &AtomicBool,
    mut wait: impl FnMut(Duration),
    mut progress: impl FnMut(&PageoutReport),
) -> Moved {
    let mut eviction = Eviction::new(plan, limits, mover, recheck, &SystemClock, cancel);
    let error = loop {
        match eviction.step() {
            Ok(Step::Went { .. }) => progress(eviction.report()),
            Ok(Step::Wait { ns }) => wait(Duration::from_nanos(ns).min(NAP_MAX)),
            Ok(Step::Done) => break None,
            Err(error) => break Some(error),
        }
    };
    Moved {
        report: eviction.report().clone(),
        evicted: eviction.evicted(),
        error,
    }
}

/// What is cold in one process.
#[derive(Debug)]
pub struct Cold {
    /// The process.
    pub pid: u32,
    /// When it started: a pid used again is another process.
    pub start_ticks: u64,
    /// Its name.
    pub comm: Untrusted,
    /// The pages, by the size in which they are mapped.
    pub plan: Plan,
    /// What only swap can take.
    pub anon_bytes: u64,
    /// What a file backs.
    pub file_bytes: u64,
}

/// Whether the agent's eye tells pages apart and looks without changing what the next look sees:
/// without both, a page that is in use could be taken for cold.
///
/// # Errors
/// It does not.
pub fn require_page_ages(agent: &mut Agent) -> anyhow::Result<()> {
    let abilities = agent.eye().abilities();
    anyhow::ensure!(
        abilities.resolution == Resolution::Page && !abilities.clears,
        "moving memory out needs the age of single pages, which the access source that works here ({}) does \
         not tell: run as root (`agewise doctor` says what else is missing)",
        agent.eye().name()
    );
    Ok(())
}

/// The pages of an observed process that have certainly not been touched for `older_than`: by
/// their ages, and by a look right now. `None` if the process is not observed (any more).
///
/// # Errors
/// Its page tables or mappings cannot be read.
pub fn find_cold(
    agent: &mut Agent,
    pid: u32,
    older_than: Duration,
) -> anyhow::Result<Option<Cold>> {
    let Some(space) = agent.space(pid) else {
        return Ok(None);
    };
    let older_than_ms = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
    let (mut ranges, mut is_file) = (Vec::new(), Vec::new());
    space.map().runs_older_than(
        0..u64::MAX / PAGE_BYTES,
        Agent::now_ms(),
        older_than_ms,
        |run| {
            ranges.push(AddressRange {
                start: run.pages.start * PAGE_BYTES,
                end: run.pages.end * PAGE_BYTES,
            });
            is_file.push(run.page_type == PageType::File);
            if ranges.len() < RUNS_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        },
    );
    let start_ticks = space.process().start_ticks();
    let comm = space.process().comm()?;
    let seen = see_now(agent, pid, start_ticks, &ranges, is_file, Wanted::Untouched)?;
    let mut plan = Plan::new(seen.base, seen.huge, false);
    let mut vmas = VmaTable::new();
    vmas.read(pid)?;
    vmas.mark_locked(pid)?;
    plan.exclude_unevictable(&vmas);
    let [anon_bytes, file_bytes] = seen.bytes;
    Ok(Some(Cold {
        pid,
        start_ticks,
        comm,
        plan,
        anon_bytes,
        file_bytes,
    }))
}

/// Which pages a look right now collects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those that are there.
    Present,
    /// Those that are there and were not touched since they were last cleared.
    Untouched,
}

/// What a look right now found, ascending.
#[derive(Debug)]
pub struct Seen {
    wanted: Wanted,
    /// Of each range.
    is_file: Vec<bool>,
    /// Mapped page by page.
    pub base: Vec<Run>,
    /// Mapped as huge pages.
    pub huge: Vec<Run>,
    /// Anon, file.
    pub bytes: [u64; 2],
}

/// Looks at ranges of an observed process right now; ages and accessed bits stay as they are.
///
/// # Errors
/// Its page tables cannot be read.
pub fn see_now(
    agent: &mut Agent,
    pid: u32,
    start_ticks: u64,
    ranges: &[AddressRange],
    is_file: Vec<bool>,
    wanted: Wanted,
) -> Result<Seen, EyeError> {
    let mut seen = Seen {
        wanted,
        is_file,
        base: Vec::new(),
        huge: Vec::new(),
        bytes: [0; 2],
    };
    if !ranges.is_empty() {
        let target = Target {
            pid,
            start_ticks: Some(start_ticks),
        };
        agent.eye().scan(&target, ranges, &mut seen)?;
    }
    Ok(seen)
}

impl SightSink for Seen {
    fn table(&mut self, sight: &TableSight<'_>) {
        let is_file = self.is_file.get(sight.range).copied().unwrap_or(false);
        let runs = if sight.leaf == Leaf::Page {
            &mut self.base
        } else {
            &mut self.huge
        };
        let mut open: Option<Run> = None;
        for page in 0..PAGES_PER_TABLE {
            let bit = 1u64 << (page % 64);
            let (present, young) = (sight.bits.present[page / 64], sight.bits.young[page / 64]);
            let is_wanted = match self.wanted {
                Wanted::Present => present,
                Wanted::Untouched => present & !young,
            };
            if is_wanted & bit == 0 {
                runs.extend(open.take());
                continue;
            }
            let start = sight.va + page as u64 * PAGE_BYTES;
            let run = open.get_or_insert(Run { start, end: start });
            run.end = start + PAGE_BYTES;
            self.bytes[usize::from(is_file)] += PAGE_BYTES;
        }
        runs.extend(open);
    }
}

/// The CPU time this process has used so far, all threads, kernel and user.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What children that have been waited for used, their own such children included.
#[derive(Clone, Copy, Debug, Default)]
pub struct ChildrenUsage {
    /// CPU time, kernel and user.
    pub cpu: Duration,
    /// Most resident memory of any one of them.
    pub resident_peak_bytes: u64,
}

impl ChildrenUsage {
    /// The peak, if it is a child's own: between fork and exec a child has our memory, and the
    /// kernel's maximum remembers that.
    pub fn own_peak_bytes(&self) -> u64 {
        let ours = usage(libc::RUSAGE_SELF).map_or(0, |usage| peak_bytes(&usage));
        if self.resident_peak_bytes > ours {
            self.resident_peak_bytes
        } else {
            0
        }
    }
}

fn usage(who: libc::c_int) -> Option<libc::rusage> {
    // SAFETY: rusage is plain numbers, for which zero is a value; the call writes all of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        (libc::getrusage(who, &mut usage) == 0).then_some(usage)
    }
}

/// In KiB on Linux (getrusage(2)).
fn peak_bytes(usage: &libc::rusage) -> u64 {
    (usage.ru_maxrss as u64).saturating_mul(1024)
}

/// Usage of children (getrusage(2), RUSAGE_CHILDREN).
pub fn children_usage() -> ChildrenUsage {
    let Some(usage) = usage(libc::RUSAGE_CHILDREN) else {
        return ChildrenUsage::default();
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    ChildrenUsage {
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        resident_peak_bytes: peak_bytes(&usage),
    }
}

/// Opens `pid` as something to act upon.
///
/// # Errors
/// It is gone, a kernel thread, or may not be touched.
pub fn open_target(pid: u32) -> Result<Process, ProcessError> {
    Process::open_user(&ProcRoot::default(), pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_begins_with_us_and_ends_at_the_top() {
        let line = ourselves_and_ancestors(&ProcRoot::default());
        assert_eq!(line[0], std::process::id());
        assert_eq!(line[1], std::os::unix::process::parent_id());
        assert!(line.len() >= 2 && !line.contains(&0));
    }
}
