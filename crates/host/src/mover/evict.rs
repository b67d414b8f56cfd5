// SPDX-License-Identifier: Apache-2.0
//! The eviction itself, one call at a time: look, check that the pages are still idle, move, look
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use super::pass::Pass;
use super::plan::{Batch, PageoutLimits, Plan, Queue};
use super::rate::{Clock, NAP_NS, SystemClock, TokenBucket};
use super::recheck::Recheck;
use super::report::{PageoutReport, SkipReason};
use super::runs::RunSet;
use super::space::{Mover, Present, VECTOR_MAX};
use super::target::PageoutError;
use crate::access::AddressRange;

/// Gives up after passing this many bytes in a row without any page leaving.
const STALLED_BYTES_MAX: u64 = 64 << 20;

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step dealt with `bytes` of the plan.
    Went {
        /// How many bytes of the plan.
        bytes: u64,
    },
    /// The rate limit requires a wait before the next step.
    Wait {
        /// How long to wait.
        ns: u64,
    },
    /// Nothing is left to do.
    Done,
}

/// Most runs of evicted pages remembered, of each kind: 4 MiB of memory.
const EVICTED_RUNS_MAX: usize = 1 << 18;

/// The pages that left, to check later whether they came back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evicted {
    /// Anonymous pages, now in swap.
    pub anon: RunSet,
    /// File pages.
    pub file: RunSet,
    /// Bytes that left but are not in the sets, because their number of runs is limited.
    pub untracked_bytes: u64,
}

impl Evicted {
    /// Bytes of all remembered pages.
    pub fn bytes(&self) -> u64 {
        self.anon.bytes() + self.file.bytes()
    }
}

/// The outcome of moving memory out of one process.
#[derive(Debug)]
pub struct Moved {
    /// The bytes asked for, and what became of them.
    pub report: PageoutReport,
    /// The pages that left.
    pub evicted: Evicted,
    /// The error that ended it early; the report still covers what was done until then.
    pub error: Option<PageoutError>,
}

/// Moves `plan` out of `mover` within `limits`: each batch is checked again by `recheck`, paged
/// out, and verified. It ends between two calls if `cancel` becomes true; `progress` is called
/// after each batch.
pub fn move_out(
    mover: &mut dyn Mover,
    plan: &Plan,
    limits: PageoutLimits,
    recheck: &mut dyn Recheck,
    cancel: &AtomicBool,
    progress: impl FnMut(&PageoutReport),
) -> Moved {
    let mut eviction = Eviction::new(plan, limits, mover, recheck, &SystemClock, cancel);
    let error = eviction.run(progress).err();
    let evicted = eviction.evicted();
    Moved {
        report: eviction.report,
        evicted,
        error,
    }
}

/// Runs in the order in which they left.
#[derive(Default)]
struct Trail(Vec<AddressRange>);

impl Trail {
    /// Adds runs. Returns the bytes that no longer fit.
    fn extend(&mut self, runs: &RunSet) -> u64 {
        let room = EVICTED_RUNS_MAX - self.0.len();
        let (kept, dropped) = runs.runs().split_at(room.min(runs.runs().len()));
        self.0.extend_from_slice(kept);
        dropped.iter().map(|run| run.len()).sum()
    }
}

/// An eviction in progress. It can stop between any two steps; dropping it loses only the rest of
/// the plan.
pub struct Eviction<'a> {
    mover: &'a mut dyn Mover,
    recheck: &'a mut dyn Recheck,
    clock: &'a dyn Clock,
    cancel: &'a AtomicBool,
    limits: PageoutLimits,
    queue: Queue,
    shmem: &'a RunSet,
    bucket: Option<TokenBucket>,
    started_ns: u64,
    stalled_bytes: u64,
    report: PageoutReport,
    anon_trail: Trail,
    file_trail: Trail,
    untracked_bytes: u64,
}

impl<'a> Eviction<'a> {
    /// Prepares to move `plan` out of `mover`. Nothing happens before the first step. If `cancel`
    /// becomes true, the eviction ends before the next call.
    pub fn new(
        plan: &'a Plan,
        limits: PageoutLimits,
        mover: &'a mut dyn Mover,
        recheck: &'a mut dyn Recheck,
        clock: &'a dyn Clock,
        cancel: &'a AtomicBool,
    ) -> Self {
        let started_ns = clock.now_ns();
        let report = PageoutReport {
            asked_bytes: plan.asked_bytes(),
            skipped_bytes: *plan.skipped(),
            ..Default::default()
        };
        Self {
            mover,
            recheck,
            clock,
            cancel,
            limits,
            queue: Queue::new(plan),
            shmem: plan.shmem(),
            bucket: limits
                .rate_bytes_per_s
                .map(|rate| TokenBucket::new(rate, started_ns)),
            started_ns,
            stalled_bytes: 0,
            report,
            anon_trail: Trail::default(),
            file_trail: Trail::default(),
            untracked_bytes: 0,
        }
    }

    /// The report so far; complete once a step has returned [`Step::Done`] or an error.
    pub fn report(&self) -> &PageoutReport {
        &self.report
    }

    /// The pages that have left so far.
    pub fn evicted(&self) -> Evicted {
        Evicted {
            anon: RunSet::from_runs(self.anon_trail.0.iter().copied()),
            file: RunSet::from_runs(self.file_trail.0.iter().copied()),
            untracked_bytes: self.untracked_bytes,
        }
    }

    /// Runs to the end, waiting as the rate limit requires, and calls `progress` after each step.
    /// After an error, [`Eviction::report`] has the report so far.
    pub fn run(&mut self, mut progress: impl FnMut(&PageoutReport)) -> Result<(), PageoutError> {
        loop {
            match self.step()? {
                Step::Done => return Ok(()),
                Step::Wait { ns } => self.clock.sleep_ns(ns.min(NAP_NS)),
                Step::Went { .. } => progress(&self.report),
            }
        }
    }

    /// Makes one call, or finds a reason not to. After an error nothing more is done, and the
    /// report counts the untried rest as skipped.
    pub fn step(&mut self) -> Result<Step, PageoutError> {
        let cpu_ns = self.clock.cpu_ns();
        let result = self.try_step();
        if let Err(error) = &result {
            self.end(error.skip_reason());
        }
        self.report.cpu_ns += self.clock.cpu_ns().saturating_sub(cpu_ns);
        self.report.elapsed_ns = self.clock.now_ns().saturating_sub(self.started_ns);
        match result {
            // A process that ends in the meantime is an outcome, not a failure.
            Err(error) if error.is_gone() => Ok(Step::Done),
            other => other,
        }
    }

    fn try_step(&mut self) -> Result<Step, PageoutError> {
        let Some(unit_bytes) = self.queue.unit_bytes() else {
            return Ok(Step::Done);
        };
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(self.end(SkipReason::Cancelled));
        }
        if let Some(bucket) = &mut self.bucket {
            let ns = bucket.wait_ns(self.clock.now_ns());
            if ns > 0 {
                return Ok(Step::Wait { ns });
            }
        }
        self.mover.check()?;
        let gone = self.report.left_bytes + self.report.rehearsed_bytes;
        let limit = self.limits.bytes_max.saturating_sub(gone);
        let above_floor = self.above_floor()?;
        let room = self
            .limits
            .call_bytes_max
            .max(unit_bytes)
            .min(limit)
            .min(above_floor);
        if room < unit_bytes {
            // Huge pages go first; where none fits, small pages still may.
            let reason = if limit <= above_floor {
                SkipReason::Limit
            } else {
                SkipReason::Floor
            };
            return Ok(self.skip_part(reason));
        }
        let Some(batch) = self.queue.next(room, VECTOR_MAX) else {
            return Ok(Step::Done);
        };
        let bytes = batch.runs.bytes();
        let accounted = self.report.accounted_bytes();
        if let Err(error) = self.evict(&batch) {
            // Counts the bytes of this batch that the failure left unaccounted.
            let done = self.report.accounted_bytes() - accounted;
            self.report
                .skipped_bytes
                .add(error.skip_reason(), bytes.saturating_sub(done));
            return Err(error);
        }
        if self.stalled_bytes >= STALLED_BYTES_MAX {
            return Ok(self.end(SkipReason::NoProgress));
        }
        Ok(Step::Went { bytes })
    }

    fn above_floor(&mut self) -> Result<u64, PageoutError> {
        if self.limits.floor_bytes == 0 {
            return Ok(u64::MAX);
        }
        // A rehearsal moves nothing, so subtract what would have left.
        let rss_bytes = self
            .mover
            .rss_bytes()?
            .saturating_sub(self.report.rehearsed_bytes);
        Ok(rss_bytes.saturating_sub(self.limits.floor_bytes))
    }

    /// Ends the eviction; untried bytes count under `reason`.
    fn end(&mut self, reason: SkipReason) -> Step {
        self.report.skipped_bytes.add(reason, self.queue.bytes());
        self.queue.clear();
        Step::Done
    }

    /// Skips all remaining pages of the current size.
    fn skip_part(&mut self, reason: SkipReason) -> Step {
        let bytes = self.queue.skip_part();
        self.report.skipped_bytes.add(reason, bytes);
        Step::Went { bytes }
    }

    fn evict(&mut self, batch: &Batch) -> Result<(), PageoutError> {
        let before = self.before(batch)?;
        let there = before.all();
        self.skip(SkipReason::Absent, &batch.runs.subtract(&there));
        let there = self.whole_units(there, batch.unit_bytes);
        let movable = self.with_room_in_swap(&before, there, batch.unit_bytes)?;
        let idle = self.recheck.idle(&movable)?.intersect(&movable);
        let young_bytes = movable.bytes() - idle.bytes();
        self.report.young_again_bytes += young_bytes;
        let idle = self.whole_units(idle, batch.unit_bytes);
        if self.limits.rehearse {
            self.rehearse(&idle, &before);
            return Ok(());
        }
        if idle.is_empty() {
            return Ok(());
        }
        let pass = Pass::of(&idle, self.mover, self.cancel);
        let passed = self.account(pass.passed, &before)?;
        self.report.calls += pass.calls;
        for (reason, bytes) in pass.skipped.iter() {
            self.report.skipped_bytes.add(reason, bytes);
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.take(passed);
        }
        pass.result
    }

    /// Counts what the kernel would page out, and keep.
    fn rehearse(&mut self, idle: &RunSet, before: &Present) {
        let goes = idle.subtract(&before.shared);
        let needs_swap = goes.intersect(&self.swap_backed(before));
        self.report.rehearsed_bytes += goes.bytes();
        self.report.rehearsed_anon_bytes += needs_swap.bytes();
        self.report.kept_bytes += idle.bytes() - goes.bytes();
        self.note_progress(idle.bytes(), goes.bytes());
    }

    /// The present pages that only swap can take.
    fn swap_backed(&self, before: &Present) -> RunSet {
        before.anon.union(&before.file.intersect(self.shmem))
    }

    /// Notes how much of what was tried has left.
    fn note_progress(&mut self, tried_bytes: u64, left_bytes: u64) {
        self.stalled_bytes = if left_bytes == 0 {
            self.stalled_bytes + tried_bytes
        } else {
            0
        };
    }

    /// Finds what is present of a batch. If unverified, only checks that the address space is still
    /// the same.
    fn before(&mut self, batch: &Batch) -> Result<Present, PageoutError> {
        if !self.limits.unverified {
            return self.mover.present(&batch.runs);
        }
        let first = batch.runs.runs().first();
        let first = first.map(|run| AddressRange::new(run.start, batch.unit_bytes));
        self.mover.present(&RunSet::from_runs(first))?;
        Ok(Present {
            anon: batch.runs.clone(),
            ..Present::default()
        })
    }

    /// Checks what has left of the pages passed, and returns the bytes passed.
    fn account(&mut self, passed: RunSet, before: &Present) -> Result<u64, PageoutError> {
        if self.limits.unverified {
            self.report.left_anon_bytes += passed.bytes();
            self.report.left_bytes += passed.bytes();
            return Ok(passed.bytes());
        }
        let after = match self.mover.present(&passed) {
            Ok(after) => after.all(),
            // All of it is gone, but we did not move it.
            Err(error) => {
                self.skip(error.skip_reason(), &passed);
                return match error.is_gone() {
                    true => Ok(passed.bytes()),
                    false => Err(error),
                };
            }
        };
        let left = passed.subtract(&after);
        let (anon, file) = (left.intersect(&before.anon), left.intersect(&before.file));
        let left_bytes = left.bytes();
        let to_swap = anon.bytes() + file.intersect(self.shmem).bytes();
        self.report.left_anon_bytes += to_swap;
        self.report.left_file_bytes += left_bytes - to_swap;
        self.report.left_bytes += left_bytes;
        self.report.kept_bytes += passed.bytes() - left_bytes;
        self.note_progress(passed.bytes(), left_bytes);
        self.untracked_bytes += self.anon_trail.extend(&anon) + self.file_trail.extend(&file);
        Ok(passed.bytes())
    }

    fn skip(&mut self, reason: SkipReason, runs: &RunSet) {
        self.report.skipped_bytes.add(reason, runs.bytes());
    }

    /// Skips partial huge pages: split, or only partly idle or present.
    fn whole_units(&mut self, runs: RunSet, unit_bytes: u64) -> RunSet {
        let whole = runs.shrunk_to(unit_bytes);
        self.report
            .skipped_bytes
            .add(SkipReason::PartialHuge, runs.bytes() - whole.bytes());
        whole
    }

    /// Skips anonymous pages and shared memory beyond the free swap space. The kernel would unmap
    /// shared memory without room in swap, and keep it.
    fn with_room_in_swap(
        &mut self,
        before: &Present,
        there: RunSet,
        unit_bytes: u64,
    ) -> Result<RunSet, PageoutError> {
        let anon = there.intersect(&self.swap_backed(before));
        if anon.is_empty() {
            return Ok(there);
        }
        // A rehearsal takes no swap, so subtract what would have been taken.
        let taken = self.limits.swap_taken_bytes + self.report.rehearsed_anon_bytes;
        let free = self.mover.swap_free_bytes()?.saturating_sub(taken);
        let mut room = free / unit_bytes * unit_bytes;
        let mut fits = RunSet::default();
        for run in anon.runs() {
            let piece = AddressRange::new(run.start, run.len().min(room));
            room -= piece.len();
            fits.push(piece);
        }
        let stays = anon.subtract(&fits);
        self.skip(SkipReason::NoSwap, &stays);
        Ok(there.subtract(&stays))
    }
}

#[cfg(test)]
mod tests;
