// SPDX-License-Identifier: Apache-2.0
//! The report of an eviction. Every byte asked for is counted in exactly one place.

use std::fmt;

use serde::Serialize;

/// Why bytes were not even tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SkipReason {
    /// Already swapped out or dropped, or never touched.
    Absent,
    /// No longer mapped.
    Hole,
    /// mlocked, hugetlb or device memory, which the kernel does not page out.
    Unevictable,
    /// Part of a huge page, which would have to be split.
    PartialHuge,
    /// Anonymous or shared memory, without free swap space.
    NoSwap,
    /// Beyond the byte limit.
    Limit,
    /// Evicting it would have taken resident memory below the floor.
    Floor,
    /// The caller cancelled.
    Cancelled,
    /// The process has exited or replaced itself (exec).
    ProcessGone,
    /// Several calls in a row evicted nothing.
    NoProgress,
    /// The system refused; the error gives the reason.
    Failed,
    /// The process does not answer. What was passed to the kernel last may leave later.
    Unanswered,
}

impl SkipReason {
    /// All reasons in report order.
    pub const ALL: [Self; 12] = [
        Self::Absent,
        Self::Hole,
        Self::Unevictable,
        Self::PartialHuge,
        Self::NoSwap,
        Self::Limit,
        Self::Floor,
        Self::Cancelled,
        Self::ProcessGone,
        Self::NoProgress,
        Self::Failed,
        Self::Unanswered,
    ];

    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            Self::Absent => "absent",
            Self::Hole => "hole",
            Self::Unevictable => "unevictable",
            Self::PartialHuge => "partial_huge",
            Self::NoSwap => "no_swap",
            Self::Limit => "limit",
            Self::Floor => "floor",
            Self::Cancelled => "cancelled",
            Self::ProcessGone => "process_gone",
            Self::NoProgress => "no_progress",
            Self::Failed => "failed",
            Self::Unanswered => "unanswered",
        }
    }

    /// An explanation for users.
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Absent => "already out, or never touched",
            Self::Hole => "no longer mapped",
            Self::Unevictable => "mlocked, hugetlb or device memory",
            Self::PartialHuge => "part of a huge page, which is not split",
            Self::NoSwap => "needs swap; none is free, or memory.swap.max allows no more",
            Self::Limit => "beyond the limit of bytes",
            Self::Floor => "kept resident as asked",
            Self::Cancelled => "stopped before",
            Self::ProcessGone => "the process exited or replaced itself",
            Self::NoProgress => "given up: nothing was leaving",
            Self::Failed => "the system refused",
            Self::Unanswered => "the process does not answer; some of it may leave later",
        }
    }
}

/// Bytes not tried, by reason.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped([u64; SkipReason::ALL.len()]);

impl Skipped {
    /// Counts `bytes` under `reason`.
    pub fn add(&mut self, reason: SkipReason, bytes: u64) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_add(bytes);
    }

    /// Bytes skipped for `reason`.
    pub fn bytes(&self, reason: SkipReason) -> u64 {
        self.0[reason as usize]
    }

    /// Bytes skipped for any reason.
    pub fn total_bytes(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The reasons that occurred, in report order.
    pub fn iter(&self) -> impl Iterator<Item = (SkipReason, u64)> + '_ {
        SkipReason::ALL
            .into_iter()
            .map(|reason| (reason, self.bytes(reason)))
            .filter(|r| r.1 > 0)
    }
}

impl fmt::Debug for Skipped {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Skipped {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(reason, bytes)| (reason.name(), bytes)))
    }
}

/// The report of an eviction.
///
/// `asked_bytes = young_again_bytes + skipped_bytes (all reasons) + rehearsed_bytes + left_bytes
/// + kept_bytes` holds once it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PageoutReport {
    pub asked_bytes: u64,
    /// Touched since they were found cold, as seen right before the call; not moved.
    pub young_again_bytes: u64,
    /// Not tried.
    pub skipped_bytes: Skipped,
    /// What would have left, in a rehearsal.
    pub rehearsed_bytes: u64,
    /// The part of `rehearsed_bytes` that would have gone to swap.
    pub rehearsed_anon_bytes: u64,
    /// Present before the call and absent after it: `left_anon_bytes + left_file_bytes`.
    pub left_bytes: u64,
    /// The part of `left_bytes` that went to swap: private and shared memory, tmpfs.
    pub left_anon_bytes: u64,
    /// The part of `left_bytes` that was of files. It has left the process; a dirty page stays in
    /// the page cache until it has been written back.
    pub left_file_bytes: u64,
    /// Tried but still present: mapped by others too, pinned, under writeback, swap or a cgroup
    /// limit full, or touched again at once. In a rehearsal: mapped by others too.
    pub kept_bytes: u64,
    /// System calls that move memory.
    pub calls: u64,
    /// CPU time of this thread, including the looks before and after.
    pub cpu_ns: u64,
    /// Wall-clock time, including waits for the rate limit.
    pub elapsed_ns: u64,
}

impl PageoutReport {
    /// Adds the report of another process or part.
    pub fn add(&mut self, other: &Self) {
        for (reason, bytes) in other.skipped_bytes.iter() {
            self.skipped_bytes.add(reason, bytes);
        }
        for (sum, more) in [
            (&mut self.asked_bytes, other.asked_bytes),
            (&mut self.young_again_bytes, other.young_again_bytes),
            (&mut self.rehearsed_bytes, other.rehearsed_bytes),
            (&mut self.rehearsed_anon_bytes, other.rehearsed_anon_bytes),
            (&mut self.left_bytes, other.left_bytes),
            (&mut self.left_anon_bytes, other.left_anon_bytes),
            (&mut self.left_file_bytes, other.left_file_bytes),
            (&mut self.kept_bytes, other.kept_bytes),
            (&mut self.calls, other.calls),
            (&mut self.cpu_ns, other.cpu_ns),
            (&mut self.elapsed_ns, other.elapsed_ns),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Sum of all outcomes; equals `asked_bytes` at the end.
    pub fn accounted_bytes(&self) -> u64 {
        [
            self.young_again_bytes,
            self.skipped_bytes.total_bytes(),
            self.rehearsed_bytes,
            self.left_bytes,
            self.kept_bytes,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    /// CPU time per page of `page_bytes` that left; `None` if nothing left.
    pub fn cpu_ns_per_page(&self, page_bytes: u64) -> Option<f64> {
        let pages = self.left_bytes.checked_div(page_bytes)?;
        (pages > 0).then(|| self.cpu_ns as f64 / pages as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_their_names_and_sums() {
        let mut skipped = Skipped::default();
        for (index, reason) in SkipReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index, "counts are kept by position");
            assert!(!reason.explanation().is_empty());
            skipped.add(reason, 1 << index);
        }
        assert_eq!(skipped.total_bytes(), (1 << SkipReason::ALL.len()) - 1);
        skipped.add(SkipReason::Hole, u64::MAX);
        assert_eq!(skipped.bytes(SkipReason::Hole), u64::MAX);
        assert_eq!(skipped.total_bytes(), u64::MAX);
    }

    #[test]
    fn reports_add_up() {
        let mut skipped_bytes = Skipped::default();
        skipped_bytes.add(SkipReason::Floor, 8);
        let one = PageoutReport {
            asked_bytes: 31,
            young_again_bytes: 1,
            skipped_bytes,
            rehearsed_bytes: 2,
            rehearsed_anon_bytes: 1,
            left_bytes: 4,
            left_anon_bytes: 3,
            left_file_bytes: 1,
            kept_bytes: 16,
            calls: 1,
            cpu_ns: 5,
            elapsed_ns: 6,
        };
        let mut sum = one.clone();
        sum.add(&one);
        assert_eq!(sum.accounted_bytes(), sum.asked_bytes);
        assert_eq!((sum.calls, sum.cpu_ns, sum.left_file_bytes), (2, 10, 2));
        assert_eq!(sum.cpu_ns_per_page(4), Some(5.0));
        assert_eq!(PageoutReport::default().cpu_ns_per_page(4096), None);
        assert_eq!(one.cpu_ns_per_page(0), None);
    }
}
