// SPDX-License-Identifier: Apache-2.0
//! The state of each process from which memory is moved out.

use std::time::{Duration, Instant};

use agewise_host::guest;
use agewise_host::mover::{Cold, Mover, ProcessMover, RefaultWatch};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_host::untrusted::Untrusted;
use agewise_policy::generations::PageType;

use agewise_cli::observe;
use agewise_cli::units::duration_text;

use super::Args;
use super::ends::Ends;
use super::record::{Planned, Reclaimed};

/// The state of one process.
pub(super) struct Work<'p> {
    pub(super) cold: &'p Cold,
    pub(super) process: &'p Process,
    pub(super) comm: Untrusted,
    pub(super) mover: ProcessMover<'p>,
    pub(super) result: Reclaimed,
    pub(super) watch: Option<RefaultWatch>,
    /// When the last of its memory had left.
    pub(super) left: Instant,
}

/// Gets ready to move memory out of each process that may be acted upon.
pub(super) fn open_movers<'p>(
    args: &Args,
    opened: &'p [(&'p Cold, Process)],
    ends: &mut Ends,
) -> anyhow::Result<Vec<Work<'p>>> {
    let mut works = Vec::new();
    for (cold, process) in opened {
        let pid = cold.target.pid;
        match ProcessMover::open_with(process, args.guests.into()) {
            Ok(mover) => {
                if let Some(warning) = guest::warning(&ProcRoot::default(), pid) {
                    agewise_cli::note!("{warning}");
                }
                let comm = process.comm().unwrap_or_default();
                works.push(Work {
                    cold,
                    process,
                    mover,
                    result: Reclaimed::new(pid, &comm, args.dry_run),
                    comm,
                    watch: None,
                    left: Instant::now(),
                });
            }
            // A process named by --pid must not be skipped.
            Err(error) if args.target.pid.is_some() && !error.is_gone() => {
                return Err(error.into());
            }
            Err(error) => {
                ends.count(&error);
                if !error.is_gone() {
                    agewise_cli::note!("process {pid} is left alone: {error}");
                }
            }
        }
    }
    for work in &mut works {
        work.result.resident_before_bytes = rss_bytes(&mut work.mover);
    }
    Ok(works)
}

impl Work<'_> {
    /// Counts what has come back of the memory that left.
    pub(super) fn look_what_comes_back(&mut self) {
        let Some(watch) = self.watch.as_mut().filter(|watch| !watch.is_over()) else {
            return;
        };
        let error = match watch.look(&mut self.mover) {
            Ok(_) if watch.is_over() => {
                let known = duration_text(Duration::from_millis(self.result.refault_watch_ms));
                Some(format!(
                    "gone while watched: what came back is known for {known}"
                ))
            }
            Ok(count) => {
                self.result.refaulted_bytes = count.refaulted_bytes();
                self.result.refault_watch_ms = observe::millis(self.left.elapsed());
                None
            }
            Err(error) => Some(format!("while watching: {error}")),
        };
        if self.result.error.is_empty() {
            self.result.error = error.unwrap_or_default();
        }
    }

    /// Whether the process was gone before all its memory was dealt with and watched.
    pub(super) fn is_over(&self) -> bool {
        self.result.is_cut_short() || self.watch.as_ref().is_some_and(RefaultWatch::is_over)
    }

    pub(super) fn planned(&self) -> Planned {
        Planned {
            record: "plan",
            pid: self.cold.target.pid,
            comm: self.comm.clone(),
            resident_bytes: self.result.resident_before_bytes,
            cold_anon_bytes: self.cold.bytes[PageType::Anon as usize],
            cold_file_bytes: self.cold.bytes[PageType::File as usize],
        }
    }
}

/// Resident memory in bytes; 0 if the process has exited.
pub(super) fn rss_bytes(mover: &mut ProcessMover<'_>) -> u64 {
    mover.rss_bytes().unwrap_or(0)
}

/// Resident memory of all processes together, in bytes. If they are several, memory that they share
/// counts once: each page counts by its part in each process that maps it.
pub(super) fn together_bytes(works: &[Work<'_>]) -> u64 {
    let bytes = |work: &Work<'_>| match works.len() {
        1 => work.process.rss_bytes(),
        // Kernels before 4.14 do not have it.
        _ => work
            .process
            .pss_bytes()
            .or_else(|_| work.process.rss_bytes()),
    };
    // A process that has exited has none.
    works.iter().map(|work| bytes(work).unwrap_or(0)).sum()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use agewise_cli::children::Killed;
    use agewise_host::access::Target;
    use agewise_host::mover::{Evicted, Plan};

    use super::*;

    #[test]
    fn the_time_watched_begins_when_the_memory_of_the_process_has_left() {
        let sleeper = Killed(Command::new("sleep").arg("60").spawn().expect("sleep"));
        let process = Process::open(sleeper.id()).expect("it runs");
        let cold = Cold {
            target: Target::from(&process),
            plan: Plan::default(),
            bytes: [0; 2],
            young_again_bytes: 0,
        };
        let comm = Untrusted::default();
        let mut work = Work {
            cold: &cold,
            process: &process,
            mover: ProcessMover::open(&process).expect("a child of ours"),
            result: Reclaimed::new(process.pid(), &comm, false),
            comm,
            watch: Some(RefaultWatch::new(Evicted::default())),
            left: Instant::now()
                .checked_sub(Duration::from_secs(5))
                .expect("a machine up for longer"),
        };
        work.look_what_comes_back();
        assert!(work.result.refault_watch_ms >= 5000, "{:?}", work.result);
    }
}
