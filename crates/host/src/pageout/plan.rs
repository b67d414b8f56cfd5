// SPDX-License-Identifier: Apache-2.0
//! What to page out of one address space, and within which limits.

use super::runs::{Run, RunSet};

/// Size of a huge page mapped by one entry of the page middle directory (x86-64, and others with
/// 4 KiB pages).
pub const HUGE_BYTES: u64 = 2 << 20;

/// Pages to move out. Runs are joined where they touch, overlaps count once, and what is not a
/// whole page is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    base: RunSet,
    huge: RunSet,
    partial_bytes: u64,
}

impl Plan {
    /// `base` is memory mapped by small pages, `huge` by huge ones, in any order. Of `huge` only
    /// whole huge pages are taken: a part of one could leave only by splitting it. With
    /// `split_huge` that is what is wanted, and parts are taken as well.
    pub fn new(
        base: impl IntoIterator<Item = Run>,
        huge: impl IntoIterator<Item = Run>,
        split_huge: bool,
    ) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let huge = RunSet::from_runs(huge).shrunk_to(page_bytes);
        let base = RunSet::from_runs(base)
            .shrunk_to(page_bytes)
            .subtract(&huge);
        if split_huge {
            return Self {
                base: base.union(&huge),
                huge: RunSet::default(),
                partial_bytes: 0,
            };
        }
        let whole = huge.shrunk_to(HUGE_BYTES);
        let partial_bytes = huge.bytes() - whole.bytes();
        Self {
            base,
            huge: whole,
            partial_bytes,
        }
    }

    /// Memory mapped by small pages only.
    pub fn of_base(runs: impl IntoIterator<Item = Run>) -> Self {
        Self::new(runs, [], false)
    }

    /// The small pages.
    pub fn base(&self) -> &RunSet {
        &self.base
    }

    /// The whole huge pages.
    pub fn huge(&self) -> &RunSet {
        &self.huge
    }

    /// Parts of huge pages that were asked for and are left alone.
    pub fn partial_huge_bytes(&self) -> u64 {
        self.partial_bytes
    }

    /// All that was asked for.
    pub fn asked_bytes(&self) -> u64 {
        self.base.bytes() + self.huge.bytes() + self.partial_bytes
    }

    /// Leaves out `ranges`, for example mlocked mappings. Returns how many bytes that were.
    pub fn exclude(&mut self, ranges: &RunSet) -> u64 {
        let before = self.base.bytes() + self.huge.bytes();
        self.base = self.base.subtract(ranges);
        self.huge = self.huge.subtract(ranges).shrunk_to(HUGE_BYTES);
        before - (self.base.bytes() + self.huge.bytes())
    }
}

/// Bounds of one eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageoutLimits {
    /// Most bytes handed to the kernel in all.
    pub bytes_max: u64,
    /// Most bytes in one call, at least one (huge) page. A call of 8 MiB takes some 15 ms: that is
    /// how long the accessed bits looked at before may be out of date, and how long a signal waits.
    pub call_bytes_max: u64,
    /// Average speed; `None` is as fast as it goes.
    pub rate_bytes_per_s: Option<u64>,
    /// Resident memory is not taken below this.
    pub floor_bytes: u64,
    /// Look, but do not touch.
    pub rehearse: bool,
}

impl Default for PageoutLimits {
    /// No bound but 8 MiB a call.
    fn default() -> Self {
        Self {
            bytes_max: u64::MAX,
            call_bytes_max: 8 << 20,
            rate_bytes_per_s: None,
            floor_bytes: 0,
            rehearse: false,
        }
    }
}

/// Hands out a plan in pieces that fit one call, huge pages first: they are the cheapest.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    parts: [(std::collections::VecDeque<Run>, u64); 2],
}

/// A piece: pages of one size.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub runs: RunSet,
    /// The unit that must stay whole.
    pub unit_bytes: u64,
}

impl Queue {
    pub fn new(plan: &Plan) -> Self {
        let page_bytes = rustix::param::page_size() as u64;
        let queue = |set: &RunSet| set.runs().iter().copied().collect();
        Self {
            parts: [
                (queue(&plan.huge), HUGE_BYTES),
                (queue(&plan.base), page_bytes),
            ],
        }
    }

    /// The unit of the next batch; `None` when all has been handed out.
    pub fn unit_bytes(&self) -> Option<u64> {
        self.parts
            .iter()
            .find(|part| !part.0.is_empty())
            .map(|part| part.1)
    }

    /// The next batch: at most `runs_max` runs and `bytes_max` bytes, but at least one unit.
    pub fn next(&mut self, bytes_max: u64, runs_max: usize) -> Option<Batch> {
        let (queue, unit_bytes) = self.parts.iter_mut().find(|part| !part.0.is_empty())?;
        let unit_bytes = *unit_bytes;
        let mut room = (bytes_max / unit_bytes).max(1) * unit_bytes;
        let mut runs = RunSet::default();
        while room > 0
            && runs.runs().len() < runs_max
            && let Some(run) = queue.front_mut()
        {
            let piece = Run::new(run.start, run.bytes().min(room));
            room -= piece.bytes();
            runs.push(piece);
            run.start = piece.end;
            if run.start >= run.end {
                queue.pop_front();
            }
        }
        Some(Batch { runs, unit_bytes })
    }

    /// What has not been handed out.
    pub fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .flat_map(|part| &part.0)
            .map(|run| run.bytes())
            .sum()
    }

    /// Drops what is left of the size that is next; returns how much that was.
    pub fn skip_part(&mut self) -> u64 {
        let Some((queue, _)) = self.parts.iter_mut().find(|part| !part.0.is_empty()) else {
            return 0;
        };
        queue.drain(..).map(Run::bytes).sum()
    }

    pub fn clear(&mut self) {
        for part in &mut self.parts {
            part.0.clear();
        }
    }
}
