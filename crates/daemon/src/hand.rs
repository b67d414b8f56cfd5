// SPDX-License-Identifier: Apache-2.0
//! How the daemon moves memory: pageout page by page, oldest first; marking pages to go first; and
//! the kernel's own reclaim if it is available.

mod done;

use std::sync::atomic::{AtomicBool, Ordering};

use agewise_host::access::{PAGE_BYTES, kernel_page_bytes};
use agewise_host::agent::{Agent, FilesOf};
use agewise_host::clear::hand::KernelHand;
use agewise_host::clock;
use agewise_host::guest::Guests;
use agewise_host::mover::{
    self, Ages, IdleSince, PageoutError, PageoutLimits, ProcessMover, SourceRecheck, SystemClock,
};
use agewise_host::pagecache::DropLimits;
use agewise_host::process::Process;
use agewise_host::root::ProcRoot;
use agewise_policy::generations::{ByType, PageType};
use agewise_policy::oldest::OldestFirst;

pub use done::Done;
use done::Room;

/// This much is moved between two checks of accessed bits, so a check is only milliseconds old.
const CALL_BYTES: u64 = 4 << 20;
/// Files tried at a time: this delays a tick by at most 0.1 s.
const FILES_MAX: usize = 1 << 12;
/// Most passes over the processes. Beyond the first two, what the kernel keeps causes them.
const PASSES_MAX: u32 = 16;

/// Moves old memory out of processes that an agent observes.
pub struct PageOut<'a> {
    /// The agent that knows the ages.
    pub agent: &'a mut Agent,
    /// Whether memory of processes that run KVM guests goes as well.
    pub guests: Guests,
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
        let mapped_bytes = room_for_mapped(&dropped, bytes_max[1]);
        if mapped_bytes >= kernel_page_bytes() {
            // They have already been counted as tried.
            let stayed_bytes = dropped.dropped.map_or(0, |report| report.stayed_bytes);
            dropped.tried_bytes -= stayed_bytes.min(dropped.tried_bytes);
            dropped.add(self.run(pids, [None, file_ms], mapped_bytes));
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
        let cold = mover::idle_since(Agent::now_ms(), older_than_ms);
        let mut oldest_first = OldestFirst::new(self.idle_pages(pids, &cold), PASSES_MAX);
        while let Some(room) = self.room(&done, bytes_max)
            && let Some(pass) = oldest_first.next_pass(room.bytes_max / PAGE_BYTES)
        {
            let since_ms = cold.each_ref().map(|of| pass.start..pass.end.min(of.end));
            for pid in pids {
                let Some(room) = self.room(&done, bytes_max) else {
                    break;
                };
                if let Err(error) = self.run_one(*pid, &since_ms, room, &mut done) {
                    done.trouble(format!("process {pid}: {error}"));
                }
            }
        }
        done.end(bytes_max);
        done.cpu_ns = clock::thread_cpu_ns().saturating_sub(began_ns);
        done
    }

    /// What may still leave, and be looked at for it; `None` if that is nothing.
    fn room(&self, done: &Done, bytes_max: u64) -> Option<Room> {
        let is_cancelled = self.cancel.load(Ordering::Relaxed);
        done.room(bytes_max).filter(|_| !is_cancelled)
    }

    /// How many pages of these processes have been idle since each time.
    fn idle_pages(&self, pids: &[u32], since_ms: &IdleSince) -> impl Iterator<Item = (u64, u64)> {
        let spaces = pids.iter().filter_map(|pid| self.agent.space(*pid));
        spaces.flat_map(move |space| {
            let window = space.map().generations();
            PageType::ALL
                .into_iter()
                .flat_map(move |of| window.idle_pages(window.sizes(), of, &since_ms[of as usize]))
        })
    }

    fn run_one(
        &mut self,
        pid: u32,
        since_ms: &IdleSince,
        room: Room,
        done: &mut Done,
    ) -> Result<(), PageoutError> {
        let Some(process) = self.open(pid, since_ms) else {
            return Ok(());
        };
        let moved = ProcessMover::open_with(&process, self.guests)
            .and_then(|mut mover| self.move_cold(&mut mover, pid, since_ms, room, done));
        match moved {
            Err(error) if !error.is_gone() => Err(error),
            _ => Ok(()),
        }
    }

    /// The process, if it is still the one observed and has memory idle since then.
    fn open(&self, pid: u32, since_ms: &IdleSince) -> Option<Process> {
        let space = self.agent.space(pid)?;
        self.idle_pages(&[pid], since_ms).next()?;
        let process = Process::open_user(&ProcRoot::default(), pid).ok()?;
        (process.start_ticks() == space.process().start_ticks()).then_some(process)
    }

    fn move_cold(
        &mut self,
        mover: &mut ProcessMover<'_>,
        pid: u32,
        since_ms: &IdleSince,
        room: Room,
        done: &mut Done,
    ) -> Result<(), PageoutError> {
        let Some(cold) = mover::find_idle(self.agent, pid, since_ms, room.looked_at_bytes)? else {
            return Ok(());
        };
        done.young_again_bytes += cold.young_again_bytes;
        let limits = PageoutLimits {
            bytes_max: room.bytes_max,
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
        let since_ms = mover::idle_since(Agent::now_ms(), older_than_ms);
        for pid in pids {
            let room = bytes_max.saturating_sub(done.tried_bytes);
            if room == 0 {
                break;
            }
            let Some(process) = self.open(*pid, &since_ms) else {
                continue;
            };
            let found = mover::check_target(&process, self.guests)
                .and_then(|()| mover::find_idle(self.agent, *pid, &since_ms, room));
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

/// How much of the file memory that was not dropped may be mapped, and still fits `bytes_max`.
fn room_for_mapped(dropped: &Done, bytes_max: u64) -> u64 {
    let report = dropped.dropped.unwrap_or_default();
    // Also what the limit cut short may be mapped.
    let mapped_bytes = report.stayed_bytes.saturating_add(report.limited_bytes);
    // A rehearsal does not distinguish mapped pages: it has found them.
    let went_bytes = dropped
        .left_file_bytes
        .saturating_add(dropped.rehearsed_bytes);
    mapped_bytes.min(bytes_max.saturating_sub(went_bytes))
}

#[cfg(test)]
#[path = "hand_tests.rs"]
mod tests;
