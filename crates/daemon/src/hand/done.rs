// SPDX-License-Identifier: Apache-2.0
//! What an action of the daemon did, and what it may still do.

use agewise_host::access::kernel_page_bytes;
use agewise_host::mover::{PageoutReport, SkipReason};
use agewise_host::pagecache::DropReport;
use serde::Serialize;

/// This much more than may leave is looked at: pages that the kernel keeps, because other processes
/// map them too, are often the oldest, and must not stand in the way of those that can leave.
pub(super) const KEPT_MAX_BYTES: u64 = 64 << 20;
/// Maximum number of problems reported per action.
const TROUBLES_MAX: usize = 3;

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
    /// More was old enough than may leave, if only a huge page.
    #[serde(skip)]
    pub is_limited: bool,
}

/// How much a move may take, and look at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Room {
    pub bytes_max: u64,
    pub looked_at_bytes: u64,
}

impl Done {
    pub(super) fn trouble(&mut self, trouble: String) {
        // Each pass over a process may have the same.
        if self.troubles.len() < TROUBLES_MAX && !self.troubles.contains(&trouble) {
            self.troubles.push(trouble);
        }
    }

    pub(super) fn count(&mut self, report: &PageoutReport) {
        let skipped = |reason| report.skipped_bytes.bytes(reason);
        let untried = [
            SkipReason::Cancelled,
            SkipReason::ProcessGone,
            SkipReason::Limit,
        ];
        let untried_bytes = untried.map(skipped).iter().sum::<u64>() + report.young_again_bytes;
        self.tried_bytes += report.asked_bytes.saturating_sub(untried_bytes);
        self.is_limited |= skipped(SkipReason::Limit) > 0;
        self.young_again_bytes += report.young_again_bytes;
        self.rehearsed_bytes += report.rehearsed_bytes;
        self.rehearsed_anon_bytes += report.rehearsed_anon_bytes;
        self.left_anon_bytes += report.left_anon_bytes;
        self.left_file_bytes += report.left_file_bytes;
    }

    pub(super) fn count_dropped(&mut self, report: &DropReport) {
        let untried = [
            report.young_bytes,
            report.unknown_bytes,
            report.vanished_bytes,
            report.limited_bytes,
        ];
        let untried_bytes = untried.iter().sum();
        self.tried_bytes += report.asked_bytes.saturating_sub(untried_bytes);
        self.young_again_bytes += report.young_bytes;
        self.rehearsed_bytes += report.rehearsed_bytes;
        self.left_file_bytes += report.left_bytes;
        self.dropped = Some(*report);
    }

    /// Adds what was done later.
    pub(super) fn add(&mut self, later: Done) {
        self.tried_bytes += later.tried_bytes;
        self.young_again_bytes += later.young_again_bytes;
        self.left_anon_bytes += later.left_anon_bytes;
        self.left_file_bytes += later.left_file_bytes;
        self.rehearsed_bytes += later.rehearsed_bytes;
        self.rehearsed_anon_bytes += later.rehearsed_anon_bytes;
        self.sorted_bytes += later.sorted_bytes;
        self.cpu_ns += later.cpu_ns;
        self.dropped = later.dropped.or(self.dropped);
        self.is_limited |= later.is_limited;
        later
            .troubles
            .into_iter()
            .for_each(|text| self.trouble(text));
    }

    /// Whether there was nothing more to find within `bytes_max`: not even a page.
    pub fn found_all(&self, bytes_max: u64) -> bool {
        let unknown_bytes = self.dropped.map_or(0, |report| report.unknown_bytes);
        let left_alone_bytes = self.young_again_bytes.saturating_add(unknown_bytes);
        let found_bytes = self.tried_bytes.saturating_add(left_alone_bytes);
        !self.is_limited && found_bytes.saturating_add(kernel_page_bytes()) <= bytes_max
    }

    /// What may still leave, and be looked at for it, of `bytes_max`; `None` if that is nothing.
    pub(super) fn room(&self, bytes_max: u64) -> Option<Room> {
        let went_bytes = self.went_bytes();
        let kept_bytes = self.tried_bytes.saturating_sub(went_bytes);
        let bytes_max = bytes_max.saturating_sub(went_bytes);
        (bytes_max >= kernel_page_bytes() && kept_bytes < KEPT_MAX_BYTES).then(|| Room {
            bytes_max,
            looked_at_bytes: bytes_max.saturating_add(KEPT_MAX_BYTES - kept_bytes),
        })
    }

    /// All is done. What stayed beyond `bytes_max` took nobody's place; where a huge page is all
    /// that may go and too much, trying was in vain.
    pub(super) fn end(&mut self, bytes_max: u64) {
        self.tried_bytes = match self.is_limited && self.went_bytes() == 0 {
            true => bytes_max,
            false => self.tried_bytes.min(bytes_max),
        };
    }

    fn went_bytes(&self) -> u64 {
        self.left_bytes().saturating_add(self.rehearsed_bytes)
    }

    pub fn left_bytes(&self) -> u64 {
        self.left_anon_bytes.saturating_add(self.left_file_bytes)
    }
}
