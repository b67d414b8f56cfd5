// SPDX-License-Identifier: Apache-2.0
//! How the daemon moves memory: pageout page by page, oldest first; marking pages to go first; and
//! the kernel's own reclaim if it is available.

use std::sync::atomic::{AtomicBool, Ordering};

use agewise_host::access::{PAGE_BYTES, kernel_page_bytes};
use agewise_host::agent::{Agent, FilesOf, Space};
use agewise_host::clear::hand::KernelHand;
use agewise_host::clock;
use agewise_host::mover::{
    self, Ages, PageoutError, PageoutLimits, PageoutReport, ProcessMover, SkipReason,
    SourceRecheck, SystemClock,
};
use agewise_host::pagecache::{DropLimits, DropReport};
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_policy::generations::{ByType, LABEL_UNSEEN, PageType};
use serde::Serialize;

/// This much is moved between two checks of accessed bits, so a check is only milliseconds old.
const CALL_BYTES: u64 = 4 << 20;
/// Files tried at a time: this delays a tick by at most 0.1 s.
const FILES_MAX: usize = 1 << 12;
/// Maximum number of problems reported per action.
const TROUBLES_MAX: usize = 3;
/// The factor between the ages that are tried, from the youngest requested to the oldest known: how
/// closely "oldest first" is followed.
const AGE_STEP: f64 = 1.25;

/// What an action did, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Done {
    /// Memory that was old enough, and was checked again.
    pub tried_bytes: u64,
    /// Memory touched since then.
    pub young_again_bytes: u64,
    /// Anonymous memory that left.
    pub left_anon_bytes: u64,
    /// File memory that left.
    pub left_file_bytes: u64,
    /// Memory that would have left, or been marked, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// The part of it that would have gone to swap.
    pub rehearsed_anon_bytes: u64,
    /// Memory marked to go first.
    pub sorted_bytes: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// The result for cold pages of files, if these were selected by file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dropped: Option<DropReport>,
    /// A few of the problems.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<String>,
}

impl Done {
    fn trouble(&mut self, trouble: String) {
        if self.troubles.len() < TROUBLES_MAX {
            self.troubles.push(trouble);
        }
    }

    fn count(&mut self, report: &PageoutReport) {
        let skipped = |reason| report.skipped_bytes.bytes(reason);
        let untried = [SkipReason::Cancelled, SkipReason::ProcessGone].map(skipped);
        let untried_bytes = untried.iter().sum::<u64>() + report.young_again_bytes;
        self.tried_bytes += report.asked_bytes.saturating_sub(untried_bytes);
        self.young_again_bytes += report.young_again_bytes;
        self.rehearsed_bytes += report.rehearsed_bytes;
        self.rehearsed_anon_bytes += report.rehearsed_anon_bytes;
        self.left_anon_bytes += report.left_anon_bytes;
        self.left_file_bytes += report.left_file_bytes;
    }

    fn count_dropped(&mut self, report: &DropReport) {
        let untried_bytes = report.young_bytes + report.vanished_bytes + report.limited_bytes;
        self.tried_bytes += report.asked_bytes.saturating_sub(untried_bytes);
        self.young_again_bytes += report.young_bytes;
        self.rehearsed_bytes += report.rehearsed_bytes;
        self.left_file_bytes += report.left_bytes;
        self.dropped = Some(*report);
    }

    /// Adds what was done later.
    fn add(&mut self, later: Done) {
        self.tried_bytes += later.tried_bytes;
        self.young_again_bytes += later.young_again_bytes;
        self.left_anon_bytes += later.left_anon_bytes;
        self.left_file_bytes += later.left_file_bytes;
        self.rehearsed_bytes += later.rehearsed_bytes;
        self.rehearsed_anon_bytes += later.rehearsed_anon_bytes;
        self.sorted_bytes += later.sorted_bytes;
        self.cpu_ns += later.cpu_ns;
        self.dropped = later.dropped.or(self.dropped);
        later
            .troubles
            .into_iter()
            .for_each(|text| self.trouble(text));
    }

    /// Whether there was nothing more to find within `bytes_max`: not even a page.
    pub fn found_all(&self, bytes_max: u64) -> bool {
        let found_bytes = self.tried_bytes.saturating_add(self.young_again_bytes);
        found_bytes.saturating_add(kernel_page_bytes()) <= bytes_max
    }

    pub fn left_bytes(&self) -> u64 {
        self.left_anon_bytes.saturating_add(self.left_file_bytes)
    }
}

/// Moves old memory out of processes that an agent observes.
pub struct PageOut<'a> {
    /// The agent that knows the ages.
    pub agent: &'a mut Agent,
    /// Becomes true when the move must end.
    pub cancel: &'a AtomicBool,
    /// Whether to check everything but move nothing.
    pub rehearse: bool,
}

impl PageOut<'_> {
    /// Like [`run`](Self::run), with all file memory of a cgroup: pages that no process maps are
    /// dropped, and mapped ones are paged out. `bytes_max` limits anonymous memory and file memory.
    pub fn run_with_files(
        &mut self,
        pids: &[u32],
        files: FilesOf<'_>,
        older_than_ms: Ages,
        bytes_max: ByType<u64>,
    ) -> Done {
        let [anon_ms, file_ms] = older_than_ms;
        let mut done = match anon_ms {
            Some(_) => self.run(pids, [anon_ms, None], bytes_max[0]),
            None => Done::default(),
        };
        let Some(age_ms) = file_ms else { return done };
        let mut dropped = self.drop_files(files, age_ms, bytes_max[1]);
        // A rehearsal does not distinguish mapped pages.
        let report = dropped.dropped.unwrap_or_default();
        // Also what the limit cut short may be mapped.
        let mapped_bytes = report.stayed_bytes.saturating_add(report.limited_bytes);
        let more_bytes = bytes_max[1].saturating_sub(dropped.left_file_bytes);
        if mapped_bytes > 0 && more_bytes >= PAGE_BYTES {
            // They have already been counted as tried.
            dropped.tried_bytes -= report.stayed_bytes.min(dropped.tried_bytes);
            dropped.add(self.run(pids, [None, file_ms], more_bytes.min(mapped_bytes)));
        }
        done.add(dropped);
        done
    }

    fn drop_files(&mut self, files: FilesOf<'_>, older_than_ms: u64, bytes_max: u64) -> Done {
        let began_ns = clock::thread_cpu_ns();
        let mut done = Done::default();
        let limits = DropLimits {
            bytes_max,
            // The guard of the policies limits the rate.
            rate_bytes_per_s: u64::MAX,
            rehearse: self.rehearse,
            far: false,
            files_max: FILES_MAX,
        };
        let (agent, cancel) = (&mut *self.agent, self.cancel);
        match agent.drop_cold_files(files, older_than_ms, limits, cancel) {
            Ok(report) => done.count_dropped(&report),
            Err(error) => done.trouble(error.to_string()),
        }
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }

    /// Moves at most `bytes_max` of memory older than this out of `pids`, oldest first.
    pub fn run(&mut self, pids: &[u32], older_than_ms: Ages, bytes_max: u64) -> Done {
        let began_ns = clock::thread_cpu_ns();
        let mut done = Done::default();
        // In a rehearsal nothing leaves: one pass finds it all, a second would find it again.
        let surely = match self.rehearse {
            true => None,
            false => self.oldest_that_fit(pids, older_than_ms, bytes_max),
        };
        for ages in [surely, Some(older_than_ms)].into_iter().flatten() {
            for pid in pids {
                let went = done.tried_bytes;
                if went >= bytes_max || self.cancel.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(error) = self.run_one(*pid, ages, bytes_max - went, &mut done) {
                    done.trouble(format!("process {pid}: {error}"));
                }
            }
            if done.tried_bytes >= bytes_max || surely == Some(older_than_ms) {
                break;
            }
        }
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }

    /// The youngest ages such that all older memory fits; `None` if only part of the oldest does.
    fn oldest_that_fit(&self, pids: &[u32], older_than_ms: Ages, bytes_max: u64) -> Option<Ages> {
        let youngest_ms = older_than_ms.iter().flatten().min()?;
        let now_ms = Agent::now_ms();
        let spaces: Vec<&Space> = pids
            .iter()
            .filter_map(|pid| self.agent.space(*pid))
            .collect();
        let known = spaces.iter().filter_map(|space| {
            let window = space.map().generations();
            let first = window
                .iter()
                .next()
                .map(|(_, generation)| generation.birth_ms);
            first.or(window.unseen_since_ms())
        });
        let oldest_ms = now_ms.saturating_sub(known.min()?);
        let mut at_ms = *youngest_ms;
        loop {
            let ages = older_than_ms.map(|age| age.map(|age| age.max(at_ms)));
            let bytes: u64 = spaces
                .iter()
                .map(|space| older_bytes(space, now_ms, ages))
                .sum();
            if bytes <= bytes_max {
                return (bytes > 0).then_some(ages);
            }
            if at_ms > oldest_ms {
                return None;
            }
            at_ms = (at_ms as f64 * AGE_STEP) as u64 + 1;
        }
    }

    fn run_one(
        &mut self,
        pid: u32,
        ages: Ages,
        bytes_max: u64,
        done: &mut Done,
    ) -> Result<(), PageoutError> {
        let Some(process) = self.open(pid, ages) else {
            return Ok(());
        };
        let moved = ProcessMover::open(&process)
            .and_then(|mut mover| self.move_cold(&mut mover, pid, ages, bytes_max, done));
        match moved {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    /// The process, if it is still the one observed and has memory of these ages.
    fn open(&self, pid: u32, ages: Ages) -> Option<Process> {
        let space = self.agent.space(pid)?;
        if older_bytes(space, Agent::now_ms(), ages) == 0 {
            return None;
        }
        let process = Process::open_user(&ProcRoot::default(), pid).ok()?;
        (process.start_ticks() == space.process().start_ticks()).then_some(process)
    }

    fn move_cold(
        &mut self,
        mover: &mut ProcessMover<'_>,
        pid: u32,
        ages: Ages,
        bytes_max: u64,
        done: &mut Done,
    ) -> Result<(), PageoutError> {
        let Some(cold) = mover::find_cold(self.agent, pid, ages, bytes_max)? else {
            return Ok(());
        };
        done.young_again_bytes += cold.young_again_bytes;
        let limits = PageoutLimits {
            call_bytes_max: CALL_BYTES,
            rehearse: self.rehearse,
            swap_taken_bytes: done.rehearsed_anon_bytes,
            ..PageoutLimits::default()
        };
        let mut recheck = SourceRecheck::new(self.agent.source(), cold.target);
        let cancel = self.cancel;
        let moved = mover::move_out(mover, &cold.plan, limits, &mut recheck, cancel, |_| ());
        done.count(&moved.report);
        moved.error.map_or(Ok(()), Err)
    }

    /// Marks older memory to go first (`MADV_COLD`).
    pub fn sort(&mut self, pids: &[u32], older_than_ms: Ages, bytes_max: u64) -> Done {
        let began_ns = clock::thread_cpu_ns();
        let mut done = Done::default();
        for pid in pids {
            let room = bytes_max.saturating_sub(done.tried_bytes);
            if room == 0 {
                break;
            }
            let Some(process) = self.open(*pid, older_than_ms) else {
                continue;
            };
            let found = mover::check_target(&process)
                .and_then(|()| mover::find_cold(self.agent, *pid, older_than_ms, room));
            let cold = match found {
                Ok(Some(cold)) => cold,
                Err(error) if !error.is_gone() => {
                    done.trouble(format!("process {pid}: {error}"));
                    continue;
                }
                _ => continue,
            };
            let pages = cold.plan.pages();
            done.tried_bytes += pages.bytes();
            done.young_again_bytes += cold.young_again_bytes;
            if self.rehearse {
                done.rehearsed_bytes += pages.bytes();
                continue;
            }
            let mut hand = KernelHand::new(&process);
            let (marked, error) =
                mover::mark_cold(&mut hand, &pages, None, &SystemClock, self.cancel);
            done.sorted_bytes += marked.marked_bytes;
            if let Some(error) = error {
                done.trouble(format!("process {pid}: cannot mark: {error}"));
            }
        }
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }
}

/// Bytes of a process that are older, according to the sizes of its generations.
fn older_bytes(space: &Space, now_ms: u64, ages: Ages) -> u64 {
    let window = space.map().generations();
    let of = |page_type: PageType| {
        let age_ms = ages[page_type as usize]?;
        let (first, last) = window.labels_older_than(now_ms, age_ms)?;
        debug_assert!(first >= LABEL_UNSEEN);
        let labels = usize::from(first)..=usize::from(last);
        Some(
            window.sizes()[labels]
                .iter()
                .map(|sizes| sizes[page_type as usize])
                .sum::<u64>(),
        )
    };
    PageType::ALL.into_iter().filter_map(of).sum::<u64>() * PAGE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_to_pages_or_used_again_is_not_all_there_was() {
        let found_all = |tried_bytes, young_again_bytes, bytes_max| {
            let done = Done {
                tried_bytes,
                young_again_bytes,
                ..Done::default()
            };
            done.found_all(bytes_max)
        };
        let bytes_max = 10 * PAGE_BYTES + 5;
        assert!(!found_all(10 * PAGE_BYTES, 0, bytes_max));
        assert!(!found_all(7 * PAGE_BYTES, 3 * PAGE_BYTES, bytes_max));
        assert!(found_all(9 * PAGE_BYTES, 0, bytes_max));
        assert!(found_all(0, 0, PAGE_BYTES));
    }
}
