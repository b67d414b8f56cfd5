// SPDX-License-Identifier: Apache-2.0
//! Carries out the clearing that a batch, or a whole scan, asks for.

use std::io;

use super::hand::{ClearHand, MAX_RANGES, RefsScope};
use super::runs::Run;
use super::{
    ClearError, ClearReport, Clearer, FLUSHES_ALL_BYTES, LATE_NS, LATE_PART, Mapping, Means,
    REFS_WAIT_NS, Sharing,
};
use crate::access::{AddressRange, Batch};
use crate::clock::{monotonic_ns, thread_cpu_ns};

impl Clearer {
    /// Clears what was noted of this batch, unless it was read too long ago. Then nothing is
    /// cleared, and the next scan counts the same bits as accesses once more.
    ///
    /// # Errors
    /// [`ClearError`].
    pub fn clear(&mut self, hand: &mut dyn ClearHand, batch: &Batch) -> Result<(), ClearError> {
        let late_ns = LATE_NS.max(self.policy.min_interval_ns / LATE_PART);
        if monotonic_ns().saturating_sub(batch.begin_ns) > late_ns {
            self.report.tables_late += self.notes.tables();
            self.notes.forget();
        }
        self.clear_noted(hand)
    }

    fn clear_noted(&mut self, hand: &mut dyn ClearHand) -> Result<(), ClearError> {
        if self.notes.is_empty() {
            return Ok(());
        }
        let began = thread_cpu_ns();
        let mut runs = self.notes.take_runs(self.cost.worth_bridging());
        self.hold_back(&mut runs);
        self.clear_runs(hand, &runs, began)
    }

    /// Holds one long run back if a write to `clear_refs` is expected. That write does not flush
    /// the TLB, so accesses through entries still in it would be missed. `MADV_COLD` flushes, the
    /// whole TLB if its range is long: so one such run follows the write.
    fn hold_back(&mut self, runs: &mut Vec<Run>) {
        let expected = self.last.refs_writes > 0 || self.waiting != [0; 2];
        if !expected || self.held.is_some() {
            return;
        }
        // Anonymous memory only: the flush covers the pages found young, which are not those that
        // the write has just cleared, and a write mostly clears file pages.
        let long = runs.iter().enumerate().filter(|(_, run)| {
            run.range.len() >= FLUSHES_ALL_BYTES
                && self
                    .mapping_at(run.range.start)
                    .is_some_and(|mapping| !mapping.is_file)
        });
        // The shortest, since its pages wait longest between being read and being cleared.
        if let Some((at, _)) = long.min_by_key(|(_, run)| run.range.len()) {
            self.held = Some(runs.remove(at));
        }
    }

    /// `began_ns`: CPU time of this thread when the work on these runs began.
    fn clear_runs(
        &mut self,
        hand: &mut dyn ClearHand,
        runs: &[Run],
        began_ns: u64,
    ) -> Result<(), ClearError> {
        if runs.is_empty() {
            return Ok(());
        }
        let result = self.cold(hand, runs);
        let cpu_ns = thread_cpu_ns() - began_ns;
        let pages: u64 = runs.iter().map(|run| u64::from(run.present_pages)).sum();
        self.report.cpu_ns += cpu_ns;
        self.report.range_pages += pages;
        self.report.ranges += runs.len() as u64;
        match result {
            Ok(()) => {
                self.cost.learn_cold(runs.len() as u64, pages, cpu_ns);
                Ok(())
            }
            Err(error) if is_denied(&error) && self.policy.means == Means::Auto => {
                // Use clear_refs from now on, and at the end of this scan.
                self.cold_denied = true;
                self.waiting = self.present;
                Ok(())
            }
            Err(error) => Err(ClearError::new(self.pid, error)),
        }
    }

    fn cold(&mut self, hand: &mut dyn ClearHand, runs: &[Run]) -> io::Result<()> {
        let ranges: Vec<AddressRange> = runs.iter().map(|run| run.range).collect();
        let mut rest = ranges.as_slice();
        while !rest.is_empty() {
            let batch = &rest[..rest.len().min(MAX_RANGES)];
            self.report.calls += 1;
            let done = match hand.cold(batch) {
                Ok(done) => done,
                Err(error) if is_refusal(&error) => 0,
                Err(error) => return Err(error),
            };
            let refused = usize::from(done < batch.len());
            if let Some(range) = batch.get(done) {
                self.report.ranges_refused += 1;
                if let Some(mapping) = self.mapping_at(range.start).copied() {
                    let sharing = Sharing {
                        shared: true,
                        scan: self.scan,
                    };
                    self.sharing.insert(mapping.start, sharing);
                }
            }
            rest = &rest[done + refused..];
        }
        Ok(())
    }

    /// The mapping that contains an address.
    fn mapping_at(&self, address: u64) -> Option<&Mapping> {
        let behind = self
            .mappings
            .partition_point(|mapping| mapping.start <= address);
        self.mappings.get(behind.checked_sub(1)?)
    }

    /// Ends the scan: clears the rest, by `clear_refs` where that is used.
    ///
    /// # Errors
    /// [`ClearError`].
    pub fn finish(&mut self, hand: &mut dyn ClearHand) -> Result<ClearReport, ClearError> {
        self.clear_noted(hand)?;
        let held: Vec<Run> = self.held.take().into_iter().collect();
        if self.cold_denied {
            // The run that was held back is left to `clear_refs` with the rest.
            self.waiting[0] += held.len() as u64;
        }
        if self.report.due {
            self.finish_refs(hand)?;
            self.last_clear_ns = Some(self.now_ns);
        }
        if !self.cold_denied {
            self.clear_runs(hand, &held, thread_cpu_ns())?;
        }
        let starts: Vec<u64> = self.mappings.iter().map(|mapping| mapping.start).collect();
        self.sharing
            .retain(|start, _| starts.binary_search(start).is_ok());
        self.notes.release();
        Ok(self.report)
    }

    fn finish_refs(&mut self, hand: &mut dyn ClearHand) -> Result<(), ClearError> {
        let [anon, file] = self.present;
        let (scope, pages) = match self.waiting.map(|pages| pages > 0) {
            [false, false] => return Ok(()),
            [true, false] => (RefsScope::Anon, anon),
            [false, true] => (RefsScope::File, file),
            [true, true] => (RefsScope::All, anon + file),
        };
        // A sample shows a part of what the write walks.
        let pages = match self.resident_pages {
            Some(resident) => pages.max(resident.saturating_mul(pages) / (anon + file).max(1)),
            None => pages,
        };
        let must = self.by_refs || self.cold_denied;
        if !must && self.refs_can_wait() {
            return Ok(());
        }
        if !must && !self.may_stall(self.cost.refs_ns(pages), self.now_ns) {
            self.report.uncleared_pages += pages;
            return Ok(());
        }
        let began = thread_cpu_ns();
        hand.refs(scope)
            .map_err(|error| ClearError::new(self.pid, error))?;
        let cpu_ns = thread_cpu_ns() - began;
        self.report.cpu_ns += cpu_ns;
        self.report.refs_writes += 1;
        self.cost.learn_refs(pages, cpu_ns);
        self.last_refs_ns = Some(self.now_ns);
        Ok(())
    }

    /// Whether a write can wait. It clears the pages of all mappings of its kind, including those
    /// cleared a moment ago and accessed since. For a few pages that others map too (the text of a
    /// program that runs several times), that loses more accuracy than it gains. So these pages are
    /// taken for young for a while.
    fn refs_can_wait(&self) -> bool {
        let waiting: u64 = self.waiting.iter().sum();
        let present: u64 = self.present.iter().sum();
        let since = self
            .last_refs_ns
            .map(|last| self.now_ns.saturating_sub(last));
        waiting as f64 <= self.policy.refs_wait_ratio * present as f64
            && since.is_some_and(|since| since < REFS_WAIT_NS)
    }
}

/// The kernel refused this range (locked, unmapped, hugetlb) but may accept others.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EINVAL | libc::ENOMEM | libc::EFAULT)
    )
}

fn is_denied(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS))
}
