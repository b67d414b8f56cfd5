// SPDX-License-Identifier: Apache-2.0
//! Moving cold memory out of a process and looking later what came back: what `reclaim`, `run`, the
//! demonstration and the benchmarks have in common.

use std::time::Duration;

use agewise_host::pageout::{
    Eviction, PageoutError, PageoutLimits, PageoutReport, Plan, ProcessMover, Recheck,
    RefaultWatch, Step, SystemClock,
};
use agewise_host::process::{Process, ProcessError};
use agewise_host::root::ProcRoot;

use crate::signal::Stop;

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

/// Moves `plan` out of `mover` within `limits`. A request to stop ends it between two calls. What
/// was done up to an error is in the report all the same.
pub fn move_out(
    mover: &mut ProcessMover<'_>,
    plan: &Plan,
    limits: PageoutLimits,
    recheck: &mut dyn Recheck,
    stop: &Stop,
    mut progress: impl FnMut(&PageoutReport),
) -> (PageoutReport, RefaultWatch, Option<PageoutError>) {
    let mut eviction = Eviction::new(plan, limits, mover, recheck, &SystemClock, stop.flag());
    let error = loop {
        match eviction.step() {
            Ok(Step::Went { .. }) => progress(eviction.report()),
            Ok(Step::Wait { ns }) => {
                stop.wait(Duration::from_nanos(ns));
            }
            Ok(Step::Done) => break None,
            Err(error) => break Some(error),
        }
    };
    (
        eviction.report().clone(),
        RefaultWatch::new(eviction.evicted()),
        error,
    )
}

/// The CPU time this process has used so far, all threads, kernel and user.
pub fn own_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
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
